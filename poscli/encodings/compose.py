"""`a+b`: several encodings on the same layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from poscli.encodings.base import Encoding
from poscli.encodings.rules import entangled, scale_of

if TYPE_CHECKING:
    from poscli.attention.operands import Operands


def _in_turn(blank: str) -> Callable[..., Tensor]:
    def through(self: Both, x: Tensor, *rest: Tensor) -> Tensor:
        return reduce(lambda y, part: getattr(part, blank)(y, *rest), self._with(blank), x)

    return through


def _summed(blank: str) -> Callable[..., Tensor]:
    def total(self: Both, d: Tensor) -> Tensor:
        return reduce(torch.add, (getattr(part, blank)(d) for part in self._with(blank)))

    return total


class Both(Encoding):
    """Encodings that act together: maps are applied in order, terms of the scores are added, factors multiplied."""

    paper, family = "", "composition"

    def __init__(self, parts: Sequence[Encoding]) -> None:
        super().__init__(parts[0].shape)
        self.parts = nn.ModuleList(parts)
        self.name = "+".join(part.name for part in parts)  # type: ignore[misc]
        self.blanks = frozenset().union(*(part.blanks for part in parts))
        self.rescales = any(part.rescales for part in parts)
        self.relative = all(part.relative for part in parts) and not entangled(parts)
        self._widths: list[int] = []  # of the features of each part that has some
        self._scale = scale_of(parts)

    def _with(self, blank: str) -> list[Encoding]:
        parts: list[Encoding] = list(self.parts)  # type: ignore[arg-type]
        return [part for part in parts if blank in part.blanks]

    def _features_of(self, f: Tensor | None) -> dict[Encoding, Tensor | None]:
        """Each part's own features."""
        pieces: Iterator[Tensor | None] = iter([] if f is None else f.split(self._widths, dim=-1))
        owners = set(self._with("features"))
        return {part: next(pieces) if part in owners else None for part in self.parts}  # type: ignore[misc]

    @property
    def scale(self) -> float:
        return self._scale

    positions, embed = _in_turn("positions"), _in_turn("embed")
    content_query, query, key = _in_turn("content_query"), _in_turn("query"), _in_turn("key")
    value, output = _in_turn("value"), _in_turn("output")
    distance_bias, mix = _summed("distance_bias"), _in_turn("mix")
    relative_queries, relative_values = _summed("relative_queries"), _summed("relative_values")

    def longest(self, dtype: torch.dtype) -> int | None:
        parts: list[Encoding] = list(self.parts)  # type: ignore[arg-type]
        return min((n for part in parts if (n := part.longest(dtype)) is not None), default=None)

    def features(self, x_BTW: Tensor) -> Tensor:
        parts = [part.features(x_BTW) for part in self._with("features")]
        self._widths = [f_BHTF.shape[-1] for f_BHTF in parts]
        return torch.cat(parts, dim=-1)

    def temperature(self, n: Tensor) -> Tensor:
        return reduce(torch.mul, (part.temperature(n) for part in self._with("temperature")))

    @property
    def reach(self) -> int | None:
        return min((part.reach for part in self._with("reach")), default=None)  # type: ignore[type-var]

    def relative_query(self, q_BHTD: Tensor) -> Tensor:
        """Each part's vectors meet its own query: queries and vectors stand side by side in one wider head."""
        return torch.cat([part.relative_query(q_BHTD) for part in self._with("relative_keys")], dim=-1)

    def relative_keys(self, d: Tensor) -> Tensor:
        parts = [part.relative_keys(d) for part in self._with("relative_keys")]
        heads = max(len(a_HND) for a_HND in parts)
        return torch.cat([a_HND.expand(heads, -1, -1) for a_HND in parts], dim=-1)

    def potential(self, f_BHSF: Tensor) -> Tensor:
        own = self._features_of(f_BHSF)
        return reduce(torch.add, (part.potential(_given(own[part])) for part in self._with("potential")))

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        of_i, of_j = self._features_of(f_i), self._features_of(f_j)
        return reduce(torch.add, (part.bias(i, j, of_i[part], of_j[part]) for part in self._with("bias")))

    def similarity(self, x: Operands) -> Tensor:
        for owner in self._with("similarity"):
            return owner.similarity(replace(x, features_BHSF=self._features_of(x.features_BHSF)[owner]))
        return super().similarity(x)

    def scores(self, s_BHTS: Tensor, x: Operands) -> Tensor:
        own = self._features_of(x.features_BHSF)
        for part in self._with("scores"):
            s_BHTS = part.scores(s_BHTS, replace(x, features_BHSF=own[part]))
        return s_BHTS

    def weights(self, s_BHTS: Tensor) -> Tensor:
        for owner in self._with("weights"):
            return owner.weights(s_BHTS)
        return super().weights(s_BHTS)


def _given(f: Tensor | None) -> Tensor:
    assert f is not None, "a potential is made of features"
    return f
