"""The board: every encoding ranked as far as the evidence goes.

Read in this order: season.toml (what is trained, scored and ranked), season.py (as objects), cells.py (the results,
one file for each model and text), gather.py (from runs to cells), ranking.py (from cells to ranks).
"""
