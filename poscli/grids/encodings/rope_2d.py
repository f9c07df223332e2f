"""Rotary position embedding on a grid (Heo et al., 2024)."""

import math

import torch
from torch import Tensor, nn

from poscli.encodings import Shape, register
from poscli.encodings.rope import Layout, RoPE


@register("rope-2d", paper="arXiv:2403.13298", family="grid")
class RoPE2D(RoPE):
    """Half of the pairs of q_i and k_j are rotated by r theta_m, the others by c theta_m, theta_m = base^(-4m/D).

    So scores see only the distance of rows and the distance of columns. With `mixed`, each pair is rotated by r a + c b
    instead, a and b learned per head and layer; they start as two orthogonal directions per head, drawn at random, with
    the lengths theta_m. The authors' base is 100 for axial frequencies (50 in Swin) and 10 for mixed ones, which
    `mixed` does not set.
    """

    axes = 2

    def __init__(self, shape: Shape, *, base: float = 100.0, layout: Layout = "half", mixed: bool = False) -> None:
        super().__init__(shape, base=base, layout=layout)
        if self.width % 4:
            raise ValueError(f"rows and columns rotate pairs each, so 4 must divide the head width; got {self.width}")
        self.mixed = mixed
        if mixed:
            self.frequencies = nn.Parameter(self._drawn(shape.heads).float())

    def angles(self, pos: Tensor) -> Tensor:
        """The angles of positions `[T, 2]` in float64: `[T, pairs]`, or `[H, T, pairs]` for mixed frequencies."""
        if self.mixed:
            return torch.einsum("ta,ahm->htm", pos.double(), self.frequencies.double())
        return (pos[..., None].double() * self.theta(pos)).flatten(1)

    def exponents(self, device: torch.device) -> Tensor:
        """4m/D of each pair of one axis, `[pairs / 2]` in float64."""
        return torch.arange(0, self.width, 4, device=device, dtype=torch.float64) / self.width

    def _drawn(self, heads: int) -> Tensor:
        """Initial mixed frequencies `[2, H, pairs]`: theta_m times a random direction, and one orthogonal to it."""
        turn = 2 * math.pi * torch.rand(heads, 1)
        directions = torch.stack([torch.stack([turn.sin(), turn.cos()]), torch.stack([turn.cos(), -turn.sin()])])
        theta = self.theta(torch.zeros(1))
        return (directions * theta).permute(1, 2, 0, 3).flatten(2)
