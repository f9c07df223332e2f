"""Oracle of wall attention: forget gates of channels."""

from __future__ import annotations

import torch
from torch import Tensor

from oracles import Content
from oracles.layer import Part, pairwise, part
from poscli.encodings import Encoding


@part("wall", "wall(start=0.5)", "wall(start=-3)")
def wall(e: Encoding) -> Part:
    """Products q_ic k_jc, each times the gates sigmoid(w_c . x_l + b_c) of the tokens l = j+1..i."""

    def similarity(c: Content) -> Tensor:
        heads = c.q.shape[1]
        y = torch.einsum("btw,nw->btn", c.x, e.w) + e.b
        gates = (1 / (1 + torch.exp(-y))).unflatten(-1, (heads, -1)).transpose(1, 2)

        def score(i: int, j: int) -> Tensor:
            kept = torch.ones_like(gates[:, :, 0])
            for t in range(j + 1, i + 1):
                kept = kept * gates[:, :, t]
            return torch.einsum("bhd,bhd,bhd->bh", c.q[:, :, i], c.k[:, :, j], kept)

        return pairwise(score, c)

    return Part(similarity=similarity)
