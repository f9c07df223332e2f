"""Keys that fade by a gate for every channel: exact scores, from products of gates, block by block.

Every factor is the product of the gates from some token to another, so none is above 1, and none overflows. Queries q
are `[B, H, T, D]`, keys k and the logarithms g of the gates `[B, H, S, D]`; the queries are the last T of S tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, cat, finfo
from torch.nn.functional import hardshrink, pad

from poscli.native.call import Part


def faded_parts(q: Tensor, k: Tensor, g: Tensor, scale: float, *, tokens_per_block: int = 128) -> Iterator[Part]:
    """For each block of queries, the keys of the block, pair by pair, and the older keys, by one product."""
    older = k.shape[2] - q.shape[2]
    faded = fade_all(k[:, :, :older], g[:, :, :older])
    for first in range(0, q.shape[2], tokens_per_block):
        rows, keys = (slice(past + first, past + first + tokens_per_block) for past in (0, older))
        s, q_older, later = advance(faded, q[:, :, rows], k[:, :, keys], g[:, :, keys])
        zeros = s.new_zeros(*s.shape[:3], 1)
        yield Part(zeros, zeros, first, older + first, term_BHTS=(s * scale).flip(2))
        if older + first:
            yield Part(q_older, faded, first, every=True)
        faded = later


def advance(faded: Tensor, q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of the next C tokens among themselves, their queries as `faded` keys meet them, all keys faded by them.

    `faded` are the keys `[B, H, S, D]` before these tokens, faded by all gates so far.
    """
    s, q, k, f = within_block(q, k, g)
    return s, q, cat([fade(faded, f), k], dim=2)


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
        s = cat([pad(s1, (0, s1.shape[-1])), cat([q2 @ k1.mT, s2], dim=-1)], dim=-2)
        q, k, f = cat([q1, fade(q2, f1)], dim=-2), cat([fade(k1, f2), k2], dim=-2), f1 * f2
    return s[:, :, 0, :count, :count], q[:, :, 0, :count], k[:, :, 0, :count], f[:, :, 0]


def fade_all(k: Tensor, g: Tensor) -> Tensor:
    """All keys `[B, H, S, D]`, faded by all tokens after them."""
    later = g.double().flip(2).cumsum(2).flip(2).roll(-1, 2)
    later[:, :, -1:] = 0
    return fade(k, later.exp().to(k.dtype))


def fade(y: Tensor, f: Tensor) -> Tensor:
    """The product y f, or 0 where it is too small to matter: denormal numbers, also as products of two, are slow."""
    return hardshrink(y * f, finfo(y.dtype).tiny ** 0.5)
