"""Oracles of the distance biases."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from oracles import FLOAT32, Content, attention, distances, dots, oracle
from oracles import libraries as lib
from oracles.layer import bias, by_step, steps
from poscli.encodings import Encoding

L = 16  # tokens of a training window


def past(c: Content) -> Tensor:
    """Distances `[T, T]`, 0 in the future, where powers and logarithms are not defined."""
    return distances(c).clamp(min=0)


def at(c: Content, bias: Callable[[int], Tensor]) -> Tensor:
    """A library's bias for n consecutive tokens, `[H, n, n]`, read at the given positions: `[H, T, T]`."""
    pos = c.pos.round().long()
    return bias(int(pos[-1]) + 1)[:, pos][:, :, pos]


def per_head(x: Tensor) -> Tensor:
    return x[:, None, None]


def softplus(x: Tensor) -> Tensor:
    return torch.log(1 + torch.exp(x))


# ALiBi


def slopes(n: int) -> list[float]:
    """The recursion of ALiBi's authors: geometric for powers of two, else filled up from the next power of two."""
    if math.log2(n).is_integer():
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]
    closest = 2 ** math.floor(math.log2(n))
    return slopes(closest) + slopes(2 * closest)[0::2][: n - closest]


@bias("alibi", "alibi(trainable=true)")
def alibi(e: Encoding, c: Content) -> Tensor:
    trained = isinstance(e.slope, nn.Parameter)
    m = e.slope if trained else torch.tensor(slopes(c.q.shape[1]), dtype=torch.float64)
    return -per_head(m) * distances(c)


oracle("alibi(trainable=true, scale=0.3)")(lambda e, c: dots(c) + 0.3 * alibi(e, c))
oracle("alibi(trainable=true, far=40)")(lambda e, c: dots(c) + 256 / 40 * alibi(e, c))
oracle("alibi(scale=2.5)")(lambda e, c: dots(c) + 2.5 * alibi(e, c))


def everywhere(c: Content, term: Callable[[int], Tensor]) -> Tensor:
    """Attention with a library's term for n consecutive keys, `[B, H, 1, n]`, read at the given positions.

    MPT and BLOOM add m_h j, which differs by a constant per query, so outputs are compared after the softmax.
    """
    pos = c.pos.round().long()
    return attention(dots(c) + term(int(pos[-1]) + 1)[..., pos].double(), c)


@oracle("alibi(most=5)", against="transformers MPT", gives="output", unit=FLOAT32)
def mpt(e: Encoding, c: Content) -> Tensor:
    return everywhere(c, lambda n: lib.mpt.build_mpt_alibi_tensor(c.q.shape[1], n, alibi_bias_max=5))


@oracle("alibi(before_scale=true)", against="transformers Falcon", gives="output", unit=FLOAT32)
def falcon(e: Encoding, c: Content) -> Tensor:
    """(q_i . k_j + m_h j) / sqrt(D). A mask of floats spares the positions Falcon's rounding to bfloat16."""
    heads, root = c.q.shape[1], math.sqrt(c.q.shape[-1])
    return everywhere(
        c, lambda n: lib.falcon.build_alibi_tensor(torch.ones(1, n), heads, torch.float32).double() / root
    )


@oracle("alibi", against="transformers BLOOM", gives="output", unit=FLOAT32)
def bloom(e: Encoding, c: Content) -> Tensor:
    return everywhere(c, lambda n: lib.bloom.build_alibi_tensor(torch.ones(1, n), c.q.shape[1], torch.float32))


@oracle("alibi", against="x-transformers AlibiPositionalBias", unit=FLOAT32)
def alibi_of_x_transformers(e: Encoding, c: Content) -> Tensor:
    return dots(c) + lib.x_transformers.AlibiPositionalBias(c.q.shape[1]).forward_custom_pos(c.pos.float()).double()


# tables: T5, and every distance up to a limit


def bucket(d: int, buckets: int, far: int) -> int:
    """Half of the buckets hold one distance each, half are spaced logarithmically; the last has the rest."""
    if d >= far:
        return buckets - 1
    exact = buckets // 2
    if d < exact:
        return d
    edges = [exact * (far / exact) ** (n / (buckets - exact)) for n in range(1, buckets - exact)]
    return exact + sum(d >= edge for edge in edges)


