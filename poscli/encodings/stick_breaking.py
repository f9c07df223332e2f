"""Stick-breaking attention (Tan et al., 2024)."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from poscli.encodings.base import Encoding, Shape
from poscli.encodings.registry import register

KEYS = 128  # that take their share at once


@register("stick-breaking", paper="arXiv:2410.17980", family="content")
class StickBreaking(Encoding):
    """a_ij = sigmoid(s_ij) prod_{j<l<=i} (1 - sigmoid(s_il)) in place of the softmax: near keys take their share first.

    Each key breaks its part off what is left of a stick, so a row sums to less than 1 and what remains is nobody's.
    `current=False` starts with the token before the query, as the authors' code does: the first token then gets
    nothing. Products are sums of logarithms, in float32 at the least, from the query back
    until nothing is left.
    """

    def __init__(self, shape: Shape, *, current: bool = True) -> None:
        super().__init__(shape)
        self.current = current

    def weights(self, s_BHTS: Tensor) -> Tensor:
        s = s_BHTS.to(torch.promote_types(s_BHTS.dtype, torch.float32))
        if not self.current:
            queries, keys = s.shape[-2:]
            own = torch.ones(queries, keys, dtype=torch.bool, device=s.device).triu(keys - queries)
            s = s.masked_fill(own, -math.inf)
        parts: list[Tensor] = []
        taken = s.new_zeros(*s.shape[:-1], 1)
        nothing = math.log(2) - math.log(torch.finfo(s.dtype).tiny) - math.log(torch.finfo(s.dtype).eps)
        for near in reversed(s.split(KEYS, dim=-1)):
            if parts and taken.amin() > nothing:  # exp(-taken) is 0, and no key takes more than was left
                break
            # -log(1 - sigmoid(s)) = softplus(s), from 40 on s itself in float64 too, summed over the keys from j on
            to_j = softplus(near, threshold=40).flip(-1).cumsum(-1).flip(-1) + taken
            parts.append(torch.exp2((near - to_j) / math.log(2)))  # on CPU exp is many times slower where it underflows
            taken = to_j[..., :1]
        a = torch.cat(parts[::-1], dim=-1)
        return pad(a, (s.shape[-1] - a.shape[-1], 0)).to(s_BHTS.dtype)
