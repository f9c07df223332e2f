"""A checkpoint as a model: transformers' own layers, with poscli's encodings in the place of their positions.

Whatever a model type does with positions is switched off where it does it, and poscli's attention runs in the place of
its attention. So the weights, norms and layers are those of transformers, and every encoding that a model can take acts
on the outputs of its projections.

Shapes: B windows, T tokens, H heads, G heads of keys and values, D head width, W model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from poscli.attention import Choice, Place, attend, choose
from poscli.checkpoints.architecture import Architecture
from poscli.config.size import SLICE_NUMBERS
from poscli.equation import Encoding, Positions, Shape


@dataclass
class Seats:
    """Where attention of the stock model finds the encoding of its layer, and the positions of the current input."""

    head_width: int
    encodings: Sequence[Encoding] = ()
    positions: dict[int, Positions] = field(default_factory=dict)

    def attend(self, layer: int, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, scaling: float) -> Tensor:
        """Attention output `[B, H, T, D]` from the outputs of the projections; `scaling` is the factor on q . k."""
        encoding, dtype = self.encodings[layer], q_BHTD.dtype
        inner = attention_dtype(q_BHTD)
        shared = q_BHTD.shape[1] // k_BGTD.shape[1]
        k_BHTD, v_BHTD = (x.to(inner).repeat_interleave(shared, dim=1) for x in (k_BGTD, v_BGTD))
        q_BHTD = q_BHTD.to(inner)
        if (ratio := scaling / encoding.scale) != 1:
            q_BHTD = q_BHTD * ratio
        engine = self.choice(encoding, q_BHTD).engine
        return attend(engine, encoding, q_BHTD, k_BHTD, v_BHTD, self.positions[id(encoding)]).to(dtype)

    def choice(self, encoding: Encoding, like: Tensor) -> Choice:
        """The engine that runs an encoding where a tensor is."""
        device, dtype = like.device, attention_dtype(like)
        place = Place(device.type, dtype, self.head_width, gradient=False, here=device)
        return choose(encoding, None, place)


def attention_dtype(like: Tensor) -> torch.dtype:
    """The number format of attention: float32 on CPU, where kernels in half precision are slow, else the model's."""
    return torch.float32 if like.device.type == "cpu" else like.dtype


class CheckpointModel:
    """A loaded checkpoint under one encoding per layer. Several of them may share a stock model."""

    def __init__(self, stock: Any, seats: Seats, architecture: Architecture, encodings: Sequence[Encoding]) -> None:
        self.stock, self.architecture, self._seats = stock, architecture, seats
        self.encodings = tuple(encodings)

    @property
    def shape(self) -> Shape:
        a = self.architecture
        return Shape(width=a.heads * a.head_width, heads=a.heads, layers=len(a.layers), length=a.length, vocab=a.vocab)

    @property
    def device(self) -> torch.device:
        return next(self.stock.parameters()).device

    @property
    def attention_dtype(self) -> torch.dtype:
        return attention_dtype(next(self.stock.parameters()))

    @property
    def engine(self) -> str:
        return "+".join(dict.fromkeys(choice.name for choice in self._choices()))

    @property
    def engine_reason(self) -> str:
        return "; ".join(dict.fromkeys(choice.reason for choice in self._choices() if choice.reason))

    def _choices(self) -> list[Choice]:
        like = next(self.stock.parameters())
        return [self._seats.choice(encoding, like) for encoding in self.encodings]

    def under(self, encodings: Sequence[Encoding]) -> Self:
        return type(self)(self.stock, self._seats, self.architecture, encodings)

    def __call__(self, tokens_BT: Tensor) -> Tensor:
        """Logits `[B, T, V]` of all tokens."""
        return torch.cat([logits for _, logits in self.logits_in_slices(tokens_BT)], dim=1)

    def logits_in_slices(self, tokens_BT: Tensor) -> Iterator[tuple[slice, Tensor]]:
        states_BTW = self.states(tokens_BT)
        step = max(1, SLICE_NUMBERS // (len(tokens_BT) * self.architecture.vocab))
        for first in range(0, tokens_BT.shape[1], step):
            part = slice(first, first + step)
            yield part, head(self.stock, tokens_BT[:, part], states_BTW[:, part])

    def states(self, tokens_BT: Tensor) -> Tensor:
        """The last layer's output `[B, T, W]`, as the head takes it."""
        distinct = {id(encoding): encoding for encoding in self.encodings}
        self._seats.encodings = self.encodings
        self._seats.positions = {
            key: encoding.locate(tokens_BT.shape[1], tokens_BT.device) for key, encoding in distinct.items()
        }
        return trunk_of(self.stock)(input_ids=tokens_BT, use_cache=False).last_hidden_state


def trunk_of(stock: Any) -> Any:
    """The stock model without its head. (Gemma 3 in version 4 of transformers calls itself its base model.)"""
    trunk = stock.base_model
    return stock.model if trunk is stock else trunk


def head(stock: Any, tokens_BT: Tensor, states_BTW: Any) -> Tensor:
    """The logits of the stock model for states that its layers have computed.

    This is the model's own code after its layers, whatever it is (a factor, a cap, a norm): only the layers are
    replaced, by a function that returns the states.
    """
    from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as Output

    with replaced(trunk_of(stock), "forward", lambda *_, **__: Output(last_hidden_state=states_BTW)):
        return stock(input_ids=tokens_BT, use_cache=False).logits


@contextmanager
def replaced(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Replace a method of one module in a block."""
    before = vars(module).get(name)
    setattr(module, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(module, name)
        else:
            setattr(module, name, before)
