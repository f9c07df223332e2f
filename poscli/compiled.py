"""torch.compile for what all encodings share: the norm, the MLP and the residual of every layer.

Attention stays as its engine has it. What is compiled has the same shapes in every step and knows nothing of positions,
so that no encoding can break it or make it compile twice; a layer's code is compiled once for all layers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from poscli.console import warn_once

if TYPE_CHECKING:
    from poscli.model import Model


def wanted(device: torch.device) -> bool:
    """Was it asked for, with POSCLI_COMPILE=1 in the environment? On CPU never: it takes longer than it saves."""
    return device.type == "cuda" and os.environ.get("POSCLI_COMPILE") == "1"


def compile_layers(model: Model, x_BTW: Tensor, backend: str | Callable = "inductor") -> None:
    """Compile the feed-forward half of every layer and try it, forward and backward, on an input like `x`.

    Where that fails (no C compiler, no Triton), the cause is announced once and the model runs as it did.
    """
    try:
        for layer in model.layers:
            eager: Callable = layer.feed_forward  # type: ignore[assignment]
            vars(layer)["feed_forward"] = torch.compile(eager, dynamic=False, backend=backend)
        probe = x_BTW.to(model.embedding.device).requires_grad_()
        torch.autograd.grad(model.layers[0].feed_forward(probe).sum(), probe)  # type: ignore[operator]
    except RuntimeError as error:
        for layer in model.layers:
            vars(layer).pop("feed_forward", None)
        cause = str(getattr(error, "inner_exception", error)).strip().partition("\n")[0]
        warn_once(f"layers run uncompiled, so more slowly: torch.compile says {cause}")
