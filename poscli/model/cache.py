"""The state of earlier tokens: keys and values for decoding, hidden states for Transformer-XL's memory.

Shapes: B batch, H heads, S tokens kept, D head width, F features, W model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from poscli.attention import Engine, attend
from poscli.equation import Encoding, Positions

PREFIX = "memory/"  # of the names of a memory's tensors in a checkpoint


@dataclass
class LayerCache:
    """Keys, values and features of one layer, as the projections return them, before any dependence on positions."""

    k_BHSD: Tensor | None = None
    v_BHSD: Tensor | None = None
    features_BHSF: Tensor | None = None

    def extend(self, k: Tensor, v: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append further tokens; returns the keys, values and features of all tokens so far."""
        self.k_BHSD = k if self.k_BHSD is None else torch.cat([self.k_BHSD, k], dim=2)
        self.v_BHSD = v if self.v_BHSD is None else torch.cat([self.v_BHSD, v], dim=2)
        if features is not None:
            past = self.features_BHSF
            self.features_BHSF = features if past is None else torch.cat([past, features], dim=2)
        return self.k_BHSD, self.v_BHSD, self.features_BHSF

    def attend(
        self, engine: Engine, encoding: Encoding, new: Sequence[Tensor], features: Tensor | None, positions: Positions
    ) -> Tensor:
        """Attention output `[B, H, T, E]` of further tokens, whose q, k and v are `new`, to all tokens so far."""
        q, k, v = new
        k, v, features = self.extend(k, v, features)
        return attend(engine, encoding, q, k, v, positions, features)

    def keep_last(self, tokens: int) -> None:
        """Forget all but the last tokens."""
        assert self.k_BHSD is not None
        assert self.v_BHSD is not None
        first = max(0, self.k_BHSD.shape[2] - tokens)
        self.k_BHSD, self.v_BHSD = self.k_BHSD[:, :, first:], self.v_BHSD[:, :, first:]
        if self.features_BHSF is not None:
            self.features_BHSF = self.features_BHSF[:, :, first:]


@dataclass
class Cache:
    """The state of decoding: the keys, values and features of earlier tokens in every layer."""

    layers: list[LayerCache] = field(default_factory=list)
    tokens: int = 0  # that the model has read so far
    held: int = 0  # the last of these, which are still in the cache
    columns: int | None = None  # of the grid that the text fills, for encodings of two axes

    def keep_last(self, tokens: int) -> None:
        """Forget all but the last tokens."""
        self.held = min(self.held, tokens)
        for layer in self.layers:
            layer.keep_last(tokens)


@dataclass
class Memory:
    """Transformer-XL's memory (arXiv:1901.02860): the inputs `[B, S, W]` of every layer for the last `tokens` tokens.

    They come from earlier segments and carry no gradient.
    """

    tokens: int
    states: dict[int, Tensor] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """The number of tokens remembered, S; at most `tokens`."""
        return self.states[0].shape[1] if self.states else 0

    def before(self, layer: int) -> Tensor | None:
        """The remembered inputs of a layer; None in the first segment."""
        return self.states.get(layer)

    def tensors(self) -> dict[str, Tensor]:
        """The states as named tensors for a checkpoint."""
        return {f"{PREFIX}{layer}": x for layer, x in self.states.items()}

    def load(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Restore the states from a checkpoint's tensors; tensors of other names are ignored."""
        own = {name.removeprefix(PREFIX): x for name, x in tensors.items() if name.startswith(PREFIX)}
        self.states = {int(layer): x.to(device) for layer, x in own.items()}

    def parts(self, count: int) -> list[Memory]:
        """The memories of `count` parts of the batch, of equally many windows; itself if there is one part."""
        if count == 1:
            return [self]
        chunks = {layer: x.chunk(count) for layer, x in self.states.items()}
        return [Memory(self.tokens, {layer: x[n] for layer, x in chunks.items()}) for n in range(count)]

    def join(self, parts: list[Memory]) -> None:
        """Take over what the memories of all parts have come to hold."""
        if len(parts) > 1:
            self.states = {layer: torch.cat([part.states[layer] for part in parts]) for layer in parts[0].states}

    def remember(self, layer: int, x_BTW: Tensor) -> None:
        """Remember the input of a layer in this segment for the next segment."""
        past = self.states.get(layer)
        whole = x_BTW if past is None else torch.cat([past, x_BTW], dim=1)
        self.states[layer] = whole[:, -self.tokens :].detach().contiguous()
