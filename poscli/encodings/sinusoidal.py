"""Sinusoids on the embedding (Vaswani et al., 2017)."""

from typing import Literal

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, above, register


@register("sinusoidal", paper="arXiv:1706.03762", family="absolute")
class Sinusoidal(Encoding):
    """x_k + P_k with P[k, 2m] = sin(k / base^(2m/W)) and P[k, 2m+1] = cos(k / base^(2m/W)).

    The paper multiplies token embeddings of variance 1/W by sqrt(W); here embeddings have variance 1, which is
    equivalent. The authors' library, tensor2tensor (read in copies), divides m by W/2 - 1 instead of W/2, so that the
    slowest pair turns by 1/base per token, and puts all sines before the cosines. `combine` is `add` as in the paper,
    `multiply` (element by element), or `concat`, which projects the embedding and P, side by side, back to W channels.
    """

    shared = True
    relative = False
    facts = (
        "row i + k is M_k times row i, M_k a rotation of each pair by k / base^(2m/W) that does not depend on i",
        "added, it splits a score into content-content, content-position, position-content and position-position",
    )

    def __init__(
        self, shape: Shape, *, base: float = 10000.0, combine: Literal["add", "multiply", "concat"] = "add"
    ) -> None:
        super().__init__(shape)
        above(1, base=base)
        if shape.width % 2:
            raise ValueError(f"sinusoids come in pairs, so the width must be even; got {shape.width}")
        self.base, self.combine = base, combine
        if combine == "concat":
            self.project = nn.Linear(2 * shape.width, shape.width, bias=False)

    def table(self, pos: Tensor) -> Tensor:
        """P for positions `[T]`: `[T, W]` in float64."""
        m = torch.arange(0, self.shape.width, 2, device=pos.device, dtype=torch.float64) / self.shape.width
        angle = pos[:, None] * self.base**-m
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        p_TW = self.table(pos).to(x_BTW.dtype)
        if self.combine == "add":
            return x_BTW + p_TW
        if self.combine == "multiply":
            return x_BTW * p_TW
        return self.project(torch.cat([x_BTW, p_TW.expand_as(x_BTW)], dim=-1))
