"""The specification: the equation of `encodings/base.py`, eager and dense. Every engine is measured against it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from poscli.attention.operands import Operands


def reference(x: Operands) -> Tensor:
    """Attention output `[B, H, T, E]` of any encoding, in the dtype of the operands."""
    p_BHTS = weights(x, scores(x))
    o_BHTE = p_BHTS @ x.v_BHSE
    if "relative_values" in x.encoding.blanks:
        c_HTSE = x.at_distances(x.encoding.relative_values).to(p_BHTS.dtype)
        o_BHTE = o_BHTE + (p_BHTS[..., None, :] @ c_HTSE).squeeze(-2)
    return o_BHTE


def scores(x: Operands) -> Tensor:
    """Scores before the softmax, `[B, H, T, S]`, -inf where a key lies in the future."""
    encoding = x.encoding
    s_BHTS = x.q_BHTD @ x.k_BHSD.mT
    if "relative_keys" in encoding.blanks:
        a_HTSD = x.at_distances(encoding.relative_keys).to(s_BHTS.dtype)
        q_BHTD = encoding.relative_query(x.raw_q_BHTD).to(s_BHTS.dtype)
        s_BHTS = s_BHTS + (a_HTSD @ q_BHTD[..., None]).squeeze(-1)
    if "relative_queries" in encoding.blanks:
        b_HTSD = x.at_distances(encoding.relative_queries).to(s_BHTS.dtype)
        s_BHTS = s_BHTS + (b_HTSD * x.raw_k_BHSD[:, :, None]).sum(-1)
    s_BHTS = s_BHTS * encoding.scale
    if "distance_bias" in encoding.blanks:
        s_BHTS = s_BHTS + x.at_distances(encoding.distance_bias).to(s_BHTS.dtype)
    if "bias" in encoding.blanks:
        s_BHTS = s_BHTS + pair_bias(x)
    return s_BHTS.masked_fill(~x.visible(), -math.inf)


def pair_bias(x: Operands) -> Tensor:
    """The pair term `[H, T, S]` or `[B, H, T, S]` in the dtype of the queries."""
    f_j = x.features_BHSF
    f_i = None if f_j is None else f_j[:, :, x.keys - x.queries :]
    return x.encoding.bias(x.pos_T, x.pos_S, f_i, f_j).to(x.q_BHTD.dtype)


def weights(x: Operands, s_BHTS: Tensor) -> Tensor:
    """Attention weights from scores: the softmax and whatever the encoding does before, instead and after."""
    encoding = x.encoding
    if "scores" in encoding.blanks:
        hidden = s_BHTS == -math.inf  # the future, and what a window hides
        s_BHTS = encoding.scores(s_BHTS, x.q_BHTD).masked_fill(hidden, -math.inf)
    p_BHTS = encoding.weights(s_BHTS)
    if "mix" in encoding.blanks:
        p_BHTS = encoding.mix(p_BHTS, x.distances())
    assert p_BHTS.shape == torch.Size((*x.q_BHTD.shape[:3], x.keys))
    return p_BHTS
