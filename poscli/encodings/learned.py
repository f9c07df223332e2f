"""A learned table of positions on the embedding (Gehring et al., 2017)."""

from typing import Literal

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, Unsupported, register
from poscli.encodings.hierarchical import between, decompose

ROWS_PER_SEED = 256


def noise(k: Tensor, width: int) -> Tensor:
    """Standard normal rows `[T, W]`, each a function of its position alone: every 256 rows are drawn from one seed."""
    seeds, seed_of = torch.unique(k // ROWS_PER_SEED, return_inverse=True)
    drawn = [torch.randn(ROWS_PER_SEED, width, generator=torch.Generator().manual_seed(n)) for n in seeds.tolist()]
    return torch.stack(drawn).to(k.device)[seed_of, k % ROWS_PER_SEED]


@register("learned", paper="arXiv:1705.03122", family="absolute")
class Learned(Encoding):
    """x_k + table[k], one learned row for each of the L positions of training.

    The paper has no rows for positions from L on, and `beyond` says what happens there: `refuse` is an error. For
    comparison, `interpolate` scales the positions of an input of n > L tokens to k (L-1)/(n-1), `hierarchical` splits k
    in two (alpha = 0.4, up to L^2 positions), and `random` uses fixed standard normal rows that were never trained.
    Rows of positions between whole numbers are interpolated.
    """

    shared = True
    relative = False

    def __init__(
        self, shape: Shape, *, beyond: Literal["refuse", "interpolate", "hierarchical", "random"] = "refuse"
    ) -> None:
        super().__init__(shape)
        self.beyond = beyond
        self.rescales = beyond == "interpolate"
        self.table = nn.Parameter(torch.randn(shape.length, shape.width))

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        return x_BTW + between(self.rows, self.fitted(pos)).to(x_BTW.dtype)

    def fitted(self, pos: Tensor) -> Tensor:
        """Positions in the table for the positions `[T]` of a whole text."""
        rows, last = len(self.table), pos[-1]
        if self.beyond == "refuse" and last >= rows:
            what = f"learned has {rows} positions; position {int(last)} has no row in its table"
            raise Unsupported(f"{what}: use learned(beyond=interpolate)")
        if self.beyond == "interpolate" and last > rows - 1:
            return pos.double() * (rows - 1) / last
        return pos

    def rows(self, k: Tensor) -> Tensor:
        """Rows `[T, W]` for whole positions `[T]`."""
        if self.beyond == "hierarchical":
            return decompose(self.table, k, alpha=0.4)
        last = len(self.table) - 1
        known = self.table[k.clamp(max=last)]  # wrappers may make positions between L - 1 and L
        if self.beyond == "random":
            return torch.where((k > last)[:, None], noise(k, self.shape.width).to(known.dtype), known)
        return known
