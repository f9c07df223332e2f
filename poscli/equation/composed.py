"""`a+b`: several encodings on one layer.

Maps (positions, embed, query, key, ...) are applied in order, terms of the scores are added, and factors multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from poscli.equation.blanks import FAST
from poscli.equation.compatibility import axes_of, entangled, scale_of
from poscli.equation.encoding import Encoding
from poscli.equation.operands import Operands


def _in_turn(blank: str, form: str | None = None) -> Callable[..., Tensor]:
    """A method that applies the blank of every part that fills it, each to the result of the previous part.

    `form` is the name of the parts' method where it is not the blank's, such as `fast_reweight`.
    """

    def through(self: Composed, x: Tensor, *rest: Tensor) -> Tensor:
        return reduce(lambda y, part: getattr(part, form or blank)(y, *rest), self.filling(blank), x)

    return through


def _summed(blank: str) -> Callable[..., Tensor]:
    """A method that sums the blank over the parts that fill it."""

    def total(self: Composed, d: Tensor) -> Tensor:
        return reduce(torch.add, (getattr(part, blank)(d) for part in self.filling(blank)))

    return total


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
        self._scale = scale_of(parts)
        self.axes = axes_of(parts)

    def filling(self, blank: str) -> list[Encoding]:
        """The parts that fill a blank, in order."""
        return [part for part in self.parts if blank in part.blanks]

    def features_of(self, f: Tensor | None) -> dict[Encoding, Tensor | None]:
        """The features of each part, None for a part without features; `f` `[B, H, S, F]` is their concatenation."""
        if f is None:
            return dict.fromkeys(self.parts)
        split = f.split([part.feature_width for part in self.parts], dim=-1)
        return {part: own if part.feature_width else None for part, own in zip(self.parts, split, strict=True)}

    @property
    def scale(self) -> float:
        return self._scale

    @property
    def rescales(self) -> bool:  # type: ignore[override]  # a part may learn it later, from its checkpoint
        return any(part.rescales for part in self.parts)

    @property
    def formula(self) -> str:
        own = type(self) is not Composed  # a subclass has a formula, and its parts are its own affair
        return super().formula if own else "; ".join(f"{part.name}: {part.formula}" for part in self.parts)

    positions, embed = _in_turn("positions"), _in_turn("embed")
    content_query, query, key = _in_turn("content_query"), _in_turn("query"), _in_turn("key")
    value, output = _in_turn("value"), _in_turn("output")
    reweight, fast_reweight = _in_turn("reweight"), _in_turn("reweight", "fast_reweight")
    distance_bias = _summed("distance_bias")
    relative_queries, relative_values = _summed("relative_queries"), _summed("relative_values")

    def switched_off(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        return list(dict.fromkeys(why for part in self.parts for why in part.switched_off(device, dtype)))

    def longest(self, dtype: torch.dtype) -> int | None:
        return min((n for part in self.parts if (n := part.longest(dtype)) is not None), default=None)

    def features(self, x_BTW: Tensor) -> Tensor:
        return torch.cat([part.features(x_BTW) for part in self.filling("features")], dim=-1)

    def temperature(self, n: Tensor) -> Tensor:
        return reduce(torch.mul, (part.temperature(n) for part in self.filling("temperature")))

    @property
    def reach(self) -> int | None:
        return min((part.reach for part in self.filling("reach")), default=None)  # type: ignore[type-var]

    @property
    def sinks(self) -> int:
        return max((part.sinks for part in self.filling("sinks")), default=0)

    def relative_query(self, q_BHTD: Tensor) -> Tensor:
        """The relative queries of all parts, concatenated along the channels in the order of `relative_keys`."""
        return torch.cat([part.relative_query(q_BHTD) for part in self.filling("relative_keys")], dim=-1)

    def relative_keys(self, d: Tensor) -> Tensor:
        parts = [part.relative_keys(d) for part in self.filling("relative_keys")]
        heads = max(len(a_HND) for a_HND in parts)
        return torch.cat([a_HND.expand(heads, -1, -1) for a_HND in parts], dim=-1)

    def potential(self, f_BHSF: Tensor) -> Tensor:
        own = self.features_of(f_BHSF)
        return reduce(torch.add, (part.potential(_given(own[part])) for part in self.filling("potential")))

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return self._biases("bias", i, j, f_i, f_j)

    def fast_bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return self._biases("fast_bias", i, j, f_i, f_j)

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
        return owner.kernel_form(self._seen_by(owner, x))

    def _with_fast_forms(self) -> list[Encoding]:
        return [part for part in self.parts if part.blanks & set(FAST)]

    def similarity(self, x: Operands) -> Tensor:
        return self._similarity("similarity", x)

    def fast_similarity(self, x: Operands) -> Tensor:
        return self._similarity("fast_similarity", x)

    def scores(self, s_BHTS: Tensor, x: Operands) -> Tensor:
        return self._scores("scores", s_BHTS, x)

    def fast_scores(self, s_BHTS: Tensor, x: Operands) -> Tensor:
        return self._scores("fast_scores", s_BHTS, x)

    def weights(self, s_BHTS: Tensor) -> Tensor:
        owners = self.filling("weights")
        return owners[0].weights(s_BHTS) if owners else super().weights(s_BHTS)

    def fast_weights(self, s_BHTS: Tensor) -> Tensor:
        owners = self.filling("weights")
        return owners[0].fast_weights(s_BHTS) if owners else super().weights(s_BHTS)

    def _biases(self, form: str, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        of_i, of_j = self.features_of(f_i), self.features_of(f_j)
        return reduce(torch.add, (getattr(part, form)(i, j, of_i[part], of_j[part]) for part in self.filling("bias")))

    def _similarity(self, form: str, x: Operands) -> Tensor:
        owners = self.filling("similarity")
        return getattr(owners[0], form)(self._seen_by(owners[0], x)) if owners else super().similarity(x)

    def _scores(self, form: str, s_BHTS: Tensor, x: Operands) -> Tensor:
        for part in self.filling("scores"):
            s_BHTS = getattr(part, form)(s_BHTS, self._seen_by(part, x))
        return s_BHTS

    def _seen_by(self, part: Encoding, x: Operands) -> Operands:
        """The operands with the features of one part only."""
        return replace(x, features_BHSF=self.features_of(x.features_BHSF)[part])


def _given(f: Tensor | None) -> Tensor:
    assert f is not None, "a potential is computed from features"
    return f
