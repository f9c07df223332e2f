"""The four terms of a score where positions are added to the embedding (Vaswani et al., 2017; Ke et al., 2020).

In the first layer of a trained model, an input is A(x) + P[i], scaled by its norm, so a query is the sum of one part
from the content and one from the position, and so is a key. Their product has four terms: content-content,
content-position (content of the query, position of the key), position-content and position-position.

Shapes: B windows, T queries, S keys, H heads, W model width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from poscli.equation import Operands, Unsupported
from poscli.inspect.absolute import CPU, MIXED, joined
from poscli.inspect.numbers import Array, Record, sampled
from poscli.inspect.subject import Subject

NAMES = ("content-content", "content-position", "position-content", "position-position")
SHORT = ("c-c", "c-p", "p-c", "p-p")
QUERIES = 64  # at the end of each window
LINEAR = ("query", "key", "content_query", "similarity")  # blanks that may not be filled: products would not split


@dataclass(frozen=True, eq=False)
class Terms(Record):
    """The four terms in the first layer on a trained run's own text: means by distance, and shares of the variance."""

    by_distance: Array  # [4, n], means over texts, heads and queries
    shares: Array  # [4], of each term in the variance of the scores along a row
    remainder: float  # the largest difference between the sum of the terms and the score, relative to the scores

    @property
    def finding(self) -> str:
        """Which term tells keys apart."""
        order = np.argsort(-self.shares)
        words = [f"{SHORT[n]} {100 * self.shares[n]:.0f} %" for n in order]
        return f"Scores of layer 1 tell keys apart by {', '.join(words)}"

    def record(self) -> dict[str, object]:
        shares = dict(zip(NAMES, self.shares.tolist(), strict=True))
        at = np.arange(self.by_distance.shape[1])
        return {"shares_of_variance": shares, "remainder": self.remainder} | sampled(at, self.by_distance, NAMES)


@torch.no_grad()
def four_terms(subject: Subject) -> Terms:
    """The terms on windows of the training length. Raises Unsupported where a score does not split into them."""
    assert subject.trained is not None
    if joined(subject.encoding) == MIXED:
        raise Unsupported("no four terms: positions are mixed with the embedding, not added to it")
    if subject.fills(*LINEAR):
        raise Unsupported("no four terms: another blank changes queries and keys")
    model = subject.trained.model
    attention, parts = model.attention[0], _parts(subject, subject.trained.windows(subject.length))
    queries, keys = (
        [(part @ weights.weight.double().mT).unflatten(2, (attention.heads, -1)).transpose(1, 2) for part in parts]
        for weights in (attention.q, attention.k)
    )
    tokens = parts[0].shape[1]
    start = tokens - min(QUERIES, tokens // 2)
    terms = [(q[:, :, start:] @ k.mT) * subject.encoding.scale for q in queries for k in keys]
    x = subject.trained.calls(subject.length)[0].operands(attention).block(start, tokens)
    return split(torch.stack(terms), x)


def split(terms_NBHTS: Tensor, x: Operands) -> Terms:
    """Means by distance and shares of the variance, of four terms of scores; queries are the last of the tokens.

    The share of a term is the covariance along the row of the term with the score, over the variance of the score: the
    shares sum to 1, and one may be negative.
    """
    visible, reach = x.visible(), x.keys - x.queries + 1
    total = terms_NBHTS.sum(dim=0)
    score = (x.q_BHTD @ x.k_BHSD.mT).double() * x.q_BHTD.shape[-1] ** -0.5
    remainder = float((total - score).abs()[..., visible].max() / score.abs()[..., visible].max())
    count = visible.sum(dim=-1, keepdim=True)

    def centred(s: Tensor) -> Tensor:
        mean = (s * visible).sum(dim=-1, keepdim=True) / count
        return (s - mean) * visible

    whole = centred(total)
    shares = torch.stack([(centred(term) * whole).sum() for term in terms_NBHTS]) / (whole**2).sum()
    means = terms_NBHTS.mean(dim=(1, 2)).flip(-1)  # [4, T, S], the last token first
    rows = [means[:, t, x.queries - 1 - t :][:, :reach] for t in range(x.queries)]
    by_distance = torch.stack(rows).mean(dim=0)
    return Terms(by_distance.numpy(), shares.numpy(), remainder)


def _parts(subject: Subject, ids_BT: Tensor) -> tuple[Tensor, Tensor]:
    """The content's and the position's part of the first layer's normed input, `[B, T, W]` each.

    The norm multiplies each token by one number and each channel by one weight, so it acts on both parts alike.
    """
    assert subject.trained is not None
    model, encoding = subject.trained.model, subject.encoding
    norm, pos = model.layers[0].norm_attention, encoding.locate(ids_BT.shape[1], CPU).pos
    assert isinstance(norm, nn.RMSNorm)
    assert norm.eps is not None
    x_BTW = F.embedding(ids_BT, model.embedding).double()
    both_BTW = encoding.embed(x_BTW, pos, ids_BT)
    position_BTW = encoding.embed(torch.zeros_like(x_BTW), pos, ids_BT)
    factor = norm.weight.double() / (both_BTW**2).mean(dim=-1, keepdim=True).add(norm.eps).sqrt()
    return (both_BTW - position_BTW) * factor, position_BTW * factor
