"""Attention without the causal mask: every query sees every key.

Only encodings of the token tier are defined there. The formulas of all others are written for keys at or before the
query, such as functions of a distance that is never negative.

Shapes: B batch, T queries, S keys, H heads, E head width of values.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from poscli.attention import BlockSizes, Engine
from poscli.equation import Encoding, Operands
from poscli.model.transformer import Model


def refusal(encoding: Encoding, _: object = None) -> str:
    """Why an encoding is not defined without the mask; '' if it is."""
    if encoding.tier == "token":
        return ""
    return "its terms of the scores are defined only for keys that are not later than the query"


def attention(encoding: Encoding, x: Operands, _: BlockSizes) -> Tensor:
    """softmax(q_i . k_j * scale * temperature) v_j over all keys, `[B, H, T, E]`.

    Without the mask every query sees as many keys as the last one does, so all have the temperature of the last query.
    """
    s_BHTS = x.q_BHTD @ x.k_BHSD.mT * encoding.scale
    if x.temperature_HT is not None:
        s_BHTS = s_BHTS * x.temperature_HT[:, -1:, None].to(s_BHTS.dtype)
    return torch.softmax(s_BHTS, dim=-1) @ x.v_BHSE


UNMASKED = Engine("unmasked", attention, refusal, "eager, every key visible to every query")


def without_mask(model: Model) -> Model:
    """A copy of the model in which every query of every layer sees all keys; UsageError where that is not defined."""
    unmasked = copy.deepcopy(model)
    unmasked.use_engine(UNMASKED)
    return unmasked
