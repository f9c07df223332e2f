"""C++ kernels, compiled for the CPU at hand and proven before they serve.

attention.h states the equation, and library.py how the kernels are compiled, proven and kept.
"""

from poscli.native.attention import attention_to_part, native_attention
from poscli.native.call import (
    QUERIES,
    Block,
    Costs,
    Factors,
    Form,
    Gates,
    Mixing,
    Part,
    Parts,
    Pieces,
    Relative,
    Stick,
    Term,
    Vectors,
    Visible,
)
from poscli.native.library import library, why_not

__all__ = [
    "QUERIES",
    "Block",
    "Costs",
    "Factors",
    "Form",
    "Gates",
    "Mixing",
    "Part",
    "Parts",
    "Pieces",
    "Relative",
    "Stick",
    "Term",
    "Vectors",
    "Visible",
    "attention_to_part",
    "library",
    "native_attention",
    "why_not",
]
