"""The attention equation: its blanks and its specification.

Read in this order: blanks.py (the equation and every blank), encoding.py (the base class of all encodings),
operands.py (the inputs of one attention call), reference.py (the specification that every engine is measured against),
composed.py (several encodings on one layer) and shapes.py (whether a filled blank returns what it declares).
"""

from poscli.equation.blanks import BLANKS, TIERS
from poscli.equation.encoding import Encoding, Length, Option, Shape, Unsupported
from poscli.equation.operands import Operands, Positions

__all__ = ["BLANKS", "TIERS", "Encoding", "Length", "Operands", "Option", "Positions", "Shape", "Unsupported"]
