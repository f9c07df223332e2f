"""Oracles of the rotary encodings: the paper's complex product, and transformers' frequencies and rotations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb
from torch import Tensor

from oracles import FLOAT32, Content, configs, dots, oracle
from oracles import libraries as lib
from poscli.encodings import Encoding

D, L = 8, 16  # numbers per head, tokens of a training window


def scale_of(c: Content, original: int = L) -> Tensor:
    """The factor s = max(1, L'/L)."""
    return torch.clamp((c.pos.max() + 1) / original, min=1)


def powers(base: float | Tensor = 10000.0, width: int = D) -> list[Tensor]:
    """theta_m = base^(-2m/width)."""
    return [torch.as_tensor(base, dtype=torch.float64) ** (-2 * m / width) for m in range(width // 2)]


def products(
    c: Content, theta: list[Tensor], *, interleaved: bool = False, times: Tensor | float = 1.0, keep: int = 0
) -> Tensor:
    """Re sum_m q_m conj(k_m) exp(i (p_i - p_j) theta_m) / sqrt(D) over pairs as complex numbers.

    The channels beyond the pairs are not rotated. `times` multiplies the rotated channels of both q and k. Positions
    below `keep` use RoPE's frequencies and factor 1.
    """
    pairs = len(theta)
    rope = powers(width=2 * pairs)
    early = torch.arange(len(c.pos)) * (c.pos[1] - c.pos[0]).round() < keep
    length = torch.where(early, 1.0, torch.as_tensor(times, dtype=torch.float64))
    total = torch.einsum("bhid,bhjd->bhij", c.q[..., 2 * pairs :], c.k[..., 2 * pairs :])
    for m in range(pairs):
        x, y = (2 * m, 2 * m + 1) if interleaved else (m, m + pairs)
        turn = c.pos * torch.where(early, rope[m], theta[m])
        q, k = (torch.complex(z[..., x], z[..., y]) * length * torch.exp(1j * turn) for z in (c.q, c.k))
        total = total + (q[..., :, None] * k[..., None, :].conj()).real
    return total / math.sqrt(D)


# rope


@oracle("rope", "rope-linear(factor=1)", "rope-ntk(factor=1)", "yarn(factor=1)", "llama3(factor=1)", "p-rope(p=1)")
def rope(e: Encoding, c: Content) -> Tensor:
    return products(c, powers())


@oracle("rope(layout=interleaved)")
def rope_interleaved(e: Encoding, c: Content) -> Tensor:
    return products(c, powers(), interleaved=True)


@oracle("rope(base=50, layout=interleaved, fraction=0.5)")
def rope_partly(e: Encoding, c: Content) -> Tensor:
    return products(c, powers(50.0, D // 2), interleaved=True)


@oracle("rope", against="transformers' Llama", unit=FLOAT32)
def llama(e: Encoding, c: Content) -> Tensor:
    config = lib.transformers.LlamaConfig(hidden_size=3 * D, num_attention_heads=3, max_position_embeddings=L)
    cos, sin = lib.llama.LlamaRotaryEmbedding(config)(c.q, c.pos[None])
    q, k = lib.llama.apply_rotary_pos_emb(c.q, c.k, cos, sin)
    return torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(D)


@oracle("rope(fraction=0.5)", against="transformers' GPT-NeoX")
def neox(e: Encoding, c: Content) -> Tensor:
    angle = (c.pos[:, None] * torch.stack(powers(width=D // 2))).repeat(1, 2)[None]
    q, k = lib.gpt_neox.apply_rotary_pos_emb(c.q, c.k, angle.cos(), angle.sin())
    return torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(D)


@oracle("rope(layout=interleaved)", against="transformers' GPT-J")
def gptj(e: Encoding, c: Content) -> Tensor:
    angle = (c.pos[:, None] * torch.stack(powers()))[None]
    # GPT-J keeps heads after tokens
    q, k = (lib.gptj.apply_rotary_pos_emb(x.transpose(1, 2), angle.sin(), angle.cos()) for x in (c.q, c.k))
    return torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(D)


def lucidrains(c: Content, **options: Any) -> Tensor:
    freqs = RotaryEmbedding(D, cache_if_possible=False, **options).freqs.detach().double()
    angle = torch.repeat_interleave(c.pos[:, None] * freqs, 2, dim=-1)
    q, k = apply_rotary_emb(angle, c.q), apply_rotary_emb(angle, c.k)
    return torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(D)


@oracle("rope(layout=interleaved)", against="rotary-embedding-torch", unit=FLOAT32)
def rope_of_lucidrains(e: Encoding, c: Content) -> Tensor:
    return lucidrains(c)


@oracle("rope-ntk(factor=4, layout=interleaved)", against="rotary-embedding-torch", unit=FLOAT32)
def ntk_of_lucidrains(e: Encoding, c: Content) -> Tensor:
    return lucidrains(c, theta_rescale_factor=4.0)


# scaled: by the papers


def linear(s: Tensor | float, base: float = 10000.0, width: int = D) -> list[Tensor]:
    """theta_m / s, which equals positions scaled by 1 / s."""
    return [theta / s for theta in powers(base, width)]


def ntk(s: Tensor | float, base: float = 10000.0, width: int = D) -> list[Tensor]:
    """The base b' for which the slowest pair, b'^(-(D-2)/D), is that of linear interpolation: b^(-(D-2)/D) / s."""
    slowest = base ** (-(width - 2) / width) / torch.as_tensor(s, dtype=torch.float64)
    return powers(slowest ** (-width / (width - 2)), width)


def by_parts(
    s: Tensor | float, alpha: float, beta: float, base: float = 10000.0, width: int = D, original: int = L
) -> list[Tensor]:
    """h(theta) = (1 - gamma(r)) theta / s + gamma(r) theta, r = L / wavelength."""
    out = []
    for theta in powers(base, width):
        r = float(original / (2 * math.pi / theta))
        gamma = 0.0 if r < alpha else 1.0 if r > beta else (r - alpha) / (beta - alpha)
        out.append((1 - gamma) * theta / s + gamma * theta)
    return out


def by_pairs(s: Tensor | float, alpha: float, beta: float, original: int = L, truncate: bool = True) -> list[Tensor]:
    """The authors' code: linear in m from the pair that turns beta times, rounded down, to alpha times, rounded up."""

    def turning(turns: float) -> float:  # m of the pair with L theta_m = 2 pi turns
        return D / 2 * math.log(original / (2 * math.pi * turns), 10000.0)

    first, last = turning(beta), turning(alpha)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(0, first), min(D - 1, last)
    out = []
    for m, theta in enumerate(powers()):
        interpolated = min(1.0, max(0.0, (m - first) / (last - first)))
        out.append((1 - interpolated) * theta + interpolated * theta / s)
    return out


def temperature(s: Tensor | float) -> Tensor:
    """YaRN's 1 / sqrt(t) = 0.1 ln s + 1; scores are q . k / (t sqrt(D))."""
    return 0.1 * torch.log(torch.as_tensor(s, dtype=torch.float64)) + 1


def su(s: Tensor | float, original: int = L) -> Tensor:
    """The attention factor of Phi-3, for LongRoPE."""
    return torch.sqrt(1 + torch.log(torch.as_tensor(s, dtype=torch.float64)) / math.log(original))


@oracle("rope-linear")
def interpolation(e: Encoding, c: Content) -> Tensor:
    return products(c, linear(scale_of(c)))


@oracle("rope-linear(factor=4)", "rope-linear(factor=4, layout=interleaved)")
def interpolation_by_4(e: Encoding, c: Content) -> Tensor:
    return products(c, linear(4), interleaved=e.layout == "interleaved")


@oracle("rope-ntk")
def ntk_aware(e: Encoding, c: Content) -> Tensor:
    return products(c, ntk(scale_of(c)))


@oracle("rope-ntk(factor=4)", "rope-ntk(factor=4, fraction=0.5)")
def ntk_aware_by_4(e: Encoding, c: Content) -> Tensor:
    return products(c, ntk(4, width=e.width))


@oracle("rope-dynamic")
def dynamic(e: Encoding, c: Content) -> Tensor:
    return products(c, ntk(2 * scale_of(c) - 1))


@oracle("rope-dynamic(factor=5, base=500)")
def dynamic_by_5(e: Encoding, c: Content) -> Tensor:
    return products(c, ntk(5 * scale_of(c) - 4, base=500.0))


@oracle("rope-dynamic(factor=1)", against="the paper's formula of rope-ntk")
def dynamic_by_1(e: Encoding, c: Content) -> Tensor:
    return products(c, ntk(scale_of(c)))


@oracle("yarn(ramp=turns)")
def yarn(e: Encoding, c: Content) -> Tensor:
    s = scale_of(c)
    return products(c, by_parts(s, 1, 32), times=temperature(s))


@oracle("yarn", "yarn(beta_fast=2, beta_slow=0.001)")
def yarn_as_published(e: Encoding, c: Content) -> Tensor:
    s = scale_of(c)
    return products(c, by_pairs(s, e.beta_slow, e.beta_fast), times=temperature(s))


@oracle(
    "yarn(factor=4, beta_fast=2, beta_slow=0.1, ramp=turns, base=50)",
    "yarn(factor=4, beta_fast=2, beta_slow=0.1, ramp=turns, fraction=0.5)",
)
def yarn_by_4(e: Encoding, c: Content) -> Tensor:
    return products(c, by_parts(4, 0.1, 2, e.base, e.width), times=temperature(4))


@oracle("llama3")
def llama3(e: Encoding, c: Content) -> Tensor:
    return products(c, by_parts(scale_of(c), 1, 4))


@oracle("llama3(factor=8, low=0.1, high=2, base=50, layout=interleaved)")
def llama3_by_8(e: Encoding, c: Content) -> Tensor:
    return products(c, by_parts(8, 0.1, 2, 50.0), interleaved=True)


@oracle("longrope")
def longrope(e: Encoding, c: Content) -> Tensor:
    s = scale_of(c)
    return products(c, by_pairs(s, 1, 32), times=su(s))


@oracle("longrope(factor=4, start=ntk)")
def longrope_from_ntk(e: Encoding, c: Content) -> Tensor:
    return products(c, ntk(4), times=su(4))


@oracle("longrope(start=pi, keep_first=3)", "longrope(start=pi, keep_first=150)")
def longrope_from_pi(e: Encoding, c: Content) -> Tensor:
    s = scale_of(c)
    return products(c, linear(s), times=su(s), keep=e.keep_first)


@oracle("p-rope", "p-rope(p=0.5, fraction=0.5)", "p-rope(p=0.45)")
def p_rope(e: Encoding, c: Content) -> Tensor:
    rotated = {"0.75": 3, "0.5": 1, "0.45": 1}[f"{e.p:g}"]
    return products(c, [theta if m < rotated else 0 * theta for m, theta in enumerate(powers(width=e.width))])


@oracle("p-rope(p=0)", against="attention without positions")
def p_rope_none(e: Encoding, c: Content) -> Tensor:
    return dots(c)


# scaled: by transformers


def initialised(kind: str, c: Content, length: float | None = None, **options: Any) -> Tensor:
    """Scores with the frequencies and the attention factor of a `rope_type` of transformers, rotated as in Llama."""
    config = configs.llama(kind, D, L, **options)
    frequencies, times = lib.rope_utils.ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
    angle = (c.pos[:, None] * frequencies.double()).repeat(1, 2)[None]
    q, k = lib.llama.apply_rotary_pos_emb(c.q, c.k, times * angle.cos(), times * angle.sin())
    return torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(D)


def against(kind: str, *specs: str) -> Callable[..., Any]:
    return oracle(*specs, against=f"transformers ROPE_INIT_FUNCTIONS[{kind!r}]", unit=FLOAT32)


def factor_of(e: Encoding, c: Content) -> float:
    return float(scale_of(c)) if e.factor is None else e.factor


@against("linear", "rope-linear", "rope-linear(factor=4)")
def linear_of_transformers(e: Encoding, c: Content) -> Tensor:
    return initialised("linear", c, factor=factor_of(e, c))


@against("dynamic", "rope-ntk", "rope-ntk(factor=4)")
def ntk_of_transformers(e: Encoding, c: Content) -> Tensor:
    """Dynamic NTK scaling with factor 1, at the length s L; rope-ntk has the factor s."""
    return initialised("dynamic", c, length=factor_of(e, c) * L, factor=1.0)


@against("dynamic", "rope-dynamic", "rope-dynamic(factor=5)")
def dynamic_of_transformers(e: Encoding, c: Content) -> Tensor:
    return initialised("dynamic", c, length=float(c.pos.max() + 1), factor=e.f)


@against("yarn", "yarn", "yarn(factor=4)", "yarn(factor=4, beta_fast=2, ramp=turns)")
def yarn_of_transformers(e: Encoding, c: Content) -> Tensor:
    """Transformers has the ramp of the authors' code. In the last spec no pair is on the ramp, so both ramps agree."""
    return initialised("yarn", c, factor=factor_of(e, c), beta_fast=e.beta_fast, beta_slow=e.beta_slow)


@against("yarn", "yarn(factor=4, beta_fast=2, beta_slow=0.001)")
def yarn_on_the_ramp_of_transformers(e: Encoding, c: Content) -> Tensor:
    return initialised("yarn", c, factor=4.0, beta_fast=2.0, beta_slow=0.001)


@against("llama3", "llama3", "llama3(factor=8)", "llama3(factor=8, low=0.1, high=3)")
def llama3_of_transformers(e: Encoding, c: Content) -> Tensor:
    bands = {"low_freq_factor": e.low, "high_freq_factor": e.high, "original_max_position_embeddings": L}
    return initialised("llama3", c, factor=factor_of(e, c), **bands)


@against("longrope", "longrope(start=ntk)", "longrope(factor=4, start=pi)")
def longrope_of_transformers(e: Encoding, c: Content) -> Tensor:
    s = factor_of(e, c)
    scaled = ntk(s) if e.start == "ntk" else linear(s)
    factors = [float(a / b) for a, b in zip(powers(), scaled, strict=True)]
    return initialised("longrope", c, length=L + 1.0, factor=s, long_factor=factors, short_factor=[1.0] * (D // 2))
