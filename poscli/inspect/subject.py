"""What is inspected: the encoding of one or more layers, at the weights of a fresh model or of a trained run.

A spec such as `rope|none` has one subject for each of its alternating layers. A trained run has one subject for each
group of layers whose encodings have equal weights.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from poscli.config.run import ModelConfig
from poscli.drawing.text import listed
from poscli.equation import Encoding
from poscli.equation.composed import Composed
from poscli.inspect.constant import position_matters
from poscli.inspect.trained import Trained
from poscli.specs import build, check, parse
from poscli.verify.noise import perturbed

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
    trained: Trained | None = None

    @property
    def title(self) -> str:
        """The spec, the layers if they are not all layers, and what kind of weights it has unless they are fresh."""
        where = "" if len(self.layers) == self.depth else f" on {_layers(self.layers)}"
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


def fresh_subjects(spec: str, config: ModelConfig, length: int, max_len: int, seed: int = 0) -> list[Subject]:
    """The subjects of a spec at its initial weights; UsageError if it cannot be built for this shape.

    Some encodings change nothing at their initial weights, because a table starts at zero. Such a subject has random
    weights instead, and says so.
    """
    shape = config.shape(length)
    parsed = check(spec, shape)
    layers = [each.eval() for each in build(parsed, shape, seed)]
    period = len(parsed.layers)
    found = []
    for first in range(period):
        encoding, weights = _telling(layers[first], seed)
        found.append(
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
    return found


def trained_subjects(trained: Trained, max_len: int) -> list[Subject]:
    """The subjects of a trained run: one for each group of layers that have one encoding with equal weights."""
    config = trained.run.config
    groups: list[list[int]] = []
    encodings, period = trained.model.encodings, len(parse(config.encoding).layers)
    for n, encoding in enumerate(encodings):
        alike = (g for g in groups if (n - g[0]) % period == 0 and _equal(encodings[g[0]], encoding))
        group = next(alike, None)
        if group is None:
            groups.append([n])
        else:
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


def _equal(first: Encoding, second: Encoding) -> bool:
    """Whether two instances of one encoding have equal weights."""
    pairs = zip(_weights(first), _weights(second), strict=True)
    return first is second or all(torch.equal(a, b) for a, b in pairs)


def _weights(encoding: Encoding) -> Iterator[torch.Tensor]:
    yield from encoding.parameters()
    yield from encoding.buffers()


def _layers(numbers: tuple[int, ...]) -> str:
    """Layers by number: `layer 2`, `layers 1, 3 and 5`."""
    return f"layer{'s' * (len(numbers) > 1)} {listed([str(n) for n in numbers], 8)}"
