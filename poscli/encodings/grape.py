"""GRAPE, positions as group actions: rotations in learned planes, and path integrals (Zhang et al., 2025)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, softplus

from poscli.encodings.alibi import slopes
from poscli.encodings.base import Encoding, Shape
from poscli.encodings.registry import register
from poscli.encodings.rope import RoPE


@register("grape", paper="arXiv:2512.07805", family="rotary")
class Grape(RoPE):
    """q_i . G(j-i) k_j with G(n) = exp(n B L B^T), L turning pair m by theta_m, B an orthogonal matrix per head.

    Multiplicative GRAPE with commuting planes: B = exp(A - A^T) and the factors e^lambda_m on theta_m are learned,
    and start as rope is. Projections of q and k can absorb B, so `planes` changes how a model learns and not what it
    can express; the authors' own runs learn the `frequencies` alone, one spectrum for all heads.
    """

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
        """B^T x: coordinates in which the planes are pairs of channels. The B before them all cancels in q . k."""
        if self.a is None:
            return x
        b_HDD = torch.matrix_exp((self.a - self.a.mT).double())
        return x @ b_HDD.to(x.dtype)


@register("grape-additive", paper="arXiv:2512.07805", family="content")
class GrapeAdditive(Encoding):
    """s_ij += sum_{l=j+1..i} psi(i, l), psi(i, l) = m_h log sigmoid(p_i . R_l p_l / P): the path, as i sees it.

    Path-integral additive GRAPE. p_l = RMSNorm(W_p x_l) are P = `probe` numbers per head, R_l turns their pairs by l
    radians, and m_h are ALiBi's slopes: details that the authors' code settles (it does not normalise p_i, though;
    the paper does). R_l is not undone by i, so scores see where in a text they are.
    """

    relative = False
    facts = ("with W_p = 0 grape-additive is alibi, its slopes times log 2",)
    slope: Tensor

    def __init__(self, shape: Shape, *, probe: int = 8) -> None:
        super().__init__(shape)
        if probe < 2 or probe % 2:
            raise ValueError(f"probe must be an even number of at least 2, got {probe}")
        self.probe = probe
        self.w_p = nn.Parameter(torch.randn(shape.heads * probe, shape.width) * shape.width**-0.5)
        self.register_buffer("slope", torch.tensor(slopes(shape.heads)), persistent=False)

    def features(self, x_BTW: Tensor) -> Tensor:
        p_BTHP = linear(x_BTW, self.w_p.to(x_BTW.dtype)).unflatten(-1, (self.shape.heads, self.probe))
        return rms_norm(p_BTHP, (self.probe,), eps=1e-6).transpose(1, 2)

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        assert f_i is not None
        assert f_j is not None
        # m_h log sigmoid(y) = -m_h softplus(-y), from 40 on -y itself in float64 too
        edges_BHTS = softplus((f_i / -self.probe) @ self.turned(f_j, j).mT, threshold=40)
        edges_BHTS = edges_BHTS.tril(len(j) - len(i))  # edges after the query are on no path to it
        path_BHTS = edges_BHTS.flip(-1).cumsum(-1).flip(-1) - edges_BHTS
        return path_BHTS * -self.slope[:, None, None].to(f_i.dtype)

    def turned(self, p: Tensor, pos: Tensor) -> Tensor:
        """R_l p_l: a pair is channels (m, m + P/2), as in the authors' code."""
        cos, sin = pos[:, None].double().cos().to(p.dtype), pos[:, None].double().sin().to(p.dtype)
        a, b = p.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
