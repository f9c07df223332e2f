"""What single blanks add to a score.

Distance biases: the term of each head by distance, and the attention that the terms alone would give. Blanks that see
the order of the tokens: the positions that formulas see, and the temperature of each query. And the four terms of a
score where positions are added to the embedding (Vaswani et al., 2017; Ke et al., 2020): in the first layer of a
trained model, an input is A(x) + P[i], scaled by its norm, so a query is the sum of one part from the content and one
from the position, and so is a key. Their product has four terms: content-content, content-position (content of the
query, position of the key), position-content and position-position.

Shapes: B windows, T queries, S keys, H heads, W model width, n distances or tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from poscli.drawing.text import amount, number
from poscli.equation import Operands, Unsupported
from poscli.equation.operands import snapped
from poscli.equation.reference import temperature
from poscli.inspect.absolute import MIXED, how_joined
from poscli.inspect.numbers import Array, Record, described, largest_range, log_spaced, sampled, without_nan
from poscli.inspect.probe import Curves, half_distance, head_names, share_beyond
from poscli.inspect.subject import CPU, Subject
from poscli.model.transformer import shift_keys

STRAIGHT = 1e-9  # of the range: a curve that is nowhere farther from a line is a line


@dataclass(frozen=True, eq=False)
class Bias(Record):
    """The term `distance_bias` of each head for the keys 0, 1, ..., n - 1 tokens before the last query of a window."""

    curves: Curves
    length: int

    @property
    def straight(self) -> bool:
        """Whether every head's curve is a line."""
        values = self.curves.values
        if not np.isfinite(values).all():
            return False
        ends = np.linspace(values[:, 0], values[:, -1], values.shape[1], axis=1)
        return bool(np.abs(values - ends).max() <= STRAIGHT * largest_range(values))

    @property
    def finding(self) -> str:
        """The shape of the curves, and where they stop to tell distances apart."""
        shown = self.curves.merged()
        if largest_range(shown.values) == 0:
            return "The bias is the same at every distance"
        if self.straight:
            slopes = (shown.values[:, 0] - shown.values[:, -1]) / (shown.values.shape[1] - 1)
            low, high = float(slopes.min()), float(slopes.max())
            return (
                f"A line per head: {high:.3g} to {low:.3g} less per token" if low < high else f"A line: {-high:+.3g} d"
            )
        flat = self.flat_from()
        if flat is not None:
            return f"Steps or curves, level from {amount(flat)} tokens on"
        reach = amount(shown.values.shape[1] - 1)
        return f"Between 0 and {reach} tokens the bias changes by up to {largest_range(shown.values):.3g}"

    def flat_from(self) -> int | None:
        """The distance from which all heads are level, if that is in the first half of the distances."""
        values = self.curves.values
        moving = np.flatnonzero((values != values[:, -1:]).any(axis=0))
        first = int(moving[-1]) + 1 if len(moving) else 0
        return first if first <= values.shape[1] // 2 else None

    def record(self) -> dict[str, object]:
        return {"lines": self.straight, "level_from": self.flat_from()} | self.curves.sampled()


@dataclass(frozen=True, eq=False)
class BiasAlone(Record):
    """The softmax of the biases over all keys of a query: the weights if every product q . k were the same."""

    curves: Curves
    length: int

    @property
    def finding(self) -> str:
        """Within how many keys half of the weight lies, and how much lies beyond the training length."""
        shown = self.curves.merged()
        far = 100 * share_beyond(shown.values, self.length)
        ends = far.min(), far.max()
        low, high = ("0" if each <= 0.01 else f"{each:.2g}" if each < 99.5 else "100" for each in ends)
        share = low if low == high else f"{low} to {high}"
        halves = described(half_distance(shown.values), shown.lines)
        return f"By itself it puts half of the weight on the last {halves}, and {share} % beyond {self.length}"

    def record(self) -> dict[str, object]:
        return self.curves.spread(self.length) | self.curves.sampled()


@torch.no_grad()
def bias(subject: Subject) -> Bias:
    """The curves in the longest window that has positions, at the distances of these positions."""

    def by_tokens_back(tokens: int) -> Tensor:
        pos = subject.encoding.locate(tokens, CPU).pos
        return subject.encoding.distance_bias(snapped(pos[-1] - pos.flip(0)))

    values = without_nan(subject.at_longest(by_tokens_back)[0].double().numpy(), "the bias")
    return Bias(Curves(_names(len(values)), values), subject.length)


