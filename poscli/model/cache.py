"""The state of earlier tokens: keys and values for decoding, hidden states for Transformer-XL's memory.

Shapes: B batch, H heads, T further tokens, S tokens kept, D and E head widths of keys and values, F features, W model
width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from poscli.attention import Engine, Reused, attend
from poscli.equation import Encoding, Positions

PREFIX = "memory/"  # of the names of a memory's tensors in a checkpoint


@dataclass
class Room:
    """Memory for more tokens than there are, so that a growing tensor `[B, H, S, ...]` is rarely copied."""

    whole: Tensor
    filled: int  # tokens that some tensor uses; a shorter one, of a copy of the cache, takes a room of its own

    @staticmethod
    def holding(x: Tensor, more: int) -> Room:
        """A copy of a tensor, with room for `more` tokens and an eighth of all."""
        filled = x.shape[2]
        whole = x.new_empty(*x.shape[:2], (filled + more) * 9 // 8 + 16, *x.shape[3:])
        whole[:, :, :filled] = x
        return Room(whole, filled)

    def fits(self, past: Tensor, new: Tensor) -> bool:
        """Whether the past is what the room holds, and has room for more tokens."""
        same = past.data_ptr() == self.whole.data_ptr() and past.shape[2] == self.filled
        writable = torch.is_inference_mode_enabled() or not self.whole.is_inference()
        return same and writable and self.filled + new.shape[2] <= self.whole.shape[2]

    def append(self, new: Tensor) -> Tensor:
        """All tokens with further ones."""
        first, self.filled = self.filled, self.filled + new.shape[2]
        self.whole[:, :, first : self.filled] = new
        return self.whole[:, :, : self.filled]


@dataclass
class LayerCache:
    """Keys, values and features of one layer, as the projections return them, before any dependence on positions."""

    k_BHSD: Tensor | None = None
    v_BHSD: Tensor | None = None
    features_BHSF: Tensor | None = None
    last_key_BH1D: Tensor | None = None  # of the last token, in the shifted heads, which give it to the next token
    last_inputs_BTW: Tensor | None = None  # of the last tokens, for encodings that mix them into the next ones
    turned_BHSD: Tensor | None = None  # the keys at their positions, for encodings whose keys stay as they are
    room: dict[str, Room] = field(default_factory=dict)
    by_distance: dict[str, Tensor] = field(default_factory=dict)  # as in `Operands`

    def extend(self, k: Tensor, v: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append further tokens; returns the keys, values and features of all tokens so far."""
        self.k_BHSD, self.v_BHSD = self._appended("k_BHSD", k), self._appended("v_BHSD", v)
        if features is not None:
            self.features_BHSF = self._appended("features_BHSF", features)
        return self.k_BHSD, self.v_BHSD, self.features_BHSF

    def mixed(self, encoding: Encoding, x_BTW: Tensor) -> Tensor:
        """The blank `mix` of further tokens, from these and the last tokens before them."""
        past = 0 if self.last_inputs_BTW is None else self.last_inputs_BTW.shape[1]
        whole = x_BTW if self.last_inputs_BTW is None else torch.cat([self.last_inputs_BTW, x_BTW], dim=1)
        self.last_inputs_BTW = whole[:, max(0, whole.shape[1] - encoding.mixed_tokens + 1) :]
        return encoding.mix(whole)[:, past:]

    def _appended(self, name: str, new: Tensor) -> Tensor:
        """A tensor of this layer with further tokens."""
        past: Tensor | None = getattr(self, name)
        if past is None:
            return new
        if torch.is_grad_enabled():  # autograd may need the past as it was
            return torch.cat([past, new], dim=2)
        room = self.room.get(name)
        if room is None or not room.fits(past, new):
            room = self.room[name] = Room.holding(past, new.shape[2])
        return room.append(new)

    def attend(
        self,
        engine: Engine,
        encoding: Encoding,
        new: Sequence[Tensor],
        features: Tensor | None,
        positions: Positions,
        shared: int = 1,
    ) -> Tensor:
        """Attention output `[B, H, T, E]` of further tokens, whose q, k and v are `new`, to all tokens so far.

        k and v have H / `shared` heads, each for as many heads of queries.
        """
        q, k, v = new
        past = 0 if self.k_BHSD is None else self.k_BHSD.shape[2]
        whole, v, features = self.extend(k, v, features)
        whole, v = (x.repeat_interleave(shared, dim=1) if shared > 1 else x for x in (whole, v))
        if torch.is_grad_enabled():  # nothing may be kept, and what was lacks these tokens
            self.turned_BHSD = None
            return attend(engine, encoding, q, whole, v, positions, features)
        turned = None
        if encoding.keys_are_steady and "key" in encoding.blanks:
            turned = self._turned(encoding, k, past, positions.of_keys)
            turned = turned.repeat_interleave(shared, dim=1) if shared > 1 else turned
        by_distance = self.by_distance if positions.step == 1 and "positions" not in encoding.blanks else None
        reused = Reused(keys_BHSD=turned, by_distance=by_distance)
        return attend(engine, encoding, q, whole, v, positions, features, reused=reused)

    def _turned(self, encoding: Encoding, k_BHTD: Tensor, past: int, pos_S: Tensor) -> Tensor:
        """All keys at their positions, once the new ones, or all if those of the past are not known, are put there."""
        assert self.k_BHSD is not None
        if past and self.turned_BHSD is None:
            self.turned_BHSD = encoding.key(self.k_BHSD, pos_S)
        else:
            self.turned_BHSD = self._appended("turned_BHSD", encoding.key(k_BHTD, pos_S[past:]))
        return self.turned_BHSD

    def keep_last(self, tokens: int) -> None:
        """Forget all but the last tokens."""
        assert self.k_BHSD is not None
        assert self.v_BHSD is not None
        first = max(0, self.k_BHSD.shape[2] - tokens)
        self.turned_BHSD = None  # the tokens that are left are counted from 0 again
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

    def extended(self, layers: int, tokens: int) -> list[LayerCache]:
        """The state of each of a model's layers, to which they are about to add so many tokens."""
        self.layers = self.layers or [LayerCache() for _ in range(layers)]
        self.tokens, self.held = self.tokens + tokens, self.held + tokens
        return self.layers

    def for_others(self) -> Cache:
        """The same tokens for a model with other encodings; what is added to it is not added to this one."""
        layers = [
            LayerCache(each.k_BHSD, each.v_BHSD, each.features_BHSF, each.last_key_BH1D, each.last_inputs_BTW)
            for each in self.layers
        ]
        return Cache(layers, self.tokens, self.held, self.columns)

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
        states = {name.removeprefix(PREFIX): x for name, x in tensors.items() if name.startswith(PREFIX)}
        self.states = {int(layer): x.to(device) for layer, x in states.items()}

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
