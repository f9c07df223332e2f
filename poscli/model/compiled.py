"""torch.compile for the part of every layer that no encoding touches: norm, MLP and residual.

Attention is not compiled. The compiled part has the same shapes in every step and sees no positions, so that no
encoding can break it or cause a second compilation; its code is compiled once for all layers.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor

from poscli.model.transformer import Model
from poscli.system.console import warn_once


def wanted(device: torch.device) -> bool:
    """Whether to compile: on CUDA if POSCLI_COMPILE=1; never on CPU, where compiling takes longer than it saves."""
    return device.type == "cuda" and os.environ.get("POSCLI_COMPILE") == "1"


def compile_layers(model: Model, x_BTW: Tensor, backend: str | Callable = "inductor") -> None:
    """Compile the feed-forward half of every layer, and try it forward and backward on an input like `x_BTW`.

    If that fails, for lack of a C compiler or of Triton, the cause is announced once and the model stays uncompiled.
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
