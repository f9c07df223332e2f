"""Shared by tests of encodings, attention and the model: a small shape, lists of specs, and toy encodings.

The toys fill blanks, or combine them, as no registered encoding does, so that tests reach all code of the engines.
They are named `toys:Class` in specs, like an encoding in any other file.

B batch, T queries, S keys, H heads, D head width, W model width, F features, n distances.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from poscli.config.run import ModelConfig
from poscli.encodings import Encoding, Shape, names
from poscli.equation.operands import Operands
from poscli.model.initialise import build_model
from poscli.model.transformer import Model, Precision
from poscli.specs import build, parse
from poscli.verify.noise import draw, perturbed, rounding  # noqa: F401 - the tests take them from here

LENGTH = 16  # tokens of a training window
HEADS, HEAD_WIDTH = 3, 8  # no power of two, which ALiBi's slopes treat differently
WIDTH = HEADS * HEAD_WIDTH
VOCAB = 11

# Encodings without positions beyond the training length, unless an option adds them.
ENDS = {"learned", "learned-2d", "tupe"}

COMPOSITES = [
    "selective-rope+smear",
    "alibi(trainable=true)",
    "rope(layout=interleaved, fraction=0.5)",
    "sinusoidal(combine=concat)",
    "sinusoidal(combine=multiply)",
    "shaw(clip=4, values=false)",
    "t5(buckets=6, far=11)",
    "rope+window(9)",
    "fire+window(9)",
    "cope(max_pos=5)+window(9)",
    "rope+shaw",
    "rope+shaw(clip=4, values=false)+t5",
    "rope+cope(max_pos=5)+alibi",
    "kerple-log+fire+shaw",
    "alibi+ssmax",
    "rope+interpolated(4)",
    "t5+interpolated(3)",
    "fire+shaw+interpolated(3)",
    "shaw+randomized",
    "learned+interpolated",
    "rope+logn(5)",
    "deberta(span=100, buckets=8)",
    "tupe(table=sinusoidal, bias=false)+rope",
    "urpe(base=t5)",
    "rope(base=500)+urpe(base=none)",
    "transformer-xl+deberta+window(9)",
    "sink(2)+window(5)",
    "sink(2)+window(5)+alibi+rope",
    "sink(2)+window(5)+fox+t5",
    "path+sink(2)+window(5)",
    "rerope(window=3)+sink(2)+window(9)",
    "rope+window(9)+sink-logit",
    "fox+shaw+sink-logit+sink-logit(start=2)",
    "cope(max_pos=5)+sink-logit",
    "query-bias+ssmax+sink-logit",
]
ALTERNATING = ["rope|none", "alibi+window(9)|t5", "cope|fire", "urpe(base=t5)|xlnet"]


def shape(length: int = LENGTH, *, heads: int = HEADS, width: int = WIDTH, layers: int = 2) -> Shape:
    return Shape(width=width, heads=heads, layers=layers, length=length)


def make(spec: str, at: Shape | None = None, dtype: torch.dtype = torch.float32) -> Encoding:
    """The encoding of a spec's first layer, its parameters perturbed."""
    return perturbed(build(parse(spec), at or shape(), seed=1)[0]).to(dtype)


def model(
    spec: str, *, seed: int = 0, length: int = LENGTH, layers: int = 2, precision: Precision | None = None
) -> Model:
    """A small model with its initial weights."""
    config = ModelConfig(layers=layers, width=WIDTH, heads=HEADS, mlp=32)
    return build_model(config, spec, vocab=VOCAB, length=length, seed=seed, precision=precision)


def tokens(batch: int, count: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (batch, count), generator=torch.Generator().manual_seed(seed))


