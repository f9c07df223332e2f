"""An exponential of the distance as a bias."""

import torch
from torch import Tensor

from poscli.encodings import register
from poscli.encodings.gaussian import Gaussian


@register("exponential", paper="no paper, a bias designed by hand", family="bias")
class Exponential(Gaussian):
    """s_ij += sum_{n=1}^{terms} a_n exp(-x), x = (i - j) / w_n: heights a_n and widths w_n > 0 learned per head.

    It tends to 0 at large distances, past L too. Heights start at log(L) / terms. Widths are learned as logarithms and
    start spread geometrically from 1 to L/2 over heads and terms.
    """

    def fall(self, x: Tensor) -> Tensor:
        return torch.exp(-x)
