"""The engine of torch's FlexAttention (Dong et al., 2024, arXiv:2412.05496): a yardstick, run where it is asked for.

Its gradient for the table that a score function captures is summed with atomics, so two runs differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from poscli.attention.operands import Operands
from poscli.attention.reference import tempered
from poscli.attention.triton import ADDED, added
from poscli.encodings import TIERS, Encoding

if TYPE_CHECKING:
    from poscli.attention import Place

Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def refuses(encoding: Encoding, place: Place) -> str:
    """Why FlexAttention cannot run an encoding in a place; '' if it can."""
    if place.device not in ("cpu", "cuda"):
        return f"runs on CUDA devices, and without a gradient on CPU; this is {place.device}"
    if place.device == "cpu" and place.gradient:
        return "has no backward pass on CPU"
    if place.device == "cuda" and place.width < 16:
        return f"takes heads of 16 numbers or more on CUDA, not {place.width}"
    if acts := sorted(encoding.blanks & {*TIERS["row"], *TIERS["relative"], "bias"}):
        return f"a score function sees one pair and its score ({', '.join(acts)})"
    if "temperature" in encoding.blanks and encoding.blanks & ADDED:
        return "a temperature multiplies what is added to the scores"
    if "positions" in encoding.blanks and "distance_bias" in encoding.blanks:
        return "distances may be uneven"
    return ""


def run(x: Operands) -> Tensor:
    """Attention output `[B, H, T, E]` of an encoding that is not refused; compiled on CUDA, eager and dense on CPU."""
    attention = _compiled() if x.q_BHTD.is_cuda else _flex().flex_attention
    q, k, v = tempered(x, x.q_BHTD), x.k_BHSD, x.v_BHSE
    mask = _block_mask(x.queries, x.keys, x.encoding.reach or x.keys, q.device)
    out: Tensor = attention(q, k, v, score_mod=_score(x), block_mask=mask, scale=x.encoding.scale)
    return out


def _score(x: Operands) -> Score | None:
    """The function of a pair's score that adds what depends on the distance, and c_i - c_j."""
    terms, before = added(x), x.keys - x.queries
    if not terms:
        return None
    table, potential = terms.get("table"), terms.get("potential")
    table = None if table is None else table.float().expand(x.q_BHTD.shape[1], -1)
    if potential is not None:  # in two parts, as float32 would lose the difference of two sums from the start
        high = potential.float()
        low = (potential - high).float()

    def score(s: Tensor, b: Tensor, h: Tensor, t: Tensor, j: Tensor) -> Tensor:
        i = t + before
        if table is not None:
            s = s + table[h, (i - j).clamp(min=0)]
        if potential is not None:
            s = s + ((high[b, h, i] - high[b, h, j]) + (low[b, h, i] - low[b, h, j]))
        return s

    return score


def _block_mask(queries: int, keys: int, reach: int, device: torch.device) -> Any:
    """What is hidden, by blocks: those that no query sees are skipped."""

    def seen(b: Tensor, h: Tensor, t: Tensor, j: Tensor) -> Tensor:
        apart = t + (keys - queries) - j
        return (apart >= 0) & (apart < reach)

    return _flex().create_block_mask(seen, None, None, queries, keys, device=str(device))


@cache
def _compiled() -> Any:
    return torch.compile(_flex().flex_attention)


def _flex() -> Any:
    from torch.nn.attention import flex_attention  # imports the compiler: seconds

    return flex_attention