class Untied(Encoding):
    """Transformer-XL: (q_i + u) . r[i-j] beside q_i . k_j."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.r = nn.Parameter(torch.zeros(1, 8, shape.head_width))
        self.u = nn.Parameter(torch.zeros(shape.heads, 1, shape.head_width))

    def relative_query(self, q_BHTD: Tensor, f_BHTF: Tensor | None) -> Tensor:
        return q_BHTD + self.u

    def relative_keys(self, d: Tensor) -> Tensor:
        return self.r[:, d.clamp(max=7)]


class Disentangled(Encoding):
    """DeBERTa: q_i . a[i-j] and k_j . b[i-j], a vector per head, over sqrt(3D)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.a, self.b = (nn.Parameter(torch.zeros(shape.heads, 8, shape.head_width)) for _ in "ab")

    @property
    def scale(self) -> float:
        return (3 * self.shape.head_width) ** -0.5

    def relative_keys(self, d: Tensor) -> Tensor:
        return self.a[:, d.clamp(max=7)]

    def relative_queries(self, d: Tensor) -> Tensor:
        return self.b[:, d.clamp(max=7)]


class Forgetting(Encoding):
    """FoX: sum_{l=j+1..i} log sigmoid(w . x_l), a bias per batch made of features."""

    feature_width = 1

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.w = nn.Parameter(torch.zeros(shape.heads, shape.width))

    def features(self, x_BTW: Tensor) -> Tensor:
        return nn.functional.logsigmoid(x_BTW @ self.w.to(x_BTW.dtype).T).mT[..., None]

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        c = f_j[..., 0].cumsum(-1)
        return c[..., -len(i) :, None] - c[..., None, :]


class Paced(Encoding):
    """ALiBi with slopes from the query: a bias that depends on the query's own features."""

    feature_width = 1

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.w = nn.Parameter(torch.zeros(shape.heads, shape.width))

    def features(self, x_BTW: Tensor) -> Tensor:
        return nn.functional.softplus(x_BTW @ self.w.to(x_BTW.dtype).T).mT[..., None]

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return -f_i * (i[:, None] - j) / 4


class Gated(Encoding):
    """Sigmoid attention: `weights` in place of the softmax."""

    def weights(self, s_BHTS: Tensor) -> Tensor:
        return torch.sigmoid(s_BHTS)


class Toeplitz(Encoding):
    """URPE: weights times c[i-j] after the softmax."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.c = nn.Parameter(torch.ones(shape.heads, 8))

    def reweight(self, p_BHTS: Tensor, d_TS: Tensor) -> Tensor:
        return p_BHTS * self.c.to(p_BHTS.dtype)[:, d_TS.clamp(max=7)]


class Capped(Encoding):
    """Scores softly capped at 3: hidden ones become finite and must be hidden again."""

    def scores(self, s_BHTS: Tensor, x: object) -> Tensor:
        return 3 * torch.tanh(s_BHTS / 3)


class Wide(Encoding):
    """Queries and keys with 2 channels more than the values: (q, cos i, sin i)."""

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        circle = torch.stack([pos.cos(), pos.sin()], dim=-1).to(q_BHTD.dtype)
        return torch.cat([q_BHTD, circle.expand(*q_BHTD.shape[:-1], 2)], dim=-1)

    key = query


class Carried(Encoding):
    """Values that depend on the position of the key, and outputs that depend on that of the query."""

    relative = False

    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        return v_BHSD * (1 + pos / 8)[:, None].to(v_BHSD.dtype)

    def output(self, o_BHTD: Tensor, pos: Tensor) -> Tensor:
        return o_BHTD / (2 + pos / 4)[:, None].to(o_BHTD.dtype)


class Slope(Encoding):
    """A learned penalty linear in the distance: the parent of toys with positions of their own."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.slope = nn.Parameter(torch.arange(1.0, shape.heads + 1) / 4)

    def distance_bias(self, d: Tensor) -> Tensor:
        return -self.slope[:, None] * d


class Squares(Slope):
    """Positions that grow with the square of the index: unevenly spaced, so engines cannot use a table."""

    relative = False

    def positions(self, index: Tensor) -> Tensor:
        return index**2 // 16


