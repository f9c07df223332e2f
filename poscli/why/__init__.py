"""Why a model breaks on long windows, and whether it uses them.

An analysis is a function from a model and a sample of windows (sample.py) to the rows of a table. attribution.py asks
which property of a long window breaks a model, with the engine of crowd.py; context_use.py, how far back the text lies
that it uses; dilution.py, over how many keys its attention spreads. explain.py makes all of them and writes their
tables, for `poscli extrapolate --why`.
"""
