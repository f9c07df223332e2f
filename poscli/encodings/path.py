"""PaTH, positions as accumulated Householder transformations (Yang et al., 2025)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize, pad

from poscli.encodings import Encoding, Operands, Shape, at_least, register
from poscli.native.call import QUERIES, Chunked, Passage


@register("path", paper="arXiv:2505.16381", family="content")
class PaTH(Encoding):
    """k_j . H_{j+1} ... H_i q_i in place of k_j . q_i, H_t = I - beta_t w_t w_t^T: each token reflects what passes it.

    Per head, w_t is a projection of x_t of the given `rank`, scaled to length 1, and beta_t = 2 sigmoid(u . x_t + b),
    which starts at 1, where H_t is a projection. The authors convolve w_t over 3 tokens, with a SiLU after it,
    before it is scaled. Both are left out here, the convolution because a window and a cache need features that depend
    on one token only.
    """

    kernel_gradient = True
    facts = ("where beta is 0, path is none",)

    def __init__(self, shape: Shape, *, rank: int = 32) -> None:
        super().__init__(shape)
        self.feature_width = shape.head_width + 1
        at_least(1, rank=rank)
        self.down = nn.Parameter(torch.randn(rank, shape.width) * shape.width**-0.5)
        self.up = nn.Parameter(torch.randn(shape.heads * shape.head_width, rank) * rank**-0.5)
        self.u = nn.Parameter(torch.zeros(shape.heads, shape.width))
        self.b = nn.Parameter(torch.zeros(shape.heads))

    def features(self, x_BTW: Tensor) -> Tensor:
        """Vectors w_t and numbers beta_t side by side, `[B, H, T, D + 1]`."""
        x = x_BTW.to(self.u.dtype)
        w_BTHD = linear(linear(x, self.down), self.up).unflatten(-1, (self.shape.heads, -1))
        beta_BTH = 2 * torch.sigmoid(linear(x, self.u, self.b))
        return torch.cat([normalize(w_BTHD, dim=-1), beta_BTH[..., None]], dim=-1).transpose(1, 2)

    def similarity(self, x: Operands) -> Tensor:
        q, k, w, beta = self.exact_inputs(x)
        rows, reflected = [], k[:, :, :0]  # H_i ... H_{j+1} k_j for every j up to i
        for i in range(x.keys):
            w_i, beta_i = w[:, :, i : i + 1], beta[:, :, i : i + 1]
            reflected = reflected - beta_i * (reflected @ w_i.mT) @ w_i
            reflected = torch.cat([reflected, k[:, :, i : i + 1]], dim=2)
            if (row := i - x.keys + x.queries) >= 0:
                rows.append(pad(q[:, :, row : row + 1] @ reflected.mT, (0, x.keys - i - 1)))
        return torch.cat(rows, dim=2).to(x.q_BHTD.dtype)

    def exact_inputs(self, x: Operands) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries `[B, H, T, D]`, keys, w `[B, H, S, D]` and beta `[B, H, S, 1]`, in float32 or float64."""
        assert x.features_BHSF is not None
        exact = torch.promote_types(x.q_BHTD.dtype, torch.float32)
        w, beta = x.features_BHSF.to(exact).tensor_split([self.shape.head_width], dim=-1)
        return x.q_BHTD.to(exact), x.k_BHSD.to(exact), w, beta

    def fast_similarity(self, x: Operands, *, tokens_per_chunk: int = 64) -> Tensor:
        """`similarity`, chunk by chunk; the keys, reflected by all tokens so far, are carried from block to block."""
        q, *tokens = self.exact_inputs(x)
        older = x.keys - x.queries
        carried = {} if x.carried is None else x.carried
        if self in carried:
            reflected = carried[self]
        else:
            k, w, beta = (y[:, :, :older] for y in tokens)
            reflected = reflect_all(k, w, beta, tokens_per_chunk)
        reflected = reflected[:, :, reflected.shape[2] - older :]  # a window hides the first keys
        rows = []
        for start in range(0, x.queries, tokens_per_chunk):
            chunk = [y[:, :, older + start : older + start + tokens_per_chunk] for y in tokens]
            reflections = solve(*chunk)
            within, q_before = within_chunk(q[:, :, start : start + tokens_per_chunk], *reflections)
            s = torch.cat([q_before @ reflected.mT, within], dim=-1)
            rows.append(pad(s, (0, x.queries - start - within.shape[-1])))
            keys, through = through_chunk(*reflections)
            reflected = torch.cat([reflected @ through.mT, keys], dim=2)
        carried[self] = reflected
        return torch.cat(rows, dim=2).to(x.q_BHTD.dtype)

    def kernel_form(self, x: Operands) -> Chunked:
        q, *tokens = self.exact_inputs(x)
        older = x.keys - x.queries
        others, end = older % QUERIES, -x.keys % QUERIES  # chunks are whole, and the queries begin with one
        q = pad(q, (0, 0, others, end)).unflatten(2, (-1, QUERIES))
        tokens = [pad(y, (0, 0, 0, end)).unflatten(2, (-1, QUERIES)) for y in tokens]
        reflections = solve(*tokens)
        within, q_before = within_chunk(q, *(y[:, :, older // QUERIES :] for y in reflections))
        keys, through = (y.flatten(2, 3) for y in through_chunk(*reflections))
        queries = others + x.queries
        passage = Passage(within.flatten(2, 3)[:, :, :queries], through)
        return Chunked(q_before.flatten(2, 3)[:, :, :queries], keys[:, :, : x.keys], passage)


# A query q that passes all C tokens t of a chunk becomes q - sum_t z_t w_t, z_t = beta_t w_t . (q - sum_{l>t} z_l w_l).
# These equations are triangular, with one matrix A for all queries: z = A^-1 diag(beta) W q.


def solve(k: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of a chunk, k, w, A^-1 diag(beta) and the products k_j . w_t of keys and later tokens, `[.., C, C]`."""
    right = torch.diag_embed(beta.squeeze(-1))
    solution = torch.linalg.solve_triangular(beta * (w @ w.mT), right, upper=True, unitriangular=True)
    return k, w, solution, (k @ w.mT).triu(1)


def within_chunk(q: Tensor, k: Tensor, w: Tensor, solution: Tensor, kw: Tensor) -> tuple[Tensor, Tensor]:
    """Products k_j . H_{j+1} ... H_i q_i in a chunk, `[.., C, C]`; queries as earlier keys see them, `[.., C, D]`."""
    z = (q @ w.mT).tril() @ solution.mT
    return q @ k.mT - z @ kw.mT, q - z @ w


def through_chunk(k: Tensor, w: Tensor, solution: Tensor, kw: Tensor) -> tuple[Tensor, Tensor]:
    """The chunk's keys `[.., C, D]` as later queries see them, and M `[.., D, D]`: a later query q becomes q M."""
    y = solution @ w
    return k - kw @ y, torch.eye(w.shape[-1], dtype=w.dtype, device=w.device) - y.mT @ w


def reflect_all(k: Tensor, w: Tensor, beta: Tensor, tokens_per_chunk: int) -> Tensor:
    """All keys `[B, H, S, D]` as a query after the last of them sees them, chunk by chunk."""
    gap = -k.shape[2] % tokens_per_chunk
    chunks = (pad(y, (0, 0, gap, 0)).unflatten(2, (-1, tokens_per_chunk)) for y in (k, w, beta))
    keys, through = through_chunk(*solve(*chunks))
    later, parts = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device), [k[:, :, :0]]
    for n in reversed(range(keys.shape[2])):
        parts.append(keys[:, :, n] @ later.mT)
        later = later @ through[:, :, n]
    return torch.cat(parts[::-1], dim=2)[:, :, gap:]
