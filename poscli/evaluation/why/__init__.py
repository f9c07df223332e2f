"""Why a model breaks on long windows, and whether it uses them: analyses that need forward passes of their own.

Every file is one analysis: a function from a model and a sample of windows to rows of a table, which `poscli
extrapolate --why` writes. sample.py has the windows and the loss of a model on them.
"""
