"""Randomized positions, for any encoding (Ruoss et al., 2023)."""

import torch
from torch import Tensor

from poscli.encodings import Encoding, Length, Shape, Unsupported, register


@register("randomized", paper="arXiv:2305.16843", family="wrapper")
class Randomized(Encoding):
    """Positions k_1 < ... < k_n are a sorted random subset of [0, max), so that training covers large positions too.

    `max` is 16 L unless given, L the training length. A new subset is drawn for every training step, and all layers
    share it. In evaluation the subset for n tokens is drawn from a fixed seed, so the output depends on the length of
    the input. Every encoding joined with it sees these positions. The authors' code draws distances instead for ALiBi
    and for Transformer-XL's vectors, so `alibi+randomized` and `transformer-xl+randomized` are not theirs; and with
    rope, each of its layers draws a subset of its own.
    """

    shared = True
    rescales = True
    _subset: Tensor | None = None  # the subset of the current training step

    def __init__(self, shape: Shape, *, max: Length[int] | None = None) -> None:
        super().__init__(shape)
        self.max = 16 * shape.length if max is None else max
        if self.max < shape.length:
            raise ValueError(f"max must be at least the training length {shape.length}, got {self.max}")

    def begin_step(self, progress: float, draw: torch.Generator) -> None:
        self._subset = self.subset(self.shape.length, draw)

    def positions(self, index: Tensor) -> Tensor:
        n = int(index[-1]) + 1
        if n > self.max:
            raise Unsupported(
                f"{n} tokens need as many positions, and randomized has {self.max}; train with a larger max"
            )
        drawn = self._subset if self.training else None
        if drawn is None or len(drawn) != n:
            drawn = self.subset(n, torch.Generator().manual_seed(0))
        return drawn.to(index.device)[index]

    def subset(self, n: int, draw: torch.Generator) -> Tensor:
        """Draw n different positions of [0, max), sorted: int64 `[n]`."""
        return torch.randperm(self.max, generator=draw)[:n].sort().values
