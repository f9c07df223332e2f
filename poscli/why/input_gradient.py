"""The gradient of a loss with respect to what the first layer of a trained model reads.

Shapes: B windows, T tokens, W model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from poscli.model.cache import LayerCache
from poscli.model.transformer import Model


def input_gradient(model: Model, tokens_BT: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradient `[B, T, W]` of `loss`, a function of the logits, with respect to the inputs of the first layer.

    These are the token embeddings, with the encoding's part if it adds one there. The weights get no gradient, and the
    model is as before afterwards.
    """
    inputs: list[Tensor] = []  # one, or one per segment if the model has a memory

    def cut(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        inputs.append(args[0].detach().requires_grad_())
        return (inputs[-1], *args[1:])

    with ExitStack() as until_done, torch.enable_grad():
        until_done.enter_context(_differentiable(model))
        until_done.enter_context(_recomputed(model))
        until_done.callback(model.layers[0].register_forward_pre_hook(cut).remove)
        total = loss(model(tokens_BT))
        return torch.cat(torch.autograd.grad(total, inputs, materialize_grads=True), dim=1)


@contextmanager
def _differentiable(model: nn.Module) -> Iterator[None]:
    """Let every weight require a gradient: a model chooses engines with a backward pass only if its weights do."""
    own = {parameter: parameter.requires_grad for parameter in model.parameters()}
    model.requires_grad_(True)
    try:
        yield
    finally:
        for parameter, required in own.items():
            parameter.requires_grad_(required)


@contextmanager
def _recomputed(model: Model) -> Iterator[None]:
    """Compute every layer a second time in the backward pass, instead of keeping all it needs in memory.

    Engines for whole rows of scores keep O(T^2) numbers per layer, and windows here are far longer than in training.
    """
    for layer in model.layers:
        vars(layer)["forward"] = partial(_run, layer.forward)
    try:
        yield
    finally:
        for layer in model.layers:
            del vars(layer)["forward"]


def _run(forward: Callable[..., Tensor], x_BTW: Tensor, *rest: Any) -> Tensor:
    """A layer's output, in a way that can be repeated; a cache is changed by every pass, so then there is only one."""
    if any(isinstance(arg, LayerCache) for arg in rest):
        return forward(x_BTW, *rest)
    return _Recomputed.apply(x_BTW, lambda x: forward(x, *rest))


class _Recomputed(torch.autograd.Function):
    """A function of one tensor whose backward pass begins with another forward pass.

    torch.utils.checkpoint does that too, but its first call imports torch's compiler, which takes seconds.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function = function
        return function(x)  # torch switches gradients off here, so the fastest engine runs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        return torch.autograd.grad(y, x, gradients[0])[0], None
