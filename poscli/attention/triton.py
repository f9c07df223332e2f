"""The engine of the Triton kernels: flash attention that reads a number or a vector per distance, on CUDA.

Triton is imported when a kernel first runs. With TRITON_INTERPRET=1 in the environment the same kernels run on CPU,
thousands of times slower, to be tested there.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from poscli.attention.biases import distances
from poscli.attention.operands import Operands
from poscli.attention.reference import tempered
from poscli.encodings import TIERS, Encoding

if TYPE_CHECKING:
    from poscli.attention import Place

ADDED = {"distance_bias", "relative_keys", "relative_queries", "potential"}  # blanks that the kernels add to the scores
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = range(16, 129)  # of a head of the model; encodings may widen q and k


def refuses(encoding: Encoding, place: Place) -> str:
    """Why the kernels cannot run an encoding in a place; '' if they can."""
    return _place_refused(place) or _encoding_refused(encoding)


def _place_refused(place: Place) -> str:
    if place.device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"runs on CUDA devices, this is {place.device}"
    if find_spec("triton") is None:
        return "triton is not installed"
    if place.dtype not in DTYPES:
        return f"takes float32, bfloat16 and float16, not {str(place.dtype).removeprefix('torch.')}"
    if place.width not in WIDTHS:
        return f"takes heads of {WIDTHS[0]} to {WIDTHS[-1]} numbers, not {place.width}"
    return ""


def _encoding_refused(encoding: Encoding) -> str:
    if acts := sorted(encoding.blanks & {*TIERS["row"], "relative_values"}):
        return f"needs whole rows of scores ({', '.join(acts)})"
    if "bias" in encoding.blanks:
        return "the bias of a pair is no function of its distance"
    if not encoding.blanks & {*ADDED, "reach"}:
        return "there is nothing to add to the scores, and torch's own kernel is as fast then"
    if "temperature" in encoding.blanks and encoding.blanks & ADDED:
        return "a temperature multiplies what is added to the scores"
    if "positions" in encoding.blanks and encoding.blanks & {"distance_bias", "relative_keys", "relative_queries"}:
        return "distances may be uneven"
    return ""


def run(x: Operands) -> Tensor:
    """Attention output `[B, H, T, E]` of an encoding that is not refused."""
    from poscli.attention.kernels.decode import decode
    from poscli.attention.kernels.flash import flash

    q, terms = tempered(x, x.q_BHTD), added(x)
    tensors = [y for y in (q, x.k_BHSD, x.v_BHSE, *terms.values()) if isinstance(y, Tensor)]
    learns = torch.is_grad_enabled() and any(y.requires_grad for y in tensors)
    attention = decode if x.queries == 1 and not learns else flash
    return attention(q, x.k_BHSD, x.v_BHSE, scale=x.encoding.scale, reach=x.encoding.reach, **terms)


def added(x: Operands) -> dict[str, Any]:
    """What stands beside q . k, by the names of `flash`."""
    encoding, blanks = x.encoding, x.encoding.blanks
    terms: dict[str, Any] = {}
    if "distance_bias" in blanks:
        terms["table"] = encoding.distance_bias(distances(x))
    if "relative_keys" in blanks:
        terms["a"] = encoding.relative_keys(distances(x))
        terms["q_met"] = encoding.relative_query(x.raw_q_BHTD)
    if "relative_queries" in blanks:
        terms["b"], terms["k_met"] = encoding.relative_queries(distances(x)), x.raw_k_BHSD
    if "potential" in blanks:
        assert x.features_BHSF is not None
        terms["potential"] = encoding.potential(x.features_BHSF)
    return terms
