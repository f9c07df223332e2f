"""What an evaluation needs of a model: poscli's own `Model` has it, and so has a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from poscli.attention import Engine
from poscli.equation import Encoding, Shape
from poscli.model.cache import Cache


class LanguageModel(Protocol):
    """A trained decoder with an encoding on each layer."""

    @property
    def shape(self) -> Shape:
        """The sizes that its encodings are built for."""

    @property
    def device(self) -> torch.device:
        """Where its weights are."""

    @property
    def attention_dtype(self) -> torch.dtype:
        """The number format of queries and keys."""

    @property
    def encodings(self) -> Sequence[Encoding]:
        """The encoding of each layer; layers may share an instance."""

    @property
    def engine(self) -> str:
        """The names of the attention engines that run, joined by +."""

    @property
    def engine_reason(self) -> str:
        """Why no faster engine runs; empty if the fastest one does."""

    def under(self, encodings: Sequence[Encoding], engine: Engine | None = None) -> Self:
        """A model with the same weights, and with these encodings on its layers.

        All of them are computed by `engine`; None: each by the fastest that can.
        """

    def __call__(self, tokens_BT: Tensor) -> Tensor:
        """Logits `[B, T, V]` of all tokens."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """The weights, each once."""

    def logits_in_slices(
        self, tokens_BT: Tensor, last: int | None = None, *, cache: Cache | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Logits `[B, n, V]` of slices of the `last` tokens (None: of all), in order.

        The yielded tensor may be reused: copy it before the next iteration. Slices count from the first of these. With
        a cache, the tokens continue the text whose state it holds, and are added to it.
        """
