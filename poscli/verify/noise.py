"""Random input, and the rounding error to expect between two correct computations of one result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from poscli.equation import Shape

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Weighted(Protocol):
    """A model as a function of tokens, with its weights."""

    def __call__(self, tokens_BT: Tensor) -> Tensor:
        """The logits of tokens."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """The weights, each once."""


FLOAT32 = 2**-23  # the unit of rounding of float32


def draw(*size: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers from a generator of their own."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def draw_tokens(vocab: int, batch: int, count: int, seed: int = 0) -> Tensor:
    """Random token ids `[batch, count]`."""
    return torch.randint(vocab, (batch, count), generator=torch.Generator().manual_seed(seed + 17))


def draw_inputs(
    shape: Shape, queries: int, keys: int, dtype: torch.dtype, *, seed: int = 0, batch: int = 2
) -> dict[str, Tensor]:
    """Random inputs of one attention call: q, k and v per head in a dtype, and x `[B, S, W]`, the layer's input.

    x is in float32 at least, because the norm before it returns float32 at least.
    """
    heads = {name: (batch, shape.heads, t, shape.head_width) for name, t in (("q", queries), ("k", keys), ("v", keys))}
    sizes: dict[str, tuple[int, ...]] = heads | {"x": (batch, keys, shape.width)}
    drawn = {name: draw(*size, seed=seed + n, dtype=dtype) for n, (name, size) in enumerate(sizes.items())}
    return drawn | {"x": drawn["x"].to(torch.promote_types(dtype, torch.float32))}


def perturbed(module: ModuleT, seed: int = 0) -> ModuleT:
    """Add noise to every parameter in place, because many parameters start at zero, which hides mistakes."""
    with torch.no_grad():
        for n, parameter in enumerate(module.parameters()):
            parameter.add_(0.3 * draw(*parameter.shape, seed=1000 * seed + n, dtype=parameter.dtype))
    return module


@torch.no_grad()
def rounding(model: Weighted, text: Tensor, unit: float = FLOAT32) -> float:
    """The largest difference to allow between two correct computations of the logits.

    Arithmetic in another order gives the exact result for weights that are off by a few units of rounding. So every
    weight is changed by one unit, up or down at random; the limit is four times the largest change of three draws.
    The model has its own weights again afterwards.
    """
    logits, moved = model(text), []
    # To change and restore them is faster than a copy. On CUDA there may be no room for all of them twice; those of the
    # device meta are fetched when they are needed, and stay what they are.
    weights = [each if each.is_meta else each.to("cpu", copy=True) for each in model.parameters()]
    try:
        for n in range(3):
            for m, (parameter, value) in enumerate(zip(model.parameters(), weights, strict=True)):
                signs = draw(*value.shape, seed=1000 * n + m).sign()
                parameter.copy_(value * (1 + unit * signs.to(value.device)))
            moved.append(float((model(text) - logits).abs().max()))
    finally:
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.copy_(value)
    return 4 * max(moved)


def tolerances(exact: dict[str, Tensor], moved: list[dict[str, Tensor]], width: int, keys: int) -> dict[str, float]:
    """The largest differences to allow in the output of attention and in each gradient, by name.

    Arithmetic in another order gives the exact result for inputs that are off by a few units of rounding: the limit is
    eight times the change that one unit in every input makes. Sums that cancel for every input need more. Such a sum
    has D products of order 1 (the gradient of a score), or, for a parameter, one per key, each times a factor of up to
    the number of keys (a slope meets the distance); eight units of that are always allowed.
    """
    changes = {name: max(float((other[name] - x).abs().max()) for other in moved) for name, x in exact.items()}
    terms = {name: 1 if name in ("output", "dq", "dk", "dv") else keys for name in exact}
    return {name: 8 * max(error, FLOAT32 * width * terms[name]) for name, error in changes.items()}
