"""TUPE, Transformer with untied positional encoding (Ke et al., 2020)."""

from typing import Literal

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, Unsupported, register
from poscli.encodings.sinusoidal import Sinusoidal
from poscli.encodings.t5 import T5


@register("tupe", paper="arXiv:2006.15595", family="relative")
class TUPE(Encoding):
    """s_ij = (q_i . k_j + (p_i U_Q) . (p_j U_K)) / sqrt(2D) + b[i-j], b in T5's buckets; all layers share p, U and b.

    p is a learned `table` [L, W], or the sinusoids, which have no last position. `bias=False` leaves b out, which gives
    TUPE-A rather than TUPE-R. The formula is the paper's; the authors' code also normalises p and gives the maps U
    biases. Their 32 buckets cover both directions, 16 of them distances to the past; here all 32 do. The paper also
    unties the [CLS] token, which does not exist here.
    """

    steady_keys = True
    shared = True
    relative = False

    def __init__(self, shape: Shape, *, table: Literal["learned", "sinusoidal"] = "learned", bias: bool = True) -> None:
        super().__init__(shape)
        self.sinusoids = None if table == "learned" else Sinusoidal(shape).table
        if table == "learned":
            # BERT's initialisation. With a standard deviation of 1, preset nano reaches 3.2 bits per byte after 400k
            # tokens, with 0.02 it reaches 2.4.
            self.p = nn.Parameter(0.02 * torch.randn(shape.length, shape.width))
        size, std = (shape.heads, shape.head_width, shape.width), shape.width**-0.5
        self.u_q, self.u_k = (nn.Parameter(std * torch.randn(size)) for _ in "qk")
        if bias:
            self.b = T5(shape)
        else:
            self.leave("distance_bias")

    @property
    def scale(self) -> float:
        return (2 * self.shape.head_width) ** -0.5

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return self._beside(q_BHTD, pos, self.u_q)

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        return self._beside(k_BHSD, pos, self.u_k)

    def distance_bias(self, d: Tensor) -> Tensor:
        return self.b.distance_bias(d)

    def _beside(self, x_BHTD: Tensor, pos: Tensor, u_HDW: Tensor) -> Tensor:
        """The content and p U side by side: their product with another such pair is the sum of both products."""
        p_HTD = self._rows(pos).to(u_HDW.dtype) @ u_HDW.mT
        return torch.cat([x_BHTD, p_HTD.to(x_BHTD.dtype).expand(len(x_BHTD), -1, -1, -1)], dim=-1)

    def _rows(self, pos: Tensor) -> Tensor:
        if self.sinusoids is not None:
            return self.sinusoids(pos)
        if (last := int(pos[-1])) >= len(self.p):
            raise Unsupported(
                f"tupe has {len(self.p)} positions; position {last} has no row in its table: use tupe(table=sinusoidal)"
            )
        return self.p[pos.long()]
