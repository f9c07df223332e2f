"""CARoPE: rope whose base frequency each token sets (Veisi et al., 2025)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from poscli.encodings import Encoding, Shape, register


@register("carope", paper="arXiv:2507.23083", family="content")
class CARoPE(Encoding):
    """q_i . R(phi_j - phi_i) k_j, phi_i[m] = sum_{l<=i} f(x_l)^m, f(x) = 1 / (1 + softplus(w_h . x)): a base per token.

    m counts pairs from 1, so that a constant f turns pair m by f^m per token, as rope does with its base. x is the
    layer's input after the norm. w is drawn with a deviation of 0.02, so that f starts near 0.59. The formula is that
    of the paper, which says that it starts as rope; how is not stated, and no code was found.
    """

    feature_width = 1

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        if shape.head_width % 2:
            raise ValueError(f"rotations need an even number of channels per head, got {shape.head_width}")
        self.w = nn.Parameter(0.02 * torch.randn(shape.heads, shape.width))

    def features(self, x_BTW: Tensor) -> Tensor:
        f_BTH = 1 / (1 + softplus(linear(x_BTW.to(self.w.dtype), self.w)))
        return f_BTH.mT[..., None]

    def phase(self, f_BHSF: Tensor) -> Tensor:
        m = torch.arange(1, self.shape.head_width // 2 + 1, device=f_BHSF.device)
        return (f_BHSF.double() ** m).cumsum(2)
