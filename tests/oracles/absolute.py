"""Oracles of `none` and of the encodings that act on the embedding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from oracles import FLOAT32, Content, oracle
from oracles import libraries as lib
from oracles.layer import Part, part
from poscli.encodings import Encoding
from poscli.encodings.learned import noise
from poscli.equation import Unsupported


@part("none", against="the definition")
def none(e: Encoding) -> Part:
    return Part()


# sinusoidal


def sinusoids(pos: Tensor, width: int, base: float = 10000.0) -> Tensor:
    rows = []
    for k in pos:
        angles = [k / base ** (2 * m / width) for m in range(width // 2)]
        rows.append(torch.stack([f(a) for a in angles for f in (torch.sin, torch.cos)]))
    return torch.stack(rows)


@part("sinusoidal(combine=concat)", against="the definition", gives="embedding")
@part(
    *("sinusoidal", "sinusoidal(base=20, combine=multiply)", "sinusoidal+interpolated(3)"),
    gives="embedding",
)
def sinusoidal(e: Encoding) -> Part:
    def embed(x: Tensor, pos: Tensor) -> Tensor:
        p, width = sinusoids(pos, x.shape[-1], e.base), x.shape[-1]
        if e.combine == "concat":
            of_x, of_p = e.project.weight[:, :width], e.project.weight[:, width:]
            return torch.einsum("btw,vw->btv", x, of_x) + torch.einsum("tw,vw->tv", p, of_p)
        return x * p if e.combine == "multiply" else x + p

    return Part(embed=embed)


@oracle("sinusoidal", against="transformers Marian, interleaved", gives="embedding", unit=FLOAT32)
def sinusoidal_marian(e: Encoding, c: Content) -> Tensor:
    """Marian has all sines in the first half and all cosines in the second, a permutation of the paper's channels."""
    index, width = c.pos.round().long(), c.x.shape[-1]
    theirs = lib.marian.MarianSinusoidalPositionalEmbedding(int(index[-1]) + 1, width)
    theirs._init_weight()
    sines, cosines = theirs.weight.double()[index].chunk(2, dim=-1)
    return c.x + torch.stack([sines, cosines], dim=-1).reshape(len(index), width)


# learned, hierarchical


@oracle("learned", against="transformers GPT-2's wpe", gives="embedding")
def learned(e: Encoding, c: Content) -> Tensor:
    index, width = c.pos.round().long(), c.x.shape[-1]
    if int(index[-1]) >= len(e.table):
        raise Unsupported("GPT-2 has no such position")
    config = lib.transformers.GPT2Config(vocab_size=1, n_positions=len(e.table), n_embd=width, n_layer=1, n_head=1)
    gpt2, at = lib.transformers.GPT2Model(config).double().eval(), index.expand(len(c.x), -1)
    given = {"inputs_embeds": c.x, "position_ids": at, "output_hidden_states": True, "use_cache": False}
    return functional_call(gpt2, {"wpe.weight": e.table}, (), given).hidden_states[0]


def row(table: Tensor, at: Tensor) -> Tensor:
    """A row of a table, interpolated at a position between two rows."""
    low = min(int(at), len(table) - 1)
    high = min(low + 1, len(table) - 1)
    return (1 - (at - low)) * table[low] + (at - low) * table[high]


@part("learned(beyond=interpolate)", against="the definition", gives="embedding")
def learned_rows(e: Encoding) -> Part:
    def embed(x: Tensor, pos: Tensor) -> Tensor:
        rows, tokens = len(e.table), pos[-1] + 1
        closer = (rows - 1) / (tokens - 1) if e.beyond == "interpolate" and tokens > rows else 1.0
        return x + torch.stack([row(e.table, k * closer) for k in pos])

    return Part(embed=embed)


def hierarchy(p: Tensor, k: int, a: float) -> Tensor:
    """q_{(i-1) n + j} with i and j from 1, in the author's notation."""
    n = len(p)
    i, j = k // n + 1, k % n + 1

    def u(m: int) -> Tensor:
        return (p[m - 1] - a * p[0]) / (1 - a)

    return a * u(i) + (1 - a) * u(j)


@oracle("hierarchical", "learned(beyond=hierarchical)", "hierarchical(alpha=0.7)", gives="embedding")
def hierarchical(e: Encoding, c: Content) -> Tensor:
    index = c.pos.round().long().tolist()
    if index[-1] >= len(e.table) ** 2:
        raise Unsupported("n rows reach n^2 positions")
    return c.x + torch.stack([hierarchy(e.table, k, getattr(e, "alpha", 0.4)) for k in index])


