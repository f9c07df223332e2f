"""Oracles of rope at distances that are chosen pair by pair, and of clipped rope."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from oracles import Content, oracle
from oracles.rotary import L, powers, products
from oracles.rotary_other import at_distance, deinterleaved
from poscli.encodings import Encoding


def by_pairs(c: Content, distance: Callable[[int, int], int], base: float = 10000.0) -> Tensor:
    """Rope's scores with a distance of its own for every pair of a query i and a key j <= i.

    Positions are rounded, so that rounding noise moves no key across the edge of a window or a chunk.
    """
    pos = [round(float(p)) for p in c.pos]
    d = torch.tensor([[distance(i, j) if j <= i else 0 for j in pos] for i in pos], dtype=torch.float64)
    return at_distance(c, d, base)


# string: the paper's equation 4, row i and column j of the position matrix


def shifted(shift: int, local: int) -> Callable[[int, int], int]:
    return lambda i, j: i - j - shift + local if j <= i - shift else i - j


@oracle("string")
def string(e: Encoding, c: Content) -> Tensor:
    """S = L/3, and W a quarter of it, both rounded down."""
    return by_pairs(c, shifted(5, 1))


@oracle("string(shift=3, local=0)")
def string_without_window(e: Encoding, c: Content) -> Tensor:
    return by_pairs(c, shifted(3, 0))


@oracle("string(shift=40, local=7, base=50, layout=interleaved)")
def string_interleaved(e: Encoding, c: Content) -> Tensor:
    return by_pairs(deinterleaved(c), shifted(40, 7), base=50)


# dual-chunk: the lists of positions in the paper, which have one entry per token


def between_chunks(chunk: int, local: int, length: int = L) -> Callable[[int, int], int]:
    """With c = 10, s = 6 and w = 4 this makes the paper's list of successive positions: 6, 7, 8, 9, 9, 9."""
    keys = list(range(chunk))
    successive = [chunk + n if n < local else length - 1 for n in range(chunk)]

    def distance(i: int, j: int) -> int:
        p_k, apart = keys[j % chunk], i // chunk - j // chunk
        return (keys[i % chunk] if apart == 0 else successive[i % chunk] if apart == 1 else length - 1) - p_k

    return distance


@oracle("dual-chunk")
def dual_chunk(e: Encoding, c: Content) -> Tensor:
    """The chunk is 3/4 of L, and w what is left of L."""
    return by_pairs(c, between_chunks(12, 4))


@oracle("dual-chunk(chunk=5)")
def dual_chunk_short(e: Encoding, c: Content) -> Tensor:
    return by_pairs(c, between_chunks(5, 11))


@oracle("dual-chunk(chunk=4, local=2, base=50)")
def dual_chunk_narrow(e: Encoding, c: Content) -> Tensor:
    return by_pairs(c, between_chunks(4, 2), base=50)


# rope-clip


def clipped(clip: int, base: float = 10000.0, width: int = 8) -> list[Tensor]:
    """theta_m w_m with the raised cosine over the last `clip` pairs."""
    theta = powers(base, width)
    first = len(theta) - clip
    w = [1.0 if m < first else 0.5 + 0.5 * math.cos(math.pi * (m - first) / (clip - 1)) for m in range(len(theta))]
    return [each * weight for each, weight in zip(theta, w, strict=True)]


@oracle("rope-clip", against="the authors' formula")
def rope_clip(e: Encoding, c: Content) -> Tensor:
    """The periods 2 pi 10^m of three of the four pairs exceed L = 16: weights 1, 1/2 and 0."""
    assert [2 * math.pi / float(theta) > L for theta in powers()] == [False, True, True, True]
    return products(c, clipped(3))


@oracle("rope-clip(clip=4, base=50)", against="the authors' formula")
def rope_clip_all(e: Encoding, c: Content) -> Tensor:
    return products(c, clipped(4, 50.0))


@oracle("rope-clip(clip=2, base=100, layout=interleaved, fraction=0.75)", against="the authors' formula")
def rope_clip_partly(e: Encoding, c: Content) -> Tensor:
    return products(c, clipped(2, 100.0, 6), interleaved=True)
