"""T5's relative position buckets (Raffel et al., 2019)."""

import math

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, register


def bucket(d: Tensor, buckets: int, far: int) -> Tensor:
    """T5's causal bucket of each distance `[n]`: int64 `[n]` in [0, buckets).

    Half of the buckets hold one distance each; the others are spaced logarithmically up to `far`, and larger distances
    share the last.
    """
    exact = buckets // 2
    octaves = torch.log(d.float().clamp(min=1) / exact) / math.log(far / exact)
    logarithmic = exact + (octaves * (buckets - exact)).long()
    return torch.where(d < exact, d.long(), logarithmic.clamp(max=buckets - 1))


@register("t5", paper="arXiv:1910.10683", family="bias")
class T5(Encoding):
    """s_ij += table[h, bucket(i - j)], one learned table for all layers.

    Half of the buckets hold one distance each; the other half are spaced logarithmically up to `far`, and larger
    distances share the last. These are T5's buckets for causal attention. T5 has no factor 1/sqrt(D) on q . k and
    starts from smaller weights instead; the factor stays here, as in every other encoding. The table starts at zero.
    """

    shared = True

    def __init__(self, shape: Shape, *, buckets: int = 32, far: int = 128) -> None:
        super().__init__(shape)
        if buckets < 2 or far <= buckets // 2:
            raise ValueError(f"needs buckets >= 2 and far > buckets / 2, got buckets={buckets}, far={far}")
        self.buckets, self.far = buckets, far
        self.table = nn.Parameter(torch.zeros(shape.heads, buckets))

    def distance_bias(self, d: Tensor) -> Tensor:
        return self.table[:, bucket(d, self.buckets, self.far)]