@oracle("learned(beyond=random)", against="the definition", gives="embedding")
def learned_random(e: Encoding, c: Content) -> Tensor:
    """The noise is arbitrary, but it must depend on the position alone."""
    rows = []
    for k in c.pos.round().long().tolist():
        alone = noise(torch.tensor([k]), c.x.shape[-1])[0].double()
        rows.append(e.table[k] if k < len(e.table) else alone)
    return c.x + torch.stack(rows)


# floater


@oracle("floater(hidden=0, step=1)", against="its closed form, h linear", gives="embedding", unit=FLOAT32)
def floater_linear(e: Encoding, c: Content) -> Tensor:
    """d/dt (p, t, 1) = M (p, t, 1), so (p, t, 1) at t is exp(M t) (p(0), 0, 1).

    The solver's own error, (|M| dt)^5 / 120 in each of 315 steps, is far below float32's rounding.
    """
    weight, bias, width = e.h.first.weight, e.h.first.bias, len(e.p_0)
    m = torch.zeros(width + 2, width + 2, dtype=torch.float64)
    m = torch.cat([torch.cat([weight, bias[:, None]], dim=1), m[width:]])
    m = m + torch.zeros_like(m).index_put((torch.tensor(width), torch.tensor(width + 1)), torch.tensor(1.0).double())
    start = torch.cat([e.p_0, torch.tensor([0.0, 1.0], dtype=torch.float64)])
    return c.x + torch.stack([(torch.linalg.matrix_exp(m * (0.01 * k)) @ start)[:width] for k in c.pos])


def h(e: Encoding, t: float | Tensor, p: Tensor) -> Tensor:
    given = torch.cat([p, torch.as_tensor(t, dtype=torch.float64)[None]])
    hidden = torch.tanh(e.h.first.weight @ given + e.h.first.bias)
    return e.h.last[1].weight @ hidden + e.h.last[1].bias


def kutta(e: Encoding, t: float | Tensor, p: Tensor, dt: float | Tensor) -> Tensor:
    """One step of the 3/8 rule, torchdiffeq's `rk4`."""
    k1 = h(e, t, p)
    k2 = h(e, t + dt / 3, p + dt / 3 * k1)
    k3 = h(e, t + 2 / 3 * dt, p + dt * (k2 - k1 / 3))
    return p + dt / 8 * (k1 + 3 * k2 + 3 * k3 + h(e, t + dt, p + dt * (k1 - k2 + k3)))


@oracle("floater", "floater(hidden=5, step=3)", against="the definition", gives="embedding")
def floater_by_steps(e: Encoding, c: Content) -> Tensor:
    """The solution on a grid, with the cubic of both values and slopes between two points."""
    size, rows, p, n = e.step * 0.01, [], e.p_0, 0
    for k in c.pos:
        while e.step * (n + 1) <= float(k):
            p, n = kutta(e, n * size, p, size), n + 1
        u, after = k / e.step - n, kutta(e, n * size, p, size)
        before_slope, after_slope = h(e, n * size, p), h(e, (n + 1) * size, after)
        shapes = (1 + 2 * u) * (1 - u) ** 2, u**2 * (3 - 2 * u), u * (1 - u) ** 2, u**2 * (u - 1)
        values = p, after, size * before_slope, size * after_slope
        rows.append(sum(f * value for f, value in zip(shapes, values, strict=True)))
    return c.x + torch.stack(rows)


@oracle("floater(step=1)", gives="embedding", unit=FLOAT32)
def floater(e: Encoding, c: Content) -> Tensor:
    """The integral in steps of half a position, whose error is far below the rounding of float32."""
    p, t, rows = e.p_0, 0.01 * c.pos[0], [e.p_0]
    for end in 0.01 * c.pos[1:]:
        steps = 2 * round(float(end - t) / 0.01)
        size = (end - t) / steps
        for n in range(steps):
            p = kutta(e, t + n * size, p, size)
        t = end
        rows.append(p)
    return c.x + torch.stack(rows)


# complex


@oracle("complex", gives="embedding")
def complex_embedding(e: Encoding, c: Content) -> Tensor:
    z = torch.complex(c.x[..., 0::2], c.x[..., 1::2])
    r, theta = z.abs(), z.angle()
    turned = torch.polar(r, theta + e.omega[c.ids] * c.pos[:, None])
    return torch.view_as_real(turned).reshape(c.x.shape)
