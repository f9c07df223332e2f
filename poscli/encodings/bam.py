"""GGD-BAM: the Bayesian attention mechanism, its prior a generalized Gaussian (Bianchessi et al., 2025)."""

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, register

EPS = 1e-5  # the authors'; at distance mu it keeps the power finite


@register("bam", paper="arXiv:2505.22842", family="bias")
class BAM(Encoding):
    """s_ij -= |(i - j - mu) / alpha|^beta, alpha > 0 and beta learned per head: the logarithm of a prior of positions.

    As in the authors' code alpha^-beta is e^a, where a is learned, 1e-5 is added to |i - j - mu|, and beta has no
    limits: where it is below 0, a head turns away from near tokens. a and beta start at 0, so that all tokens are equal
    at first; `beta` starts beta elsewhere. mu is 0 unless `mu=true` learns it, as 2 sinh m with m from 0. Terms are
    clamped at -10000, which float16 can hold and whose softmax weight is 0. For long inputs the authors multiply q . k,
    but not this term, by s log n; in `bam+ssmax` the factor multiplies both.
    """

    facts = (
        "beta = 0 is none: it starts as none",
        "beta = 1 and mu = 0 is alibi(trainable=true), its slopes e^a",
        "mu = 0 is kerple-power with any exponent",
    )

    def __init__(self, shape: Shape, *, beta: float = 0.0, mu: bool = False) -> None:
        super().__init__(shape)
        self.a = nn.Parameter(torch.zeros(shape.heads))
        self.beta = nn.Parameter(torch.full((shape.heads,), beta))
        self.m = nn.Parameter(torch.zeros(shape.heads)) if mu else None

    def distance_bias(self, d: Tensor) -> Tensor:
        mu = torch.zeros_like(self.a) if self.m is None else 2 * self.m.sinh()
        apart = (d - mu[:, None]).abs() + EPS
        return (-self.a.exp()[:, None] * apart ** self.beta[:, None]).clamp(min=-1e4)
