"""DeBERTa's disentangled attention (He et al., 2020)."""

import math

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Length, Shape, at_least, register


@register("deberta", paper="arXiv:2006.03654", family="relative")
class DeBERTa(Encoding):
    """s_ij = (q_i . k_j + q_i . K_r[delta(i,j)] + k_j . Q_r[delta(j,i)]) / sqrt(3D), delta(i,j) = clip(i-j+k, 0, 2k-1).

    K_r = P W_k and Q_r = P W_q per layer and head, with one P [2k, W] for all layers; k is `span` (L). Attention is
    causal, so only rows k to 2k-1 of K_r and rows k to 0 of Q_r are used. Row 0, for distances from k on, is trained
    only if k < L. The paper has Q_r at delta(j,i), and so has this class; the authors' code has it at delta(i,j).
    `buckets` replaces k, as in DeBERTa-v2: distances are clamped to `span` - 1, and those above half of `buckets` are
    spaced logarithmically, so that no row beyond those of training is used.
    """

    def __init__(self, shape: Shape, *, span: Length[int] | None = None, buckets: int | None = None) -> None:
        super().__init__(shape)
        self.span, self.buckets = shape.length if span is None else span, buckets
        at_least(2, span=self.span)
        if buckets is not None and (buckets < 4 or self.span <= buckets // 2 + 1):
            raise ValueError(f"needs buckets >= 4 and span > buckets / 2 + 1, got buckets={buckets}, span={self.span}")
        self.k = self.span if buckets is None else buckets
        self.p = nn.Parameter(0.02 * torch.randn(2 * self.k, shape.width))  # BERT's initialisation
        size, std = (shape.heads, shape.head_width, shape.width), shape.width**-0.5
        self.w_k, self.w_q = (nn.Parameter(std * torch.randn(size)) for _ in "kq")

    def tie(self, first: Encoding) -> None:
        assert isinstance(first, DeBERTa)
        self.p = first.p

    @property
    def scale(self) -> float:
        return (3 * self.shape.head_width) ** -0.5

    def relative_keys(self, d: Tensor) -> Tensor:
        return (self.p @ self.w_k.mT)[:, self.row(self.bucket(d))]

    def relative_queries(self, d: Tensor) -> Tensor:
        return (self.p @ self.w_q.mT)[:, self.row(-self.bucket(d))]

    def row(self, apart: Tensor) -> Tensor:
        """The row delta of signed distances `[n]`: int64 `[n]` in [0, 2k)."""
        return (apart + self.k).clamp(0, 2 * self.k - 1)

    def bucket(self, d: Tensor) -> Tensor:
        """The number that stands for each distance `[n]` in delta: int64 `[n]`, below k if there are buckets."""
        if self.buckets is None:
            return d.long()
        middle = self.buckets // 2
        d = d.clamp(max=self.span - 1)
        octaves = torch.log(d.double().clamp(min=middle) / middle) / math.log((self.span - 1) / middle)
        # 1 at span - 1, whatever the logarithms round to: a ceiling of more would be a bucket that does not exist.
        beyond = (octaves * (middle - 1) - 1e-9).ceil().long()
        return torch.where(d <= middle, d.long(), middle + beyond)
