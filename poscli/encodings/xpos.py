"""XPos: rotary embedding with an exponential decay (Sun et al., 2022)."""

import math
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from poscli.encodings import Length, Shape, Unsupported, above, register
from poscli.encodings.rope import RoPE, Rotary


@register("xpos", paper="arXiv:2212.10554", family="rotary")
class XPos(RoPE):
    """Rope, with pair m of q_i times zeta_m^(i/c) and of k_j times zeta_m^(-j/c), zeta_m = (2m/D + 0.4) / 1.4, c = 512.

    Scores decay with the distance as zeta_m^((i-j)/c), fastest for the fastest pairs. c is `scale_base`. Because one of
    the two factors grows without bound, positions are counted from the middle of the input; scores depend on their
    differences only.
    """

    proportions: ClassVar = {"scale_base": 512 / 1024}  # the authors train on 1024 tokens

    def __init__(self, shape: Shape, *, scale_base: Length[float] = 512.0, **rotary: Unpack[Rotary]) -> None:
        super().__init__(shape, **rotary)
        above(0, scale_base=scale_base)
        self.scale_base = scale_base

    def longest(self, dtype: torch.dtype) -> int:
        """The longest input, in tokens, whose factors are normal numbers: 7,933 in float16, with keys of up to 4."""
        number = torch.finfo(dtype)
        largest = min(math.log(number.max), -math.log(number.tiny))
        return 1 + int(2 * self.scale_base * largest / math.log(1.4 / 0.4))

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return self.rotate(q_BHTD, self.angles(pos), self.decay(pos, q_BHTD.dtype))

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        return self.rotate(k_BHSD, self.angles(pos), 1 / self.decay(pos, k_BHSD.dtype))

    def decay(self, pos: Tensor, dtype: torch.dtype) -> Tensor:
        """zeta_m^(i/c) for positions `[T]`, `[T, pairs]`; Unsupported if the dtype cannot hold it."""
        tokens = self.longest(dtype)
        if pos[-1] >= tokens:
            short = str(dtype).removeprefix("torch.")
            raise Unsupported(f"xpos overflows {short} beyond {tokens} tokens; use float32, or a larger scale_base")
        zeta = (self.exponents(pos.device) + 0.4) / 1.4
        centred = pos.double() - pos[-1].double() / 2
        return zeta ** (centred[:, None] / self.scale_base)
