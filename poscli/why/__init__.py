"""Why a model breaks on long windows, and whether it uses them: analyses that need forward passes of their own.

An analysis is a file with a function from a model and a sample of windows to rows of a table: attribution.py,
saturation.py, receptive.py, dilution.py and key_tokens.py. explain.py makes them all and writes their tables, for
`poscli extrapolate --why`. sample.py has the windows and the loss of a model on them, few.py takes some of them where
each is expensive, input_gradient.py has the gradient that receptive.py reads, and moved.py and crowd.py make the
changed models of attribution.py.
"""
