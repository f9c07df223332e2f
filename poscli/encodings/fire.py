"""FIRE, functional interpolation for relative encodings (Li et al., 2023)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from poscli.attention.biases import even_distances
from poscli.attention.skew import descending
from poscli.encodings import Encoding, Operands, Shape, above, at_least, register
from poscli.native.call import Pieces


@register("fire", paper="arXiv:2310.04418", family="bias")
class FIRE(Encoding):
    """s_ij += f_h( log(1 + c (i-j)) / log(1 + c max(i, T)) ), f a small network from the unit interval to the heads.

    The argument of f is at most 1 at any length, because the distance is divided by the query's own position. For
    queries before the threshold T it is divided by T instead. c > 0 and T are learned; T starts at L/4. The option
    `threshold` is ours: T stays at `threshold` times L. With 16, no query up to 16 L is beyond it, and the bias is a
    function of the distance alone.
    """

    relative = False
    kernel_gradient = True

    def __init__(self, shape: Shape, *, hidden: int = 32, threshold: float | None = None) -> None:
        super().__init__(shape)
        at_least(1, hidden=hidden)
        above(0, threshold=threshold)
        self.f = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, shape.heads))
        self.c = nn.Parameter(torch.tensor(-2.25))  # softplus: 0.1, as the authors start it
        self.threshold = nn.Parameter(torch.tensor(1.0 if threshold is None else 4.0 * threshold))  # in L/4
        self.threshold.requires_grad_(threshold is None)

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return self.f(self.ratio(i, j)[..., None].to(self.c.dtype)).permute(2, 0, 1)

    def ratio(self, i: Tensor, j: Tensor) -> Tensor:
        """The argument of f for positions `[T]` and `[S]`: `[T, S]`, between 0 and 1."""
        d_TS = (i[:, None] - j).clamp(min=0)
        return self.psi(d_TS) / self.psi(torch.maximum(i, self.first_scaled))[:, None]

    def psi(self, d: Tensor) -> Tensor:
        """log(1 + c d)."""
        return torch.log1p(softplus(self.c) * d)

    @property
    def first_scaled(self) -> Tensor:
        """T, the first position that distances are divided by."""
        return (self.threshold * self.shape.length / 4).abs()

    def kernel_form(self, x: Operands) -> Pieces:
        start_H1, slopes_HM, bends_M11 = self.pieces()
        bends, order = bends_M11[1:, 0, 0].sort()  # max(x, 0) is x
        line_H1, rises_HM = slopes_HM[:, :1], slopes_HM[:, 1:][:, order]
        # Below all bends, max(x, t) is t; beyond a bend, x takes its place.
        constant = torch.cat([start_H1 + rises_HM @ bends[:, None], -rises_HM * bends], dim=1).cumsum(1)
        of_distance = descending(self.psi(even_distances(x))[None], x.queries, fill=0)
        of_query = 1 / self.psi(torch.maximum(x.pos_T, self.first_scaled))
        every = (len(constant), -1)
        return Pieces(
            of_distance.expand(every),
            of_query.expand(every),
            constant,
            torch.cat([line_H1, rises_HM], dim=1).cumsum(1),
            bends.detach(),
        )

    def fast_bias(
        self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None, *, hidden_per_chunk: int = 2**20
    ) -> Tensor:
        """`bias` by the linear pieces of f, with at most `hidden_per_chunk` numbers of its hidden layer at once."""
        start_H1, slopes_HM, bends_M11 = self.pieces()
        queries = max(1, hidden_per_chunk // (len(bends_M11) * len(j)))
        chunks = [
            torch.addmm(start_H1, slopes_HM, torch.maximum(x_TS, bends_M11).flatten(1)).unflatten(1, x_TS.shape)
            for x_TS in self.ratio(i, j).to(self.c.dtype).split(queries)
        ]
        return torch.cat(chunks, dim=1)

    def pieces(self) -> tuple[Tensor, Tensor, Tensor]:
        """Write f as start_h + sum_m slopes_hm max(x, t_m), t_0 = 0, for x in [0, 1]: `[H, 1]`, `[H, M]`, `[M, 1, 1]`.

        A unit relu(w x + b) that bends inside, at t = -b/w, equals relu(b) + min(w, 0) x + |w| (max(x, t) - t). Few
        units bend there; the others are linear or 0 on the interval, and all linear ones add up to one line.
        """
        first, last = self.f[0], self.f[2]
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        w, b = first.weight[:, 0], first.bias
        bends = b * (w + b) < 0  # w x + b has different signs at x = 0 and at x = 1
        t, rise = -b[bends] / w[bends], w[bends].abs()
        at_0 = torch.where(bends | (w / 2 + b > 0), torch.where(bends, b.relu(), b), 0)
        line = torch.where(bends, w.clamp(max=0), torch.where(w / 2 + b > 0, w, 0))
        v = last.weight[:, bends] * rise
        start = last.bias + last.weight @ at_0 - v @ t
        slopes = torch.cat([(last.weight @ line)[:, None], v], dim=1)
        return start[:, None], slopes, torch.cat([t.new_zeros(1), t])[:, None, None]
