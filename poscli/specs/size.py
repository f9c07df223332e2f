"""The size of a spec's encodings, known before any memory is allocated for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import torch

from poscli.equation import Encoding, Shape
from poscli.specs.build import build
from poscli.specs.grammar import Spec
from poscli.system.errors import UsageError
from poscli.system.memory import is_out_of_memory


@contextmanager
def refusing_sizes(spec: Spec) -> Iterator[None]:
    """In the block, a tensor whose size overflows int64 or any memory is a UsageError about the spec."""
    try:
        yield
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        if not _is_too_large(error):
            raise
        raise UsageError(f"{spec} has tensors larger than any memory; lower its options") from error


def abstract(spec: Spec, shape: Shape) -> list[Encoding]:
    """The encoding of each layer with the shapes of its tensors but no numbers in them (torch's device `meta`).

    An encoding whose constructor needs numbers is built with them. UsageError if a tensor is too large to exist.
    """
    with refusing_sizes(spec):
        try:
            with torch.device("meta"):
                return build(spec, shape, seed=0)
        except (RuntimeError, TypeError) as error:
            if _is_too_large(error):
                raise
            return build(spec, shape, seed=0)


@cache
def encoding_parameters(spec: Spec, shape: Shape) -> int:
    """The number of parameters of the encodings of all layers, those that layers share counted once.

    From the second repetition of the spec's alternating layers on, every repetition adds as many, so that the time
    to count them does not grow with the number of layers.
    """
    period = len(spec.layers)
    repetitions, rest = divmod(shape.layers, period)
    if repetitions < 3:
        return _count(abstract(spec, shape))
    once, twice = (_count(abstract(spec, replace(shape, layers=n * period + rest))) for n in (1, 2))
    return once + (repetitions - 1) * (twice - once)


def _is_too_large(error: Exception) -> bool:
    """Whether an error is about a size that overflows int64, or about lack of memory: torch has no class for it."""
    return isinstance(error, OverflowError) or "overflow" in str(error).lower() or is_out_of_memory(error)


def _count(layers: list[Encoding]) -> int:
    return sum(p.numel() for p in {id(p): p for encoding in layers for p in encoding.parameters()}.values())