def bias_alone(subject: Subject) -> BiasAlone:
    """The weights of a query with as many keys as the longest window has, or as the encoding's reach lets it see."""
    values = bias(subject).curves.values[:, : subject.encoding.reach]
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    return BiasAlone(Curves(_names(len(values)), weights / weights.sum(axis=1, keepdims=True)), subject.length)


def _names(heads: int) -> tuple[str, ...]:
    return head_names(heads) if heads > 1 else ("all heads",)


@dataclass(frozen=True, eq=False)
class ByOrder(Record):
    """Values by the number of a token, from 0, in lines; the text of the finding is made where they are measured."""

    at: NDArray[np.int64]  # [n]
    values: Array  # [lines, n]
    names: tuple[str, ...]
    length: int
    sentence: str

    @property
    def finding(self) -> str:
        return self.sentence

    def record(self) -> dict[str, object]:
        return sampled(self.at, self.values, self.names)


def positions_seen(subject: Subject) -> ByOrder:
    """The position of every token in a training window and in the longest window."""

    def positions(tokens: int) -> Array:
        return subject.encoding.locate(tokens, CPU).pos.double().numpy()

    of_longest, last, _ = subject.at_longest(positions)
    windows = {subject.length: positions(subject.length), last: of_longest}
    at = log_spaced(last, 400)
    rows = [np.where(at < len(pos), pos[np.minimum(at, len(pos) - 1)], np.nan) for pos in windows.values()]
    sentence = f"The last of {amount(last)} tokens is at position {number(float(windows[last][-1]))}"
    if len(windows) > 1:
        sentence += f", the last of {amount(subject.length)} at {number(float(windows[subject.length][-1]))}"
    return ByOrder(at, np.stack(rows), tuple(f"{amount(n)} tokens" for n in windows), subject.length, sentence)


def temperature_by_order(subject: Subject) -> ByOrder:
    """The factor on the scores of each token's query, which follows the number of keys that the query sees."""
    tokens = subject.max_len
    of_queries = temperature(subject.encoding, tokens, tokens, CPU)
    assert of_queries is not None
    values, at = of_queries.double().numpy(), log_spaced(tokens, 400)
    ends = values[:, [subject.length - 1, -1]].mean(axis=0)
    sentence = (
        f"Scores are multiplied by {ends[0]:.3g} at {subject.length} tokens, by {ends[1]:.3g} at {amount(tokens)}"
    )
    return ByOrder(at, values[:, at], _names(len(values)), subject.length, sentence)


NAMES = ("content-content", "content-position", "position-content", "position-position")
SHORT = ("c-c", "c-p", "p-c", "p-p")
QUERIES_OF_TERMS = 64  # at the end of each window
# Blanks that may not be filled: products would not split.
LINEAR = ("mix", "query", "key", "content_query", "phase", "similarity")


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
    if how_joined(subject.encoding) == MIXED:
        raise Unsupported("no four terms: positions are mixed with the embedding, not added to it")
    if subject.fills(*LINEAR):
        raise Unsupported("no four terms: another blank changes queries and keys")
    model, encoding = subject.trained.model, subject.encoding
    ids_BT = subject.trained.windows(subject.length)
    norm, pos = model.layers[0].norm_attention, encoding.locate(ids_BT.shape[1], CPU).pos
    assert isinstance(norm, nn.RMSNorm)
    assert norm.eps is not None
    x_BTW = F.embedding(ids_BT, model.embedding).double()
    both_BTW = encoding.embed(x_BTW, pos, ids_BT)
    position_BTW = encoding.embed(torch.zeros_like(x_BTW), pos, ids_BT)
    # The norm multiplies each token by one number and each channel by one weight, so it acts on both parts alike.
    factor = norm.weight.double() / (both_BTW**2).mean(dim=-1, keepdim=True).add(norm.eps).sqrt()
    attention, parts = model.attention[0], ((both_BTW - position_BTW) * factor, position_BTW * factor)
    queries, keys = (
        [(part @ weights.weight.double().mT).unflatten(2, (attention.heads, -1)).transpose(1, 2) for part in parts]
        for weights in (attention.q, attention.k)
    )
    tokens = ids_BT.shape[1]
    start = tokens - min(QUERIES_OF_TERMS, tokens // 2)
    keys = [shift_keys(k, attention.shifted) for k in keys]
    terms = [(q[:, :, start:] @ k.mT) * encoding.scale for q in queries for k in keys]
    x = subject.trained.calls(subject.length)[0].operands(attention).block(start, tokens)
    return split_scores(torch.stack(terms), x)


def split_scores(terms_NBHTS: Tensor, x: Operands) -> Terms:
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
