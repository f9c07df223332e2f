"""LeRoPE, rope with learned frequencies (Karypis et al., 2026)."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, register
from poscli.encodings.rope import RoPE, Rotary


@register("lerope", paper="arXiv:2607.10134 (known second hand)", family="rotary")
class LeRoPE(RoPE):
    """Rope with the frequencies e^alpha_m theta_m, theta_m = base^(-2m/D), alpha_m learned and 0 at the start.

    One alpha per pair of channels serves all heads of all layers, as in the paper, which found no gain from one for
    every layer or head (`per=layer`, `per=head`), and losses beyond the training length that rise sooner than rope's.
    It is known from two accounts, not from its text or code. Its authors clip alpha's gradients apart, unlike here.
    """

    steady_keys = True
    facts: ClassVar[tuple[str, ...]] = ("lerope starts as rope",)

    def __init__(
        self, shape: Shape, *, per: Literal["model", "layer", "head"] = "model", **rotary: Unpack[Rotary]
    ) -> None:
        super().__init__(shape, **rotary)
        self.per, heads = per, (shape.heads, 1) if per == "head" else ()
        self.alpha = nn.Parameter(torch.zeros(*heads, self.width // 2))

    def tie(self, first: Encoding) -> None:
        if self.per == "model" and isinstance(first, LeRoPE):
            self.alpha = first.alpha

    def theta(self, pos: Tensor) -> Tensor:
        """The frequencies, `[pairs]` or, per head, `[H, 1, pairs]`, in float64."""
        return self.alpha.double().exp() * super().theta(pos)

    def rotate(self, x: Tensor, angle: Tensor, amplitude: Tensor | float = 1.0) -> Tensor:
        return _Rotation.apply(x, angle, partial(super().rotate, amplitude=amplitude), self.layout)


class _Rotation(torch.autograd.Function):
    """A rotation without gradients of its cosines and sines: a turned pair (a, b) changes by (-b, a) per angle."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, angle: Tensor, rotate: Callable[[Tensor, Tensor], Tensor], layout: str) -> Tensor:
        ctx.rotate, ctx.layout, turned = rotate, layout, rotate(x, angle)
        ctx.save_for_backward(turned, angle)
        return turned

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (turned, angle), half = ctx.saved_tensors, ctx.layout == "half"
        pairs = [x[..., : 2 * angle.shape[-1]].unflatten(-1, (2, -1) if half else (-1, 2)) for x in (turned, grad)]
        (a, b), (grad_a, grad_b) = (x.unbind(-2 if half else -1) for x in pairs)
        by_angle = grad_b * a - grad_a * b
        return ctx.rotate(grad, -angle), by_angle.sum_to_size(angle.shape).to(angle.dtype), None, None
