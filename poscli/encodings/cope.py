"""Contextual position encoding (Golovneva et al., 2024)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Length, Operands, Shape, at_least, register
from poscli.native.call import Gates


@register("cope", paper="arXiv:2405.18719", family="content")
class CoPE(Encoding):
    """s_ij += q_i . e[p_ij], p_ij = sum_{l=j..i} sigmoid(s_il): the position of a key is the number of gates up to i.

    e is a learned table of `max_pos` vectors per layer, interpolated linearly between whole positions; larger positions
    use its last row. The mask comes before the gates, so hidden keys do not count. The table starts at zero.
    q . e is not divided by sqrt(D), as in the paper's listing; the authors' training code divides it by default.
    """

    kernel_gradient = True

    def __init__(self, shape: Shape, *, max_pos: Length[int] = 64) -> None:
        super().__init__(shape)
        at_least(2, max_pos=max_pos)
        self.e = nn.Parameter(torch.zeros(max_pos, shape.head_width))

    def scores(self, s_BHTS: Tensor, x: Operands) -> Tensor:
        z_BHTP, s = self.products(x), s_BHTS.to(_exact(s_BHTS))
        gates = torch.sigmoid(s)  # 0 for hidden keys, whose score is -inf
        p = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=len(self.e) - 1)
        below, above = z_BHTP.gather(-1, p.floor().long()), z_BHTP.gather(-1, p.ceil().long())
        return (s + below + p.frac() * (above - below)).to(s_BHTS.dtype)

    def products(self, x: Operands) -> Tensor:
        """Products q_i . e[p] with every row p of the table, `[B, H, T, max_pos]`, in float32 or float64."""
        return (x.raw_q_BHTD @ self.e.T.to(x.raw_q_BHTD.dtype)).to(_exact(x.raw_q_BHTD))

    def fast_scores(self, s_BHTS: Tensor, x: Operands, *, keys_per_chunk: int = 128) -> Tensor:
        """`scores`, chunk by chunk from the last key; keys before the chunk that reaches the last row all use it."""
        z_BHTP, last = self.products(x), len(self.e) - 1
        rise = z_BHTP.diff(append=z_BHTP[..., -1:])  # to the next row
        chunks: list[Tensor] = []
        gates_after = z_BHTP.new_zeros(*s_BHTS.shape[:-1], 1)  # sum of the gates of all later keys
        for s in reversed(s_BHTS.split(keys_per_chunk, dim=-1)):
            if chunks and gates_after.amin() >= last:
                break
            p = torch.sigmoid(s.to(z_BHTP.dtype)).flip(-1).cumsum(-1).flip(-1) + gates_after
            gates_after, p = p[..., :1], p.clamp(max=last)
            floor = p.long()
            term = torch.addcmul(z_BHTP.gather(-1, floor), rise.gather(-1, floor), p.frac())
            chunks.append(s + term.to(s.dtype))
        far = s_BHTS[..., : s_BHTS.shape[-1] - sum(s.shape[-1] for s in chunks)]
        return torch.cat([far + z_BHTP[..., -1:].to(far.dtype), *chunks[::-1]], dim=-1)

    def kernel_form(self, x: Operands) -> Gates:
        return Gates(self.products(x))


def _exact(x: Tensor) -> torch.dtype:
    """The dtype of positions: bfloat16 cannot hold 63.1."""
    return torch.promote_types(x.dtype, torch.float32)
