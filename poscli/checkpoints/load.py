"""Loading a checkpoint from a folder, and checking that poscli's positions are those of the model itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poscli.checkpoints.architecture import Architecture
from poscli.checkpoints.install import install, table_of
from poscli.checkpoints.model import CheckpointModel, Seats
from poscli.checkpoints.pretrained import stock_logits, stock_model
from poscli.equation import Encoding, Shape
from poscli.equation.composed import Composed
from poscli.specs import build, parse
from poscli.system.errors import DataError

CHECKED_TOKENS = 48  # of the text on which both are compared, at most; never above the trained length
# The largest difference that is taken for rounding, as root mean square over the spread of the logits: 16 times that of
# the number format, or 0.001. Layers amplify rounding; a wrong base of rope changes logits by a tenth and more.
ROUNDING, LEAST = 16, 1e-3


def load(folder: Path, architecture: Architecture, device: torch.device, dtype: torch.dtype | None) -> CheckpointModel:
    """The checkpoint in a folder, under its own positions; `dtype` None keeps the number format of its weights.

    DataError if transformers cannot read it, or if its logits are others once poscli computes the positions.
    """
    stock = stock_model(folder, dtype, device)
    count = min(CHECKED_TOKENS, architecture.length)
    tokens_BT = torch.arange(count, device=device)[None] * 37 % architecture.vocab
    expected = stock_logits(stock, tokens_BT, folder)
    model = adopted(stock, architecture)
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


def adopted(stock: Any, architecture: Architecture) -> CheckpointModel:
    """A stock model of transformers under its own positions, computed by poscli from now on."""
    seats = Seats(architecture.head_width)
    install(stock, seats)
    model = CheckpointModel(stock, seats, architecture, ())
    return model.under(own_encodings(model.shape, architecture, table_of(stock), model.device))


def own_encodings(
    shape: Shape, architecture: Architecture, table: Tensor | None, device: torch.device
) -> list[Encoding]:
    """The encodings of a checkpoint, with the numbers that config.json and the weights give them."""
    built = build(parse(architecture.spec), shape, seed=0)
    for encoding, layer in zip(built, architecture.layers, strict=True):
        parts: list[Any] = list(encoding.parts) if type(encoding) is Composed else [encoding]
        for part in parts:
            if layer.numbers and hasattr(part, "use_factors"):
                part.use_factors(*(torch.tensor(layer.numbers[name]) for name in ("short_factor", "long_factor")))
            if table is not None and hasattr(part, "table"):
                part.table = torch.nn.Parameter(table[: shape.length], requires_grad=False)
    return [encoding.to(device).eval().requires_grad_(False) for encoding in built]


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """The root mean square of the difference over the standard deviation of what is expected."""
    return float((found - expected).square().mean().sqrt() / (expected.std() + 1e-30))
