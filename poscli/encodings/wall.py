"""Wall attention, a forget gate for every channel (Pai, Averbuch, Zhang, Keigwin and Dewulf, 2026)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid

from poscli.encodings import Encoding, Operands, Shape, register
from poscli.native import fading
from poscli.native.call import Parts


@register("wall", paper="Tilde Research, 2026 (blog.tilderesearch.com/blog/wall-attn)", family="content")
class Wall(Encoding):
    """s_ij = sum_c q_ic k_jc exp(sum_{l=j+1..i} g_lc), g_lc = log sigmoid(w_c . x_l + b_c): every channel fades alone.

    As in the authors' layer in fla, every channel of every head has a gate, and b is `start` at first, where a token
    keeps 99.97 percent of what came before it. There w is drawn; here it starts at 0, as that of fox does. The authors
    also published kernels that need gates above -0.87, and a soft bound for them. Any gate is right here without one.
    """

    facts = ("where its gates are open, g = 0, wall is none",)

    def __init__(self, shape: Shape, *, start: float = 8.0) -> None:
        super().__init__(shape)
        self.feature_width = shape.head_width
        self.w = nn.Parameter(torch.zeros(shape.heads * shape.head_width, shape.width))
        self.b = nn.Parameter(torch.full((len(self.w),), start))

    def features(self, x_BTW: Tensor) -> Tensor:
        """The logarithms g of the gates, `[B, H, T, D]`."""
        g_BTC = logsigmoid(linear(x_BTW.to(self.w.dtype), self.w, self.b))
        return g_BTC.unflatten(-1, (self.shape.heads, -1)).transpose(1, 2)

    def similarity(self, x: Operands) -> Tensor:
        q, k, g = self.exact_inputs(x)
        sums, rows = g.double().cumsum(2), []  # the difference of two sums from the start needs float64
        for i in range(x.queries):
            g_ij = (sums[:, :, x.keys - x.queries + i, None] - sums).clamp(max=0)  # positive in the future
            rows.append((k * g_ij.exp().to(k.dtype)) @ q[:, :, i, :, None])
        return torch.cat(rows, dim=-1).mT.to(x.q_BHTD.dtype)

    def exact_inputs(self, x: Operands) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[B, H, T, D]`, keys and g `[B, H, S, D]`, in float32 or float64."""
        assert x.features_BHSF is not None
        exact = torch.promote_types(x.q_BHTD.dtype, torch.float32)
        return x.q_BHTD.to(exact), x.k_BHSD.to(exact), x.features_BHSF.to(exact)

    def fast_similarity(self, x: Operands) -> Tensor:
        """`similarity`; the keys, faded by all tokens so far, are carried from block to block."""
        q, k, g = self.exact_inputs(x)
        older, carried = x.keys - x.queries, {} if x.carried is None else x.carried
        faded = carried[self] if self in carried else fading.fade_all(k[:, :, :older], g[:, :, :older])
        faded = faded[:, :, faded.shape[2] - older :]  # a window hides the first keys
        s, q, carried[self] = fading.advance(faded, q, k[:, :, older:], g[:, :, older:])
        return torch.cat([q @ faded.mT, s], dim=-1).to(x.q_BHTD.dtype)

    def kernel_form(self, x: Operands) -> Parts:
        return Parts(fading.faded_parts(*self.exact_inputs(x), self.scale))
