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
    # What transformers takes where config.json has no such key.
    length: int | None = None  # tokens of the longest input
    heads_of_keys: int | None = None  # None: as many as heads of queries
    head_width: int | None = None  # None: the model's width over its heads

    @abstractmethod
    def layers(self, config: Config, count: int, head_width: int, length: int) -> list[Layer]:
        """The positions of each of `count` layers; DataError for values that cannot be, UsageError for unknown ones.

        `length` is L, the trained length.
        """

    def kv_heads(self, config: Config, heads: int) -> int:
        """The number of heads of keys and values, each of which serves several heads of queries."""
        return whole({"num_key_value_heads": self.heads_of_keys, **config}, ("num_key_value_heads",), heads)
