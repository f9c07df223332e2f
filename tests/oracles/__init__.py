"""Every encoding's formula, written again in float64 from its paper or taken from another library.

An oracle shares no code with poscli. It uses the learned parameters of poscli's encoding, so that gradients can be
compared too, and computes scores, the output of attention or the embedding. `test_oracles.py` compares values and
gradients; `make table` writes the largest errors into docs/ENCODINGS.md.

B batch, H heads, T tokens, D head width, W model width. Everything is float64, positions included.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from poscli.encodings import Encoding


@dataclass(frozen=True)
class Content:
    """The input of one layer."""

    q: Tensor  # [B, H, T, D], from the projections
    k: Tensor
    v: Tensor
    x: Tensor  # [B, T, W], the layer's input
    ids: Tensor  # [B, T], int64
    pos: Tensor  # the order of the tokens [T], or their rows and columns [T, 2], times a stride


FLOAT32, FLOAT64 = 2**-23, 2**-52  # units of rounding

Formula = Callable[[Encoding, Content], Tensor]


@dataclass(frozen=True)
class Oracle:
    """The formula of one spec, its source, and the kind of its result."""

    spec: str
    against: str  # the source: the paper, or a function of a library
    gives: str  # scores, output, embedding or mixture
    formula: Formula
    unit: float = FLOAT64  # the unit of rounding of the least precise dtype that the oracle computes in

    def __str__(self) -> str:
        return f"{self.spec} against {self.against}"


ORACLES: list[Oracle] = []


def oracle(
    *specs: str, against: str = "the paper's formula", gives: str = "scores", unit: float = FLOAT64
) -> Callable[[Formula], Formula]:
    """Register a formula. Scores are those before the causal mask: `[B or 1, H, T, T]`, q . k and scale included."""

    def add(formula: Formula) -> Formula:
        ORACLES.extend(Oracle(spec, against, gives, formula, unit) for spec in specs)
        return formula

    return add


@cache
def every() -> list[Oracle]:
    """The oracles of every module of this package."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return ORACLES


def dots(c: Content) -> Tensor:
    """q_i . k_j / sqrt(D)."""
    return torch.einsum("bhid,bhjd->bhij", c.q, c.k) / math.sqrt(c.q.shape[-1])


def distances(c: Content) -> Tensor:
    """Distances i - j `[T, T]`; negative in the future."""
    return c.pos[:, None] - c.pos[None, :]


def causal(c: Content) -> Tensor:
    """`[T, T]`, true where j is not after i."""
    return torch.ones(len(c.pos), len(c.pos), dtype=torch.bool).tril()


def attention(scores: Tensor, c: Content) -> Tensor:
    """Causal softmax attention `[B, H, T, D]`."""
    p = torch.softmax(scores.masked_fill(~causal(c), -math.inf), dim=-1)
    return torch.einsum("bhij,bhjd->bhid", p, c.v)
