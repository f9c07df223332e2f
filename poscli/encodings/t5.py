"""T5's relative position buckets (Raffel et al., 2019)."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Length, Shape, at_least, register


def bucket(d: Tensor, buckets: int, far: int) -> Tensor:
    """T5's causal bucket of each distance `[n]`: int64 `[n]` in [0, buckets).

    Half of the buckets hold one distance each; the others are spaced logarithmically up to `far`, and larger distances
    share the last. If `far` is within the first half, the buckets between are empty.
    """
    exact = buckets // 2
    if far <= exact:
        return torch.where(d < far, d, buckets - 1).long()
    octaves = torch.log(d.float().clamp(min=1) / exact) / math.log(far / exact)
    logarithmic = exact + (octaves * (buckets - exact)).long()
    return torch.where(d < exact, d.long(), logarithmic.clamp(max=buckets - 1))


@register("t5", paper="arXiv:1910.10683", family="bias")
class T5(Encoding):
    """s_ij += table[h, bucket(i - j)], one learned table for all layers.

    Half of the buckets hold one distance each; the other half are spaced logarithmically up to `far`, and larger
    distances share the last. If `far` is at most half of `buckets`, every distance below it has a bucket. These are
    T5's buckets for causal attention. T5 has no factor 1/sqrt(D) on q . k and starts from smaller weights instead; the
    factor stays here, as in every other encoding. The table starts at zero.
    """

    shared = True
    proportions: ClassVar = {"far": 128 / 512}  # the length of T5's own training is 512

    def __init__(self, shape: Shape, *, buckets: int = 32, far: Length[int] = 128) -> None:
        super().__init__(shape)
        at_least(2, buckets=buckets)
        at_least(1, far=far)
        self.buckets, self.far = buckets, far
        self.table = nn.Parameter(torch.zeros(shape.heads, buckets))

    def distance_bias(self, d: Tensor) -> Tensor:
        return self.table[:, bucket(d, self.buckets, self.far)]
