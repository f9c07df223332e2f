"""Attention engines: the equation, computed fast.

One engine is chosen for an encoding, the first in `ENGINES` that can run it. Results record the engine, and the reason
why each faster one was passed over. Files: engines.py (one call, the table of engines, the choice), place.py (what
engines are told); skew.py and biases.py (biases as views); the engines native.py, tiles.py, sdpa.py, blocks.py, flex.py
and triton.py, with triton_kernels.py and selfcheck.py (whether those kernels are right on this device).
"""

from poscli.attention.engines import ENGINES, Choice, Engine, attend, choose, engines_for
from poscli.attention.place import BlockSizes, Place
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
