"""RePo: rope at positions that a network reads from each token (Li et al., 2025)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from poscli.encodings import Encoding, Shape, above, at_least, register


@register("repo", paper="arXiv:2512.14391", family="content")
class RePo(Encoding):
    """Rope at positions z_i = w_h . (silu(G x_i) * C x_i): a token stands where its content says, not when it came.

    G and C are matrices from the layer's input to `rank` numbers, W/8 unless given, and w_h is a vector per head;
    theta_m = base^(-2m/D). Order enters by the causal mask alone, as in `none`. The authors train on from a model with
    rope of base 500000, with this module in its upper layers, 11 of 16 or 22 of 32 (`rope|rope|repo|repo`). The formula
    is that of their code, which draws G, C and w with a deviation of 0.02; here only w is drawn so, so that all tokens
    start near position 0.
    """

    facts = ("with w = 0, none",)
    feature_width = 1

    def __init__(self, shape: Shape, *, rank: int | None = None, base: float = 10000.0) -> None:
        super().__init__(shape)
        rank = max(1, shape.width // 8) if rank is None else rank
        at_least(1, rank=rank)
        above(1, base=base)
        if shape.head_width % 2:
            raise ValueError(f"rotations need an even number of channels per head, got {shape.head_width}")
        self.base = base
        self.gate = nn.Linear(shape.width, rank, bias=False)
        self.content = nn.Linear(shape.width, rank, bias=False)
        self.w = nn.Parameter(0.02 * torch.randn(shape.heads, rank))

    def features(self, x_BTW: Tensor) -> Tensor:
        x_BTW = x_BTW.to(self.w.dtype)
        return linear(silu(self.gate(x_BTW)) * self.content(x_BTW), self.w).mT[..., None]

    def phase(self, f_BHSF: Tensor) -> Tensor:
        m = torch.arange(0, self.shape.head_width, 2, device=f_BHSF.device, dtype=torch.float64)
        return f_BHSF.double() * self.base ** (-m / self.shape.head_width)
