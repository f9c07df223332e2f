"""`a+b`: several encodings on one layer, and which encodings may act together.

How the parts fill a blank together is declared in blanks.py: maps (positions, embed, query, key, ...) are applied in
order, terms of the scores are added, and factors multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from poscli.equation.blanks import BLANKS, FAST, OF_FEATURES, not_computed_by, see_positions
from poscli.equation.encoding import Encoding
from poscli.equation.operands import Operands


class Composed(Encoding):
    """Encodings that act together on one layer; the constructor raises ValueError if they cannot."""

    paper, family = "", "composition"
    parts: MutableSequence[Encoding]

    def __init__(self, parts: Sequence[Encoding]) -> None:
        super().__init__(parts[0].shape)
        self.parts = nn.ModuleList(parts)  # type: ignore[assignment]
        self.name = "+".join(part.name for part in parts)  # type: ignore[misc]
        self.blanks = frozenset().union(*(part.blanks for part in parts))
        self.relative = all(part.relative for part in parts) and not entangled(parts)
        self.feature_width = sum(part.feature_width for part in parts)
        self.mixed_tokens = 1 + sum(part.mixed_tokens - 1 for part in parts)
        self._scale = scale_of(parts)
        self.axes = axes_of(parts)

    def filling(self, blank: str) -> list[Encoding]:
        return [part for part in self.parts if blank in part.blanks]

    def narrowed(self, part: Any, method: Callable[..., Any], takes: Sequence[str]) -> Callable[..., Any]:
        return lambda *arguments: method(*map(partial(self._seen_by, part), takes, arguments))

    def features_of(self, f: Tensor | None) -> dict[Encoding, Tensor | None]:
        """The features of each part, None for a part without features; `f` `[B, H, S, F]` is their concatenation."""
        if f is None:
            return dict.fromkeys(self.parts)
        split = f.split([part.feature_width for part in self.parts], dim=-1)
        return {part: f_part if part.feature_width else None for part, f_part in zip(self.parts, split, strict=True)}

    def _seen_by(self, part: Encoding, name: str, value: Any) -> Any:
        """An argument of a blank, by its name, as one part sees it: of the features, only its own."""
        if name in OF_FEATURES:
            return self.features_of(value)[part]
        return replace(value, features_BHSF=self.features_of(value.features_BHSF)[part]) if name == "x" else value

    @property
    def scale(self) -> float:
        return self._scale

    @property
    def rescales(self) -> bool:  # type: ignore[override]  # a part may learn it later, from its checkpoint
        return any(part.rescales for part in self.parts)

    @property
    def formula(self) -> str:
        if type(self) is not Composed:  # a subclass has a formula, and its parts are its own affair
            return super().formula
        return "; ".join(f"{part.name}: {part.formula}" for part in self.parts)

    def longest(self, dtype: torch.dtype) -> int | None:
        return min((n for part in self.parts if (n := part.longest(dtype)) is not None), default=None)

    @property
    def keys_are_steady(self) -> bool:
        return all(part.keys_are_steady for part in self.parts)

    @property
    def has_kernel_form(self) -> bool:
        owners = self._with_fast_forms()
        return len(owners) == 1 and owners[0].has_kernel_form

    @property
    def kernel_form_has_gradient(self) -> bool:
        owners = self._with_fast_forms()
        return len(owners) == 1 and owners[0].kernel_form_has_gradient

    def kernel_form(self, x: Operands) -> Any:
        (owner,) = self._with_fast_forms()
        return owner.kernel_form(self._seen_by(owner, "x", x))

    def _with_fast_forms(self) -> list[Encoding]:
        return [part for part in self.parts if part.blanks & FAST or not_computed_by("native", part.blanks)]


def leaf_encodings(encoding: Encoding) -> list[Encoding]:
    """The encodings of a layer, one for each leaf of its spec: the parts of a `Composed`, else the encoding alone.

    A subclass of `Composed`, which has a formula of its own, is one leaf.
    """
    return list(encoding.parts) if type(encoding) is Composed else [encoding]


def scale_of(parts: Sequence[Encoding]) -> float:
    """The scale of q . k that all parts agree on; ValueError for encodings that cannot act together."""
    for blank in BLANKS.values():
        names = [part.name for part in parts if blank.name in part.blanks]
        if blank.only and len(names) > 1:
            raise ValueError(f"{' and '.join(names)} both define {blank.only}; keep one of them")
    for one in parts:
        for other in parts:
            if other is not one and "similarity" in one.blanks and _turns(other):
                raise ValueError(f"{one.name} replaces q . k and {other.name} turns q and k; keep one of them")
    usual = parts[0].shape.head_width ** -0.5
    scales = {part.scale for part in parts} - {usual}
    if len(scales) > 1:
        raise ValueError(f"{' and '.join(part.name for part in parts)} state different scales of q . k; keep one")
    return scales.pop() if scales else usual


def axes_of(parts: Sequence[Encoding]) -> int:
    """The axes of the positions that all parts share; ValueError if some count along a line and some on a grid."""
    seeing = [part for part in parts if see_positions(part.blanks)]
    for part in seeing[1:]:
        if part.axes != seeing[0].axes:
            line, grid = sorted((seeing[0], part), key=lambda each: each.axes)
            raise ValueError(
                f"{line.name} counts positions along a line and {grid.name} on a grid; alternate them with |, or keep "
                f"one of them"
            )
    return seeing[0].axes if seeing else 1


def entangled(parts: Sequence[Encoding]) -> bool:
    """True if scores may depend on absolute positions although those of each part depend on differences only.

    This can happen where two parts change q and k one after the other, and where a potential or pair bias that only
    the softmax would cancel meets a blank that sees the scores themselves, or is compared with them.
    """
    names = {name for part in parts for name in part.blanks}
    blanks = [BLANKS[name] for name in names]
    of_pairs, of_scores = (blank.tier == "pair" for blank in blanks), (blank.takes_any("s_BHTS") for blank in blanks)
    # A potential stays a difference beside a null key; a pair bias may have a term of the query alone.
    compared = {"bias", "null_score"} <= names
    return sum(map(_turns, parts)) > 1 or (any(of_pairs) and any(of_scores)) or compared


def _turns(part: Encoding) -> bool:
    """Whether it turns queries or keys by their positions."""
    return any(BLANKS[name].turns for name in part.blanks)
