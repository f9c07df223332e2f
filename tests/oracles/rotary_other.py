"""Oracles of rotary encodings that change more than the frequencies: decay, learned planes, series, other distances."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call

from oracles import FLOAT32, Content, distances, dots, oracle
from oracles import libraries as lib
from oracles.layer import Part, part
from oracles.rotary import D, L, powers, turned
from poscli.encodings import Encoding

# xpos


@part("xpos", "xpos(scale_base=20, base=100)", "xpos(scale_base=20, fraction=0.5)")
def xpos(e: Encoding) -> Part:
    """Re sum_m q_m conj(k_m) zeta_m^((i-j)/c) e^(i (i-j) theta_m) / sqrt(D)."""
    pairs, gamma = e.width // 2, 0.4
    zeta = torch.tensor([(m / pairs + gamma) / (1 + gamma) for m in range(pairs)], dtype=torch.float64)

    def turn(x: Tensor, pos: Tensor, sign: int) -> Tensor:
        times = zeta ** (sign * pos[:, None] / e.scale_base)
        return turned(x, pos[:, None] * torch.stack(powers(e.base, e.width)), times=times)

    return Part(query=lambda q, pos: turn(q, pos, 1), key=lambda k, pos: turn(k, pos, -1))


@oracle("xpos(layout=interleaved)", against="x-transformers RotaryEmbedding(use_xpos=True)", unit=FLOAT32)
def xpos_library(e: Encoding, c: Content) -> Tensor:
    library = lib.x_transformers
    freqs, scale = library.RotaryEmbedding(c.q.shape[-1], use_xpos=True).double()(c.pos)
    q, k = (library.apply_rotary_pos_emb(x, freqs, s) for x, s in ((c.q, scale), (c.k, scale**-1)))
    return torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(c.q.shape[-1])


# rope at distances that are chosen pair by pair


def at_distance(c: Content, d: Tensor, e: Encoding) -> Tensor:
    """q_i R(d_ij) k_j for a given distance `[T, T]` of every pair: every query is turned anew for each key."""
    angle = d[..., None] * torch.stack(powers(e.base, D))  # [T, T, pairs]
    q = turned(c.q[:, :, :, None].expand(-1, -1, -1, len(d), -1), angle, e.layout)
    return torch.einsum("bhijd,bhjd->bhij", q, c.k)


@part("rerope", "rerope(window=5)", "rerope(window=50, base=30, layout=interleaved)")
def rerope(e: Encoding) -> Part:
    return Part(similarity=lambda c: at_distance(c, distances(c).clamp(max=e.window), e))


def remapped(*specs: str) -> Callable[..., Callable[[Encoding, list[int]], Callable[[int, int], int]]]:
    """Declare rope at a distance of its own for every pair of a query i and a key j <= i.

    The distance is a function of the encoding and the positions of the text. Positions are rounded, so that rounding
    noise moves no key across the edge of a window or a chunk.
    """

    def add(rule: Callable[[Encoding, list[int]], Callable[[int, int], int]]) -> Callable[..., Callable[..., int]]:
        @part(*specs)
        def of(e: Encoding) -> Part:
            def similarity(c: Content) -> Tensor:
                pos = [round(float(p)) for p in c.pos]
                distance = rule(e, pos)
                d = [[distance(i, j) if j <= i else 0 for j in pos] for i in pos]
                return at_distance(c, torch.tensor(d, dtype=torch.float64), e)

            return Part(similarity=similarity)

        return rule

    return add


@remapped(
    "self-extend(window=5, group=3)",
    "self-extend(window=40, group=7, base=50)",
    "self-extend",
    "self-extend(window=11)",
)
def self_extend(e: Encoding, pos: list[int]) -> Callable[[int, int], int]:
    """The distance of the tokens within the window, and of their groups beyond it.

    Unless it is given, the size of a group is the smallest for which no distance is larger than in training.
    """
    w = e.window

    def grouped(i: int, j: int, group: int) -> int:
        return i // group - j // group + w - w // group

    def fits(group: int) -> bool:
        return all(grouped(i, j, group) < L for i in pos for j in pos if i - j >= w)

    group = e.group or next(group for group in range(1, 1000) if fits(group))
    return lambda i, j: i - j if i - j < w else grouped(i, j, group)


@remapped("string", "string(shift=3, local=0)", "string(shift=40, local=7, base=50, layout=interleaved)")
def string(e: Encoding, pos: list[int]) -> Callable[[int, int], int]:
    """The paper's equation 4. Unless they are given, S = L/3, and W is a quarter of it, both rounded down."""
    shift, local = e.window, e.local
    assert e.spec != "string" or (shift, local) == (5, 1)
    return lambda i, j: i - j - shift + local if j <= i - shift else i - j


