"""All properties of an encoding, measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from poscli.config.run import ModelConfig
from poscli.inspect.properties.cost import cost
from poscli.inspect.properties.drift import drift
from poscli.inspect.properties.order import equivariance, order_in_one_layer, order_with_mask, order_without_mask
from poscli.inspect.properties.parameters import parameters
from poscli.inspect.properties.row import Property
from poscli.inspect.properties.safe_length import safe_lengths
from poscli.inspect.properties.shift import shift_invariance
from poscli.inspect.properties.tested_model import TestedModel
from poscli.model.transformer import Model
from poscli.system.plugins import blamed

MEASURED = (
    shift_invariance,
    order_in_one_layer,
    order_with_mask,
    order_without_mask,
    equivariance,
    parameters,
    safe_lengths,
    drift,
)


@dataclass(frozen=True)
class Properties:
    """The property sheet of an encoding: its spec, the training length L in tokens, and a row for each property."""

    spec: str
    length: int
    trained: bool  # measured on a trained model
    rows: list[Property]

    def record(self) -> dict[str, Any]:
        """The sheet as data for JSON, with the raw numbers of every row."""
        rows = [row.record() for row in self.rows]
        return {"encoding": self.spec, "length": self.length, "trained": self.trained, "properties": rows}


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread inside the block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def measure_properties(
    spec: str, config: ModelConfig, length: int, *, seed: int = 0, model: Model | None = None
) -> Properties:
    """Measure all properties of an encoding on the CPU.

    `model` is a trained model of this spec, shape and training length `length`; without one, a new model is built, with
    weights moved away from their initial values. `seed` draws the random input and those weights. Raises UsageError for
    a spec that cannot be trained at this shape, and PluginError for an encoding from outside poscli that fails.

    All is computed on one thread: most tensors are too small for a second one, and threads that wait for each other
    would distort the times on a busy machine.
    """
    with blamed(), one_thread():
        tested = TestedModel.of(spec, config, length, seed, model)
        rows = [measure(tested) for measure in MEASURED] + cost(tested)
    return Properties(str(tested.spec), length, tested.trained, rows)
