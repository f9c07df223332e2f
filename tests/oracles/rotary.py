"""Oracles of the rotary encodings that change frequencies: by the papers, and by transformers' own rotations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb
from torch import Tensor

from oracles import FLOAT32, Content, oracle
from oracles import libraries as lib
from oracles.layer import Part, part
from poscli.encodings import Encoding

D, L = 8, 16  # numbers per head, tokens of a training window


def scale_of(pos: Tensor, original: int = L) -> Tensor:
    """The factor s = max(1, L'/L)."""
    return torch.clamp((pos.max() + 1) / original, min=1)


def powers(base: float | Tensor = 10000.0, width: int = D) -> list[Tensor]:
    """theta_m = base^(-2m/width)."""
    return [torch.as_tensor(base, dtype=torch.float64) ** (-2 * m / width) for m in range(width // 2)]


def turned(x: Tensor, angle: Tensor, layout: str = "half", times: Tensor | float = 1.0) -> Tensor:
    """Pairs of channels as complex numbers times e^(i angle), for angles `[.., T, pairs]`; other channels stay.

    Pair m is channels m and m + D/2, or 2m and 2m + 1 for the layout `interleaved`. `times` multiplies what is rotated.
    """
    count = angle.shape[-1]
    rotated, rest = x[..., : 2 * count], x[..., 2 * count :]
    pairs = rotated.unflatten(-1, (2, count)).mT if layout == "half" else rotated.unflatten(-1, (count, 2))
    z = torch.complex(pairs[..., 0], pairs[..., 1]) * times * torch.exp(1j * angle)
    both = torch.view_as_real(z)
    return torch.cat([(both.mT if layout == "half" else both).flatten(-2), rest], dim=-1)


def rotary(*specs: str, against: str = "the paper's formula") -> Callable[..., Any]:
    """Declare a rotary encoding by its frequencies, and the factor on cos and sin, as functions of itself and s."""

    def add(formula: Callable[[Encoding, Tensor], tuple[list[Tensor], Tensor | float]]) -> Any:
        @part(*specs, against=against)
        def of(e: Encoding) -> Part:
            def turn(x: Tensor, pos: Tensor) -> Tensor:
                theta, times = formula(e, factor_of(e, pos))
                angle, rope = pos[:, None] * torch.stack(theta), pos[:, None] * torch.stack(powers(e.base, e.width))
                order = torch.arange(len(pos)) * (pos[1] - pos[0]).round()
                early = (order < getattr(e, "keep_first", 0))[:, None]  # these keep rope's angles
                return turned(x, torch.where(early, rope, angle), e.layout, torch.where(early, 1.0, times))

            return Part(query=turn, key=turn)

        return formula

    return add


def factor_of(e: Encoding, pos: Tensor) -> Tensor:
    """s: the factor that is given, or that of the length of the text."""
    if getattr(e, "factor", None) is not None:
        return torch.tensor(float(e.factor), dtype=torch.float64)
    return scale_of(pos, getattr(e, "original", L))


# rope


@rotary(
    "rope", "rope(layout=interleaved)", "rope(base=50, layout=interleaved, fraction=0.5)", "rope-dropped",
    "rope-dropped(recalibrate=0)",
)  # fmt: skip
def rope(e: Encoding, s: Tensor) -> tuple[list[Tensor], float]:
    return powers(e.base, e.width), 1.0


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


# scaled: by the papers


def linear(s: Tensor | float, base: float = 10000.0, width: int = D) -> list[Tensor]:
    """theta_m / s, which equals positions scaled by 1 / s."""
    return [theta / s for theta in powers(base, width)]


def ntk(s: Tensor | float, base: float = 10000.0, width: int = D) -> list[Tensor]:
    """The base b' for which the slowest pair, b'^(-(D-2)/D), is that of linear interpolation: b^(-(D-2)/D) / s."""
    slowest = base ** (-(width - 2) / width) / torch.as_tensor(s, dtype=torch.float64)
    return powers(slowest ** (-width / (width - 2)), width)


def by_parts(e: Encoding, s: Tensor, alpha: float, beta: float) -> list[Tensor]:
    """h(theta) = (1 - gamma(r)) theta / s + gamma(r) theta, r = L / wavelength."""
    out = []
    for theta in powers(e.base, e.width):
        r = float(e.original / (2 * math.pi / theta))
        gamma = 0.0 if r < alpha else 1.0 if r > beta else (r - alpha) / (beta - alpha)
        out.append((1 - gamma) * theta / s + gamma * theta)
    return out


def by_pairs(e: Encoding, s: Tensor, alpha: float = 1, beta: float = 32, truncate: bool = True) -> list[Tensor]:
    """The authors' code: linear in m from the pair that turns beta times, rounded down, to alpha times, rounded up."""

    def turning(turns: float) -> float:  # m of the pair with L theta_m = 2 pi turns
        return D / 2 * math.log(e.original / (2 * math.pi * turns), 10000.0)

    first, last = turning(beta), turning(alpha)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(0, first), min(D - 1, last)
    out = []
    for m, theta in enumerate(powers()):
        interpolated = min(1.0, max(0.0, (m - first) / (last - first)))
        out.append((1 - interpolated) * theta + interpolated * theta / s)
    return out


@rotary(
    "rope-linear", "rope-linear(factor=1)", "rope-linear(factor=4)", "rope-linear(factor=4, layout=interleaved)",
    "rope-linear(original=8)",
)  # fmt: skip
def interpolation(e: Encoding, s: Tensor) -> tuple[list[Tensor], float]:
    return linear(s), 1.0


@rotary(
    "rope-ntk", "rope-ntk(factor=1)", "rope-ntk(factor=4)", "rope-ntk(factor=4, fraction=0.5)", "rope-ntk(original=8)"
)
def ntk_aware(e: Encoding, s: Tensor) -> tuple[list[Tensor], float]:
    return ntk(s, e.base, e.width), 1.0


@rotary("rope-dynamic(factor=1)", against="the paper's formula of rope-ntk")
@rotary("rope-dynamic", "rope-dynamic(factor=5, base=500)", "rope-dynamic(factor=3, original=8)")
def dynamic(e: Encoding, s: Tensor) -> tuple[list[Tensor], float]:
    return ntk(e.f * s - (e.f - 1), e.base), 1.0


@rotary(
    "yarn(ramp=turns)", "yarn", "yarn(factor=1)", "yarn(beta_fast=2, beta_slow=0.001)",
    "yarn(factor=4, beta_fast=2, beta_slow=0.1, ramp=turns, base=50)",
    "yarn(factor=4, beta_fast=2, beta_slow=0.1, ramp=turns, fraction=0.5)", "yarn(original=8, beta_slow=0.1)",
    "yarn(factor=4, original=8, beta_slow=0.1, truncate=false)",
    "yarn(factor=4, original=8, beta_slow=0.1, ramp=turns, attention=1.3)",
)  # fmt: skip
def yarn(e: Encoding, s: Tensor) -> tuple[list[Tensor], Tensor]:
    """Scores are q . k / (t sqrt(D)) with 1 / sqrt(t) = 0.1 ln s + 1."""
    slow, fast = e.beta_slow, e.beta_fast
    theta = by_parts(e, s, slow, fast) if e.ramp == "turns" else by_pairs(e, s, slow, fast, e.truncate)
    return theta, 0.1 * torch.log(s) + 1 if e.attention is None else torch.tensor(e.attention, dtype=torch.float64)


@rotary(
    "llama3", "llama3(factor=1)", "llama3(factor=8, low=0.1, high=2, base=50, layout=interleaved)",
    "llama3(original=8, low=0.1, high=2)",
)  # fmt: skip
def llama3(e: Encoding, s: Tensor) -> tuple[list[Tensor], float]:
    return by_parts(e, s, e.low, e.high), 1.0


@rotary(
    "longrope", "longrope(factor=4, start=ntk)", "longrope(start=pi, keep_first=3)",
    "longrope(start=pi, keep_first=150)", "longrope(original=8, start=ntk)",
    "longrope(factor=4, start=pi, attention=1.3, keep_first=3)",
)  # fmt: skip
def longrope(e: Encoding, s: Tensor) -> tuple[list[Tensor], Tensor]:
    """The factor on cos and sin is Phi-3's."""
    theta = {"yarn": lambda: by_pairs(e, s), "ntk": lambda: ntk(s), "pi": lambda: linear(s)}[e.start]()
    times = torch.sqrt(1 + torch.log(s) / math.log(e.original))
    return theta, times if e.attention is None else torch.tensor(e.attention, dtype=torch.float64)


@rotary("p-rope(p=0)", against="attention without positions")
@rotary("p-rope", "p-rope(p=1)", "p-rope(p=0.5, fraction=0.5)", "p-rope(p=0.45)", "p-rope(p=0.5, factor=4)")
def p_rope(e: Encoding, s: Tensor) -> tuple[list[Tensor], float]:
    rotated = math.floor(e.p * e.width / 2 + 1e-9)
    return [theta / s if m < rotated else 0 * theta for m, theta in enumerate(powers(width=e.width))], 1.0


@rotary(
    "rope-clip", "rope-clip(clip=4, base=50)", "rope-clip(clip=2, base=100, layout=interleaved, fraction=0.75)",
    against="the authors' formula",
)  # fmt: skip
def rope_clip(e: Encoding, s: Tensor) -> tuple[list[Tensor], float]:
    """theta_m w_m with the raised cosine over the last pairs: of three of four, whose periods 2 pi 10^m exceed 16."""
    theta, clip = powers(e.base, e.width), 3 if e.clip is None else e.clip
    first = len(theta) - clip
    w = [1.0 if m < first else 0.5 + 0.5 * math.cos(math.pi * (m - first) / (clip - 1)) for m in range(len(theta))]
    return [each * weight for each, weight in zip(theta, w, strict=True)], 1.0


# scaled: by libraries


@oracle("rope-ntk(factor=4, layout=interleaved)", against="rotary-embedding-torch", unit=FLOAT32)
def ntk_of_lucidrains(e: Encoding, c: Content) -> Tensor:
    return lucidrains(c, theta_rescale_factor=4.0)


def initialised(kind: str, c: Content, length: float | None = None, **scaling: Any) -> Tensor:
    """Scores with the frequencies and the attention factor of a `rope_type` of transformers, rotated as in Llama."""
    lib.transformers.logging.set_verbosity_error()  # it warns of factors that do not follow from the lengths
    llama, sizes = lib.transformers.LlamaConfig, {"hidden_size": 2 * D, "num_attention_heads": 2}
    if hasattr(llama(), "rope_parameters"):  # since its fifth version
        keys = {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **scaling}}
    else:
        keys = {"rope_theta": 10000.0, "rope_scaling": {"rope_type": kind, **scaling}}
    config = llama(**sizes, max_position_embeddings=L, **keys)
    frequencies, times = lib.rope_utils.ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
    angle = (c.pos[:, None] * frequencies.double()).repeat(1, 2)[None]
    q, k = lib.llama.apply_rotary_pos_emb(c.q, c.k, times * angle.cos(), times * angle.sin())
    return torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(D)


def against(kind: str, *specs: str) -> Callable[..., Any]:
    return oracle(*specs, against=f"transformers ROPE_INIT_FUNCTIONS[{kind!r}]", unit=FLOAT32)


@against("linear", "rope-linear", "rope-linear(factor=4)")
def linear_of_transformers(e: Encoding, c: Content) -> Tensor:
    return initialised("linear", c, factor=float(factor_of(e, c.pos)))


@against("dynamic", "rope-ntk", "rope-ntk(factor=4)")
def ntk_of_transformers(e: Encoding, c: Content) -> Tensor:
    """Dynamic NTK scaling with factor 1, at the length s L; rope-ntk has the factor s."""
    return initialised("dynamic", c, length=float(factor_of(e, c.pos)) * L, factor=1.0)


@against("dynamic", "rope-dynamic", "rope-dynamic(factor=5)")
def dynamic_of_transformers(e: Encoding, c: Content) -> Tensor:
    return initialised("dynamic", c, length=float(c.pos.max() + 1), factor=e.f)


@against(
    *("yarn", "yarn", "yarn(factor=4)", "yarn(factor=4, beta_fast=2, ramp=turns)"),
    "yarn(factor=4, beta_fast=2, beta_slow=0.001)",
)
def yarn_of_transformers(e: Encoding, c: Content) -> Tensor:
    """Transformers has the ramp of the authors' code. Under `turns` no pair is on the ramp, so both ramps agree."""
    return initialised("yarn", c, factor=float(factor_of(e, c.pos)), beta_fast=e.beta_fast, beta_slow=e.beta_slow)


@against("llama3", "llama3", "llama3(factor=8)", "llama3(factor=8, low=0.1, high=3)")
def llama3_of_transformers(e: Encoding, c: Content) -> Tensor:
    bands = {"low_freq_factor": e.low, "high_freq_factor": e.high, "original_max_position_embeddings": L}
    return initialised("llama3", c, factor=float(factor_of(e, c.pos)), **bands)


@against("longrope", "longrope(start=ntk)", "longrope(factor=4, start=pi)")
def longrope_of_transformers(e: Encoding, c: Content) -> Tensor:
    s = float(factor_of(e, c.pos))
    scaled = ntk(s) if e.start == "ntk" else linear(s)
    factors = [float(a / b) for a, b in zip(powers(), scaled, strict=True)]
    return initialised("longrope", c, length=L + 1.0, factor=s, long_factor=factors, short_factor=[1.0] * (D // 2))
