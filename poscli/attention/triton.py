"""The engine `triton`: flash attention that reads a number or a vector per distance, on CUDA.

Triton is imported when a kernel first runs. With TRITON_INTERPRET=1 in the environment the same kernels run on CPU,
thousands of times slower, to be tested there.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from poscli.attention import selfcheck
from poscli.attention.biases import even_distances
from poscli.attention.place import ON_GRID_REFUSED, SINKS_REFUSED, Place, blanks_refused
from poscli.attention.selfcheck import Trial
from poscli.attention.sizes import BlockSizes
from poscli.equation import Encoding, Operands
from poscli.equation.reference import TERMS, tempered

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = range(16, 129)  # head widths of the model; an encoding may widen queries and keys further

# What each encoding needs in a place, and with which of its parameters learning.
_needed: WeakKeyDictionary[Encoding, dict[tuple[Place, tuple[bool, ...]], list[Trial]]] = WeakKeyDictionary()


def refuses(encoding: Encoding, place: Place) -> str:
    """Why the kernels cannot run an encoding in a place; '' if they can."""
    return _place_refused(place) or _encoding_refused(encoding)


def _place_refused(place: Place) -> str:
    if place.device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"runs on CUDA devices, this is {place.device}"
    if reason := selfcheck.unavailable():
        return reason
    if place.dtype not in DTYPES:
        return f"takes float32, bfloat16 and float16, not {str(place.dtype).removeprefix('torch.')}"
    if place.width not in WIDTHS:
        return f"takes heads of {WIDTHS[0]} to {WIDTHS[-1]} numbers, not {place.width}"
    return ""


def _encoding_refused(encoding: Encoding) -> str:
    if reason := blanks_refused(encoding, "triton"):
        return reason
    added = encoding.blanks & TERMS.keys()
    if encoding.axes == 2 and added:
        return ON_GRID_REFUSED
    if not added and "reach" not in encoding.blanks:
        return "there is nothing to add to the scores, and torch's own kernel is as fast then"
    if "temperature" in encoding.blanks and added:
        return "a temperature multiplies what is added to the scores"
    if "positions" in encoding.blanks and added - {"potential"}:
        return "distances may be uneven"
    return SINKS_REFUSED if encoding.sinks and encoding.reach else ""


def fault(encoding: Encoding, place: Place) -> str:
    """What trials found wrong with the kernels that an encoding needs on the device of a place; '' if nothing is.

    Where the place names no device, nothing is tried.
    """
    if place.here is None:
        return ""
    return next(filter(None, (selfcheck.fault(trial, place.here) for trial in _trials(encoding, place))), "")


def _trials(encoding: Encoding, place: Place) -> list[Trial]:
    """The variants of the kernels that an encoding needs; they are found once, because this is asked at every call."""
    from poscli.attention.trials import variants

    known = _needed.setdefault(encoding, {})
    key = place, tuple(parameter.requires_grad for parameter in encoding.parameters())
    if key not in known:
        known[key] = [*variants(encoding, place)]
    return known[key]


def run(encoding: Encoding, x: Operands, _: BlockSizes) -> Tensor:
    """Attention output `[B, H, T, E]` of an encoding that is not refused. The kernels choose their own tiles."""
    from poscli.attention.kernels.decode import decode
    from poscli.attention.kernels.flash import flash

    q, terms = tempered(x, x.q_BHTD), score_terms(encoding, x)
    tensors = [y for y in (q, x.k_BHSD, x.v_BHSE, *terms.values()) if isinstance(y, Tensor)]
    learns = torch.is_grad_enabled() and any(y.requires_grad for y in tensors)
    attention = decode if x.queries == 1 and not learns else flash
    return attention(q, x.k_BHSD, x.v_BHSE, scale=encoding.scale, reach=x.reach, **terms)


def score_terms(encoding: Encoding, x: Operands) -> dict[str, Any]:
    """The inputs of all terms that are added to q . k, under the parameter names of `flash`."""
    blanks = encoding.blanks
    terms: dict[str, Any] = {}
    if "distance_bias" in blanks:
        terms["table"] = encoding.distance_bias(even_distances(x))
    if "relative_keys" in blanks:
        terms["a"] = encoding.relative_keys(even_distances(x))
        terms["q_met"] = encoding.relative_query(x.raw_q_BHTD)
    if "relative_queries" in blanks:
        terms["b"], terms["k_met"] = encoding.relative_queries(even_distances(x)), x.raw_k_BHSD
    if "potential" in blanks:
        assert x.features_BHSF is not None
        terms["potential"] = encoding.potential(x.features_BHSF)
    return terms
