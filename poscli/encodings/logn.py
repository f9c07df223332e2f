"""Attention scaled by log n beyond the training length, for any encoding (Su Jianlin, 2021)."""

import math

from torch import Tensor

from poscli.encodings import Encoding, Length, Shape, at_least, register


@register("logn", paper="Su Jianlin, 2021 (kexue.fm/archives/8823)", family="wrapper")
class LogN(Encoding):
    """softmax(max(1, log n / log L) s_ij), n the number of keys that query i sees.

    L is the training length unless `length` is given. Up to L nothing changes; beyond L the factor keeps attention as
    sharp as it is there, so that its entropy hardly depends on n. Nothing is learned. The factor multiplies every term
    of the scores.
    """

    shared = True
    wraps = True

    def __init__(self, shape: Shape, *, length: Length[int] | None = None) -> None:
        super().__init__(shape)
        self.length = max(2, shape.length) if length is None else length
        at_least(2, length=self.length)

    def temperature(self, n: Tensor) -> Tensor:
        return (n.double().log() / math.log(self.length)).clamp(min=1)[None]
