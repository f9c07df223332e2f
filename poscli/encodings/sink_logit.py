"""A learned sink in the softmax, as in gpt-oss (OpenAI, 2025)."""

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, register


@register("sink-logit", paper="arXiv:2508.10925", family="wrapper")
class SinkLogit(Encoding):
    """p_ij = e^{s_ij} / (e^{b_h} + sum_j e^{s_ij}), b learned per head and layer: a key without a value, seen by all.

    So p is the softmax times sigmoid(lse_i - b_h), lse_i the log-sum-exp of the query's scores: a query that finds
    nothing can take little, and need not park its weight on the first tokens. Under a window those are out of sight,
    and this sink stays; every second layer of gpt-oss is `rope+window(128)+sink-logit`. b is compared with scores after
    all else that changes them. It starts at `start`; transformers' gpt_oss, whose code was read, draws it from
    N(0, 0.02), and a `start` of 0 without learning is the softmax with 1 added to its sum. A model that was trained
    without it can be evaluated with it: b is then `start` everywhere.
    """

    wraps = True
    facts = ("where b is -inf, sink-logit changes nothing",)

    def __init__(self, shape: Shape, *, start: float = 0.0) -> None:
        super().__init__(shape)
        self.b = nn.Parameter(torch.full((shape.heads,), start))

    def null_score(self) -> Tensor:
        return self.b
