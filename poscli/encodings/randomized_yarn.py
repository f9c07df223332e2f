"""Randomized YaRN: yarn trained at random positions of a range that grows (Mehta et al., 2026)."""

from typing import Literal, Unpack

import torch
from torch import Tensor

from poscli.encodings import Length, Shape, register
from poscli.encodings.rope_linear import Scaled
from poscli.encodings.yarn import YaRN

GROWTH = (0, 0.25, 0.5, 1, 1)  # of the range, in the fifths of the training


class OfYaRN(Scaled, total=False):
    """The options of `YaRN`, which are passed on to it."""

    factor: float | None
    beta_fast: float
    beta_slow: float
    ramp: Literal["pairs", "turns"]
    truncate: bool
    attention: float | None


@register("randomized-yarn", paper="arXiv:2606.23687 (known second hand)", family="rotary")
class RandomizedYaRN(YaRN):
    """Yarn with s = max(`max`, L')/L; in training, positions are a sorted random subset of [0, `max`).

    In evaluation a text has its own positions. `max` is 2 L unless given. With `curriculum` the range grows from L to
    `max`, as from 8K to 10K, 12K, 16K and 16K in the paper's five epochs. Every training step draws a new subset, which
    all layers share. `factor` replaces s. The paper tunes pretrained models; here that is a recalibration of a model
    trained with rope. The abstract and a summary of the paper were read, not the paper, and no code was found: the s of
    its training is not known, and for evaluation it takes the same or a larger one.
    """

    shared = True
    facts = ("in evaluation, randomized-yarn is yarn on inputs of max tokens or more",)
    _subset: Tensor | None = None  # the positions of the current training step

    def __init__(
        self, shape: Shape, *, max: Length[int] | None = None, curriculum: bool = True, **yarn: Unpack[OfYaRN]
    ) -> None:
        super().__init__(shape, **yarn)
        self.max = 2 * shape.length if max is None else max
        if self.max < shape.length:
            raise ValueError(f"max must be at least the training length {shape.length}, got {self.max}")
        self.curriculum = curriculum

    def begin_step(self, progress: float, draw: torch.Generator) -> None:
        n, share = self.shape.length, GROWTH[int(progress * len(GROWTH))] if self.curriculum else 1
        self._subset = torch.randperm(n + int(share * (self.max - n)), generator=draw)[:n].sort().values

    def positions(self, index: Tensor) -> Tensor:
        drawn = self._subset if self.training else None
        return index if drawn is None or len(drawn) != int(index[-1]) + 1 else drawn.to(index.device)[index]

    def s(self, pos: Tensor) -> Tensor:
        return super().s(pos) if self.factor is not None else super().s(pos).clamp(min=self.max / self.original)
