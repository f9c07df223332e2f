"""A bias of the query's position beside one of the distance."""

import torch
from torch import Tensor, nn

from poscli.encodings import Length, Operands, Shape, register
from poscli.encodings.clipped import Clipped
from poscli.native.call import Pieces


@register("query-bias", paper="no paper, a bias designed by hand", family="bias")
class QueryBias(Clipped):
    """s_ij += U[h, i] + R[h, min(i - j, clip)]: a learned term of the query's position, and one of the distance.

    U is the same for every key of a query, so the softmax cancels it: it changes no output and gets no gradient. This
    encoding exists to show that; only R has an effect. Queries beyond the training length L share the last column of U.
    """

    kernel_gradient = True
    facts = (
        "U_q is the same for every key of a query, so the softmax cancels it",
        "the output is that of clipped, whatever U is",
    )

    def __init__(self, shape: Shape, *, clip: Length[int] = 16) -> None:
        super().__init__(shape, clip=clip)
        self.u = nn.Parameter(torch.zeros(shape.heads, shape.length))

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        u_HT = self.u[:, i.clamp(max=self.shape.length - 1).long()]
        return u_HT[..., None].expand(-1, -1, len(j))

    def kernel_form(self, x: Operands) -> Pieces:
        """The line y of the query's position, times the slope 1, of the constant 1 by distance."""
        of_query_HT = self.u[:, x.pos_T.clamp(max=self.shape.length - 1).long()]
        of_distance_HN = self.u.new_ones(len(self.u), x.queries + x.keys - 1)
        nothing_H1, one_H1 = self.u.new_zeros(len(self.u), 1), self.u.new_ones(len(self.u), 1)
        return Pieces(of_distance_HN, of_query_HT, nothing_H1, one_H1, self.u.new_zeros(0))
