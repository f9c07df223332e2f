"""PaTH, positions as accumulated Householder transformations (Yang et al., 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize, pad

from poscli.attention.blocks import Remembering
from poscli.encodings.base import Encoding, Shape
from poscli.encodings.registry import register

if TYPE_CHECKING:
    from poscli.attention.operands import Operands

CHUNK = 64  # tokens whose transformations are solved for at once


@register("path", paper="arXiv:2505.16381", family="content")
class PaTH(Encoding):
    """k_j . H_{j+1} ... H_i q_i in place of k_j . q_i, H_t = I - beta_t w_t w_t^T: each token reflects what passes it.

    Per head, w_t is a projection of x_t of the given `rank`, of length 1, and beta_t = 2 sigmoid(u . x_t + b), from 1
    (a projection) at the start. The paper has a convolution over 3 tokens before w_t is normalised. It is left out:
    a window shows queries keys whose predecessors it hides, and a cache keeps what is made of one token.
    """

    facts = ("where beta is 0, path is none",)

    def __init__(self, shape: Shape, *, rank: int = 32) -> None:
        super().__init__(shape)
        if rank < 1:
            raise ValueError(f"rank must be at least 1, got {rank}")
        self.down = nn.Parameter(torch.randn(rank, shape.width) * shape.width**-0.5)
        self.up = nn.Parameter(torch.randn(shape.heads * shape.head_width, rank) * rank**-0.5)
        self.u = nn.Parameter(torch.zeros(shape.heads, shape.width))
        self.b = nn.Parameter(torch.zeros(shape.heads))

    def features(self, x_BTW: Tensor) -> Tensor:
        """W_t and beta_t side by side, `[B, H, T, D + 1]`."""
        x = x_BTW.to(self.u.dtype)
        w_BTHD = linear(linear(x, self.down), self.up).unflatten(-1, (self.shape.heads, -1))
        beta_BTH = 2 * torch.sigmoid(linear(x, self.u, self.b))
        return torch.cat([normalize(w_BTHD, dim=-1), beta_BTH[..., None]], dim=-1).transpose(1, 2)

    def similarity(self, x: Operands) -> Tensor:
        """Chunk after chunk of queries; what the keys before it look like from there is carried from block to block."""
        assert x.features_BHSF is not None
        exact = torch.promote_types(x.q_BHTD.dtype, torch.float32)
        ends, older = [self.shape.head_width], x.keys - x.queries
        (q, rest_q), (k, rest_k) = (y.to(exact).tensor_split(ends, dim=-1) for y in (x.q_BHTD, x.k_BHSD))
        tokens = (k, *x.features_BHSF.to(exact).tensor_split(ends, dim=-1))
        before = tuple(y[:, :, :older] for y in tokens)
        memo = x.memo if isinstance(x, Remembering) else {}
        seen = memo[self] if self in memo else approached(*before)
        seen = seen[:, :, seen.shape[2] - older :]  # a window hides the others
        parts = []
        for start in range(0, x.queries, CHUNK):
            own = tuple(y[:, :, older + start : older + start + CHUNK] for y in tokens)
            s, away = among(q[:, :, start : start + CHUNK], *own)
            parts.append(pad(torch.cat([away @ seen.mT, s], dim=-1), (0, x.queries - start - s.shape[-1])))
            keys, turn = passed(*own)
            seen = torch.cat([seen @ turn.mT, keys], dim=2)
        memo[self] = seen
        # what others have put beside the channels of the head is left as it is
        s_BHTS = torch.cat(parts, dim=2)
        return (s_BHTS + rest_q @ rest_k.mT if rest_q.shape[-1] else s_BHTS).to(x.q_BHTD.dtype)


# Of a chunk of C tokens t: a query q that passes them all leaves as q - sum_t z_t w_t, z_t = beta_t w_t . (q -
# sum_{l>t} z_l w_l). These are triangular equations, with one matrix A for all queries: z = A^-1 diag(beta) W q.


def among(q: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Queries of the chunk itself: k_j . H_{j+1} ... H_i q_i `[.., C, C]`, and what they leave as, `[.., C, D]`."""
    z = (q @ w.mT).tril() @ solved(w, beta, torch.diag_embed(beta.squeeze(-1))).mT
    return q @ k.mT - z @ (k @ w.mT).triu(1).mT, q - z @ w


def passed(k: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Keys `[.., C, D]` as later queries meet them, and `[.., D, D]`: those leave as q @ turn."""
    y = solved(w, beta, beta * w)
    return k - (k @ w.mT).triu(1) @ y, torch.eye(w.shape[-1], dtype=w.dtype, device=w.device) - y.mT @ w


def solved(w: Tensor, beta: Tensor, right: Tensor) -> Tensor:
    """A^-1 times what is on the right."""
    return torch.linalg.solve_triangular(beta * (w @ w.mT).triu(1), right, upper=True, unitriangular=True)


def approached(k: Tensor, w: Tensor, beta: Tensor) -> Tensor:
    """All keys `[B, H, S, D]` as queries meet them that have passed their tokens, chunk by chunk."""
    gap = -k.shape[2] % CHUNK
    keys, turns = passed(*(pad(y, (0, 0, gap, 0)).unflatten(2, (-1, CHUNK)) for y in (k, w, beta)))
    turn, parts = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device), [k[:, :, :0]]
    for n in reversed(range(keys.shape[2])):
        parts.append(keys[:, :, n] @ turn.mT)
        turn = turn @ turns[:, :, n]
    return torch.cat(parts[::-1], dim=2)[:, :, gap:]
