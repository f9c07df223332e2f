"""Attention: how the equation of poscli/equation/blanks.py is computed fast; poscli/equation/reference.py specifies it.

One engine is chosen for an encoding, the first in `ENGINES` that can run it. Results record the engine, and the reason
why each faster one was passed over. Files, in this order: call.py (one call), engines.py (the table and the choice),
place.py and sizes.py (what engines are told); skew.py and biases.py (biases as views); fused.py (torch's kernels); the
engines sdpa.py, blocks.py, tiled.py with tile_inputs.py, flex.py, and triton.py with triton_kernels.py and selfcheck.py
(whether those kernels are right on this device).
"""

from poscli.attention.call import attend
from poscli.attention.engines import ENGINES, Choice, Engine, choose, engines_for
from poscli.attention.place import Place
from poscli.attention.sizes import BlockSizes
from poscli.equation.reference import Reused

__all__ = [
    "ENGINES",
    "BlockSizes",
    "Choice",
    "Engine",
    "Place",
    "Reused",
    "attend",
    "choose",
    "engines_for",
]