class Quarters(Slope):
    """Positions 0, 1/4, 1/2, ..., evenly spaced by a step other than 1."""

    def positions(self, index: Tensor) -> Tensor:
        return index / 4


class SquaredVectors(Untied):
    """Relative vectors at uneven distances, so engines cannot use views."""

    relative = False

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.c = nn.Parameter(torch.zeros(1, 8, shape.head_width))

    def positions(self, index: Tensor) -> Tensor:
        return index**2 // 16

    def relative_queries(self, d: Tensor) -> Tensor:
        return self.r[:, (d // 2).clamp(max=7)]

    def relative_values(self, d: Tensor) -> Tensor:
        return self.c[:, d.clamp(max=7)]


class Sharper(Encoding):
    """Scores times a factor per head that grows with the number of visible keys and is 0 for the first token."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.s = nn.Parameter(torch.full((shape.heads,), 0.5))

    def temperature(self, n: Tensor) -> Tensor:
        return self.s[:, None] * n.log()


class Bilinear(Encoding):
    """q_i . k_j, doubled at even distances: a similarity that is not the product of one query and one key."""

    def similarity(self, x: Operands) -> Tensor:
        return x.q_BHTD @ x.k_BHSD.mT * (2 - x.distances() % 2)


TOYS = [
    *(
        f"toys:{cls.__name__}"
        for cls in (Untied, Disentangled, Forgetting, Paced, Gated, Toeplitz, Capped, Wide, Carried, Slope)
    ),
    *(f"toys:{cls.__name__}" for cls in (Squares, Quarters, SquaredVectors, Sharper, Bilinear)),
    "toys:Forgetting+window(9)+rope",
    "toys:Disentangled+rope",
    "toys:Capped+alibi",
    "toys:Squares+fire",
    "toys:Quarters+window(2)",
    "toys:Sharper+rope",
    "toys:Sharper+alibi+window(9)",
    "toys:Sharper+toys:SquaredVectors",
    "toys:Sharper+toys:Bilinear+shaw",
    "toys:Forgetting+toys:Paced",
    "sink(2)+window(5)+toys:Squares+fire",
    "sink(2)+window(5)+toys:Sharper+shaw+cope(max_pos=5)",
]
EVERYWHERE = [*names(), *COMPOSITES, *ALTERNATING, *TOYS]
# Specs that fill every blank and run on every engine: `make test` stops at these where all specs would take long.
NARROW = [
    *("none", "alibi", "cope", "dape", "fire", "fox", "learned", "path", "rerope", "rope", "rope-dynamic", "shaw"),
    *("sinusoidal", "stick-breaking", "t5", "transformer-xl"),
    *("alibi+ssmax", "learned+interpolated", "rope+window(9)", "shaw+randomized", "sink(2)+window(5)+fox+t5"),
    *(
        "transformer-xl+deberta+window(9)",
        "fox+shaw+sink-logit+sink-logit(start=2)",
        "selective-rope+smear",
        "cope|fire",
        "urpe(base=t5)|xlnet",
    ),
    *(
        "toys:Carried",
        "toys:Gated",
        "toys:Quarters",
        "toys:Sharper+toys:Bilinear+shaw",
        "toys:Squares+fire",
        "toys:Wide",
    ),
]


def first(count: int, cases: Sequence[Any]) -> list[Any]:
    """Cases as parameters of a test: `make test` takes the first `count`, `make numerical` all."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*each, marks=[pytest.mark.wide] if n >= count else []) for n, each in enumerate(values)]


def wide(specs: Iterable[str]) -> list[Any]:
    """Specs as parameters of a test: `make test` takes those in `NARROW`, `make numerical` all."""
    return [spec if spec in NARROW else pytest.param(spec, marks=pytest.mark.wide) for spec in specs]
