"""Position encodings as people write them by hand for a GPT in plain PyTorch (plain_pytorch.py).

What is fixed for the training length L is made once and kept, like the buffers of a block size; what a longer input
needs is made in every pass. Layers share it.

Shapes: T tokens, H heads, D head width, W model width; B batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from poscli.equation import Unsupported

BASE = 10_000.0  # of the wavelengths of rotations
BUCKETS, FAR = 32, 128  # distances from FAR on share the last bucket


class PlainPositions(nn.Module):
    """No positions: the causal mask alone lets a model learn about them. The others override one of the methods."""

    def __init__(self, length: int, width: int, heads: int) -> None:
        super().__init__()
        self.length, self.heads = length, heads

    def embed(self, x_BTW: Tensor) -> Tensor:
        """Token embeddings with positions added."""
        return x_BTW

    def rotation(self, tokens: int) -> tuple[Tensor, Tensor] | None:
        """The cosines and sines `[T, D]` by which queries and keys are rotated; None if they are not."""
        return None

    def mask(self, tokens: int) -> Tensor | None:
        """The bias `[1, H, T, T]` on the scores, -inf in the future; None leaves the causal mask to torch."""
        return None


class LearnedPositions(PlainPositions):
    """A learned row for each position below L is added to the embedding."""

    def __init__(self, length: int, width: int, heads: int) -> None:
        super().__init__(length, width, heads)
        self.table = nn.Embedding(length, width)

    def embed(self, x_BTW: Tensor) -> Tensor:
        tokens = x_BTW.shape[1]
        if tokens > self.length:
            raise Unsupported(f"the table has {self.length} positions, and the input has {tokens} tokens")
        return x_BTW + self.table.weight[:tokens]


class RotaryPositions(PlainPositions):
    """Channels m and m + D/2 of q_i and k_i are rotated by i base^(-2m/D)."""

    theta: Tensor
    kept: Tensor  # [2, L, D]

    def __init__(self, length: int, width: int, heads: int) -> None:
        super().__init__(length, width, heads)
        head_width = width // heads
        theta = BASE ** (-torch.arange(0, head_width, 2) / head_width)
        self.register_buffer("theta", theta, persistent=False)
        self.register_buffer("kept", self._made(length), persistent=False)

    def rotation(self, tokens: int) -> tuple[Tensor, Tensor]:
        cos_TD, sin_TD = self.kept[:, :tokens] if tokens <= self.length else self._made(tokens)
        return cos_TD, sin_TD

    def _made(self, tokens: int) -> Tensor:
        angle = torch.arange(tokens, device=self.theta.device)[:, None] * self.theta
        angle_TD = torch.cat([angle, angle], dim=1)
        return torch.stack([angle_TD.cos(), angle_TD.sin()])


class LinearBias(PlainPositions):
    """s_ij -= m_h (i - j), as a matrix with the causal mask in it."""

    slope_H: Tensor
    kept: Tensor  # [1, H, L, L]

    def __init__(self, length: int, width: int, heads: int) -> None:
        super().__init__(length, width, heads)
        self.register_buffer("slope_H", torch.tensor(_slopes(heads)), persistent=False)
        self.register_buffer("kept", self._made(length), persistent=False)

    def mask(self, tokens: int) -> Tensor:
        return self.kept[:, :, :tokens, :tokens] if tokens <= self.length else self._made(tokens)

    def _made(self, tokens: int) -> Tensor:
        d_TT = _distances(tokens, self.slope_H.device).float()
        return (-self.slope_H[:, None, None] * d_TT.masked_fill(d_TT < 0, math.inf))[None]


class BucketedBias(PlainPositions):
    """s_ij += table[h, bucket(i - j)], a learned number per head and bucket; buckets widen with the distance."""

    kept: Tensor  # [L, L]

    def __init__(self, length: int, width: int, heads: int) -> None:
        super().__init__(length, width, heads)
        self.table = nn.Parameter(torch.zeros(heads, BUCKETS))
        self.register_buffer("kept", self._made(length), persistent=False)

    def mask(self, tokens: int) -> Tensor:
        bucket_TT = self.kept[:tokens, :tokens] if tokens <= self.length else self._made(tokens)
        with_future = nn.functional.pad(self.table, (0, 1), value=-math.inf)  # a last bucket for it
        return with_future[:, bucket_TT][None]

    def _made(self, tokens: int) -> Tensor:
        d_TT = _distances(tokens, self.table.device)
        exact = BUCKETS // 2
        octaves = (d_TT.clamp(min=1) / exact).log() / math.log(FAR / exact)
        far_TT = (exact + (octaves * (BUCKETS - exact)).long()).clamp(max=BUCKETS - 1)
        return torch.where(d_TT < exact, d_TT, far_TT).masked_fill(d_TT < 0, BUCKETS)


def _distances(tokens: int, device: torch.device) -> Tensor:
    """The distance i - j of every query i and key j, `[T, T]`."""
    pos = torch.arange(tokens, device=device)
    return pos[:, None] - pos


def _slopes(heads: int) -> list[float]:
    """ALiBi's slopes: powers of 2^(-8/H); where H is no power of two, odd ones of twice as many heads fill up."""
    below = 2 ** int(math.log2(heads))
    regular = [2.0 ** (-8 * n / below) for n in range(1, below + 1)]
    between = [2.0 ** (-4 * n / below) for n in range(1, 2 * below, 2)]
    return regular + between[: heads - below]
