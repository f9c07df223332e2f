"""The engine `flex`, torch's FlexAttention (Dong et al., 2024, arXiv:2412.05496): for comparison, run only on request.

The gradient of a table that the score function captures is summed with atomics, so two runs differ in the last bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from poscli.attention.biases import even_distances, potentials
from poscli.attention.place import SINKS_REFUSED, BlockSizes, Place, added_refused
from poscli.equation import Encoding, Operands
from poscli.equation.blanks import not_computed_by
from poscli.equation.reference import tempered

Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def refuses(encoding: Encoding, place: Place) -> str:
    """Why FlexAttention cannot run an encoding in a place; '' if it can."""
    if place.device not in ("cpu", "cuda"):
        return f"runs on CUDA devices, and without a gradient on CPU; this is {place.device}"
    if place.device == "cpu" and place.gradient:
        return "has no backward pass on CPU"
    if place.device == "cuda" and place.width < 16:
        return f"takes heads of 16 numbers or more on CUDA, not {place.width}"
    if acts := [blank for blank in not_computed_by("flex", encoding.blanks) if blank != "sinks"]:
        return f"a score function sees one pair and its score ({', '.join(acts)})"
    if reason := added_refused(encoding):
        return reason
    return SINKS_REFUSED if encoding.sinks and encoding.reach else ""


def run(encoding: Encoding, x: Operands, _: BlockSizes) -> Tensor:
    """Attention output `[B, H, T, E]` of an encoding that is not refused; eager and dense on CPU, for tests."""
    attention = _compiled() if x.q_BHTD.is_cuda else _flex().flex_attention
    q, k, v = tempered(x, x.q_BHTD), x.k_BHSD, x.v_BHSE
    mask = _block_mask(x.queries, x.keys, x.reach or x.keys, q.device)
    score = _score(encoding, x)
    # Prefetching what the score function loads, a number per pair, would need more shared memory than a GPU has.
    options = {"num_stages": 1} if score else None
    with warnings.catch_warnings():
        # Torch's compiler looks at the gradient of every tensor that it is given.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
        out: Tensor = attention(q, k, v, score_mod=score, block_mask=mask, scale=encoding.scale, kernel_options=options)
    return out


def _score(encoding: Encoding, x: Operands) -> Score | None:
    """The function that adds a pair's distance bias and c_i - c_j to its score; None if there is nothing to add."""
    table, potential = None, potentials(encoding, x)
    if "distance_bias" in encoding.blanks:
        table = encoding.distance_bias(even_distances(x)).float().expand(x.q_BHTD.shape[1], -1)
    if potential is not None:
        # In two parts: one float32 would lose the small difference of two long sums. The second needs no gradient. The
        # first is copied for the keys, because the compiler takes no tensor with a gradient at two indices.
        high = potential.float()
        of_keys, low = high.clone(), (potential - high).float().detach()
    if table is None and potential is None:
        return None
    before = x.keys - x.queries

    def score(s: Tensor, b: Tensor, h: Tensor, t: Tensor, j: Tensor) -> Tensor:
        i = t + before
        if table is not None:
            s = s + table[h, (i - j).clamp(min=0)]
        if potential is not None:
            s = s + ((high[b, h, i] - of_keys[b, h, j]) + (low[b, h, i] - low[b, h, j]))
        return s

    return score


def _block_mask(queries: int, keys: int, reach: int, device: torch.device) -> Any:
    """The mask of visible pairs, by blocks; FlexAttention skips a block in which no pair is visible."""

    def seen(b: Tensor, h: Tensor, t: Tensor, j: Tensor) -> Tensor:
        apart = t + (keys - queries) - j
        return (apart >= 0) & (apart < reach)

    return _flex().create_block_mask(seen, None, None, queries, keys, device=str(device))


@cache
def _compiled() -> Any:
    return torch.compile(_flex().flex_attention)


def _flex() -> Any:
    from torch.nn.attention import flex_attention  # takes seconds: it imports the compiler

    return flex_attention
