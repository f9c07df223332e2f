"""What is inspected: the encoding of one or more layers, at the weights of a fresh model or of a trained run.

A spec such as `rope|none` has one subject for each of its alternating layers. A trained run has one subject for each
group of layers whose encodings have equal weights. Where all tokens are alike, every query is the same vector, and
every key: what then makes one key's weight differ from another's is the encoding alone.

Shapes: B windows or batch, T queries or tokens, S keys, H heads, D head width, W model width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from poscli.config.run import ModelConfig
from poscli.drawing.text import listed
from poscli.equation import Encoding, Operands, Unsupported
from poscli.equation.blanks import FAST
from poscli.equation.composed import Composed
from poscli.equation.reference import operands, scores, weights
from poscli.evaluation.evaluate import refuse_other_text
from poscli.model.load import load_trained
from poscli.model.transformer import Model
from poscli.runs.run import Run
from poscli.runs.select import newest_complete
from poscli.specs import build, check, parse
from poscli.tasks import Task, open_task
from poscli.verify.noise import perturbed
from poscli.why.dilution import Call, calls_of_attention

MeasuredT = TypeVar("MeasuredT")
CPU = torch.device("cpu")
# Blanks that take queries and keys of any width.
ANY_WIDTH = {"positions", "embed", "temperature", "distance_bias", "reach", "sinks", "scores", "weights", "reweight"}
TOKENS_TRIED = 24  # tokens on which `position_matters` is measured


class Fast:
    """An encoding whose plain blanks are its fast forms, so that the reference's formula takes seconds on long rows."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding

    def __getattr__(self, name: str) -> object:
        return getattr(self._encoding, f"fast_{name}" if name in FAST else name)


def constant_operands(
    encoding: Encoding, keys: int, queries: int = 1, *, token: Tensor | None = None, columns: int | None = None
) -> Operands:
    """The inputs of one attention call in which all tokens are alike, in float64; the queries are the last ones.

    `token` is the vector `[W]` of every token, all ones unless given. Its slice of D channels is the query and the key
    of a head. Where the encoding changes the embedding, any head can read any channel; so the query and the key are
    then the whole embedding, scaled so that products are what random projections to D channels give on average, or, if
    the encoding needs heads of D channels, such a random projection, the same for queries and for keys.

    For an encoding of two axes, `columns` is the number of columns of the grid that the tokens fill.
    """
    shape = encoding.shape
    token = torch.ones(shape.width, dtype=torch.float64) if token is None else token
    x_1SW, at = token.expand(1, keys, -1), encoding.locate(keys, CPU, columns)
    if "embed" in encoding.blanks:
        x_1SW = encoding.embed(x_1SW, at.pos, torch.zeros(1, keys, dtype=torch.long))
        x_1HSD = _heads_of_embedding(x_1SW, encoding)
    else:
        x_1HSD = x_1SW.unflatten(2, (shape.heads, -1)).transpose(1, 2)
    features = encoding.features(x_1SW)
    return operands(encoding, x_1HSD[:, :, keys - queries :], x_1HSD, x_1HSD, at, features)


def score_rows(encoding: Encoding, x: Operands) -> Tensor:
    """Scores `[B, H, T, S]` by the formula of the reference, -inf where a key is hidden."""
    return scores(cast(Encoding, Fast(encoding)), x)


def weight_rows(encoding: Encoding, x: Operands) -> Tensor:
    """Attention weights `[B, H, T, S]` by the formula of the reference."""
    fast = cast(Encoding, Fast(encoding))
    return weights(fast, x, scores(fast, x))


@torch.no_grad()
def position_matters(encoding: Encoding) -> bool:
    """Whether any key's weight differs from another's when all tokens are alike."""
    try:
        p_HS = weight_rows(encoding, constant_operands(encoding, min(TOKENS_TRIED, encoding.shape.length)))[0, :, 0]
    except Unsupported:
        return True
    return bool(((p_HS - p_HS[:, :1]).abs() > 1e-12).any())


def _heads_of_embedding(x_1SW: Tensor, encoding: Encoding) -> Tensor:
    """Queries or keys `[1, H, S, W]` or `[1, H, S, D]` that read the whole embedding."""
    shape = encoding.shape
    if encoding.blanks <= ANY_WIDTH:
        return x_1SW[:, None].expand(-1, shape.heads, -1, -1) * (shape.head_width / shape.width) ** 0.5
    size, draw = (shape.heads, shape.width, shape.head_width), torch.Generator().manual_seed(0)
    # The columns of a head's random map are orthonormal, so the mean square of a channel stays.
    return (x_1SW @ torch.linalg.qr(torch.randn(size, generator=draw, dtype=torch.float64)).Q)[None]


WINDOWS = 4  # read of the held-out text


@dataclass(frozen=True, eq=False)
class InspectedRun:
    """A complete run with its model, and the task that has its text."""

    run: Run
    model: Model
    task: Task
    _read: dict[int, list[Call]] = field(default_factory=dict)

    def windows(self, tokens: int) -> Tensor:
        """Windows `[B, T]` of held-out text: T is `tokens`, or half of it and so on, as the documents allow."""
        while not len(spans := self.task.text(tokens).tiles(tokens)):
            tokens //= 2
        chosen = spans[np.linspace(0, len(spans) - 1, min(WINDOWS, len(spans))).round().astype(int)]
        return torch.from_numpy(self.task.text(tokens).windows(chosen, tokens)[:, :-1])

    @torch.no_grad()
    def calls(self, tokens: int) -> list[Call]:
        """What the attention of every layer is called with on these windows; Unsupported if the model cannot."""
        if tokens not in self._read:
            self._read[tokens] = calls_of_attention(self.model, self.windows(tokens))
        return self._read[tokens]


