"""Tests of the Triton kernels on any device: dense formulas in float64, gradients, and tolerances.

The tolerance is four times the change that one unit of rounding in every input causes: each number is moved by one
unit of its dtype, up or down at random, as `poscli.verify.noise.rounding` does for a model. Tables are float32 and
potentials float64 for any dtype of attention, and are moved by a unit of their own dtype.

B batch, T queries, S keys, H heads, D and E widths of queries and values, A width of the vectors that queries meet.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from toys import draw, make, shape

from poscli.attention import ENGINES, Engine, attend, flex, triton
from poscli.encodings import Encoding

TRITON = Engine("triton", triton.run, triton.refuses, "")
FLEX = Engine("flex", flex.run, flex.refuses, "")
# Inputs whose dtype is not that of attention.
WIDE = {"table": torch.float32, "potential": torch.float64}


@dataclass(frozen=True)
class Case:
    """One call of a kernel. `terms`: t table, a and b vectors, p potential, w one reach, W one per head."""

    terms: str = ""
    batch: int = 2
    heads: int = 3
    queries: int = 41
    keys: int = 70
    width: int = 16
    values: int = 16
    met: int = 16  # A
    shared: bool = False  # one table, and one set of vectors, for all heads
    more: int = 0  # distances beyond those that are met

    def __str__(self) -> str:
        sizes = f"{self.batch}x{self.heads}x{self.queries}x{self.keys}x{self.width}x{self.values}"
        return f"{self.terms or 'bare'}-{sizes}" + ("-shared" if self.shared else "")

    @property
    def scale(self) -> float:
        return self.width**-0.5

    def reach(self, device: str) -> int | Tensor | None:
        if "W" in self.terms:
            return (1 + self.keys * torch.arange(self.heads, dtype=torch.int32, device=device) // 4).to(torch.int32)
        return max(1, self.keys // 3) if "w" in self.terms else None

    def inputs(self) -> dict[str, Tensor]:
        """Standard normal numbers in float64."""
        tables, n = 1 if self.shared else self.heads, self.keys + self.more
        sizes = {
            "q": (self.batch, self.heads, self.queries, self.width),
            "k": (self.batch, self.heads, self.keys, self.width),
            "v": (self.batch, self.heads, self.keys, self.values),
        }
        if "t" in self.terms:
            sizes["table"] = (tables, n)
        if "a" in self.terms:
            sizes |= {"a": (tables, n, self.met), "q_met": (self.batch, self.heads, self.queries, self.met)}
        if "b" in self.terms:
            sizes |= {"b": (tables, n, self.width), "k_met": (self.batch, self.heads, self.keys, self.width)}
        found = {name: draw(*size, seed=m, dtype=torch.float64) for m, (name, size) in enumerate(sizes.items())}
        if "p" in self.terms:
            found["potential"] = draw(self.batch, self.heads, self.keys, seed=9, dtype=torch.float64).cumsum(-1)
            found["potential"] += 30000  # late in a long text: a single float32 would round it by 0.001
        return found


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    reach: int | Tensor | None,
    table: Tensor | None = None,
    a: Tensor | None = None,
    q_met: Tensor | None = None,
    b: Tensor | None = None,
    k_met: Tensor | None = None,
    potential: Tensor | None = None,
) -> Tensor:
    """The formula of `poscli.attention.kernels.flash` over all pairs."""
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    j = torch.arange(keys, device=q.device)
    apart = j[keys - queries :, None] - j
    d = apart.clamp(min=0)
    s = q @ k.mT
    if a is not None:
        s = s + torch.einsum("bhtd,htsd->bhts", q_met, a.expand(heads, -1, -1)[:, d])
    if b is not None:
        s = s + torch.einsum("bhsd,htsd->bhts", k_met, b.expand(heads, -1, -1)[:, d])
    s = s * scale
    if table is not None:
        s = s + table[:, d]
    if potential is not None:
        s = s + potential[..., keys - queries :, None] - potential[..., None, :]
    far = torch.as_tensor(keys if reach is None else reach, device=q.device).reshape(-1, 1, 1)
    return s.masked_fill((apart < 0) | (apart >= far), -math.inf).softmax(-1) @ v


def outcome(
    attention: Callable[..., Tensor], inputs: dict[str, Tensor], case: Case, gradient: bool = True
) -> dict[str, Tensor]:
    """Output, and the gradients of a random loss, in float64 on the CPU."""
    x = {name: value.detach().requires_grad_(gradient) for name, value in inputs.items()}
    q, k, v, *rest = x.values()
    given = dict(zip(list(x)[3:], rest, strict=True))
    out = attention(q, k, v, **given, scale=case.scale, reach=case.reach(q.device.type))
    found = {"output": out}
    if gradient:
        out.backward(draw(*out.shape, seed=20, dtype=torch.float64).to(q.dtype).to(out))
        found |= {f"d{name}": y.grad for name, y in x.items() if y.grad is not None}
        assert len(found) == len(x) + 1
    return {name: y.detach().double().cpu() for name, y in found.items()}


def moved(x: Tensor, unit: float, seed: int) -> Tensor:
    """The tensor with every number moved by one unit of rounding, up or down."""
    return x * (1 + unit * draw(*x.shape, seed=seed, dtype=torch.float64).sign().to(x.device))


def assert_near(
    found: dict[str, Tensor], exact: dict[str, Tensor], off: list[dict[str, Tensor]], unit: float, keys: int = 1
) -> None:
    """Assert errors within four times the effect of a unit of rounding in every input or in the result.

    Where a gradient cancels, the rounding of a sum of 16 products of order 1 remains: at least four units of float32
    of it are allowed, and for parameters of an encoding as much for each of `keys` such sums, as in
    `poscli.verify.noise.tolerances`.
    """
    assert found.keys() == exact.keys()
    for name, x in exact.items():
        left = 16 * 2**-23 * (1 if name in ("output", "dq", "dk", "dv") else keys)
        limit = 4 * max(left, unit * float(x.abs().max()), *(float((y[name] - x).abs().max()) for y in off))
        error = float((found[name] - x).abs().max())
        assert error <= limit, (name, error, limit)


def check(attention: Callable[..., Tensor], case: Case, dtype: torch.dtype, device: str, gradient: bool = True) -> None:
    """A kernel against the dense formula on one input."""
    unit = torch.finfo(dtype).eps
    narrow = {name: x.to(WIDE.get(name, dtype)) for name, x in case.inputs().items()}
    exact_inputs = {name: x.double() for name, x in narrow.items()}
    units = {name: torch.finfo(x.dtype).eps for name, x in narrow.items()}
    off = [
        {name: moved(x, units[name], seed=100 * n + m) for m, (name, x) in enumerate(exact_inputs.items())}
        for n in (1, 2)
    ]
    # The gradient that reaches the kernel has the narrow dtype, so the exact one is rounded too.
    exact, *away = (outcome(_rounding_gradients(dense, dtype), x, case, gradient) for x in (exact_inputs, *off))
    given = {name: x.to(device) for name, x in narrow.items()}
    assert_near(outcome(attention, given, case, gradient), exact, away, unit)


def _rounding_gradients(attention: Callable[..., Tensor], dtype: torch.dtype) -> Callable[..., Tensor]:
    def run(*args: Any, **kwargs: Any) -> Tensor:
        out = attention(*args, **kwargs)
        if out.requires_grad:
            out.register_hook(lambda g: g.to(dtype).double())
        return out

    return run


# encodings


def encoded(
    engine: Engine, encoding: Encoding, size: tuple[int, int, int], dtype: torch.dtype, device: str, seed: int = 0
) -> dict[str, Tensor]:
    """Output of an engine for random input, and all gradients; `seed` > 0 moves every input by a unit of rounding.

    The reference runs in float64 with a float64 encoding; other engines have float32 parameters, as in a model. The
    inputs are rounded to `dtype` for both, so that results differ by the arithmetic alone.
    """
    exact, unit = engine.name == "reference", torch.finfo(dtype).eps
    batch, queries, keys = size
    at = encoding.shape
    encoding = copy.deepcopy(encoding).to(torch.float64 if exact else torch.float32).to(device)
    tokens = {"q": queries, "k": keys, "v": keys}
    inputs = {n: draw(batch, at.heads, t, at.head_width, seed=m).to(dtype) for m, (n, t) in enumerate(tokens.items())}
    x_BSW = draw(batch, keys, at.width, seed=3).to(torch.float64 if exact else torch.float32).to(device)
    if exact:
        inputs = {name: x.double() for name, x in inputs.items()}
    if seed:
        inputs = {name: moved(x, unit, seed=100 * seed + m) for m, (name, x) in enumerate(inputs.items())}
        with torch.no_grad():
            for m, parameter in enumerate(encoding.parameters()):
                parameter.copy_(moved(parameter, 2**-23, seed=100 * seed + 50 + m))
    inputs = {name: x.to(device).requires_grad_() for name, x in inputs.items()}
    features = encoding.features(x_BSW)
    out = attend(engine, encoding, *inputs.values(), encoding.locate(keys, torch.device(device)), features)
    assert out.shape == (batch, at.heads, queries, at.head_width)
    g = draw(*out.shape, seed=20).to(dtype).to(device).to(out.dtype)
    out.backward(g)
    learned = inputs | {f"encoding.{name}": p for name, p in encoding.named_parameters()}
    grads = {f"d{name}": x.grad for name, x in learned.items() if x.grad is not None}
    return {name: x.detach().double().cpu() for name, x in ({"output": out} | grads).items()}


def check_encoding(spec: str, size: tuple[int, int, int], width: int, dtype: torch.dtype, device: str) -> None:
    """The engine `triton` against the reference, for an encoding with two heads."""
    encoding = make(spec, shape(size[2], heads=2, width=2 * width))
    reference = ENGINES["reference"]
    exact, *away = (encoded(reference, encoding, size, dtype, "cpu", seed) for seed in (0, 1, 2))
    assert_near(encoded(TRITON, encoding, size, dtype, device), exact, away, torch.finfo(dtype).eps, size[2])


SPECS = [
    "alibi",
    "t5",
    "kerple-log",
    "clipped",
    "window(9)",
    "transformer-xl",
    "deberta",
    "xlnet",
    "shaw(clip=4, values=false)",
    "fox",
    "cable",
    "rope+t5",
    "pope+alibi",
    "tupe",
    "transformer-xl+deberta+window(9)",
    "fox+clipped+window(9)",
    "rope+logn(5)+window(9)",
]
