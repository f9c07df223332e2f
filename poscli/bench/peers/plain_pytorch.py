"""A GPT in plain PyTorch, as people write it: one matrix for q, k and v, torch's attention, LayerNorm, GELU, no biases.

It is decoder-only and pre-norm, and uses nothing of poscli's model, which `poscli bench --against nanogpt-like` times
beside it. Position encodings for it are in plain_positions.py.

Shapes: B batch, T tokens, H heads, D head width, W model width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from poscli.bench.peers.plain_positions import PlainPositions

Rotation = tuple[Tensor, Tensor]  # cos and sin, [T, D] each


class Attention(nn.Module):
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


class Layer(nn.Module):
    """x + attention(norm x), then x + mlp(norm x)."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads)
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
        self.layers = nn.ModuleList(Layer(width, positions.heads, hidden) for _ in range(layers))
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