@bias("t5", "t5(buckets=6, far=11)", "t5(buckets=7, far=200)", "t5(buckets=12, far=3)")
def t5(e: Encoding, c: Content) -> Tensor:
    return e.table[:, by_step(lambda d: bucket(d, e.buckets, e.far), c)]


@oracle(*("t5", "t5(buckets=6, far=11)", "t5(buckets=7, far=200)"), against="transformers T5Attention.compute_bias")
def t5_of_transformers(e: Encoding, c: Content) -> Tensor:
    sizes = {"relative_attention_num_buckets": e.buckets, "relative_attention_max_distance": e.far}
    config = lib.transformers.T5Config(d_model=24, d_kv=8, num_heads=c.q.shape[1], is_decoder=True, **sizes)
    layer = lib.t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    del layer.relative_attention_bias
    layer.relative_attention_bias = lambda buckets_TT: e.table.T[buckets_TT]
    return dots(c) + at(c, lambda n: layer.compute_bias(n, n, device="cpu")[0])


@bias("clipped", "clipped(clip=5)")
def clipped(e: Encoding, c: Content) -> Tensor:
    return e.table[:, steps(c).clamp(max=len(e.table[0]) - 1)]


@oracle("clipped", against="transformers SwinSelfAttention")
def swin(e: Encoding, c: Content) -> Tensor:
    """Swin's bias in a window of 1 x n with n above every distance; the last number of `clipped` is repeated."""

    def bias(n: int) -> Tensor:
        layer = lib.swin.SwinSelfAttention(lib.transformers.SwinConfig(), 24, c.q.shape[1], window_size=(1, n))
        numbers = {d: e.table[:, min(max(d, 0), len(e.table[0]) - 1)] for d in range(1 - n, n)}
        return torch.stack(list(numbers.values()), dim=-1)[:, layer.relative_position_index]

    return dots(c) + at(c, bias)


@bias("convolution", "convolution(width=3)")
def convolution(e: Encoding, c: Content) -> Tensor:
    d, width = steps(c), len(e.kernel[0])
    return torch.where(d < width, e.kernel[:, d.clamp(max=width - 1)], 0.0)


@bias("query-bias", "query-bias(clip=4)")
def query_bias(e: Encoding, c: Content) -> Tensor:
    u = torch.stack([e.u[:, min(int(i), L - 1)] for i in c.pos.round()], dim=-1)
    return clipped(e, c) + u[..., None]


# functions of the distance


@bias("kerple-log")
def kerple_log(e: Encoding, c: Content) -> Tensor:
    r1, r2 = softplus(per_head(e.r1)), softplus(per_head(e.r2))
    return -r1 * torch.log(1 + r2 * past(c))


@bias("kerple-power")
def kerple_power(e: Encoding, c: Content) -> Tensor:
    r1, r2 = softplus(per_head(e.r1)), 2 / (1 + torch.exp(-per_head(e.r2)))
    there = past(c) > 0
    powers = torch.exp(r2 * torch.log(torch.where(there, past(c), 1)))
    return -r1 * torch.where(there, powers, 0)


