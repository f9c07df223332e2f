"""Oracles of rotary encodings that change more than the frequencies, and of GRAPE's path integral."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import functional_call

from oracles import FLOAT32, Content, distances, dots, oracle
from oracles import libraries as lib
from poscli.encodings import Encoding


def frequencies(width: int, base: float) -> Tensor:
    """theta_m = base^(-2m/D), m from 0."""
    return torch.tensor([base ** (-2 * m / width) for m in range(width // 2)], dtype=torch.float64)


def as_complex(x: Tensor) -> Tensor:
    """Channels m and m + D/2 as one complex number."""
    real, imaginary = x.split(x.shape[-1] // 2, dim=-1)
    return torch.complex(real, imaginary)


def at_angles(q: Tensor, k: Tensor, angle: Tensor) -> Tensor:
    """q_i R(angle_ij) k_j / sqrt(D) for angles `[T, T, pairs]`: Re sum_m q_m conj(k_m) e^(i angle_m)."""
    products = as_complex(q)[:, :, :, None] * as_complex(k)[:, :, None].conj()
    return (products * torch.polar(torch.ones_like(angle), angle)).real.sum(-1) / math.sqrt(q.shape[-1])


def at_distance(c: Content, d: Tensor, base: float = 10000.0) -> Tensor:
    """Rope's scores for a given distance `[T, T]` of every pair."""
    return at_angles(c.q, c.k, d[..., None] * frequencies(c.q.shape[-1], base))


def deinterleaved(c: Content) -> Content:
    """Pairs (2m, 2m + 1) of q and k moved to (m, m + D/2)."""
    q, k = (torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1) for x in (c.q, c.k))
    return Content(q, k, c.v, c.x, c.ids, c.pos)


# xpos


