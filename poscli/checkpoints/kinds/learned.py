"""Model types with a learned table of positions, whose rows are among the weights."""

from __future__ import annotations

from dataclasses import dataclass

from poscli.checkpoints.fields import Config
from poscli.checkpoints.kinds.kind import Kind, Layer


@dataclass(frozen=True, kw_only=True)
class Learned(Kind):
    """One row for each position below the trained length, added to the token embedding."""

    name = "learned"

    def layers(self, config: Config, count: int, head_width: int, length: int) -> list[Layer]:
        return [Layer("learned")] * count


LEARNED: dict[str, Kind] = {"gpt2": Learned(length=1024), "opt": Learned(length=2048)}
