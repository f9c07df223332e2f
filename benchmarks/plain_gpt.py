"""A GPT in plain PyTorch, as people write it: one matrix for q, k and v, torch's attention, LayerNorm, GELU, no biases.

It is decoder-only and pre-norm, and uses nothing of poscli's model, beside which against.py times it. Its position
encodings are written as people write them by hand: what is fixed for the training length L is made once and kept, like
the buffers of a block size; what a longer input needs is made in every pass. Layers share them.

Shapes: B batch, T tokens, H heads, D head width, W model width, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


Rotation = tuple[Tensor, Tensor]  # cos and sin, [T, D] each


class GPTAttention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x_BTW: Tensor, rotation: Rotation | None, mask_1HTT: Tensor | None) -> Tensor:
        q, k, v = (x.unflatten(2, (self.heads, -1)).transpose(1, 2) for x in self.qkv(x_BTW).chunk(3, dim=2))
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        o_BHTD = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_1HTT, is_causal=mask_1HTT is None)
        return self.out(o_BHTD.transpose(1, 2).flatten(2))


def rotate(x_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Rotate channels m and m + D/2 as the two coordinates of a point."""
    a, b = x_BHTD.chunk(2, dim=-1)
    return x_BHTD * cos_TD.to(x_BHTD.dtype) + torch.cat([-b, a], dim=-1) * sin_TD.to(x_BHTD.dtype)


class GPTLayer(nn.Module):
    """x + attention(norm x), then x + mlp(norm x)."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width, bias=False)
        self.attention = GPTAttention(width, heads)
        self.norm_mlp = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BTW: Tensor, rotation: Rotation | None, mask_1HTT: Tensor | None) -> Tensor:
        x_BTW = x_BTW + self.attention(self.norm_attention(x_BTW), rotation, mask_1HTT)
        return x_BTW + self.down(F.gelu(self.up(self.norm_mlp(x_BTW))))


class GPT(nn.Module):
    """Token ids `[B, T]` to logits `[B, T, V]`. `hidden` is the width of the MLP's hidden layer."""

    def __init__(self, vocab: int, layers: int, width: int, hidden: int, positions: PlainPositions) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocab, width), positions
        self.layers = nn.ModuleList(GPTLayer(width, positions.heads, hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocab, bias=False)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        tokens = tokens_BT.shape[1]
        x_BTW = self.positions.embed(self.embedding(tokens_BT))
        rotation, mask_1HTT = self.positions.rotation(tokens), self.positions.mask(tokens)
        for layer in self.layers:
            x_BTW = layer(x_BTW, rotation, mask_1HTT)
        return self.head(self.norm(x_BTW))
