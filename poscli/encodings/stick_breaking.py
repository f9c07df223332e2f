"""Stick-breaking attention (Tan et al., 2024)."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from poscli.encodings import Encoding, Operands, Shape, register
from poscli.native.call import Stick


@register("stick-breaking", paper="arXiv:2410.17980", family="content")
class StickBreaking(Encoding):
    """a_ij = sigmoid(s_ij) prod_{j<l<=i} (1 - sigmoid(s_il)) in place of the softmax: near keys take their share first.

    Each key takes a share of the stick that later keys have left, so the weights of a row sum to less than 1.
    `current=False` starts with the token before the query, as the authors' code does; the first token then receives
    nothing. Products are sums of logarithms in float32 at least.
    """

    kernel_gradient = True

    def __init__(self, shape: Shape, *, current: bool = True) -> None:
        super().__init__(shape)
        self.current = current

    def weights(self, s_BHTS: Tensor) -> Tensor:
        s = self.masked(s_BHTS)
        log_rest = -softplus(s, threshold=40)  # log(1 - sigmoid(s)); beyond 40 they are equal in float64 too
        log_left = pad(log_rest, (-1, 1)).flip(-1).cumsum(-1).flip(-1)  # the sum over the keys after j
        return (torch.sigmoid(s) * log_left.exp()).to(s_BHTS.dtype)

    def masked(self, s_BHTS: Tensor) -> Tensor:
        """Scores in float32 at least; without `current`, the query's own key is hidden."""
        s = s_BHTS.to(torch.promote_types(s_BHTS.dtype, torch.float32))
        if self.current:
            return s
        queries, keys = s.shape[-2:]
        hidden = torch.ones(queries, keys, dtype=torch.bool, device=s.device).triu(keys - queries)
        return s.masked_fill(hidden, -math.inf)

    def fast_weights(self, s_BHTS: Tensor, *, keys_per_chunk: int = 128) -> Tensor:
        """`weights`, chunk by chunk from the last key, until no query has anything left of its stick."""
        s = self.masked(s_BHTS)
        chunks: list[Tensor] = []
        taken = s.new_zeros(*s.shape[:-1], 1)  # -log of what later keys have left
        nothing_left = math.log(2) - math.log(torch.finfo(s.dtype).tiny) - math.log(torch.finfo(s.dtype).eps)
        for chunk in reversed(s.split(keys_per_chunk, dim=-1)):
            if chunks and taken.amin() > nothing_left:  # exp(-taken) is 0
                break
            # -log(1 - sigmoid(s)) = softplus(s), summed over the keys from j on
            to_j = softplus(chunk, threshold=40).flip(-1).cumsum(-1).flip(-1) + taken
            chunks.append(torch.exp2((chunk - to_j) / math.log(2)))  # exp is many times slower on CPU if it underflows
            taken = to_j[..., :1]
        a = torch.cat(chunks[::-1], dim=-1)
        return pad(a, (s.shape[-1] - a.shape[-1], 0)).to(s_BHTS.dtype)

    def kernel_form(self, x: Operands) -> Stick:
        return Stick(current=self.current)