def load_run(runs: Path, id_: str) -> InspectedRun:
    """The newest complete run whose id begins with `id_`, on the CPU.

    UsageError if there is none, DataError if its text has changed since.
    """
    run = newest_complete(runs, id_)
    task = open_task(run.config.task, run.config.corpus, run.config.tokenizer)
    refuse_other_text(run, task)
    return InspectedRun(run, load_trained(run, CPU), task)


# What a subject says about its weights, in headings and footnotes.
FRESH, RANDOM, TRAINED = "", "random weights", "trained"


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """One encoding in float64 on the CPU, with the layers that have it and the lengths that it is drawn for."""

    spec: str
    encoding: Encoding
    layers: tuple[int, ...]  # of the model, from 1
    depth: int  # layers of the model
    length: int  # L, tokens in a training window
    max_len: int  # tokens in the longest window that is drawn
    weights: str = FRESH
    trained: InspectedRun | None = None

    @property
    def title(self) -> str:
        """The spec, the layers if they are not all layers, and what kind of weights it has unless they are fresh."""
        numbers = listed([str(n) for n in self.layers], 8)
        where = "" if len(self.layers) == self.depth else f" on layer{'s' * (len(self.layers) > 1)} {numbers}"
        return f"{self.spec}{where}{f', {self.weights}' if self.weights else ''}"

    @property
    def heads(self) -> int:
        """The number of heads, H."""
        return self.encoding.shape.heads

    @property
    def leaves(self) -> list[Encoding]:
        """The encodings that it is composed of; itself if it is not composed."""
        modules = self.encoding.modules()
        return [part for part in modules if isinstance(part, Encoding) and type(part) is not Composed]

    def fills(self, *blanks: str) -> bool:
        """Whether the encoding fills one of these blanks."""
        return bool(self.encoding.blanks & set(blanks))

    def at_longest(self, measure: Callable[[int], MeasuredT]) -> tuple[MeasuredT, int, str]:
        """What `measure` finds in the longest window, in tokens, or in a training window where that is Unsupported.

        Returns it with the tokens of that window, and with the reason why it is not the longest one ('' if it is).
        """
        try:
            return measure(self.max_len), self.max_len, ""
        except Unsupported as reason:
            return measure(self.length), self.length, str(reason)


def fresh_subjects(spec: str, config: ModelConfig, length: int, max_len: int, seed: int = 0) -> list[Subject]:
    """The subjects of a spec at its initial weights; UsageError if it cannot be built for this shape.

    Some encodings change nothing at their initial weights, because a table starts at zero. Such a subject has random
    weights instead, and says so.
    """
    shape = config.shape(length)
    parsed = check(spec, shape)
    layers = [each.eval() for each in build(parsed, shape, seed)]
    period = len(parsed.layers)
    subjects = []
    for first in range(period):
        encoding, weights = _telling(layers[first], seed)
        subjects.append(
            Subject(
                spec=str(parsed),
                encoding=encoding,
                layers=tuple(range(first + 1, config.layers + 1, period)),
                depth=config.layers,
                length=length,
                max_len=max_len,
                weights=weights,
            )
        )
    return subjects


def trained_subjects(trained: InspectedRun, max_len: int) -> list[Subject]:
    """The subjects of a trained run: one for each group of layers that have one encoding with equal weights."""
    config, encodings = trained.run.config, trained.model.encodings
    period = len(parse(config.encoding).layers)
    groups: list[list[int]] = []

    def equal(first: int, second: int) -> bool:
        weights = ((*encodings[n].parameters(), *encodings[n].buffers()) for n in (first, second))
        return encodings[first] is encodings[second] or all(torch.equal(a, b) for a, b in zip(*weights, strict=True))

    for n in range(len(encodings)):
        group = next((g for g in groups if (n - g[0]) % period == 0 and equal(g[0], n)), [])
        if not group:
            groups.append(group)
        group.append(n)
    return [
        Subject(
            spec=config.encoding,
            encoding=exact(encodings[group[0]]),
            layers=tuple(n + 1 for n in group),
            depth=len(encodings),
            length=config.length,
            max_len=max_len,
            weights=TRAINED,
            trained=trained,
        )
        for group in groups
    ]


def exact(encoding: Encoding) -> Encoding:
    """A copy in float64 on the CPU, for evaluation and without gradients."""
    return copy.deepcopy(encoding).cpu().double().eval().requires_grad_(False)


def _telling(encoding: Encoding, seed: int) -> tuple[Encoding, str]:
    """The encoding in float64; with random weights where the initial ones make positions matter nowhere."""
    initial = exact(encoding)
    if position_matters(initial) or not any(True for _ in initial.parameters()):
        return initial, FRESH
    moved = exact(perturbed(copy.deepcopy(encoding), seed))
    return (moved, RANDOM) if position_matters(moved) else (initial, FRESH)
