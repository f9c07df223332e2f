"""The engine for encodings that see whole rows of scores, or add vectors to the values: O(block x length) memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from poscli.attention.biases import BIASES, biased_blocks, distances
from poscli.attention.operands import Operands
from poscli.attention.reference import relative_values, tempered
from poscli.attention.skew import descending, unskew


@dataclass(frozen=True, kw_only=True)
class Remembering(Operands):
    """Operands of a block of queries, and what an encoding keeps there for the next one: blocks come in order."""

    memo: dict[Any, Tensor] = field(default_factory=dict)


def blocks(x: Operands) -> Tensor:
    """Attention output `[B, H, T, E]` of any encoding."""
    x = Remembering(**{part.name: getattr(x, part.name) for part in fields(x)})
    if torch.is_grad_enabled():
        return torch.cat([_block(block, bias) for block, bias in biased_blocks(x, dense=True)], dim=2)
    # many small results, kept between large numbers of growing size, would leave holes that none of those fits
    out_BHTE, start = x.q_BHTD.new_empty(*x.q_BHTD.shape[:3], x.v_BHSE.shape[3]), 0
    for block, bias in biased_blocks(x, dense=True):
        out_BHTE[:, :, start : start + block.queries] = _block(block, bias)
        start += block.queries
    return out_BHTE


def _block(x: Operands, bias: Tensor) -> Tensor:
    p_BHTS = _weights(x, _scores(x, bias), bias)
    o_BHTE = p_BHTS @ x.v_BHSE
    if "relative_values" not in x.encoding.blanks:
        return o_BHTE
    if x.step is None:
        return o_BHTE + relative_values(x, p_BHTS)
    c_HND = descending(x.encoding.relative_values(distances(x)), x.queries, fill=0)
    by_distance = unskew(p_BHTS.flip(2), c_HND.shape[1])
    return o_BHTE + (by_distance @ c_HND.to(p_BHTS.dtype)).flip(2)


def _scores(x: Operands, bias: Tensor) -> Tensor:
    """Scores `[B, H, T, S]`, -inf where a key is hidden: every pass over them counts."""
    if "similarity" in x.encoding.blanks:
        s_BHTS = tempered(x, x.encoding.similarity(x) * x.encoding.scale)
    else:
        s_BHTS = tempered(x, x.q_BHTD * x.encoding.scale) @ x.k_BHSD.mT
    return s_BHTS.add_(bias.flip(-2))


def _weights(x: Operands, s_BHTS: Tensor, bias: Tensor) -> Tensor:
    encoding = x.encoding
    if "scores" in encoding.blanks:
        s_BHTS = _hidden(x, encoding.scores(s_BHTS, x), bias)
    p_BHTS = encoding.weights(s_BHTS)
    return encoding.mix(p_BHTS, x.distances()) if "mix" in encoding.blanks else p_BHTS


def _hidden(x: Operands, s_BHTS: Tensor, bias: Tensor) -> Tensor:
    """Scores with -inf where the bias has it."""
    if torch.is_grad_enabled():  # what `scores` returns may be needed for its gradient
        return s_BHTS.masked_fill(bias.flip(-2) == -math.inf, -math.inf)
    first = 0 if x.encoding.blanks & BIASES else x.keys - x.queries  # with none, only the future is hidden
    s_BHTS[..., first:].masked_fill_(bias[..., first:].flip(-2) == -math.inf, -math.inf)
    return s_BHTS
