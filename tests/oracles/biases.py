"""Oracles of the distance biases."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from oracles import FLOAT32, Content, attention, distances, dots, oracle
from oracles import libraries as lib
from poscli.encodings import Encoding

L = 16  # tokens of a training window


def whole(c: Content) -> Tensor:
    """Distances `[T, T]` as whole numbers, also if rounding noise has moved positions; negative in the future."""
    return c.pos.round().long()[:, None] - c.pos.round().long()


def each(term: Callable[[int], Tensor], c: Content) -> Tensor:
    """Scores with a term `[H]` for each whole distance, pair by pair; terms in the future are arbitrary."""
    rows = [torch.stack([term(max(0, int(d))) for d in row], dim=-1) for row in whole(c)]
    return dots(c) + torch.stack(rows, dim=-2)


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


@oracle("alibi")
def alibi(e: Encoding, c: Content) -> Tensor:
    m = torch.tensor(slopes(c.q.shape[1]), dtype=torch.float64)
    return dots(c) - m[:, None, None] * distances(c)


@oracle("alibi(trainable=true)")
def alibi_trained(e: Encoding, c: Content) -> Tensor:
    return dots(c) - e.slope[:, None, None] * distances(c)


@oracle("alibi(trainable=true, scale=0.3)")
def alibi_trained_and_flatter(e: Encoding, c: Content) -> Tensor:
    return dots(c) - 0.3 * e.slope[:, None, None] * distances(c)


@oracle("alibi(scale=2.5)")
def alibi_scaled(e: Encoding, c: Content) -> Tensor:
    m = torch.tensor(slopes(c.q.shape[1]), dtype=torch.float64)
    return dots(c) - 2.5 * m[:, None, None] * distances(c)


@oracle("alibi(most=5)", against="transformers MPT", gives="output", unit=FLOAT32)
def mpt(e: Encoding, c: Content) -> Tensor:
    """MPT adds -m_h (n - 1 - j), which differs by a constant per query, so outputs are compared after the softmax."""
    pos = c.pos.round().long()
    everywhere = lib.mpt.build_mpt_alibi_tensor(c.q.shape[1], int(pos[-1]) + 1, alibi_bias_max=5)
    return attention(dots(c) + everywhere[..., pos].double(), c)


@oracle("alibi(before_scale=true)", against="transformers Falcon", gives="output", unit=FLOAT32)
def falcon(e: Encoding, c: Content) -> Tensor:
    """(q_i . k_j + m_h j) / sqrt(D). A mask of floats spares the positions Falcon's rounding to bfloat16."""
    pos = c.pos.round().long()
    everywhere = lib.falcon.build_alibi_tensor(torch.ones(1, int(pos[-1]) + 1), c.q.shape[1], torch.float32)
    return attention(dots(c) + everywhere[..., pos].double() / math.sqrt(c.q.shape[-1]), c)


@oracle("alibi", against="transformers BLOOM", gives="output", unit=FLOAT32)
def bloom(e: Encoding, c: Content) -> Tensor:
    """BLOOM adds m_h j, which differs by a constant per query, so outputs are compared after the softmax."""
    pos = c.pos.round().long()
    everywhere = lib.bloom.build_alibi_tensor(torch.ones(1, int(pos[-1]) + 1), c.q.shape[1], torch.float32)
    return attention(dots(c) + everywhere[..., pos].double(), c)


@oracle("alibi", against="x-transformers AlibiPositionalBias", unit=FLOAT32)
def alibi_of_x_transformers(e: Encoding, c: Content) -> Tensor:
    return dots(c) + lib.x_transformers.AlibiPositionalBias(c.q.shape[1]).forward_custom_pos(c.pos.float()).double()


# tables: T5, and every distance up to a limit


def bucket(d: int, buckets: int, far: int) -> int:
    """Half of the buckets hold one distance each, half are spaced logarithmically; the last has the rest."""
    exact = buckets // 2
    if d < exact:
        return d
    edges = [exact * (far / exact) ** (n / (buckets - exact)) for n in range(1, buckets - exact)]
    return exact + sum(d >= edge for edge in edges)


