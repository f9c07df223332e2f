"""Transformer-XL's relative position encoding (Dai et al., 2019)."""

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Length, Shape, at_least, register


@register("transformer-xl", paper="arXiv:1901.02860", family="relative")
class TransformerXL(Encoding):
    """s_ij = ((q_i + u) . k_j + (q_i + v) . W_R R[i-j]) / sqrt(D), R the sinusoids of width W, sines before cosines.

    W_R is learned per layer and head; u and v are learned per head, for all layers: so in the paper and in
    the authors' scripts for PyTorch; those for TensorFlow give every layer its own, as `xlnet` does. Distances beyond
    `clamp` are clamped to it, as the authors do when they evaluate longer memories. u and v start at zero, the authors'
    at random with a standard deviation of 0.02 by default.
    """

    def __init__(self, shape: Shape, *, clamp: Length[int] | None = None) -> None:
        super().__init__(shape)
        at_least(1, clamp=clamp)
        if shape.width % 2:
            raise ValueError(f"sinusoids come in pairs, so the width must be even; got {shape.width}")
        self.clamp = clamp
        self.u, self.v = (nn.Parameter(torch.zeros(shape.heads, 1, shape.head_width)) for _ in "uv")
        self.w_r = nn.Parameter(torch.randn(shape.heads, shape.head_width, shape.width) * shape.width**-0.5)

    def tie(self, first: Encoding) -> None:
        assert isinstance(first, TransformerXL)
        self.u, self.v = first.u, first.v

    def content_query(self, q_BHTD: Tensor) -> Tensor:
        return q_BHTD + self.u.to(q_BHTD.dtype)

    def relative_query(self, q_BHTD: Tensor, f_BHTF: Tensor | None) -> Tensor:
        return q_BHTD + self.v.to(q_BHTD.dtype)

    def relative_keys(self, d: Tensor) -> Tensor:
        d = d if self.clamp is None else d.clamp(max=self.clamp)
        return self.r(d).to(self.w_r.dtype) @ self.w_r.mT

    def r(self, d: Tensor) -> Tensor:
        """R for distances `[n]`: `[n, W]` in float64."""
        m = torch.arange(0, self.shape.width, 2, device=d.device, dtype=torch.float64) / self.shape.width
        angle = d[:, None] * 10000**-m
        return torch.cat([angle.sin(), angle.cos()], dim=-1)
