"""An engine in which no distance exceeds those of training, however many keys there are: the change `crowd`.

With L the training length, query t is at place p = min(t, L-1) and key j at place max(p - (t-j), 0), and the encoding's
own positions are those of a training window, P[0], ..., P[L-1]. So the first L queries see what they see in training.
Every later query sees the last L keys as the last query of a training window does, and each key before them as if it
were at the first place, at the largest distance of training:

- q . k: the query is at P[L-1], the near keys at P[0] to P[L-1], and every far key is at P[0];
- terms of the distance are looked up at min(t-j, L-1);
- terms that add up what tokens hold (potentials, and pair biases with features) count the last L tokens: a far key gets
  the term of the key at distance L-1.

Shapes: B batch, T queries, S keys (the queries are the last T of the S tokens), H heads, D and E head widths, F
features, L the places of a training window, N = L the distances of its last query from its keys, in ascending order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from poscli.attention import BlockSizes, Engine, Place, blocks
from poscli.equation import BLANKS, Encoding, Operands
from poscli.equation.composed import Composed
from poscli.equation.operands import even_step, snapped
from poscli.equation.reference import beside_null, tempered

ENTRIES = 2**22  # of the largest tensor of a block of queries, at least: 16 MiB of float32


def crowd_engine(length: int) -> Engine:
    """The engine for a training length. Its encodings must be told the order min(t, L-1) of every token t."""
    return Engine("crowd", partial(run, length=length), refuses, "no distance exceeds those of training")


def refuses(encoding: Encoding, _: Place | None = None) -> str:
    """Why attention without the distances beyond training is not defined for an encoding; '' if it is."""
    blanks = encoding.blanks
    if "value" in blanks:
        return "its values depend on the positions of their tokens, not on distances"
    if "scores" in blanks:
        return "it computes whole rows of scores from each other, where no single distance can be shortened"
    if "phase" in blanks:
        return "the angles of its queries and keys add up what all tokens hold, so no distance can be shortened"
    leaves = (part for part in encoding.modules() if isinstance(part, Encoding) and not isinstance(part, Composed))
    if any({"similarity", "features"} <= leaf.blanks for leaf in leaves):
        return "its product of a query and a key gathers what all tokens between them hold, so it cannot be shortened"
    new = [blank for blank in sorted(blanks) if BLANKS[blank].tier != "token" and blank not in SHORTENED]
    return f"it is not known how the distances of {', '.join(new)} can be shortened" if new else ""


def run(encoding: Encoding, x: Operands, sizes: BlockSizes, *, length: int) -> Tensor:
    """Attention output `[B, H, T, E]` of every token to those before it; memory is one block of queries times keys."""
    assert x.queries == x.keys, "whole windows only, without a cache"
    early = x.block(0, min(length, x.queries))
    outputs = [blocks.run(encoding, replace(early, step=even_step(early.pos_S)), sizes)]
    batch, heads, _, width = x.raw_k_BHSD.shape
    of_a_query = x.keys if by_difference(encoding) else max(x.keys, length * max(width, encoding.feature_width))
    rows = max(1, max(ENTRIES, sizes.block_entries) // (batch * heads * of_a_query))
    for start in range(length, x.queries, rows):
        outputs.append(Late(encoding, x.block(start, min(start + rows, x.queries)), length).output())
    return torch.cat(outputs, dim=2)


def by_difference(encoding: Encoding) -> bool:
    """Whether products of queries and keys depend on the difference of their places alone.

    Then a query may stand at its own place instead of the last one of training, if the keys that it is near do too.
    """
    leaves = [part for part in encoding.modules() if isinstance(part, Encoding) and not isinstance(part, Composed)]
    turned = encoding.blanks & {"key", "similarity", "relative_keys", "relative_queries", "bias"}
    plain = not any("positions" in leaf.blanks or leaf.rescales or not leaf.relative for leaf in leaves)
    return turned == {"key"} and plain and encoding.axes == 1


@dataclass(frozen=True)
class Late:
    """A block of queries with more keys than in training, and all keys before them."""

    encoding: Encoding
    x: Operands
    length: int

    def output(self) -> Tensor:
        """Attention output `[B, H, T, E]`."""
        encoding, x, n_TS = self.encoding, self.x, self.n_TS
        s_BHTS = self.products() * encoding.scale
        for blank, term in TERMS.items():
            if blank in encoding.blanks:
                s_BHTS = s_BHTS + term(self).to(s_BHTS.dtype)
        p_BHTS = beside_null(encoding.weights, tempered(x, s_BHTS).masked_fill(~x.visible(), -math.inf), x)
        if "reweight" in encoding.blanks:
            p_BHTS = encoding.reweight(p_BHTS, self.d_N[n_TS].masked_fill(~x.visible(), 0))
        o_BHTE = p_BHTS @ x.v_BHSE
        if "relative_values" not in encoding.blanks:
            return o_BHTE
        p_BHTN = p_BHTS.new_zeros(*p_BHTS.shape[:3], self.length).scatter_add(-1, n_TS.expand_as(p_BHTS), p_BHTS)
        return o_BHTE + p_BHTN @ encoding.relative_values(self.d_N).to(p_BHTS.dtype)

    @property
    def pos_L(self) -> Tensor:
        """The positions of a training window."""
        return self.x.pos_S[: self.length]

    @cached_property
    def d_N(self) -> Tensor:
        """The distances of positions that its last query sees, from its own key to the first one."""
        return snapped(self.pos_L[-1] - self.pos_L).flip(0)

    @property
    def order_T(self) -> Tensor:
        """The number of each query in the order of the tokens."""
        return torch.arange(self.x.keys - self.x.queries, self.x.keys, device=self.x.pos_S.device)

    @cached_property
    def n_TS(self) -> Tensor:
        """The distance in tokens, at most L - 1, at which a query sees a key, `[T, S]`; 0 for keys after the query."""
        order_S = torch.arange(self.x.keys, device=self.x.pos_S.device)
        return (self.order_T[:, None] - order_S).clamp(0, self.length - 1)

    def windows(self, x_BHSD: Tensor) -> Tensor:
        """The last L entries up to each query's own, as one text per query: `[B T, H, L, D]`."""
        first = self.x.keys - self.x.queries - self.length + 1
        return x_BHSD[:, :, first:].unfold(2, self.length, 1).movedim(2, 1).mT.flatten(0, 1)

    def by_query(self, x_BTHL: Tensor) -> Tensor:
        """What `windows` made of every query, `[B T, H, 1, L]`, as `[B, H, T, L]`."""
        return x_BTHL.unflatten(0, (-1, self.x.queries)).squeeze(3).movedim(1, 2)

    def products(self) -> Tensor:
        """The products q . k, or what replaces them, `[B, H, T, S]`."""
        if not self.encoding.blanks & {"key", "similarity"}:
            return self.encoding.similarity(self.x)
        if by_difference(self.encoding):
            near_TS = self.order_T[:, None] - torch.arange(self.x.keys, device=self.x.pos_S.device) < self.length
            return torch.where(near_TS, self.products_in_place(), self.far_products())
        s_BHTS, s_BHTL = self.far_products(), self.near_products()
        own_TL = self.order_T[:, None] + torch.arange(1 - self.length, 1, device=s_BHTS.device)
        return s_BHTS.scatter(-1, own_TL.expand_as(s_BHTL), s_BHTL)

    def products_in_place(self) -> Tensor:
        """The products of every query with every key, each at its own place, `[B, H, T, S]`."""
        encoding, x, order_S = self.encoding, self.x, torch.arange(self.x.keys, device=self.x.pos_S.device)
        q_BHTD = encoding.query(encoding.content_query(x.raw_q_BHTD), self.order_T)
        k_BHSD = encoding.key(x.raw_k_BHSD, order_S)
        return encoding.similarity(replace(x, q_BHTD=q_BHTD, k_BHSD=k_BHSD, pos_S=order_S, step=None))

    def far_products(self) -> Tensor:
        """The products with every key at the first position, `[B, H, T, S]`; right for the far keys only."""
        x = self.x
        # The last position tells an encoding how long the text is, so one further key per query stands there.
        raw_k = torch.cat([x.raw_k_BHSD, x.raw_k_BHSD[:, :, -x.queries :]], dim=2)
        pos = torch.cat([self.pos_L[:1].expand(x.keys), self.pos_L[-1:].expand(x.queries)])
        far = replace(x, k_BHSD=self.encoding.key(raw_k, pos), raw_k_BHSD=raw_k, pos_S=pos, step=None)
        return self.encoding.similarity(far)[..., : x.keys]

    def near_products(self) -> Tensor:
        """The products of every query with its last L keys, `[B, H, T, L]`."""
        x, raw_k, pos = self.x, self.windows(self.x.raw_k_BHSD), self.pos_L
        q, raw_q = (each.movedim(2, 1).flatten(0, 1)[:, :, None] for each in (x.q_BHTD, x.raw_q_BHTD))
        near = replace(x, q_BHTD=q, raw_q_BHTD=raw_q, raw_k_BHSD=raw_k, pos_S=pos, step=None)
        return self.by_query(self.encoding.similarity(replace(near, k_BHSD=self.encoding.key(raw_k, pos))))