@remapped("dual-chunk", "dual-chunk(chunk=5)", "dual-chunk(chunk=4, local=2, base=50)")
def dual_chunk(e: Encoding, pos: list[int]) -> Callable[[int, int], int]:
    """The lists of positions in the paper, one entry per token of a chunk.

    With c = 10, s = 6 and w = 4 this makes the paper's list of successive positions: 6, 7, 8, 9, 9, 9.
    """
    chunk, keys = e.chunk, list(range(e.chunk))
    successive = [chunk + n if n < e.local else L - 1 for n in range(chunk)]

    def distance(i: int, j: int) -> int:
        p_k, apart = keys[j % chunk], i // chunk - j // chunk
        return (keys[i % chunk] if apart == 0 else successive[i % chunk] if apart == 1 else L - 1) - p_k

    return distance


# pope


@part("pope", "pope(start=uniform)")
def pope(e: Encoding) -> Part:
    """sum_c mu_q mu_k cos((j - i) theta_c + delta_c), mu = log(1 + e^x)."""
    width = e.shape.head_width
    theta = torch.tensor([e.base ** (-n / width) for n in range(width)], dtype=torch.float64)

    def polar(x: Tensor, phase: Tensor) -> Tensor:
        mu = torch.log(1 + torch.exp(x[..., :width]))
        return torch.cat([mu * torch.cos(phase), mu * torch.sin(phase), x[..., width:]], dim=-1)

    def key(k: Tensor, pos: Tensor) -> Tensor:
        delta = torch.minimum(torch.maximum(e.delta, torch.tensor(-2 * math.pi)), torch.tensor(0.0))
        return polar(k, pos[:, None] * theta + delta)

    return Part(query=lambda q, pos: polar(q, pos[:, None] * theta), key=key)


@oracle("pope", against="x-transformers PolarEmbedding", unit=FLOAT32)
def pope_library(e: Encoding, c: Content) -> Tensor:
    heads, width = c.q.shape[1], c.q.shape[-1]
    library = lib.x_transformers
    freqs, bias = functional_call(library.PolarEmbedding(width, heads), {"learned_bias": e.delta}, (c.pos,))
    q, k = library.apply_polar_pos_emb(c.q, freqs), library.apply_polar_pos_emb(c.k, freqs + bias)
    return torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(width)


# fope


@part("fope", "fope(base=4)", "fope(base=4, sigma=1, learned=true)", "fope(sigma=0, base=10)")
def fope(e: Encoding) -> Part:
    """Pair by pair, a series over the frequencies that complete a period within L; the other pairs stay."""
    w = [float(theta) for theta in powers(e.base)]
    trained = [each for each in w if each * L >= 2 * math.pi]
    assert len(trained) == e.a.shape[-1] == {10000: 1, 4: 3, 10: 2}[e.base]

    def turn(x: Tensor, pos: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        channels = []
        for m in range(half):
            real, imaginary = torch.ones_like(pos), torch.zeros_like(pos)
            if w[m] in trained:
                real = torch.cos(w[m] * pos) + sum(
                    e.a[0, :, s, m, None] * torch.cos(o * pos) for s, o in enumerate(trained)
                )
                imaginary = torch.sin(w[m] * pos) + sum(
                    e.a[1, :, s, m, None] * torch.sin(o * pos) for s, o in enumerate(trained)
                )
            channels.append(torch.complex(x[..., m], x[..., m + half]) * torch.complex(real, imaginary))
        z = torch.stack(channels, dim=-1)
        return torch.cat([z.real, z.imag], dim=-1)

    return Part(query=turn, key=turn)


oracle("rope-dropped(recalibrate=1)")(lambda e, c: dots(c))


# grape


@part("grape", "grape(frequencies=false, base=100)", "grape(planes=false)", "grape(planes=false, frequencies=false)")
def grape(e: Encoding) -> Part:
    """Pairs of channels of B^T q and B^T k, turned by frequencies of their own; B = exp(A - A^T) is orthogonal."""
    width = e.shape.head_width

    def turn(x: Tensor, pos: Tensor) -> Tensor:
        theta = torch.stack(powers(e.base, width)) * (1 if e.log_factor is None else torch.exp(e.log_factor))
        planes, rest = x[..., :width], x[..., width:]
        if e.a is not None:
            planes = torch.einsum("hdc,bhtd->bhtc", torch.matrix_exp(e.a - e.a.transpose(1, 2)), planes)
        return torch.cat([turned(planes, pos[:, None] * theta), rest], dim=-1)

    return Part(query=turn, key=turn)
