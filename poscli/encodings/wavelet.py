"""Wavelet-based positional representation (Oka et al., 2025)."""

import torch
from torch import Tensor

from poscli.encodings import Encoding, Shape, at_least, register


@register("wavelet", paper="arXiv:2502.02004", family="relative")
class Wavelet(Encoding):
    """s_ij = q_i . (k_j + p[i-j]) / sqrt(D), p_(a,b)[d] = (1 - t^2) exp(-t^2 / 2), t = (d - b) / a, a Ricker wavelet.

    Each channel has its own: `scales` scales a = 2^first, 2^(first+1), ... times D / `scales` shifts b = 0, 1, 2, ...
    Nothing is learned, and far beyond the widest wavelet nothing is added. From the paper's text (no code of the
    authors was found): scales=8 at D = 128, and first=2 for a model of 4096 tokens. The sign of t is that of its
    equations 11 and 14; footnote 8 and appendix A.6 count distances below 0, where no key would reach a shift.
    """

    shared = True

    def __init__(self, shape: Shape, *, scales: int = 8, first: int = 0) -> None:
        super().__init__(shape)
        at_least(1, scales=scales)
        at_least(0, first=first)
        if shape.head_width % scales:
            raise ValueError(f"scales must divide the head width, {shape.head_width}, got {scales}")
        self.scales, self.first = scales, first

    def relative_keys(self, d: Tensor) -> Tensor:
        a = 2.0 ** torch.arange(self.first, self.first + self.scales, dtype=torch.float64, device=d.device)
        b = torch.arange(self.shape.head_width // self.scales, device=d.device)
        t = (d[:, None, None] - b) / a[:, None]
        return ((1 - t**2) * torch.exp(-(t**2) / 2)).flatten(1)[None]