# The terms added to q . k, `[H, T, S]` or `[B, H, T, S]`.


def met_by_queries(late: Late) -> Tensor:
    """q_i . a[n] * scale."""
    encoding, x = late.encoding, late.x
    a_HND = encoding.relative_keys(late.d_N).to(x.q_BHTD.dtype)
    z_BHTN = encoding.relative_query(x.raw_q_BHTD, x.features_of_queries).to(x.q_BHTD.dtype) @ a_HND.mT * encoding.scale
    return z_BHTN.gather(-1, late.n_TS.expand(*z_BHTN.shape[:2], -1, -1))


def met_by_keys(late: Late) -> Tensor:
    """k_j . b[n] * scale."""
    encoding, x = late.encoding, late.x
    z_BHSN = x.raw_k_BHSD @ encoding.relative_queries(late.d_N).to(x.raw_k_BHSD.dtype).mT * encoding.scale
    return z_BHSN[:, :, torch.arange(x.keys, device=z_BHSN.device), late.n_TS]


def distance_bias(late: Late) -> Tensor:
    """The term that depends on the distance alone."""
    return late.encoding.distance_bias(late.d_N)[:, late.n_TS]


def potential(late: Late) -> Tensor:
    """c_i - c_j, where j is one of the last L tokens."""
    assert late.x.features_BHSF is not None
    c_BHS = late.encoding.potential(late.x.features_BHSF)
    return c_BHS[..., late.order_T, None] - c_BHS[..., late.order_T[:, None] - late.n_TS]


def pair_bias(late: Late) -> Tensor:
    """The term of two tokens, as the last query of a training window meets the keys there."""
    pos, f_BHSF = late.pos_L, late.x.features_BHSF
    f_j = None if f_BHSF is None else late.windows(f_BHSF)
    b = late.encoding.bias(pos[-1:], pos, None if f_j is None else f_j[:, :, -1:], f_j)
    if b.ndim == 3:
        return b[:, 0].flip(-1)[:, late.n_TS]
    b_BHTN = late.by_query(b).flip(-1)
    return b_BHTN.gather(-1, late.n_TS.expand(*b_BHTN.shape[:2], -1, -1))


TERMS: dict[str, Callable[[Late], Tensor]] = {
    "relative_keys": met_by_queries,
    "relative_queries": met_by_keys,
    "distance_bias": distance_bias,
    "potential": potential,
    "bias": pair_bias,
}
# The blanks whose distances `Late` shortens, or that see none.
SHORTENED = {*TERMS, "relative_values", "similarity", "null_score", "weights", "reweight", "reach", "sinks"}
