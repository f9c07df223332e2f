"""What each encoding costs in time and memory, beside a model without one.

Read in this order: settings.py (what a user may ask for), cases.py (which models, workloads and lengths, and which of
them get a status in place of a number), workloads.py (what is timed), timing.py (how), limits.py (the best that the
machine can do), session.py (a bench from start to end), breakdown.py (where the time goes), tables.py (the result
files) and show.py (tables on the terminal, and pictures). Other implementations are timed beside poscli by
`benchmarks/against.py`.
"""
