"""A checkpoint as a model: transformers' own layers, with poscli's encodings in the place of their positions.

Whatever a model type does with positions is switched off where it does it, and poscli's attention runs in the place of
its attention (stock.py). So the weights, norms and layers are those of transformers, and every encoding that a model
can take acts on the outputs of its projections. Loading a checkpoint compares the logits of both.

Shapes: B windows, T tokens, W model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from poscli.attention import Choice
from poscli.checkpoints.architecture import Architecture
from poscli.checkpoints.stock import (
    Seats,
    attention_dtype,
    head,
    install,
    stock_logits,
    stock_model,
    table_of,
    trunk_of,
)
from poscli.config.size import SLICE_NUMBERS
from poscli.equation import Encoding, Shape
from poscli.equation.composed import Composed
from poscli.specs import build, parse
from poscli.system.errors import DataError

CHECKED_TOKENS = 48  # of the text on which both are compared, at most; never above the trained length
# The largest difference that is taken for rounding, as root mean square over the spread of the logits: 16 times that of
# the number format, or 0.001. Layers amplify rounding; a wrong base of rope changes logits by a tenth and more.
ROUNDING, LEAST = 16, 1e-3


class CheckpointModel:
    """A loaded checkpoint under one encoding per layer. Several of them may share a stock model."""

    def __init__(self, stock: Any, seats: Seats, architecture: Architecture, encodings: Sequence[Encoding]) -> None:
        self.stock, self.architecture, self._seats = stock, architecture, seats
        self.encodings = tuple(encodings)

    @property
    def shape(self) -> Shape:
        return self.architecture.shape

    @property
    def device(self) -> torch.device:
        return next(self.stock.parameters()).device

    @property
    def attention_dtype(self) -> torch.dtype:
        return attention_dtype(next(self.stock.parameters()))

    @property
    def engine(self) -> str:
        return "+".join(dict.fromkeys(choice.name for choice in self._choices()))

    @property
    def engine_reason(self) -> str:
        return "; ".join(dict.fromkeys(choice.reason for choice in self._choices() if choice.reason))

    def _choices(self) -> list[Choice]:
        like = next(self.stock.parameters())
        return [self._seats.choice(encoding, like) for encoding in self.encodings]

    def under(self, encodings: Sequence[Encoding]) -> Self:
        return type(self)(self.stock, self._seats, self.architecture, encodings)

    def __call__(self, tokens_BT: Tensor) -> Tensor:
        """Logits `[B, T, V]` of all tokens."""
        return torch.cat([logits for _, logits in self.logits_in_slices(tokens_BT)], dim=1)

    def logits_in_slices(self, tokens_BT: Tensor) -> Iterator[tuple[slice, Tensor]]:
        states_BTW = self.states(tokens_BT)
        step = max(1, SLICE_NUMBERS // (len(tokens_BT) * self.architecture.vocab))
        for first in range(0, tokens_BT.shape[1], step):
            part = slice(first, first + step)
            yield part, head(self.stock, tokens_BT[:, part], states_BTW[:, part])

    def states(self, tokens_BT: Tensor) -> Tensor:
        """The last layer's output `[B, T, W]`, as the head takes it."""
        distinct = {id(encoding): encoding for encoding in self.encodings}
        self._seats.encodings = self.encodings
        self._seats.positions = {
            key: encoding.locate(tokens_BT.shape[1], tokens_BT.device) for key, encoding in distinct.items()
        }
        return trunk_of(self.stock)(input_ids=tokens_BT, use_cache=False).last_hidden_state


def load_checked(
    folder: Path, architecture: Architecture, device: torch.device, dtype: torch.dtype | None
) -> CheckpointModel:
    """The checkpoint in a folder, under its own positions; `dtype` None keeps the number format of its weights.

    DataError if transformers cannot read it, or if its logits are others once poscli computes the positions.
    """
    stock = stock_model(folder, dtype, device)
    count = min(CHECKED_TOKENS, architecture.length)
    tokens_BT = torch.arange(count, device=device)[None] * 37 % architecture.vocab
    expected = stock_logits(stock, tokens_BT, folder)
    model = converted(stock, architecture)
    with torch.inference_mode():
        difference = relative_difference(model(tokens_BT).double(), expected)
    allowed = max(LEAST, ROUNDING * torch.finfo(next(stock.parameters()).dtype).eps)
    if not difference <= allowed:
        raise DataError(
            f"{folder}: with the positions that config.json states, {architecture.spec}, the logits differ from those "
            f"of transformers by {difference:.2g} of their spread, where rounding explains {allowed:.2g}; "
            "`poscli card` says what transformers reads otherwise"
        )
    return model


def converted(stock: Any, architecture: Architecture) -> CheckpointModel:
    """A stock model of transformers under its own positions, computed by poscli from now on."""
    seats = Seats(architecture.head_width)
    install(stock, seats)
    model = CheckpointModel(stock, seats, architecture, ())
    return model.under(own_encodings(architecture, table_of(stock), model.device))


def own_encodings(architecture: Architecture, table: Tensor | None, device: torch.device) -> list[Encoding]:
    """The encodings of a checkpoint's layers, with the numbers that config.json and the weights give them.

    `table` holds the rows of learned positions, `[L, W]`; None for a model without them.
    """
    built = build(parse(architecture.spec), architecture.shape, seed=0)
    for encoding, layer in zip(built, architecture.layers, strict=True):
        parts: list[Any] = list(encoding.parts) if type(encoding) is Composed else [encoding]
        for part in parts:
            if layer.numbers and hasattr(part, "use_factors"):
                part.use_factors(*(torch.tensor(layer.numbers[name]) for name in ("short_factor", "long_factor")))
            if table is not None and hasattr(part, "table"):
                part.table = torch.nn.Parameter(table[: architecture.length], requires_grad=False)
    return [encoding.to(device).eval().requires_grad_(False) for encoding in built]


def relative_difference(logits: Tensor, expected: Tensor) -> float:
    """The root mean square of the difference over the standard deviation of what is expected."""
    return float((logits - expected).square().mean().sqrt() / (expected.std() + 1e-30))
