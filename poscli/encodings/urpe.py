"""Universal relative position encoding (Luo et al., 2022)."""

import torch
from torch import Tensor, nn

from poscli.attention.biases import even_distances
from poscli.attention.skew import descending
from poscli.encodings import Encoding, Operands, Shape, register
from poscli.encodings.based import Based
from poscli.native.call import Factors


class Toeplitz(Encoding):
    """p_ij times c[h, i-j], the part of `URPE` that acts on the base."""

    name = "c"
    shared = True
    kernel_gradient = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.c = nn.Parameter(torch.ones(shape.heads, shape.length))

    def reweight(self, p_BHTS: Tensor, d_TS: Tensor) -> Tensor:
        return p_BHTS * self.c.to(p_BHTS.dtype)[:, d_TS.clamp(max=self.c.shape[1] - 1).long()]

    def fast_reweight(self, p_BHTS: Tensor, d_TS: Tensor) -> Tensor:
        """`reweight`, with one factor for the first keys, where every query uses the last entry of c."""
        c, last = self.c.to(p_BHTS.dtype), self.c.shape[1] - 1
        far = _count_leading((d_TS >= last).all(dim=0))
        d = d_TS[:, far:].clamp(max=last).long().expand(len(c), -1, -1)
        near = p_BHTS[..., far:] * c[:, None].expand(-1, d.shape[1], -1).gather(2, d)
        return torch.cat([p_BHTS[..., :far] * c[:, -1:, None], near], dim=-1) if far else near

    def kernel_form(self, x: Operands) -> Factors:
        c_HN = self.c[:, even_distances(x).clamp(max=self.c.shape[1] - 1).long()]
        return Factors(descending(c_HN, x.queries, fill=0))


@register("urpe", paper="arXiv:2205.13401", family="relative")
class URPE(Based):
    """o_i = sum_j softmax(s)_ij c[h, i-j] v_j, over the scores s of another encoding: rows need not sum to 1.

    With a softmax alone, equal tokens get equal outputs wherever they are. c is learned per head, is shared by all
    layers as in the authors' code, and starts at 1; distances from L on use its last entry. `base` names the encoding
    that makes s. To set options of that encoding, join it: `rope(base=500000)+urpe(base=none)`.
    """

    facts = ("where c is 1, urpe is its base",)

    def __init__(self, shape: Shape, *, base: str = "rope") -> None:
        super().__init__(shape, base, Toeplitz(shape))


def _count_leading(true: Tensor) -> int:
    """The number of entries of a boolean vector before the first false one."""
    return int(true.long().cumprod(0).sum())
