"""The attention equation with named blanks. An encoding fills some of them; every other one is the identity.

    x_i  = embed(x_i, i)
    q_i  = query(q_i, i)      k_j = key(k_j, j)      v_j = value(v_j, j)
    s_ij = ((q_i . k_j + q_i . a[i-j] + k_j . b[i-j]) * scale + t_ij) * temperature(n_i)
    t_ij = distance_bias[h, i-j] + potential_i - potential_j + bias(i, j)
    o_i  = output( sum_j weights(scores(s))_ij (v_j + c[i-j]), i )

B batch, T queries, S keys (the queries are the last T of the S tokens), H heads, D head width, W model width, F
features, n distances. Positions are arguments everywhere: int64 `[T]` as counted by the model, or whatever `positions`
makes of them. Distances d = i - j are never negative: attention is causal, in the order of the tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from poscli.attention.operands import Operands

# Blanks by what they may see. The highest tier that an encoding touches decides which engines can run it.
TIERS: dict[str, tuple[str, ...]] = {
    "token": ("positions", "embed", "content_query", "query", "key", "value", "output", "features", "temperature"),
    "distance": ("distance_bias", "reach"),
    "relative": ("relative_keys", "relative_queries", "relative_values"),
    "pair": ("potential", "bias"),
    "row": ("similarity", "scores", "weights", "mix"),
}
BLANKS = tuple(blank for blanks in TIERS.values() for blank in blanks)


class Blanks(nn.Module):
    """Every blank, left empty."""

    # token tier: one token and its position
    def positions(self, index: Tensor) -> Tensor:
        """Positions that the formulas see, from the tokens' order `[S]` (int64) in the sequence."""
        return index

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        """The input of layer 1, from token embeddings of unit variance per number (and the tokens' ids)."""
        return x_BTW

    def content_query(self, q_BHTD: Tensor) -> Tensor:
        """The query that meets keys, before its position touches it (Transformer-XL's q + u)."""
        return q_BHTD

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        """Queries; may come back wider than D if the keys do too. The last position is that of the last key."""
        return q_BHTD

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        """Keys, from the projection (that is what a cache holds)."""
        return k_BHSD

    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        return v_BHSD

    def output(self, o_BHTD: Tensor, pos: Tensor) -> Tensor:
        """What a query gets back, before the output projection."""
        return o_BHTD

    def features(self, x_BTW: Tensor) -> Tensor:
        """Further numbers per token `[B, H, T, F]`, made of the layer's input, cached beside k and v."""
        raise NotImplementedError

    def temperature(self, n: Tensor) -> Tensor:
        """A factor `[H or 1, T]` on the scores of queries that see n tokens `[T]`, themselves among them."""
        raise NotImplementedError

    # distance tier: one number per head and distance
    def distance_bias(self, d: Tensor) -> Tensor:
        """A term of the scores, `[H or 1, n]`, for distances `[n]`."""
        raise NotImplementedError

    @property
    def reach(self) -> int | None:
        """How many tokens a query sees, itself among them, in the order of the tokens; None: all."""
        return None

    # relative tier: one vector per distance
    def relative_query(self, q_BHTD: Tensor) -> Tensor:
        """The query that meets `relative_keys`, from the projection."""
        return q_BHTD

    def relative_keys(self, d: Tensor) -> Tensor:
        """Vectors a `[H or 1, n, D]` that a query meets at distances `[n]`."""
        raise NotImplementedError

    def relative_queries(self, d: Tensor) -> Tensor:
        """Vectors b `[H or 1, n, D]` that a key (from the projection) meets."""
        raise NotImplementedError

    def relative_values(self, d: Tensor) -> Tensor:
        """Vectors c `[H or 1, n, D]` added to the values."""
        raise NotImplementedError

    # pair tier: two tokens
    def potential(self, f_BHSF: Tensor) -> Tensor:
        """A number c `[B, H, S]` in float64 of each token, from the features: its scores are added c_i - c_j."""
        raise NotImplementedError

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        """A term of the scores `[H, T, S]` or `[B, H, T, S]` for positions `[T]`, `[S]` and their features."""
        raise NotImplementedError

    # row tier: a whole row of scores
    def similarity(self, x: Operands) -> Tensor:
        """What stands for q_i . k_j, `[B, H, T, S]`, where it is not a product of one query and one key."""
        return x.q_BHTD @ x.k_BHSD.mT

    def scores(self, s_BHTS: Tensor, x: Operands) -> Tensor:
        """Scores from scores; hidden keys come as -inf, and are hidden again afterwards."""
        return s_BHTS

    def weights(self, s_BHTS: Tensor) -> Tensor:
        """Attention weights from scores: the softmax, unless replaced."""
        return torch.softmax(s_BHTS, dim=-1)

    def mix(self, p_BHTS: Tensor, d_TS: Tensor) -> Tensor:
        """Attention weights after the softmax, with the distances they stand at (0 for hidden keys)."""
        return p_BHTS
