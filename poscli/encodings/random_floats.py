"""Random float sampling: positions that are random numbers in training, for any encoding (Shimizu et al., 2026)."""

import torch
from torch import Tensor, float64

from poscli.encodings import Encoding, Length, Shape, above, register


@register("random-floats", paper="arXiv:2602.14050 (known second hand)", family="wrapper")
class RandomFloats(Encoding):
    """Positions are sorted uniform numbers of [0, R) in training, and (i + 1/2) R / max(L, n) in evaluation.

    n is the number of tokens of the input and i = 0, 1, .. their order: no position is beyond the range of training,
    and all of them change with the length of an input longer than L. Every training step draws new numbers, which all
    layers share. R is `span`, L unless given, so that neighbours are one position apart on average, as the encodings
    joined with it expect. The paper's range is [0, 1). Its abstract and a summary of its formulas were read, not the
    paper, and no code was found: how it adapts frequencies and slopes to that range is not known.
    """

    shared = True
    facts = ("in evaluation, rope+random-floats is rope-linear",)
    _drawn: Tensor | None = None  # the positions of the current training step

    def __init__(self, shape: Shape, *, span: Length[float] | None = None) -> None:
        super().__init__(shape)
        above(0, span=span)
        self.span = float(shape.length if span is None else span)
        self.rescales = True

    def begin_step(self, progress: float, draw: torch.Generator) -> None:
        self._drawn = torch.rand(self.shape.length, generator=draw, dtype=float64).sort().values * self.span

    def positions(self, index: Tensor) -> Tensor:
        n = int(index[-1]) + 1
        drawn = self._drawn if self.training else None
        if drawn is None or len(drawn) != n:
            return (index.double() + 0.5) * (self.span / max(self.shape.length, n))
        return drawn.to(index.device)[index]
