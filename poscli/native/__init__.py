"""C++ kernels, compiled for the CPU at hand and proven before they serve.

attention.h states the equation, and library.py how the kernels are compiled, proven and kept.
"""

from poscli.native.library import library, why_not

__all__ = ["library", "why_not"]