@bias("sandwich", "sandwich(width=10, base=50)")
def sandwich(e: Encoding, c: Content) -> Tensor:
    """Inner products of sinusoidal rows, divided by the compression ratio of the head."""
    angles = [c.pos / e.base ** (2 * m / e.width) for m in range(e.width // 2)]
    p = torch.stack([f(angle) for angle in angles for f in (torch.sin, torch.cos)], dim=-1)
    heads = c.q.shape[1]
    ratio = torch.tensor([8 * h / heads for h in range(1, heads + 1)], dtype=torch.float64)
    return (p @ p.T) / per_head(ratio)


@bias("polynomial", "polynomial(degree=1)", "polynomial(degree=6)")
def polynomial(e: Encoding, c: Content) -> Tensor:
    x = past(c).clamp(max=L) / L
    return sum(per_head(a) * x**n for n, a in enumerate(e.a, start=1))


@bias("gaussian", "gaussian(terms=3)")
def gaussian(e: Encoding, c: Content) -> Tensor:
    terms = zip(e.a, torch.exp(e.log_w), strict=True)
    return sum(per_head(a) * torch.exp(-(past(c) ** 2) / (2 * per_head(w) ** 2)) for a, w in terms)


@bias("exponential", "exponential(terms=3)")
def exponential(e: Encoding, c: Content) -> Tensor:
    terms = zip(e.a, torch.exp(e.log_w), strict=True)
    return sum(per_head(a) * torch.exp(-past(c) / per_head(w)) for a, w in terms)


@bias("fourier", "fourier(terms=3)")
def fourier(e: Encoding, c: Content) -> Tensor:
    """Re (a_n - i b_n) exp(2 pi i n d / P) with the period P = 2L."""
    waves = [torch.exp(2j * math.pi * n * past(c) / (2 * L)) for n in range(1, len(e.a) + 1)]
    return sum((per_head(torch.complex(a, -b)) * w).real for a, b, w in zip(e.a, e.b, waves, strict=True))


# networks: CPB, FIRE


def network(first: nn.Linear, last: nn.Linear, x: Tensor) -> Tensor:
    """A network with one hidden layer of ReLUs, `[...]` -> `[H, ...]`."""
    hidden = torch.clamp(x[..., None] * first.weight[:, 0] + first.bias, min=0)
    out = torch.einsum("...n,hn->h...", hidden, last.weight)
    return out if last.bias is None else out + last.bias.view(-1, *[1] * x.ndim)


@bias("cpb", "cpb(hidden=7)", "cpb(log=false)")
def cpb(e: Encoding, c: Content) -> Tensor:
    return network(e.first, e.last, torch.log(1 + past(c)) if e.log else past(c) / L)


@oracle("cpb", "cpb(log=false)", against="x-transformers DynamicPositionBias", unit=FLOAT32)
def dynamic_position_bias(e: Encoding, c: Content) -> Tensor:
    """The library's network with ReLU for SiLU and no last bias. Its input is the distance, poscli's distance / L."""
    heads, width = c.q.shape[1], len(e.first.weight)
    theirs = lib.x_transformers.DynamicPositionBias(width, heads=heads, depth=1, log_distance=e.log)
    theirs.mlp[0][-1] = nn.ReLU()
    weights = {
        "mlp.0.0.weight": e.first.weight / (1 if e.log else L),
        "mlp.0.0.bias": e.first.bias,
        "mlp.1.weight": e.last.weight,
        "mlp.1.bias": torch.zeros(heads),
    }
    single = {name: weight.float() for name, weight in weights.items()}
    return dots(c) + at(c, lambda n: functional_call(theirs, single, (n, n)).double())


@oracle("cpb(hidden=512)", against="transformers Swinv2SelfAttention", unit=FLOAT32)
def swinv2(e: Encoding, c: Content) -> Tensor:
    """Swin's network in a window of 1 x n, before the squashing. Coordinates are log2(1 + 8 d / 8) / 3."""

    def bias(n: int) -> Tensor:
        theirs = lib.swinv2.Swinv2SelfAttention(
            lib.transformers.Swinv2Config(), 24, c.q.shape[1], (1, n), pretrained_window_size=[2, 9]
        )
        column = 3 * math.log(2) * e.first.weight
        weights = {
            "0.weight": torch.cat([torch.zeros_like(column), column], dim=1),
            "0.bias": e.first.bias,
            "2.weight": e.last.weight,
        }
        coordinates = theirs.relative_coords_table.double().view(-1, 2)
        numbers = functional_call(theirs.continuous_position_bias_mlp, weights, (coordinates,)).T
        return numbers[:, theirs.relative_position_index]

    return dots(c) + at(c, bias)


@bias("fire", "fire(hidden=5)")
def fire(e: Encoding, c: Content) -> Tensor:
    """The threshold lies among the positions, so queries occur before and after it."""
    scale, threshold = softplus(e.c), torch.abs(e.threshold) * L / 4
    assert 0 < threshold < L - 1
    far = torch.maximum(c.pos, threshold)
    return network(e.f[0], e.f[2], torch.log(1 + scale * past(c)) / torch.log(1 + scale * far)[:, None])
