"""The attention equation with named blanks. An encoding fills some of them; every other blank is the identity.

    x_i  = embed(x_i, i)                              before the first layer
    q_i  = query(content_query(q_i), i)               k_j = key(k_j, j)               v_j = value(v_j, j)
    s_ij = (similarity(q_i, k_j) + relative_query(q_i) . a[i-j] + k_j . b[i-j]) * scale       (q, k as projected)
           + distance_bias[h, i-j] + potential_i - potential_j + bias(i, j)
    s_ij = s_ij * temperature(n_i)                    n_i is the number of keys that query i sees
    s_ij = -inf                                       where j > i, or where i-j >= reach and j >= sinks
    p_ij = reweight(weights(scores(s))_ij, i-j)       weights is the softmax, similarity is q_i . k_j
    o_i  = output( sum_j p_ij (v_j + c[i-j]), i )

a, b and c are the blanks `relative_keys`, `relative_queries` and `relative_values`; i and j are positions, made by the
blank `positions` of the tokens' order, except for `reach` and `sinks`, which count tokens.

Shapes: B batch, T queries, S keys (the queries are the last T of the S tokens), H heads, D head width, W model width,
F features, n distances. Distances d = i - j are never negative: attention is causal, in the order of the tokens.

An encoding of two axes (`axes = 2`) sees the tokens on a grid, read row by row. Its positions are `[S, 2]`, rows and
columns, and its distances `[n, 2]`: those of the cell that a query predicts from the cell that a key shows. The
distance of rows is never negative; that of columns is, where the key's cell is to the right in an earlier row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from poscli.equation.operands import Operands

# Blanks by what they depend on, from one token to a whole row of scores.
TIERS: dict[str, tuple[str, ...]] = {
    "token": ("positions", "embed", "content_query", "query", "key", "value", "output", "features", "temperature"),
    "distance": ("distance_bias", "reach", "sinks"),
    "relative": ("relative_keys", "relative_queries", "relative_values"),
    "pair": ("potential", "bias"),
    "row": ("similarity", "scores", "weights", "reweight"),
}
BLANKS = tuple(blank for blanks in TIERS.values() for blank in blanks)
# Blanks that may have a fast form beside the plain one, named `fast_` and the blank.
FAST = ("bias", "similarity", "scores", "weights", "reweight")


class Blanks(nn.Module):
    """Every blank, left empty: maps are the identity, and terms raise NotImplementedError."""

    # Token tier: one token and its position.
    def positions(self, index: Tensor) -> Tensor:
        """Positions `[S]` that the formulas see, from the order `[S]` (int64) of the tokens in the sequence."""
        return index

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        """The input of the first layer, from the token embeddings (unit variance per number) and the tokens' ids."""
        return x_BTW

    def content_query(self, q_BHTD: Tensor) -> Tensor:
        """The query of q . k before any dependence on its position (q + u in Transformer-XL)."""
        return q_BHTD

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        """Queries that depend on their positions; queries and keys may be wider than D. pos[-1] is the last key's."""
        return q_BHTD

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        """Keys that depend on their positions, from the outputs of the projection. A cache holds those outputs."""
        return k_BHSD

    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        """Values that depend on their positions, from the outputs of the projection."""
        return v_BHSD

    def output(self, o_BHTD: Tensor, pos: Tensor) -> Tensor:
        """The attention output of a query, before the output projection."""
        return o_BHTD

    def features(self, x_BTW: Tensor) -> Tensor:
        """Features of each token, `[B, H, T, F]`, computed from the layer's input and cached beside k and v.

        F is the attribute `feature_width` of the encoding.
        """
        raise NotImplementedError

    def temperature(self, n: Tensor) -> Tensor:
        """A factor `[H or 1, T]` on the scores of queries; query t sees n[t] tokens, itself among them."""
        raise NotImplementedError

    # Distance tier: one number per head and distance.
    def distance_bias(self, d: Tensor) -> Tensor:
        """A term of the scores, `[H or 1, n]`, for distances `[n]`."""
        raise NotImplementedError

    @property
    def reach(self) -> int | None:
        """The number of most recent tokens that a query sees, itself among them; None: all tokens."""
        return None

    @property
    def sinks(self) -> int:
        """The number of tokens at the start of the sequence that every query sees, whatever `reach` is."""
        return 0

    # Relative tier: one vector per distance.
    def relative_query(self, q_BHTD: Tensor) -> Tensor:
        """The query that meets `relative_keys`, from the output of the projection."""
        return q_BHTD

    def relative_keys(self, d: Tensor) -> Tensor:
        """Vectors a `[H or 1, n, D]` for distances `[n]`; the score is increased by relative_query(q_i) . a[i-j]."""
        raise NotImplementedError

    def relative_queries(self, d: Tensor) -> Tensor:
        """Vectors b `[H or 1, n, D]` for distances `[n]`; the score is increased by k_j . b[i-j], k as projected."""
        raise NotImplementedError

    def relative_values(self, d: Tensor) -> Tensor:
        """Vectors c `[H or 1, n, D]` for distances `[n]`, added to the values."""
        raise NotImplementedError

    # Pair tier: two tokens.
    def potential(self, f_BHSF: Tensor) -> Tensor:
        """A number c `[B, H, S]` in float64 for each token, from the features; c_i - c_j is added to the score."""
        raise NotImplementedError

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        """A term of the scores, `[H, T, S]` or `[B, H, T, S]`, for positions `[T]` and `[S]` and their features."""
        raise NotImplementedError

    # Row tier: a whole row of scores.
    def similarity(self, x: Operands) -> Tensor:
        """q_i . k_j, `[B, H, T, S]`, or a replacement of it."""
        return x.q_BHTD @ x.k_BHSD.mT

    def scores(self, s_BHTS: Tensor, x: Operands) -> Tensor:
        """New scores from all scores of a row. Those of hidden keys are -inf, and are set to -inf again afterwards."""
        return s_BHTS

    def weights(self, s_BHTS: Tensor) -> Tensor:
        """Attention weights from scores: the softmax, unless replaced."""
        return torch.softmax(s_BHTS, dim=-1)

    def reweight(self, p_BHTS: Tensor, d_TS: Tensor) -> Tensor:
        """New attention weights from those after the softmax and the distances (0 for hidden keys)."""
        return p_BHTS

    # Fast forms, which the engines call. The reference calls the plain forms above; the two must agree.
    def fast_bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        """`bias`, computed faster."""
        return self.bias(i, j, f_i, f_j)

    def fast_similarity(self, x: Operands) -> Tensor:
        """`similarity`, computed faster."""
        return self.similarity(x)

    def fast_scores(self, s_BHTS: Tensor, x: Operands) -> Tensor:
        """`scores`, computed faster."""
        return self.scores(s_BHTS, x)

    def fast_weights(self, s_BHTS: Tensor) -> Tensor:
        """`weights`, computed faster."""
        return self.weights(s_BHTS)

    def fast_reweight(self, p_BHTS: Tensor, d_TS: Tensor) -> Tensor:
        """`reweight`, computed faster."""
        return self.reweight(p_BHTS, d_TS)

    def kernel_form(self, x: Operands) -> Any:
        """All of these blanks that a class fills, as one of the forms of poscli/native/forms.py; None: there is none.

        The engine asks for it only where positions are evenly spaced. In training it does so where the class sets
        `kernel_gradient`; the tensors of the form must then have gradients to all that they are computed from.
        """
        return None

    def __init_subclass__(cls, **options: object) -> None:
        """Reset the fast forms in a subclass that overrides only the plain form: the inherited ones would be wrong."""
        super().__init_subclass__(**options)
        if vars(cls).keys() & set(FAST) and "kernel_form" not in vars(cls):
            cls.kernel_form = Blanks.kernel_form  # type: ignore[method-assign]
        for blank in FAST:
            if blank in vars(cls) and f"fast_{blank}" not in vars(cls):
                setattr(cls, f"fast_{blank}", getattr(Blanks, f"fast_{blank}"))
