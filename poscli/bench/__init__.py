"""Speed and memory of every encoding and engine, beside `none` in the same turns and beside the machine's own limits.

Read in this order: settings.py (what is measured), work.py (what runs), measure.py (in turns), memory.py (before and
while), session.py (the whole), peers.py (another library), table.py (what the columns mean), pictures.py.
"""
