"""The board: every encoding ranked as far as the evidence goes.

Read in this order: season.toml (what is trained, scored and ranked), season.py (as objects), cells.py (the results,
one file for each model and text), gather.py (from runs to cells), progress.py (which are missing), ranking.py (who is
shown to be better than whom), standings.py (from cells to rows), tables.py and build.py (as files). recommend.py
answers a person with constraints. An encoding of one's own enters by enter.py and bundle.py. literature.py has what
others measured, and agree.py holds it against ours.
"""
