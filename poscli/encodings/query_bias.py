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

    def kernel_form(self, x: Operands) -> Pieces | None:
        """No pieces at all: a kernel need not add what the softmax cancels, as it does where no null key takes part."""
        if x.null_score_H is not None:
            return None
        u, y = x.q_BHTD.new_zeros(x.queries + x.keys - 1), x.q_BHTD.new_zeros(x.queries)
        return Pieces(u, y, self.u.new_zeros(len(self.u)), self.u.new_zeros(len(self.u), 0), self.u.new_zeros(0))
