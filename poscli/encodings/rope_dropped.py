"""DroPE: positions dropped after training (Gelberg et al., 2025)."""

from typing import Unpack

import torch
from torch import Tensor

from poscli.encodings import Shape, register
from poscli.encodings.rope import RoPE, Rotary


@register("rope-dropped", paper="arXiv:2512.12167", family="rotary")
class RoPEDropped(RoPE):
    """Rope for the first 1 - `recalibrate` of the training steps; none for the rest, and none in evaluation.

    The paper's idea is that rotations speed up learning, that the model adapts to their absence in the last steps, and
    that without them no length has new positions. The paper also sharpens the softmax for longer inputs; here that is
    the wrapper `temper`.
    """

    facts = ("in evaluation, rope-dropped is none",)

    def __init__(self, shape: Shape, *, recalibrate: float = 0.1, **rotary: Unpack[Rotary]) -> None:
        super().__init__(shape, **rotary)
        if not 0 <= recalibrate <= 1:
            raise ValueError(f"recalibrate must be between 0 and 1, got {recalibrate:g}")
        self.recalibrate = recalibrate
        self.progress = 0.0

    def begin_step(self, progress: float, draw: torch.Generator) -> None:
        self.progress = progress

    @property
    def dropped(self) -> bool:
        """Whether queries and keys are left unrotated now."""
        return not self.training or self.progress >= 1 - self.recalibrate

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return q_BHTD if self.dropped else super().query(q_BHTD, pos)

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        return k_BHSD if self.dropped else super().key(k_BHSD, pos)
