"""KERPLE, kernelized relative position (Chi et al., 2022)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from poscli.encodings import Encoding, Shape, register


@register("kerple-log", paper="arXiv:2205.09921", family="bias")
class KerpleLog(Encoding):
    """s_ij -= r1 log(1 + r2 (i - j)), r1 and r2 > 0 learned per head (as softplus of a free number).

    r1 starts in (0, 2) and r2 in (0, 1), the authors' ranges. The authors draw them uniformly; here they are spread
    evenly over the heads.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        spread = _spread(shape.heads)
        self.r1 = nn.Parameter(_softplus_inverse(2 * spread))
        self.r2 = nn.Parameter(_softplus_inverse(spread.flip(0)))

    def distance_bias(self, d: Tensor) -> Tensor:
        r1, r2 = softplus(self.r1)[:, None], softplus(self.r2)[:, None]
        return -r1 * torch.log1p(r2 * d)


@register("kerple-power", paper="arXiv:2205.09921", family="bias")
class KerplePower(Encoding):
    """s_ij -= r1 (i - j)^r2, r1 > 0 and 0 < r2 <= 2 learned per head (as softplus and 2 sigmoid of a free number).

    The authors clamp instead, both from below at 0.01 and r2 from above at 2. r1 and r2 start in the authors' ranges,
    (0, 1) and (0, 2), spread evenly over the heads, with the largest r1 where r2 is smallest. Terms are clamped at
    -10000, which float16 can hold and whose softmax weight is 0.
    """

    facts = ("r2 = 1 is alibi(trainable=true)",)

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        spread = _spread(shape.heads)
        self.r1 = nn.Parameter(_softplus_inverse(spread))
        self.r2 = nn.Parameter(torch.logit(spread.flip(0)))

    def distance_bias(self, d: Tensor) -> Tensor:
        r1, r2 = softplus(self.r1)[:, None], 2 * torch.sigmoid(self.r2)[:, None]
        return (-r1 * d**r2).clamp(min=-1e4)


def _spread(heads: int) -> Tensor:
    """Numbers evenly spread in (0, 1), one per head."""
    return (torch.arange(heads) + 0.5) / heads


def _softplus_inverse(y: Tensor) -> Tensor:
    return y + torch.log(-torch.expm1(-y))
