"""What the machine can do at best: matrix products as in the model, copying memory, attention without a bias."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from poscli.bench.cases import Refused, eval_batch
from poscli.bench.timing import Conditions, Row, Sizes, TurnPace, Work, time_in_turns
from poscli.config.run import RunConfig
from poscli.data.tokenizers.bytes import VOCAB
from poscli.model.transformer import precision_of
from poscli.system.memory import unaffordable

Shape4 = tuple[int, int, int, int]  # batch, heads, tokens, head width


@dataclass(frozen=True)
class MachineLimit:
    """A function to time, its amount of work in operations or bytes, and the columns that identify it.

    `numbers` are those that it reads and writes, of at most 4 bytes each. `prepare` makes them, and may not be called
    where they do not fit.
    """

    columns: Row
    amount: float
    numbers: float
    prepare: Callable[[], Work]

    @cached_property
    def work(self) -> Work:
        """The function to time. Everything that it works on is made at the first use."""
        return self.prepare()

    def refuse_large(self, device: torch.device) -> None:
        """Raise Refused if what it works on does not fit the memory."""
        if why := unaffordable(4 * self.numbers, device):
            raise Refused("oom", why)


def machine_limits(config: RunConfig, conditions: Conditions) -> Iterator[MachineLimit]:
    """Square products in float32 and bfloat16, products of the model's shapes, a copy, attention at every length."""
    device, sizes = conditions.device, conditions.sizes
    precision = precision_of(config.precision, device)
    for dtype in dict.fromkeys((torch.float32, torch.bfloat16, precision.linear)):
        for side in sizes.products:
            yield _product((side, side, side), dtype, device, "square")
    width, tokens = config.model.width, config.batch * config.length
    for inner, columns, why in (
        (width, width, "query, key, value, output"),
        (width, config.model.mlp, "MLP, in"),
        (config.model.mlp, width, "MLP, out"),
        (width, VOCAB, "logits"),
    ):
        yield _product((tokens, inner, columns), precision.linear, device, why)
    yield _copy(sizes.copied_bytes, device)
    heads, head_width = config.model.heads, width // config.model.heads
    yield _attention_with_backward((config.batch, heads, config.length, head_width), precision.attention, device)
    for length in conditions.settings.lengths:
        batch = eval_batch(length, sizes.pass_tokens)
        yield _attention((batch, heads, length, head_width), precision.attention, device)


def fastest_product(dtype: torch.dtype, device: torch.device, sizes: Sizes) -> MachineLimit:
    """The square product with the highest rate; training steps are timed in turns with it."""
    products = [_product((side, side, side), dtype, device, "square") for side in sizes.products]
    timings = time_in_turns([product.work for product in products], TurnPace(5, 1.0, sizes.sample_seconds), device)
    rates = [product.amount / timing.median for product, timing in zip(products, timings, strict=True)]
    return products[rates.index(max(rates))]


def _product(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device, why: str) -> MachineLimit:
    """A product of matrices `[rows, inner]` and `[inner, columns]`; the second is stored transposed, as weights are."""
    rows, inner, columns = shape

    def prepare() -> Work:
        a, b = _random((rows, inner), dtype, device), _random((columns, inner), dtype, device)
        return lambda: F.linear(a, b)

    named = _columns("matrix product", dtype, f"{rows} x {inner} x {columns}", why, "GFLOP/s")
    numbers = rows * inner + columns * inner + rows * columns
    return MachineLimit(named, 2.0 * rows * inner * columns, numbers, prepare)


def _copy(size: int, device: torch.device) -> MachineLimit:
    def prepare() -> Work:
        source = torch.zeros(size, dtype=torch.uint8, device=device)
        target = torch.ones_like(source)
        return lambda: target.copy_(source)

    named = _columns("memory copy", torch.uint8, f"{size} bytes", "read and written bytes", "GB/s")
    return MachineLimit(named, 2.0 * size, 2 * size / 4, prepare)


def _attention(shape: Shape4, dtype: torch.dtype, device: torch.device) -> MachineLimit:
    """Torch's fused causal attention of one layer, without a bias or a gradient."""

    def prepare() -> Work:
        q, k, v = (_random(shape, dtype, device) for _ in "qkv")
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)

    named = _columns("causal attention", dtype, str(list(shape)), f"one layer at {shape[2]}", "GFLOP/s")
    return MachineLimit(named, _attention_operations(shape), 4 * math.prod(shape), prepare)


def _attention_with_backward(shape: Shape4, dtype: torch.dtype, device: torch.device) -> MachineLimit:
    """Forward and backward pass of torch's fused causal attention of one layer, without a bias."""

    def prepare() -> Work:
        q, k, v, grad = (_random(shape, dtype, device) for _ in "qkvo")
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        attended = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
        return lambda: torch.autograd.grad(attended(), (q, k, v), grad)

    named = _columns("causal attention with backward", dtype, str(list(shape)), "one layer in training", "GFLOP/s")
    # The backward pass has four products of the size of the forward pass's two.
    return MachineLimit(named, 3 * _attention_operations(shape), 8 * math.prod(shape), prepare)


def _attention_operations(shape: Shape4) -> float:
    """Operations of the two products of a forward pass, over the causal half of the scores."""
    batch, heads, length, head_width = shape
    return 2 * 2.0 * batch * heads * head_width * length**2 / 2


def _columns(limit: str, dtype: torch.dtype, shape: str, why: str, unit: str) -> Row:
    return {"limit": limit, "dtype": str(dtype).removeprefix("torch."), "shape": shape, "why": why, "unit": unit}


def _random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)
