"""The specification: the equation of blanks.py, eager and dense. Every engine is measured against it.

Shapes: B batch, T queries, S keys, H heads, D and E head widths. Only the plain form of a blank is called here, never
the `fast_` form beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from poscli.equation.encoding import Encoding
from poscli.equation.operands import Operands


def reference(encoding: Encoding, x: Operands) -> Tensor:
    """Attention output `[B, H, T, E]` of any encoding, in the dtype of the operands."""
    p_BHTS = weights(encoding, x, scores(encoding, x))
    o_BHTE = p_BHTS @ x.v_BHSE
    return o_BHTE + relative_values(encoding, x, p_BHTS) if "relative_values" in encoding.blanks else o_BHTE


def scores(encoding: Encoding, x: Operands) -> Tensor:
    """Scores before the softmax, `[B, H, T, S]`, -inf where a key is hidden."""
    s_BHTS = encoding.similarity(x) * encoding.scale
    for blank, term in TERMS.items():
        if blank in encoding.blanks:
            s_BHTS = s_BHTS + term(encoding, x)
    return tempered(x, s_BHTS).masked_fill(~x.visible(), -math.inf)


def tempered(x: Operands, of_queries: Tensor) -> Tensor:
    """A tensor with one entry per query, `[B, H, T, ...]`, times the temperature of each query."""
    if x.temperature_HT is None:
        return of_queries
    return of_queries * x.temperature_HT[..., None].to(of_queries.dtype)


def met_by_queries(encoding: Encoding, x: Operands) -> Tensor:
    """q_i . a[i-j] * scale, `[B, H, T, S]`."""
    a_HTSD = x.at_distances(encoding.relative_keys).to(x.q_BHTD.dtype)
    q_BHTD = encoding.relative_query(x.raw_q_BHTD).to(x.q_BHTD.dtype)
    return (a_HTSD @ q_BHTD[..., None]).squeeze(-1) * encoding.scale


def met_by_keys(encoding: Encoding, x: Operands) -> Tensor:
    """k_j . b[i-j] * scale, `[B, H, T, S]`."""
    b_HTSD = x.at_distances(encoding.relative_queries).to(x.q_BHTD.dtype)
    return (b_HTSD * x.raw_k_BHSD[:, :, None]).sum(-1) * encoding.scale


def distance_bias(encoding: Encoding, x: Operands) -> Tensor:
    """The term that depends on the distance alone, `[H or 1, T, S]`."""
    return x.at_distances(encoding.distance_bias).to(x.q_BHTD.dtype)


def relative_values(encoding: Encoding, x: Operands, p_BHTS: Tensor) -> Tensor:
    """sum_j p_ij c[i-j], `[B, H, T, E]`."""
    c_HTSE = x.at_distances(encoding.relative_values).to(p_BHTS.dtype)
    return (p_BHTS[..., None, :] @ c_HTSE).squeeze(-2)


def potential(encoding: Encoding, x: Operands) -> Tensor:
    """c_i - c_j, `[B, H, T, S]` in the dtype of the queries; the difference is taken in float64, as c may be large."""
    assert x.features_BHSF is not None
    c_BHS = encoding.potential(x.features_BHSF)
    return (c_BHS[..., x.keys - x.queries :, None] - c_BHS[..., None, :]).to(x.q_BHTD.dtype)


def pair_bias(encoding: Encoding, x: Operands) -> Tensor:
    """The term that depends on both tokens, `[H, T, S]` or `[B, H, T, S]`, in the dtype of the queries."""
    return encoding.bias(x.pos_T, x.pos_S, x.features_of_queries, x.features_BHSF).to(x.q_BHTD.dtype)


def weights(encoding: Encoding, x: Operands, s_BHTS: Tensor) -> Tensor:
    """Attention weights `[B, H, T, S]` from scores: `scores`, `weights` and `reweight` of the encoding in turn."""
    if "scores" in encoding.blanks:
        hidden = s_BHTS == -math.inf  # keys in the future, and those beyond a window
        s_BHTS = encoding.scores(s_BHTS, x).masked_fill(hidden, -math.inf)
    p_BHTS = encoding.weights(s_BHTS)
    if "reweight" in encoding.blanks:
        p_BHTS = encoding.reweight(p_BHTS, x.distances())
    assert p_BHTS.shape == torch.Size((*x.q_BHTD.shape[:3], x.keys))
    return p_BHTS


# The terms added to q . k, by the blank that fills each.
TERMS: dict[str, Callable[[Encoding, Operands], Tensor]] = {
    "relative_keys": met_by_queries,
    "relative_queries": met_by_keys,
    "distance_bias": distance_bias,
    "potential": potential,
    "bias": pair_bias,
}
