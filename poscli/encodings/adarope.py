"""AdaRoPE: every head has its own frequencies and its own temperature (Wang et al., 2026)."""

import math

import torch
from torch import Tensor, nn

from poscli.encodings import Shape, register
from poscli.encodings.lerope import LeRoPE
from poscli.encodings.rope import Layout


@register("adarope", paper="arXiv:2607.19363 (known second hand)", family="rotary")
class AdaRoPE(LeRoPE):
    """Rope with the frequencies e^xi_hm, learned per head, and scores times 1 + beta_h log n / log L.

    n is the number of keys that query i sees, L the training length, and beta_h is learned per head and 0 at the start.
    xi starts at the logarithms of rope's frequencies; alpha, which is learned, is its difference from them, so that the
    first step sees exactly rope. Every layer has its own xi and beta. The paper is known from several accounts of it,
    neither from its own text nor from code. They agree on xi, and that each head has a temperature that follows the
    length, but none of them gives its formula: the one here is linear in log n, by which ssmax, too, keeps attention as
    sharp over many keys as over few. The factor multiplies every term of the scores. `scaling=false` leaves it out.
    """

    steady_keys = True
    facts = ("adarope starts as rope", "adarope(scaling=false) is lerope(per=head)")

    def __init__(
        self,
        shape: Shape,
        *,
        scaling: bool = True,
        base: float = 10000.0,
        layout: Layout = "half",
        fraction: float = 1.0,
    ) -> None:
        super().__init__(shape, per="head", base=base, layout=layout, fraction=fraction)
        self.beta = nn.Parameter(torch.zeros(shape.heads)) if scaling else None
        if not scaling:
            self.leave("temperature")

    def temperature(self, n: Tensor) -> Tensor:
        assert self.beta is not None
        return 1 + self.beta[:, None] * n.double().log() / math.log(max(2, self.shape.length))
