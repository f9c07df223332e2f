"""The engine `triton`, for training on CUDA: flash attention with the gradient of a learned number per distance.

Torch's own kernels are the default on CUDA. They have no gradient for a bias, so `sdpa` computes that gradient chunk by
chunk; this engine takes the encodings whose bias is a learned table, where its kernels were tried on the device and
equal the formula. Triton is imported when a kernel first runs. With TRITON_INTERPRET=1 in the environment the same
kernels run on CPU, to be tested there.
"""

from __future__ import annotations

import os
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from poscli.attention import selfcheck
from poscli.attention.biases import even_distances
from poscli.attention.place import BlockSizes, Place, added_refused
from poscli.equation import Encoding, Operands
from poscli.equation.blanks import not_computed_by
from poscli.equation.reference import tempered

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = range(16, 129)  # head widths of the model; an encoding may widen queries and keys further

# The width of the queries and keys that an encoding returns; found once, because every call of a layer asks for it.
_widths: WeakKeyDictionary[Encoding, int] = WeakKeyDictionary()


def refuses(encoding: Encoding, place: Place) -> str:
    """Why the kernels cannot run an encoding in a place; '' if they can."""
    blanks = encoding.blanks
    if place.device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"runs on CUDA devices, this is {place.device}"
    if reason := selfcheck.unavailable():
        return reason
    if place.dtype not in DTYPES:
        return f"takes float32, bfloat16 and float16, not {str(place.dtype).removeprefix('torch.')}"
    if place.width not in WIDTHS:
        return f"takes heads of {WIDTHS[0]} to {WIDTHS[-1]} numbers, not {place.width}"
    if others := not_computed_by("triton", blanks):
        return f"adds a number per distance to the scores, and nothing else ({', '.join(others)})"
    if "distance_bias" not in blanks:
        return "there is nothing to add to the scores, and torch's own kernel is as fast then"
    if reason := added_refused(encoding):
        return reason
    if not place.gradient or not any(parameter.requires_grad for parameter in encoding.parameters()):
        return "its numbers per distance need no gradient, and torch's own kernels take them as they are"
    return ""


def fault(encoding: Encoding, place: Place) -> str:
    """What a trial found wrong with the kernels that an encoding needs on the device of a place; '' if nothing is.

    Where the place names no device, nothing is tried.
    """
    if place.here is None:
        return ""
    if encoding not in _widths:
        at = encoding.shape
        with torch.no_grad():
            zeros = torch.zeros(1, at.heads, 1, at.head_width, dtype=place.dtype, device=place.here)
            _widths[encoding] = encoding.key(zeros, torch.arange(1, device=place.here)).shape[-1]
    return selfcheck.trial_fault(selfcheck.Variant(place.dtype, _widths[encoding], place.width), place.here)


def run(encoding: Encoding, x: Operands, _: BlockSizes) -> Tensor:
    """Attention output `[B, H, T, E]` of an encoding that is not refused. The kernels choose their own tiles."""
    from poscli.attention.triton_kernels import flash

    table_HN = encoding.distance_bias(even_distances(x))
    return flash(tempered(x, x.q_BHTD), x.k_BHSD, x.v_BHSE, table_HN, encoding.scale)
