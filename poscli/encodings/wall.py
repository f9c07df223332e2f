"""Wall attention, a forget gate for every channel (Pai, Averbuch, Zhang, Keigwin and Dewulf, 2026)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import hardshrink, linear, logsigmoid, pad

from poscli.encodings import Encoding, Operands, Shape, register
from poscli.native.call import Part, Parts


@register("wall", paper="Tilde Research, 2026 (blog.tilderesearch.com/blog/wall-attn)", family="content")
class Wall(Encoding):
    """s_ij = sum_c q_ic k_jc exp(sum_{l=j+1..i} g_lc), g_lc = log sigmoid(w_c . x_l + b_c): every channel fades alone.

    As in the authors' layer in fla, every channel of every head has a gate, and b is `start` at first, where a token
    keeps 99.97 percent of what came before it. There w is drawn; here it starts at 0, as that of fox does. The authors
    also published kernels that need gates above -0.87, and a soft bound for them. Any gate is right here without one.
    """

    facts = ("where its gates are open, g = 0, wall is none",)

    def __init__(self, shape: Shape, *, start: float = 8.0) -> None:
        super().__init__(shape)
        self.feature_width = shape.head_width
        channels = shape.heads * shape.head_width
        self.w = nn.Parameter(torch.zeros(channels, shape.width))
        self.b = nn.Parameter(torch.full((channels,), start))

    def features(self, x_BTW: Tensor) -> Tensor:
        """The logarithms g of the gates, `[B, H, T, D]`."""
        g_BTC = logsigmoid(linear(x_BTW.to(self.w.dtype), self.w, self.b))
        return g_BTC.unflatten(-1, (self.shape.heads, -1)).transpose(1, 2)

    def similarity(self, x: Operands) -> Tensor:
        q, k, g = self.exact_inputs(x)
        sums, rows = g.double().cumsum(2), []  # the difference of two sums from the start needs float64
        for i in range(x.queries):
            g_ij = (sums[:, :, x.keys - x.queries + i, None] - sums).clamp(max=0)  # positive in the future
            rows.append((k * g_ij.exp().to(k.dtype)) @ q[:, :, i, :, None])
        return torch.cat(rows, dim=-1).mT.to(x.q_BHTD.dtype)

    def exact_inputs(self, x: Operands) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[B, H, T, D]`, keys and g `[B, H, S, D]`, in float32 or float64."""
        assert x.features_BHSF is not None
        exact = torch.promote_types(x.q_BHTD.dtype, torch.float32)
        return x.q_BHTD.to(exact), x.k_BHSD.to(exact), x.features_BHSF.to(exact)

    def fast_similarity(self, x: Operands) -> Tensor:
        """`similarity`; the keys, faded by all tokens so far, are carried from block to block."""
        q, *tokens = self.exact_inputs(x)
        older = x.keys - x.queries
        carried = {} if x.carried is None else x.carried
        faded = carried[self] if self in carried else fade_all(*(y[:, :, :older] for y in tokens))
        faded = faded[:, :, faded.shape[2] - older :]  # a window hides the first keys
        s, q, k, f = within_block(q, *(y[:, :, older:] for y in tokens))
        carried[self] = torch.cat([fade(faded, f), k], dim=2)
        return torch.cat([q @ faded.mT, s], dim=-1).to(x.q_BHTD.dtype)

    def kernel_form(self, x: Operands) -> Parts:
        return Parts(self.parts_of(x))

    def parts_of(self, x: Operands, *, tokens_per_block: int = 128) -> Iterator[Part]:
        """For each block of queries, the keys of the block, pair by pair, and the older keys, by one product."""
        q, *tokens = self.exact_inputs(x)
        older = x.keys - x.queries
        faded = fade_all(*(y[:, :, :older] for y in tokens))
        inputs = (q, *(y[:, :, older:] for y in tokens))
        for start, block in enumerate(zip(*(y.split(tokens_per_block, dim=2) for y in inputs), strict=True)):
            first = start * tokens_per_block
            s, q_older, k, f = within_block(*block)
            zeros = s.new_zeros(*s.shape[:3], 1)
            yield Part(zeros, zeros, first, older + first, term_BHTS=(s * self.scale).flip(2))
            if older + first:
                yield Part(q_older, faded, first, every=True)
            faded = torch.cat([fade(faded, f), k], dim=2)


# Every factor is the product of the gates from some token to another, so none is above 1, and none overflows.


def within_block(q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores of C tokens `[B, H, C, C]`, queries as keys before them see them, keys as later queries do, all gates.

    The queries are faded by the gates up to their own token, the keys by those after their own, and all gates together
    are `[B, H, 1, D]`. Neighbouring chunks, of one token at first, are joined until there is one.
    """
    count = q.shape[2]
    gap = (1 << (count - 1).bit_length()) - count
    q, k, f = (y[..., None, :] for y in (pad(q, (0, 0, 0, gap)), pad(k, (0, 0, 0, gap)), pad(g, (0, 0, 0, gap)).exp()))
    s, q = (q * k).sum(-1, keepdim=True), fade(q, f)
    while s.shape[2] > 1:
        (s1, s2), (q1, q2), (k1, k2), (f1, f2) = (y.unflatten(2, (-1, 2)).unbind(3) for y in (s, q, k, f))
        s = torch.cat([pad(s1, (0, s1.shape[-1])), torch.cat([q2 @ k1.mT, s2], dim=-1)], dim=-2)
        q, k, f = torch.cat([q1, fade(q2, f1)], dim=-2), torch.cat([fade(k1, f2), k2], dim=-2), f1 * f2
    return s[:, :, 0, :count, :count], q[:, :, 0, :count], k[:, :, 0, :count], f[:, :, 0]


def fade_all(k: Tensor, g: Tensor) -> Tensor:
    """All keys `[B, H, S, D]`, faded by all tokens after them."""
    later = g.double().flip(2).cumsum(2).flip(2).roll(-1, 2)
    later[:, :, -1:] = 0
    return fade(k, later.exp().to(k.dtype))


def fade(y: Tensor, f: Tensor) -> Tensor:
    """The product y f, or 0 where it is too small to matter: denormal numbers, also as products of two, are slow."""
    return hardshrink(y * f, torch.finfo(y.dtype).tiny ** 0.5)
