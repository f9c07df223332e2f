"""What the machine can do at best: the products that a model is made of, copying memory, attention with no bias."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from poscli.bench.measure import Pace, Work, in_turns
from poscli.bench.table import Row
from poscli.bench.work import eval_batch
from poscli.config import RunConfig
from poscli.data import VOCAB
from poscli.flops import SIZES
from poscli.model import precision_of

COPIED = {"cpu": 2**28, "cuda": 2**31}  # bytes: far more than caches hold


@dataclass(frozen=True)
class Limit:
    """Something to time, and how much work it is: operations or bytes."""

    limit: str
    dtype: torch.dtype
    shape: str
    why: str
    amount: float
    unit: str
    work: Work

    def row(self) -> Row:
        """The columns that name it."""
        dtype = str(self.dtype).removeprefix("torch.")
        return {"limit": self.limit, "dtype": dtype, "shape": self.shape, "why": self.why, "unit": self.unit}


def limits(config: RunConfig, lengths: list[int], device: torch.device) -> Iterator[Limit]:
    """Products of either precision, products of the model's shapes, a copy, and attention at every length."""
    precision = precision_of(config.precision, device)
    for dtype in dict.fromkeys((torch.float32, torch.bfloat16, precision.linear)):
        for size in SIZES[device.type]:
            yield product(size, size, size, dtype, device, "square")
    width, tokens = config.model.width, config.batch * config.length
    for inner, columns, why in (
        (width, width, "query, key, value, output"),
        (width, config.model.mlp, "MLP, in"),
        (config.model.mlp, width, "MLP, out"),
        (width, VOCAB, "logits"),
    ):
        yield product(tokens, inner, columns, precision.linear, device, why)
    yield _copy(COPIED[device.type], device)
    yield _attention(config, config.batch, config.length, precision.attention, device, training=True)
    for length in lengths:
        yield _attention(config, eval_batch(length), length, precision.attention, device, training=False)


def fastest_product(dtype: torch.dtype, device: torch.device) -> Limit:
    """The square product of the highest rate, to be timed again beside what is measured against it."""
    each = [product(size, size, size, dtype, device, "square") for size in SIZES[device.type]]
    timings = in_turns([limit.work for limit in each], Pace(5, 1.0), device)
    rates = [limit.amount / timing.median for limit, timing in zip(each, timings, strict=True)]
    return each[rates.index(max(rates))]


def product(rows: int, inner: int, columns: int, dtype: torch.dtype, device: torch.device, why: str) -> Limit:
    """A matrix product; the second matrix transposed, as a layer's weights are."""
    a, b = _random(rows, inner, dtype=dtype, device=device), _random(columns, inner, dtype=dtype, device=device)
    shape = f"{rows} x {inner} x {columns}"
    return Limit("matrix product", dtype, shape, why, 2.0 * rows * inner * columns, "GFLOP/s", lambda: F.linear(a, b))


def _copy(size: int, device: torch.device) -> Limit:
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    why = "read and written bytes"
    return Limit("memory copy", source.dtype, f"{size} bytes", why, 2.0 * size, "GB/s", lambda: target.copy_(source))


def _attention(
    config: RunConfig, batch: int, length: int, dtype: torch.dtype, device: torch.device, *, training: bool
) -> Limit:
    """Torch's fused causal attention without any bias, of one layer."""
    model = config.model
    shape = (batch, model.heads, length, model.width // model.heads)
    q, k, v, grad = (_random(*shape, dtype=dtype, device=device) for _ in "qkvo")
    q, k, v = (x.requires_grad_(training) for x in (q, k, v))

    def forward() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def both() -> None:
        torch.autograd.grad(forward(), (q, k, v), grad)

    causal = 2 * 2.0 * batch * model.width * length**2 / 2  # two products, half of the scores
    name = "causal attention with backward" if training else "causal attention"
    return Limit(
        name,
        dtype,
        str(list(shape)),
        "one layer in training" if training else f"one layer at {length}",
        causal * (3 if training else 1),
        "GFLOP/s",
        both if training else forward,
    )


def _random(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)