def decaying(c: Content, scale_base: float, base: float = 10000.0) -> Tensor:
    """Re sum_m q_m conj(k_m) zeta_m^((i-j)/c) e^(i (i-j) theta_m) / sqrt(D)."""
    d = distances(c)[..., None]
    width = c.q.shape[-1]
    gamma = 0.4
    zeta = torch.tensor([(m / (width / 2) + gamma) / (1 + gamma) for m in range(width // 2)], dtype=torch.float64)
    products = as_complex(c.q)[:, :, :, None] * as_complex(c.k)[:, :, None].conj()
    turned = torch.polar(zeta ** (d / scale_base), d * frequencies(width, base))
    return (products * turned).real.sum(-1) / math.sqrt(width)


@oracle("xpos")
def xpos(e: Encoding, c: Content) -> Tensor:
    return decaying(c, 512)


@oracle("xpos(scale_base=20, base=100)")
def xpos_steeper(e: Encoding, c: Content) -> Tensor:
    return decaying(c, 20, 100)


@oracle("xpos(scale_base=20, fraction=0.5)")
def xpos_partial(e: Encoding, c: Content) -> Tensor:
    """Channels 4 to 7 are not rotated; the others are a head of width 4."""
    first = Content(c.q[..., :4], c.k[..., :4], c.v, c.x, c.ids, c.pos)
    rest = torch.einsum("bhid,bhjd->bhij", c.q[..., 4:], c.k[..., 4:])
    return (decaying(first, 20) * 2 + rest) / math.sqrt(8)


@oracle("xpos(layout=interleaved)", against="x-transformers RotaryEmbedding(use_xpos=True)", unit=FLOAT32)
def xpos_library(e: Encoding, c: Content) -> Tensor:
    library = lib.x_transformers
    freqs, scale = library.RotaryEmbedding(c.q.shape[-1], use_xpos=True).double()(c.pos)
    q, k = (library.apply_rotary_pos_emb(x, freqs, s) for x, s in ((c.q, scale), (c.k, scale**-1)))
    return torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(c.q.shape[-1])


# rerope and self-extend; positions are rounded, so that rounding noise moves no key across the edge of a window


@oracle("rerope")
def rerope(e: Encoding, c: Content) -> Tensor:
    return at_distance(c, distances(c).clamp(max=16))


@oracle("rerope(window=5)")
def rerope_near(e: Encoding, c: Content) -> Tensor:
    return at_distance(c, distances(c).clamp(max=5))


@oracle("rerope(window=50, base=30, layout=interleaved)")
def rerope_interleaved(e: Encoding, c: Content) -> Tensor:
    return at_distance(deinterleaved(c), distances(c).clamp(max=50), base=30)


def extended(c: Content, window: int, group: int, base: float = 10000.0) -> Tensor:
    """Pair by pair: the distance of the tokens within the window, and the distance of their groups beyond it."""
    pos = [round(float(p)) for p in c.pos]
    d = torch.zeros(len(pos), len(pos), dtype=torch.float64)
    for i, p_i in enumerate(pos):
        for j, p_j in enumerate(pos):
            grouped = math.floor(p_i / group) - math.floor(p_j / group) + window - math.floor(window / group)
            d[i, j] = p_i - p_j if p_i - p_j < window else grouped
    return at_distance(c, d, base)


@oracle("self-extend(window=5, group=3)")
def self_extend(e: Encoding, c: Content) -> Tensor:
    return extended(c, window=5, group=3)


@oracle("self-extend(window=40, group=7, base=50)")
def self_extend_slower(e: Encoding, c: Content) -> Tensor:
    return extended(c, window=40, group=7, base=50)


def smallest(c: Content, window: int, length: int) -> int:
    """The smallest group size for which no distance of the input is larger than in training."""
    pos = [round(float(p)) for p in c.pos]
    group = 1
    while any(
        math.floor(i / group) - math.floor(j / group) + window - math.floor(window / group) > length - 1
        for i in pos
        for j in pos
        if i - j >= window
    ):
        group += 1
    return group


@oracle("self-extend")
def self_extend_grown(e: Encoding, c: Content) -> Tensor:
    return extended(c, window=8, group=smallest(c, window=8, length=16))


@oracle("self-extend(window=11)")
def self_extend_grown_further(e: Encoding, c: Content) -> Tensor:
    return extended(c, window=11, group=smallest(c, window=11, length=16))


# pope


@oracle("pope", "pope(start=uniform)")
def pope(e: Encoding, c: Content) -> Tensor:
    """sum_c mu_q mu_k cos((j - i) theta_c + delta_c), mu = log(1 + e^x)."""
    width = c.q.shape[-1]
    theta = torch.tensor([10000.0 ** (-n / width) for n in range(width)], dtype=torch.float64)
    mu_q, mu_k = (torch.log(1 + torch.exp(x)) for x in (c.q, c.k))
    delta = torch.minimum(torch.maximum(e.delta, torch.tensor(-2 * math.pi)), torch.tensor(0.0))
    phase = -distances(c)[..., None] * theta + delta[:, :, None]  # [H, T, T, D]
    return (mu_q[:, :, :, None] * mu_k[:, :, None] * torch.cos(phase)).sum(-1) / math.sqrt(width)


@oracle("pope", against="x-transformers PolarEmbedding", unit=FLOAT32)
def pope_library(e: Encoding, c: Content) -> Tensor:
    heads, width = c.q.shape[1], c.q.shape[-1]
    library = lib.x_transformers
    freqs, bias = functional_call(library.PolarEmbedding(width, heads), {"learned_bias": e.delta}, (c.pos,))
    q, k = library.apply_polar_pos_emb(c.q, freqs), library.apply_polar_pos_emb(c.k, freqs + bias)
    return torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(width)


# fope


def fourier(e: Encoding, c: Content, base: float, length: int = 16) -> Tensor:
    """Position by position and pair by pair, in complex numbers."""
    width = c.q.shape[-1]
    w = [base ** (-2 * m / width) for m in range(width // 2)]
    trained = [each for each in w if each * length >= 2 * math.pi]
    f = []
    for n in c.pos:
        for h in range(c.q.shape[1]):
            for m in range(width // 2):
                real, imaginary = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
                if w[m] in trained:
                    real = torch.cos(w[m] * n) + sum(e.a[0, h, s, m] * torch.cos(o * n) for s, o in enumerate(trained))
                    imaginary = torch.sin(w[m] * n) + sum(
                        e.a[1, h, s, m] * torch.sin(o * n) for s, o in enumerate(trained)
                    )
                f.append(torch.complex(real, imaginary))
    f_HTm = torch.stack(f).unflatten(0, (len(c.pos), c.q.shape[1], -1)).transpose(0, 1)
    q, k = as_complex(c.q) * f_HTm, as_complex(c.k) * f_HTm
    return torch.einsum("bhim,bhjm->bhij", q, k.conj()).real / math.sqrt(width)


@oracle("fope")
def fope(e: Encoding, c: Content) -> Tensor:
    """At L = 16 only one frequency completes a period."""
    assert e.a.shape[-2:] == (1, 1)
    return fourier(e, c, 10000)


@oracle("fope(base=4)", "fope(base=4, sigma=1, learned=true)")
def fope_more(e: Encoding, c: Content) -> Tensor:
    assert e.a.shape[-2:] == (3, 3)
    return fourier(e, c, 4)


@oracle("fope(sigma=0, base=10)")
def fope_clipped(e: Encoding, c: Content) -> Tensor:
    """Rope with two of its frequencies set to 0."""
    theta = torch.tensor([1, 10**-0.25, 0, 0], dtype=torch.float64)
    return at_angles(c.q, c.k, distances(c)[..., None] * theta)


# rope-dropped


@oracle("rope-dropped", "rope-dropped(recalibrate=0)")
def rope_dropped_in_training(e: Encoding, c: Content) -> Tensor:
    assert e.training
    return at_distance(c, distances(c))


@oracle("rope-dropped(recalibrate=1)")
def rope_dropped(e: Encoding, c: Content) -> Tensor:
    return dots(c)


# grape


def group_action(e: Encoding, c: Content, planes: bool, learned: bool, base: float = 10000.0) -> Tensor:
    """q_i . exp((j - i) L) k_j, L a skew matrix, with a matrix exponential for every distance."""
    heads, width = c.q.shape[1], c.q.shape[-1]
    theta = frequencies(width, base) * (torch.exp(e.log_factor) if learned else 1)
    turn = torch.zeros(width, width, dtype=torch.float64)
    for m in range(width // 2):
        plane = torch.zeros(width, width, dtype=torch.float64)
        plane[m + width // 2, m], plane[m, m + width // 2] = 1, -1
        turn = turn + theta[m] * plane
    basis = torch.matrix_exp(e.a - e.a.transpose(1, 2)) if planes else torch.eye(width).double().expand(heads, -1, -1)
    generator = basis @ turn @ basis.transpose(1, 2)
    action = torch.matrix_exp(-distances(c)[:, :, None, None, None] * generator)  # [T, T, H, D, D]
    return torch.einsum("bhid,ijhde,bhje->bhij", c.q, action, c.k) / math.sqrt(width)


@oracle("grape")
def grape(e: Encoding, c: Content) -> Tensor:
    return group_action(e, c, planes=True, learned=True)


@oracle("grape(frequencies=false, base=100)")
def grape_planes(e: Encoding, c: Content) -> Tensor:
    return group_action(e, c, planes=True, learned=False, base=100)


@oracle("grape(planes=false)")
def grape_frequencies(e: Encoding, c: Content) -> Tensor:
    return group_action(e, c, planes=False, learned=True)


@oracle("grape(planes=false, frequencies=false)")
def grape_plain(e: Encoding, c: Content) -> Tensor:
    return at_distance(c, distances(c))


def path_integral(e: Encoding, c: Content, size: int) -> Tensor:
    """sum_{l=j+1..t} alpha_h log sigmoid(<p_t, R_l p_l> / d), edge by edge."""
    tokens, heads = len(c.pos), c.q.shape[1]
    alpha = [2.0**-4, 2.0**-8, 2.0**-2]  # of ALiBi for 3 heads: those of 2, then the first of 4
    w = e.w_p.reshape(heads, size, -1)
    p = torch.einsum("btw,hpw->bhtp", c.x, w)
    p = p / torch.sqrt((p**2).mean(-1, keepdim=True) + 1e-6)
    rotated = []
    for n in range(tokens):
        cos, sin = torch.cos(c.pos[n]), torch.sin(c.pos[n])
        r = torch.zeros(size, size, dtype=torch.float64)
        for m in range(size // 2):
            r[m, m] = r[m + size // 2, m + size // 2] = cos
            r[m + size // 2, m], r[m, m + size // 2] = sin, -sin
        rotated.append(torch.einsum("pr,bhr->bhp", r, p[:, :, n]))
    rows = []
    for t in range(tokens):
        edges = [torch.einsum("bhp,bhp->bh", p[:, :, t], rotated[n]) / size for n in range(tokens)]
        psi = [-torch.log(1 + torch.exp(-edge)) * torch.tensor(alpha) for edge in edges]
        empty = torch.zeros_like(psi[0])
        rows.append(torch.stack([sum(psi[j + 1 : t + 1], empty) for j in range(tokens)], dim=-1))
    return torch.stack(rows, dim=2)


@oracle("grape-additive")
def grape_additive(e: Encoding, c: Content) -> Tensor:
    return dots(c) + path_integral(e, c, 8)


@oracle("grape-additive(probe=2)")
def grape_additive_narrow(e: Encoding, c: Content) -> Tensor:
    return dots(c) + path_integral(e, c, 2)
