"""The base class of the kinds of positions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from poscli.checkpoints.fields import Config, whole


@dataclass(frozen=True)
class Layer:
    """The positions of one layer: a spec of poscli, and numbers that are too many for a spec, by name."""

    spec: str
    numbers: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Kind(ABC):
    """How model types state their positions in config.json."""

    name: ClassVar[str]  # for people, such as "rotary"
    length: int | None = None  # what transformers takes for the trained length where config.json has none

    @abstractmethod
    def layers(self, config: Config, count: int, head_width: int, length: int) -> list[Layer]:
        """The positions of each of `count` layers; DataError for values that cannot be, UsageError for unknown ones.

        `length` is L, the trained length.
        """

    def kv_heads(self, config: Config, heads: int) -> int:
        """The number of heads of keys and values, each of which serves several heads of queries."""
        return whole(config, ("num_key_value_heads",), heads)
