"""The specification: the equation of blanks.py, eager and dense. Every engine is measured against it.

Read in this order: `operands` fills the token blanks, `scores` adds up the terms, `weights` has the blanks of rows, and
`reference` is attention with all of them.

Shapes: B batch, T queries, S keys, H heads, D and E head widths. Only the plain form of a blank is called here, never
the `fast_` form beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from poscli.equation.blanks import see_positions
from poscli.equation.encoding import Encoding
from poscli.equation.operands import Operands, Positions
from poscli.system.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Reused:
    """What a call takes over from earlier calls for the same text."""

    keys_BHSD: Tensor | None = None  # the blank `key` of all keys
    by_distance: dict[str, Tensor] | None = None  # as in `Operands`


def operands(
    encoding: Encoding,
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSE: Tensor,
    positions: Positions,
    features_BHSF: Tensor | None = None,
    reused: Reused | None = None,
) -> Operands:
    """The inputs of an engine, from queries, keys and values as projected and the token blanks that change these.

    `positions` come from `Encoding.locate`, and `features_BHSF` from the blank `features`; `output` is left to the
    caller. UsageError if the encoding takes rows and columns of a grid and the positions lie on a line, or vice versa.
    """
    keys, queries = k_BHSD.shape[2], q_BHTD.shape[2]
    if see_positions(encoding.blanks) and positions.pos.ndim != encoding.axes:
        takes = "rows and columns of a grid, [S, 2]" if encoding.axes == 2 else "positions along a line, [S]"
        raise UsageError(
            f"{encoding.name} takes {takes}, and was given {list(positions.pos.shape)}; encoding.locate(...) makes them"
        )
    pos_T = positions.pos[keys - queries :]
    reused = reused or Reused()
    query_BHTD = encoding.query(encoding.content_query(q_BHTD), pos_T)
    key_BHSD = encoding.key(k_BHSD, positions.of_keys) if reused.keys_BHSD is None else reused.keys_BHSD
    if "phase" in encoding.blanks:
        assert features_BHSF is not None
        turns = cos_and_sin(encoding.phase(features_BHSF), query_BHTD.dtype)
        query_BHTD = rotated(query_BHTD, *(x_BHSP[:, :, keys - queries :] for x_BHSP in turns))
        key_BHSD = rotated(key_BHSD, *turns)
    return Operands(
        q_BHTD=query_BHTD,
        k_BHSD=key_BHSD,
        v_BHSE=encoding.value(v_BHSE, positions.of_keys),
        raw_q_BHTD=q_BHTD,
        raw_k_BHSD=k_BHSD,
        pos_S=positions.of_keys,
        pos_of_queries_T=None if positions.shown is None else pos_T,
        step=positions.step,
        columns=positions.columns,
        reach=encoding.reach,
        sinks=encoding.sinks if encoding.reach else 0,  # without a reach every key is visible
        features_BHSF=features_BHSF,
        by_distance=reused.by_distance,
        temperature_HT=temperature(encoding, queries, keys, q_BHTD.device),
        null_score_H=encoding.null_score() if "null_score" in encoding.blanks else None,
    )


def cos_and_sin(angle: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of angles in float64, in a dtype.

    Whole turns are taken off in float64, where a large angle keeps its digits; the rest needs no more than float32.
    """
    turns = (angle.detach() / math.tau).round()
    rest = (angle - turns * math.tau).to(torch.promote_types(dtype, torch.float32))
    return rest.cos().to(dtype), rest.sin().to(dtype)


def rotated(x_BHTD: Tensor, cos_BHTP: Tensor, sin_BHTP: Tensor) -> Tensor:
    """Queries or keys whose channels m and m + P are turned by the angle m; further channels stay as they are."""
    pairs = cos_BHTP.shape[-1]
    a, b, rest = x_BHTD[..., :pairs], x_BHTD[..., pairs : 2 * pairs], x_BHTD[..., 2 * pairs :]
    return torch.cat([a * cos_BHTP - b * sin_BHTP, b * cos_BHTP + a * sin_BHTP, rest], dim=-1)


def temperature(encoding: Encoding, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """The factor `[H or 1, T]` on the scores of each query, from the number of keys that the query sees."""
    if "temperature" not in encoding.blanks:
        return None
    n = torch.arange(keys - queries + 1, keys + 1, device=device)
    return encoding.temperature(n if encoding.reach is None else n.clamp(max=encoding.reach + encoding.sinks))


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
    q_BHTD = encoding.relative_query(x.raw_q_BHTD, x.features_of_queries).to(x.q_BHTD.dtype)
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
    p_BHTS = beside_null(encoding.weights, s_BHTS, x)
    if "reweight" in encoding.blanks:
        p_BHTS = encoding.reweight(p_BHTS, x.distances())
    assert p_BHTS.shape == torch.Size((*x.q_BHTD.shape[:3], x.keys))
    return p_BHTS


def beside_null(weights: Callable[[Tensor], Tensor], s_BHTS: Tensor, x: Operands) -> Tensor:
    """The weights of the keys by a function of scores, which sees that of the null key, too, as if it came first."""
    if x.null_score_H is None:
        return weights(s_BHTS)
    null_BHT1 = x.null_score_H.to(s_BHTS.dtype)[:, None, None].expand(*s_BHTS.shape[:3], 1)
    return weights(torch.cat([null_BHT1, s_BHTS], dim=-1))[..., 1:]


# The terms added to q . k, by the blank that fills each.
TERMS: dict[str, Callable[[Encoding, Operands], Tensor]] = {
    "relative_keys": met_by_queries,
    "relative_queries": met_by_keys,
    "distance_bias": distance_bias,
    "potential": potential,
    "bias": pair_bias,
}
