"""The specification: the equation of `encodings/blanks.py`, eager and dense. Every engine is measured against it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from poscli.attention.operands import Operands


def reference(x: Operands) -> Tensor:
    """Attention output `[B, H, T, E]` of any encoding, in the dtype of the operands."""
    p_BHTS = weights(x, scores(x))
    o_BHTE = p_BHTS @ x.v_BHSE
    return o_BHTE + relative_values(x, p_BHTS) if "relative_values" in x.encoding.blanks else o_BHTE


def scores(x: Operands) -> Tensor:
    """Scores before the softmax, `[B, H, T, S]`, -inf where a key is hidden."""
    s_BHTS = x.encoding.similarity(x) * x.encoding.scale
    for blank, term in TERMS.items():
        if blank in x.encoding.blanks:
            s_BHTS = s_BHTS + term(x)
    return tempered(x, s_BHTS).masked_fill(~x.visible(), -math.inf)


def tempered(x: Operands, of_queries: Tensor) -> Tensor:
    """Something per query `[B, H, T, ...]` times the temperature of each."""
    if x.temperature_HT is None:
        return of_queries
    return of_queries * x.temperature_HT[..., None].to(of_queries.dtype)


def met_by_queries(x: Operands) -> Tensor:
    """q_i . a[i-j] * scale, `[B, H, T, S]`."""
    a_HTSD = x.at_distances(x.encoding.relative_keys).to(x.q_BHTD.dtype)
    q_BHTD = x.encoding.relative_query(x.raw_q_BHTD).to(x.q_BHTD.dtype)
    return (a_HTSD @ q_BHTD[..., None]).squeeze(-1) * x.encoding.scale


def met_by_keys(x: Operands) -> Tensor:
    """k_j . b[i-j] * scale, `[B, H, T, S]`."""
    b_HTSD = x.at_distances(x.encoding.relative_queries).to(x.q_BHTD.dtype)
    return (b_HTSD * x.raw_k_BHSD[:, :, None]).sum(-1) * x.encoding.scale


def distance_bias(x: Operands) -> Tensor:
    """The term of the distance, `[H or 1, T, S]`."""
    return x.at_distances(x.encoding.distance_bias).to(x.q_BHTD.dtype)


def relative_values(x: Operands, p_BHTS: Tensor) -> Tensor:
    """sum_j p_ij c[i-j], `[B, H, T, E]`."""
    c_HTSE = x.at_distances(x.encoding.relative_values).to(p_BHTS.dtype)
    return (p_BHTS[..., None, :] @ c_HTSE).squeeze(-2)


def potential(x: Operands) -> Tensor:
    """C_i - c_j, `[B, H, T, S]` in the dtype of the queries; a difference of float64, or long texts would lose it."""
    assert x.features_BHSF is not None
    c_BHS = x.encoding.potential(x.features_BHSF)
    return (c_BHS[..., x.keys - x.queries :, None] - c_BHS[..., None, :]).to(x.q_BHTD.dtype)


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
        s_BHTS = encoding.scores(s_BHTS, x).masked_fill(hidden, -math.inf)
    p_BHTS = encoding.weights(s_BHTS)
    if "mix" in encoding.blanks:
        p_BHTS = encoding.mix(p_BHTS, x.distances())
    assert p_BHTS.shape == torch.Size((*x.q_BHTD.shape[:3], x.keys))
    return p_BHTS


# what is added to q . k, by the blank that fills it
TERMS: dict[str, Callable[[Operands], Tensor]] = {
    "relative_keys": met_by_queries,
    "relative_queries": met_by_keys,
    "distance_bias": distance_bias,
    "potential": potential,
    "bias": pair_bias,
}
