"""GRAPE, positions as group actions: rotations in learned planes, and path integrals (Zhang et al., 2025)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid, rms_norm, softplus

from poscli.encodings import Encoding, Operands, Shape, register
from poscli.encodings.alibi import slopes
from poscli.encodings.rope import RoPE
from poscli.native.call import Costs


@register("grape", paper="arXiv:2512.07805", family="rotary")
class Grape(RoPE):
    """q_i . G(j-i) k_j with G(n) = exp(n B L B^T), L turning pair m by theta_m, B an orthogonal matrix per head.

    This is multiplicative GRAPE with commuting planes. B = exp(A - A^T) and factors e^lambda_m on theta_m are learned;
    at the start B is the identity and lambda 0, so the encoding is rope. Projections of q and k can absorb B, so
    `planes` changes how a model learns and not what it can express. The authors train the `frequencies` alone, one
    spectrum for all heads, and store it as 16 log theta_m, which divides the step of the optimizer by 16; here lambda
    is stored as it is.
    """

    steady_keys = True
    facts = ("grape starts as rope", "grape(planes=false, frequencies=false) is rope")

    def __init__(self, shape: Shape, *, planes: bool = True, frequencies: bool = True, base: float = 10000.0) -> None:
        super().__init__(shape, base=base)
        width = shape.head_width
        self.a = nn.Parameter(torch.zeros(shape.heads, width, width)) if planes else None
        self.log_factor = nn.Parameter(torch.zeros(width // 2)) if frequencies else None

    def theta(self, pos: Tensor) -> Tensor:
        theta = super().theta(pos)
        return theta if self.log_factor is None else theta * self.log_factor.double().exp()

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return super().query(self.in_planes(q_BHTD), pos)

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        return super().key(self.in_planes(k_BHSD), pos)

    def in_planes(self, x: Tensor) -> Tensor:
        """B^T x, in whose coordinates the planes are pairs of channels. The B in front of L cancels in q . k.

        Channels beyond D, which another encoding has appended, are left as they are.
        """
        if self.a is None:
            return x
        b_HDD = torch.matrix_exp((self.a - self.a.mT).double()).to(x.dtype)
        content, appended = x.tensor_split([self.shape.head_width], dim=-1)
        return torch.cat([content @ b_HDD, appended], dim=-1)


@register("grape-additive", paper="arXiv:2512.07805", family="content")
class GrapeAdditive(Encoding):
    """s_ij += sum_{l=j+1..i} psi(i, l), psi(i, l) = m_h log sigmoid(p_i . R_l p_l / P): a cost of each token between.

    This is path-integral additive GRAPE. p_l = RMSNorm(W_p x_l) are P = `probe` numbers per head, R_l turns their pairs
    by l radians (the authors' by -l, which negates half of the rows of W_p), and m_h are ALiBi's slopes; these details
    follow the authors' code, which does not normalise p_i, where the paper does. R_l is not undone by i, so scores
    depend on absolute positions.
    """

    relative = False
    kernel_gradient = True
    facts = ("with W_p = 0 grape-additive is alibi, its slopes times log 2",)
    slope: Tensor

    def __init__(self, shape: Shape, *, probe: int = 8) -> None:
        super().__init__(shape)
        if probe < 2 or probe % 2:
            raise ValueError(f"probe must be an even number of at least 2, got {probe}")
        self.probe = self.feature_width = probe
        self.w_p = nn.Parameter(torch.randn(shape.heads * probe, shape.width) * shape.width**-0.5)
        self.register_buffer("slope", torch.tensor(slopes(shape.heads)), persistent=False)

    def features(self, x_BTW: Tensor) -> Tensor:
        p_BTHP = linear(x_BTW, self.w_p.to(x_BTW.dtype)).unflatten(-1, (self.shape.heads, self.probe))
        return rms_norm(p_BTHP, (self.probe,), eps=1e-6).transpose(1, 2)

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        assert f_i is not None
        assert f_j is not None
        m = self.slope[:, None, None].to(f_i.dtype)
        psi = m * logsigmoid(f_i @ self.turned(f_j, j).mT / self.probe)
        return _sum_between(psi)

    def fast_bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        """`bias`, with the factors 1/P and m_h outside the pairs: log sigmoid(y) = -softplus(-y)."""
        assert f_i is not None
        assert f_j is not None
        cost = softplus((f_i / -self.probe) @ self.turned(f_j, j).mT, threshold=40)  # exact beyond 40 in float64 too
        return _sum_between(cost) * -self.slope[:, None, None].to(f_i.dtype)

    def kernel_form(self, x: Operands) -> Costs:
        assert x.features_of_queries is not None
        assert x.features_BHSF is not None
        return Costs(x.features_of_queries / -self.probe, self.turned(x.features_BHSF, x.pos_S), self.slope)

    def turned(self, p: Tensor, pos: Tensor) -> Tensor:
        """R_l p_l; a pair is channels (m, m + P/2), as in the authors' code."""
        cos, sin = pos[:, None].double().cos().to(p.dtype), pos[:, None].double().sin().to(p.dtype)
        a, b = p.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def _sum_between(psi_BHTS: Tensor) -> Tensor:
    """The sum of psi(i, l) over j < l <= i, for every query i and key j."""
    queries, keys = psi_BHTS.shape[-2:]
    psi_BHTS = psi_BHTS.tril(keys - queries)  # no token after the query
    return psi_BHTS.flip(-1).cumsum(-1).flip(-1) - psi_BHTS