def t5(buckets: int, far: int) -> Callable[[Encoding, Content], Tensor]:
    return lambda e, c: each(lambda d: e.table[:, bucket(d, buckets, far)], c)


def t5_of_transformers(buckets: int, far: int) -> Callable[[Encoding, Content], Tensor]:
    def formula(e: Encoding, c: Content) -> Tensor:
        sizes = {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": far}
        config = lib.transformers.T5Config(d_model=24, d_kv=8, num_heads=c.q.shape[1], is_decoder=True, **sizes)
        layer = lib.t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
        del layer.relative_attention_bias
        layer.relative_attention_bias = lambda buckets_TT: e.table.T[buckets_TT]
        return dots(c) + at(c, lambda n: layer.compute_bias(n, n, device="cpu")[0])

    return formula


for spec, buckets, far in (("t5", 32, 128), ("t5(buckets=6, far=11)", 6, 11), ("t5(buckets=7, far=200)", 7, 200)):
    oracle(spec)(t5(buckets, far))
    oracle(spec, against="transformers T5Attention.compute_bias")(t5_of_transformers(buckets, far))


@oracle("clipped", "clipped(clip=5)")
def clipped(e: Encoding, c: Content) -> Tensor:
    return each(lambda d: e.table[:, min(d, len(e.table[0]) - 1)], c)


@oracle("clipped", against="transformers SwinSelfAttention")
def swin(e: Encoding, c: Content) -> Tensor:
    """Swin's bias in a window of 1 x n with n above every distance; the last number of `clipped` is repeated."""

    def bias(n: int) -> Tensor:
        layer = lib.swin.SwinSelfAttention(lib.transformers.SwinConfig(), 24, c.q.shape[1], window_size=(1, n))
        numbers = {d: e.table[:, min(max(d, 0), len(e.table[0]) - 1)] for d in range(1 - n, n)}
        return torch.stack(list(numbers.values()), dim=-1)[:, layer.relative_position_index]

    return dots(c) + at(c, bias)


@oracle("convolution", "convolution(width=3)")
def convolution(e: Encoding, c: Content) -> Tensor:
    width = len(e.kernel[0])
    return each(lambda d: e.kernel[:, d] if d < width else torch.zeros_like(e.kernel[:, 0]), c)


@oracle("query-bias", "query-bias(clip=4)")
def query_bias(e: Encoding, c: Content) -> Tensor:
    u = torch.stack([e.u[:, min(int(i), L - 1)] for i in c.pos.round()], dim=-1)
    return clipped(e, c) + u[..., None]


# functions of the distance


@oracle("kerple-log")
def kerple_log(e: Encoding, c: Content) -> Tensor:
    r1, r2 = softplus(per_head(e.r1)), softplus(per_head(e.r2))
    return dots(c) - r1 * torch.log(1 + r2 * past(c))


@oracle("kerple-power")
def kerple_power(e: Encoding, c: Content) -> Tensor:
    r1, r2 = softplus(per_head(e.r1)), 2 / (1 + torch.exp(-per_head(e.r2)))
    there = past(c) > 0
    powers = torch.exp(r2 * torch.log(torch.where(there, past(c), 1)))
    return dots(c) - r1 * torch.where(there, powers, 0)


def sandwich(width: int, base: float) -> Callable[[Encoding, Content], Tensor]:
    """Inner products of sinusoidal rows, divided by the compression ratio of the head."""

    def formula(e: Encoding, c: Content) -> Tensor:
        angles = [c.pos / base ** (2 * m / width) for m in range(width // 2)]
        p = torch.stack([f(angle) for angle in angles for f in (torch.sin, torch.cos)], dim=-1)
        heads = c.q.shape[1]
        ratio = torch.tensor([8 * h / heads for h in range(1, heads + 1)], dtype=torch.float64)
        return dots(c) + (p @ p.T) / per_head(ratio)

    return formula


oracle("sandwich")(sandwich(128, 10000))
oracle("sandwich(width=10, base=50)")(sandwich(10, 50))


@oracle("polynomial", "polynomial(degree=1)", "polynomial(degree=6)")
def polynomial(e: Encoding, c: Content) -> Tensor:
    x = past(c).clamp(max=L) / L
    return dots(c) + sum(per_head(a) * x**n for n, a in enumerate(e.a, start=1))


@oracle("gaussian", "gaussian(terms=3)")
def gaussian(e: Encoding, c: Content) -> Tensor:
    terms = zip(e.a, torch.exp(e.log_w), strict=True)
    return dots(c) + sum(per_head(a) * torch.exp(-(past(c) ** 2) / (2 * per_head(w) ** 2)) for a, w in terms)


@oracle("exponential", "exponential(terms=3)")
def exponential(e: Encoding, c: Content) -> Tensor:
    terms = zip(e.a, torch.exp(e.log_w), strict=True)
    return dots(c) + sum(per_head(a) * torch.exp(-past(c) / per_head(w)) for a, w in terms)


@oracle("fourier", "fourier(terms=3)")
def fourier(e: Encoding, c: Content) -> Tensor:
    """Re (a_n - i b_n) exp(2 pi i n d / P) with the period P = 2L."""
    waves = [torch.exp(2j * math.pi * n * past(c) / (2 * L)) for n in range(1, len(e.a) + 1)]
    return dots(c) + sum((per_head(torch.complex(a, -b)) * w).real for a, b, w in zip(e.a, e.b, waves, strict=True))


# networks: CPB, FIRE


def network(first: nn.Linear, last: nn.Linear, x: Tensor) -> Tensor:
    """A network with one hidden layer of ReLUs, `[...]` -> `[H, ...]`."""
    hidden = torch.clamp(x[..., None] * first.weight[:, 0] + first.bias, min=0)
    out = torch.einsum("...n,hn->h...", hidden, last.weight)
    return out if last.bias is None else out + last.bias.view(-1, *[1] * x.ndim)


@oracle("cpb", "cpb(hidden=7)")
def cpb_log(e: Encoding, c: Content) -> Tensor:
    return dots(c) + network(e.first, e.last, torch.log(1 + past(c)))


@oracle("cpb(log=false)")
def cpb_linear(e: Encoding, c: Content) -> Tensor:
    return dots(c) + network(e.first, e.last, past(c) / L)


def dynamic_position_bias(log: bool) -> Callable[[Encoding, Content], Tensor]:
    """The library's network with ReLU for SiLU and no last bias. Its input is the distance, poscli's distance / L."""

    def formula(e: Encoding, c: Content) -> Tensor:
        first, last = e.first, e.last
        theirs = lib.x_transformers.DynamicPositionBias(
            len(first.weight), heads=c.q.shape[1], depth=1, log_distance=log
        )
        theirs.mlp[0][-1] = nn.ReLU()
        weights = {
            "mlp.0.0.weight": first.weight / (1 if log else L),
            "mlp.0.0.bias": first.bias,
            "mlp.1.weight": last.weight,
            "mlp.1.bias": torch.zeros(c.q.shape[1]),
        }
        single = {name: weight.float() for name, weight in weights.items()}
        return dots(c) + at(c, lambda n: functional_call(theirs, single, (n, n)).double())

    return formula


oracle("cpb", against="x-transformers DynamicPositionBias", unit=FLOAT32)(dynamic_position_bias(True))
oracle("cpb(log=false)", against="x-transformers DynamicPositionBias", unit=FLOAT32)(dynamic_position_bias(False))


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


@oracle("fire", "fire(hidden=5)")
def fire(e: Encoding, c: Content) -> Tensor:
    """The threshold lies among the positions, so queries occur before and after it."""
    scale, threshold = softplus(e.c), torch.abs(e.threshold) * L / 4
    assert 0 < threshold < L - 1
    far = torch.maximum(c.pos, threshold)
    return dots(c) + network(e.f[0], e.f[2], torch.log(1 + scale * past(c)) / torch.log(1 + scale * far)[:, None])
