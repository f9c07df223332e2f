"""The property sheet of an encoding: everything in it is measured on random input, nothing is read from a declaration.

Read in this order: sheet.py (all rows of an encoding), row.py (one row, and how its numbers are written),
tested_model.py (the model whose encoding is measured), and a file for each measurement: shift.py, order.py (with
unmasked.py), parameters.py, cost.py, safe_length.py and drift.py.
"""

from poscli.inspect.properties.row import Property
from poscli.inspect.properties.sheet import Properties, measure_properties

__all__ = ["Properties", "Property", "measure_properties"]
