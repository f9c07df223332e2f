"""The trial of the Triton kernel that rotates pairs of channels, against complex numbers in float64.

B batch, T tokens, H heads, D channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from poscli.attention.rounding import Tensors, difference, draw, dtype_name

BATCH, HEADS = 2, 2


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """What decides the code of the kernel that rotates pairs of channels."""

    dtype: torch.dtype
    width: int
    pairs: int
    layout: Literal["half", "interleaved"]

    def __str__(self) -> str:
        return f"rotation in {dtype_name(self.dtype)}, {self.pairs} {self.layout} pairs of {self.width} channels"

    def fault(self, device: torch.device) -> str:
        """What differs from the product of complex numbers in float64; '' if nothing does."""
        from poscli.attention.kernels.rotary import TOKENS_PER_PROGRAM, rotate

        tokens = TOKENS_PER_PROGRAM + 5
        x = draw(BATCH, tokens, HEADS, self.width, seed=0).to(self.dtype)
        angle = 1000 * draw(tokens, self.pairs, seed=1)
        cos, sin = angle.cos().float().to(device), angle.sin().float().to(device)
        right = self._with_gradient(x.double(), lambda y: self._rotated(y, angle))
        found = self._with_gradient(x.to(device), lambda y: rotate(y, cos, sin, self.layout))
        return difference(found, right, [], self.dtype, 1)

    def _with_gradient(self, x: Tensor, rotate: Callable[[Tensor], Tensor]) -> Tensors:
        """The rotated `[B, T, H, D]` and the gradient of a random loss, in float64 on the CPU."""
        x.requires_grad_()
        with torch.enable_grad():
            out = rotate(x.transpose(1, 2))
            g = draw(*out.shape, seed=2).to(self.dtype).to(out)
            (gradient,) = torch.autograd.grad(out, x, g)
        return {"output": out.detach().double().cpu(), "gradient of x": gradient.double().cpu()}

    def _rotated(self, x: Tensor, angle: Tensor) -> Tensor:
        """(a + ib) exp(i angle) for the pairs (a, b)."""
        turned, rest = x.split([2 * self.pairs, self.width - 2 * self.pairs], dim=-1)
        pairs = turned.unflatten(-1, (2, -1)).mT if self.layout == "half" else turned.unflatten(-1, (-1, 2))
        done = torch.view_as_real(
            torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angle), angle)
        )
        return torch.cat([(done.mT if self.layout == "half" else done).flatten(-2), rest], dim=-1)
