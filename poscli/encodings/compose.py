"""`a+b`: several encodings on the same layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor, nn

from poscli.encodings.base import Encoding

# blanks of which a layer can have only one, and what to call them
EXCLUSIVE = {"weights": "what replaces the softmax", "features": "features per token"}


class Both(Encoding):
    """Encodings that act together: maps are applied in order, terms of the scores are added."""

    paper, family = "", "composition"

    def __init__(self, parts: Sequence[Encoding]) -> None:
        super().__init__(parts[0].shape)
        self.parts = nn.ModuleList(parts)
        self.name = "+".join(part.name for part in parts)  # type: ignore[misc]
        self.blanks = frozenset().union(*(part.blanks for part in parts))
        self.rescales = any(part.rescales for part in parts)  # type: ignore[misc]
        for blank, phrase in EXCLUSIVE.items():
            owners = [part.name for part in self._with(blank)]
            if len(owners) > 1:
                raise ValueError(f"{' and '.join(owners)} both define {phrase}; keep one of them")
        scales = {part.scale for part in parts} - {super().scale}
        if len(scales) > 1:
            raise ValueError(f"{' and '.join(part.name for part in parts)} state different scales of q . k; keep one")
        self._scale = scales.pop() if scales else super().scale

    def _with(self, blank: str) -> list[Encoding]:
        parts: list[Encoding] = list(self.parts)  # type: ignore[arg-type]
        return [part for part in parts if blank in part.blanks]

    def _through(self, blank: str, x: Tensor, *rest: Tensor) -> Tensor:
        return reduce(lambda y, part: getattr(part, blank)(y, *rest), self._with(blank), x)

    def _sum(self, blank: str, *at: Tensor | None) -> Tensor:
        return reduce(torch.add, (getattr(part, blank)(*at) for part in self._with(blank)))

    @property
    def scale(self) -> float:
        return self._scale

    def positions(self, index: Tensor) -> Tensor:
        return self._through("positions", index)

    def embed(self, x_BTW: Tensor, pos: Tensor) -> Tensor:
        return self._through("embed", x_BTW, pos)

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return self._through("query", q_BHTD, pos)

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        return self._through("key", k_BHSD, pos)

    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        return self._through("value", v_BHSD, pos)

    def output(self, o_BHTD: Tensor, pos: Tensor) -> Tensor:
        return self._through("output", o_BHTD, pos)

    def features(self, x_BTW: Tensor) -> Tensor | None:
        owners = self._with("features")
        return owners[0].features(x_BTW) if owners else None

    def distance_bias(self, d: Tensor) -> Tensor:
        return self._sum("distance_bias", d)

    def relative_query(self, q_BHTD: Tensor) -> Tensor:
        """Each part's vectors meet its own query: queries and vectors stand side by side in one wider head."""
        return torch.cat([part.relative_query(q_BHTD) for part in self._with("relative_keys")], dim=-1)

    def relative_keys(self, d: Tensor) -> Tensor:
        parts = [part.relative_keys(d) for part in self._with("relative_keys")]
        heads = max(len(a_HND) for a_HND in parts)
        return torch.cat([a_HND.expand(heads, -1, -1) for a_HND in parts], dim=-1)

    def relative_queries(self, d: Tensor) -> Tensor:
        return self._sum("relative_queries", d)

    def relative_values(self, d: Tensor) -> Tensor:
        return self._sum("relative_values", d)

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return self._sum("bias", i, j, f_i, f_j)

    def scores(self, s_BHTS: Tensor, q_BHTD: Tensor) -> Tensor:
        return self._through("scores", s_BHTS, q_BHTD)

    def weights(self, s_BHTS: Tensor) -> Tensor:
        owners = self._with("weights")
        return owners[0].weights(s_BHTS) if owners else super().weights(s_BHTS)

    def mix(self, p_BHTS: Tensor, d_TS: Tensor) -> Tensor:
        return self._through("mix", p_BHTS, d_TS)
