"""Selective attention (Leviathan et al., 2024)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, relu

from poscli.encodings import Encoding, Operands, Shape, register


@register("selective", paper="arXiv:2410.02703", family="content")
class Selective(Encoding):
    """s_ij -= F_ij, F_ij = sum_{j<l<i} relu(u_l . w_j / sqrt(P)): a token hides what later tokens no longer need.

    u_l = U x_l and w_j = W x_j have P numbers, about as many as a head, and all heads share F. The first token of a
    text is never hidden. Only x-transformers' code was read, not the authors'. There the scores of the first head take
    the place of u . w, so that nothing more is learned; but a cache of keys does not hold those of earlier queries, so
    here u and w have projections of their own. They start small: F is about 0.4 for a key that is L tokens back.
    """

    facts = ("where U is 0, selective changes nothing",)

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        of_head = -(-shape.head_width // shape.heads)  # a token's numbers are kept in equal parts by the heads
        self.feature_width, width = 2 * of_head, shape.heads * of_head
        start = (shape.width * shape.length) ** -0.5  # u . w / sqrt(P) varies by 1 / L for x of unit variance
        self.u, self.w = (nn.Parameter(start * torch.randn(width, shape.width)) for _ in "uw")

    def features(self, x_BTW: Tensor) -> Tensor:
        of_heads = (linear(x_BTW, y.to(x_BTW.dtype)).unflatten(2, (self.shape.heads, -1)) for y in (self.u, self.w))
        return torch.cat(list(of_heads), dim=-1).transpose(1, 2)

    def scores(self, s_BHTS: Tensor, x: Operands) -> Tensor:
        hidden_BSS = self.selection(x, slice(0, x.keys))
        f_BTS = (hidden_BSS.cumsum(1) - hidden_BSS)[:, x.keys - x.queries :]
        return s_BHTS - f_BTS[:, None].to(s_BHTS.dtype)

    def selection(self, x: Operands, tokens: slice) -> Tensor:
        """relu(u_l . w_j / sqrt(P)) for some tokens l and every key j before l, else 0, in float32 or float64."""
        assert x.features_BHSF is not None
        exact = torch.promote_types(x.features_BHSF.dtype, torch.float32)
        u, w = (y.to(exact).transpose(1, 2).flatten(2) for y in x.features_BHSF.chunk(2, dim=-1))  # [B, S, P]
        hides = relu(u[:, tokens] @ w.mT * u.shape[-1] ** -0.5).tril(tokens.start - 1)
        return hides if x.first_key else pad(hides[..., 1:], (1, 0))

    def fast_scores(self, s_BHTS: Tensor, x: Operands, *, tokens_per_chunk: int = 256) -> Tensor:
        """`scores`, with the sums over all tokens before a block carried from block to block."""
        older, carried = x.keys - x.queries, {} if x.carried is None else x.carried
        if self in carried:
            before_BS = carried[self][:, carried[self].shape[1] - older :]  # a window leaves out the first keys
        else:
            before_BS = x.v_BHSE.new_zeros(len(s_BHTS), older, dtype=torch.promote_types(s_BHTS.dtype, torch.float32))
            for n in range(0, older, tokens_per_chunk):
                before_BS = before_BS + self.selection(x, slice(n, min(n + tokens_per_chunk, older))).sum(1)[:, :older]
        own_BTS = self.selection(x, slice(older, x.keys))
        through_BTS = own_BTS.cumsum(1) + pad(before_BS, (0, x.queries))[:, None]
        carried[self] = through_BTS[:, -1]
        return s_BHTS - (through_BTS - own_BTS)[:, None].to(s_BHTS.dtype)
