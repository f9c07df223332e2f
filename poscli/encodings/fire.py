"""FIRE, functional interpolation for relative encodings (Li et al., 2023)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from poscli.encodings.base import Encoding, Shape
from poscli.encodings.registry import register

HIDDEN = 2**20  # numbers of the hidden layer that are held at once: 4 MiB of float32


@register("fire", paper="arXiv:2310.04418", family="bias")
class FIRE(Encoding):
    """s_ij += f_h( log(1 + c (i-j)) / log(1 + c max(i, T)) ), f a small network from the unit interval to the heads.

    The distance is a share of the query's own position, so that a longer input meets no new argument; below the
    threshold T (learned, from L/4 on) positions are not told apart from it. c > 0 is learned too.
    """

    relative = False

    def __init__(self, shape: Shape, *, hidden: int = 32) -> None:
        super().__init__(shape)
        if hidden < 1:
            raise ValueError(f"hidden must be at least 1, got {hidden}")
        self.f = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, shape.heads))
        self.c = nn.Parameter(torch.tensor(-2.25))  # softplus: 0.1, as the authors start it
        self.threshold = nn.Parameter(torch.tensor(1.0))

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        c, threshold = softplus(self.c), (self.threshold * self.shape.length / 4).abs()
        d_TS = (i[:, None] - j).clamp(min=0)
        share_TS = torch.log1p(c * d_TS) / torch.log1p(c * torch.maximum(i, threshold))[:, None]
        start_H1, slopes_HM, bends_M11 = self.pieces()
        parts = [
            torch.addmm(start_H1, slopes_HM, torch.maximum(share, bends_M11).flatten(1)).unflatten(1, share.shape)
            for share in share_TS.to(c.dtype).split(max(1, HIDDEN // (len(bends_M11) * len(j))))
        ]
        return torch.cat(parts, dim=1)

    def pieces(self) -> tuple[Tensor, Tensor, Tensor]:
        """F on the unit interval as start_h + sum_m slopes_hm max(x, t_m), t_0 = 0: `[H, 1]`, `[H, M]`, `[M, 1, 1]`.

        A unit relu(w x + b) that bends there, at t = -b/w, is relu(b) + min(w, 0) x + |w| (max(x, t) - t). Few do: any
        other is a line, or nothing, and all lines are one.
        """
        first, last = self.f[0], self.f[2]
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        w, b = first.weight[:, 0], first.bias
        bends = b * (w + b) < 0  # of another sign at 1 than at 0
        t, rise = -b[bends] / w[bends], w[bends].abs()
        at_0 = torch.where(bends | (w / 2 + b > 0), torch.where(bends, b.relu(), b), 0)
        line = torch.where(bends, w.clamp(max=0), torch.where(w / 2 + b > 0, w, 0))
        v = last.weight[:, bends] * rise
        start = last.bias + last.weight @ at_0 - v @ t
        slopes = torch.cat([(last.weight @ line)[:, None], v], dim=1)
        return start[:, None], slopes, torch.cat([t.new_zeros(1), t])[:, None, None]
