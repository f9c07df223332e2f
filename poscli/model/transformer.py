"""The language model around an encoding: decoder-only, pre-norm, RMSNorm, no biases, SwiGLU.

The constructor leaves matrices uninitialised; initialise.py draws them. Norms and the gate of the MLP are computed
by the compiled kernels where these can run, which differ from torch's in rounding only.

Shapes: B batch, T tokens, H heads, D head width, W model width, V vocabulary, S all tokens so far.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from poscli.attention import Choice, Engine, Place, attend, choose
from poscli.config.run import ModelConfig
from poscli.config.size import SLICE_NUMBERS
from poscli.equation import Encoding, Positions, Shape
from poscli.equation.blanks import BLANKS
from poscli.equation.encoding import begin_step
from poscli.model.cache import Cache, LayerCache, Memory
from poscli.model.loss import vocabulary_loss
from poscli.native import library
from poscli.native.layers import rms_norm, swiglu


@dataclass(frozen=True)
class Precision:
    """Dtypes of the matrix products and of attention."""

    linear: torch.dtype = torch.float32
    attention: torch.dtype = torch.float32


def precision_of(name: str, device: torch.device) -> Precision:
    """The dtypes for a precision, such as `bfloat16`, on a device.

    On CUDA, everything but norms and loss has the precision. On CPU, only the matrix products have it: the bfloat16
    backward pass of torch's fused attention takes 5 times as long there as that in float32.
    """
    if name == "float32":
        return Precision()
    dtype = getattr(torch, name)
    return Precision(linear=dtype, attention=dtype if device.type == "cuda" else torch.float32)


EPSILON = 1e-6


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + 1e-6) * weight."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        kernels = _kernels(x, self.weight)
        return super().forward(x) if kernels is None else rms_norm(kernels, x, self.weight, EPSILON)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    kernels = _kernels(gate, up)
    return F.silu(gate) * up if kernels is None else swiglu(kernels, gate, up)


def _kernels(*tensors: Tensor) -> ctypes.CDLL | None:
    """The library, if it can compute with these tensors."""
    plain = all(
        x.device.type == "cpu" and x.dtype == torch.float32 and type(x) in (Tensor, nn.Parameter) for x in tensors
    )
    return library() if plain and not torch.compiler.is_compiling() else None


class Linear(nn.Module):
    """x W^T, multiplied in the precision of the matrix products and returned in the dtype `out`."""

    def __init__(self, inputs: int, outputs: int, precision: Precision) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.precision = precision

    def forward(self, x: Tensor, out: torch.dtype = torch.float32) -> Tensor:
        dtype = self.precision.linear
        return F.linear(x.to(dtype), self.weight.to(dtype)).to(out)


def shift_keys(k_BHSD: Tensor, heads: int, before_BH1D: Tensor | None = None) -> Tensor:
    """The keys, in the first `heads` heads those of the token before; the first token has `before`, by default zeros.

    Such a head finds the token that followed an earlier occurrence of the present one, so that a single layer can copy;
    without it, that takes a head in an earlier layer which attends to the token before. It is the smeared key of Olsson
    et al. (2022, arXiv:2209.11895) with the weights 0 and 1.
    """
    moved = k_BHSD[:, :heads]
    first = torch.zeros_like(moved[:, :, :1]) if before_BH1D is None else before_BH1D
    return torch.cat([torch.cat([first, moved[:, :, :-1]], dim=2), k_BHSD[:, heads:]], dim=1)


class Attention(nn.Module):
    """Multi-head attention. Everything that concerns positions is left to the encoding."""

    def __init__(self, config: ModelConfig, encoding: Encoding, precision: Precision) -> None:
        super().__init__()
        self.heads, self.shifted, self.precision = config.heads, config.shifted, precision
        self.q, self.k, self.v, self.o = (Linear(config.width, config.width, precision) for _ in range(4))
        self.encoding = encoding
        self.wanted: str | Engine | None = None  # the engine to use; None: the fastest that can run the encoding

    def forward(
        self, x_BTW: Tensor, positions: Positions, cache: LayerCache | None, before_BSW: Tensor | None
    ) -> Tensor:
        """Attention output `[B, T, W]`. `before_BSW` are earlier tokens, which have keys and values but no queries."""
        encoding, engine = self.encoding, self.choice.engine
        q, k, v, features = self.projected(x_BTW, cache, before_BSW)
        if cache is None:
            o_BHTD = attend(engine, encoding, q, k, v, positions, features)
        else:
            o_BHTD = cache.attend(engine, encoding, (q, k, v), features, positions)
        return self.o(o_BHTD.transpose(1, 2).flatten(2))

    def projected(
        self, x_BTW: Tensor, cache: LayerCache | None = None, before_BSW: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries `[B, H, T, D]`, keys, values and features of the tokens given, without those that a cache holds.

        The cache gives, and is given, what the last tokens pass on to the next ones.
        """
        encoding, dtype = self.encoding, self.precision.attention
        x_BSW = x_BTW if before_BSW is None else torch.cat([before_BSW, x_BTW], dim=1)
        if "mix" in encoding.blanks:
            x_BSW = encoding.mix(x_BSW) if cache is None else cache.mixed(encoding, x_BSW)
            x_BTW = x_BSW[:, -x_BTW.shape[1] :]
        q, k, v = (self._heads(p(x, dtype)) for p, x in ((self.q, x_BTW), (self.k, x_BSW), (self.v, x_BSW)))
        if self.shifted:
            before = None if cache is None else cache.last_key_BH1D
            if cache is not None:
                cache.last_key_BH1D = k[:, : self.shifted, -1:]
            k = shift_keys(k, self.shifted, before)
        return q, k, v, encoding.features(x_BSW)

    @property
    def choice(self) -> Choice:
        """The engine for the device of the weights and the current gradient mode."""
        return choose(self.encoding, self.wanted, self.place)

    @property
    def place(self) -> Place:
        """The circumstances of its calls that decide which engines can run."""
        weight = self.o.weight
        gradient = torch.is_grad_enabled() and weight.requires_grad
        width, device = weight.shape[1] // self.heads, weight.device
        return Place(device.type, self.precision.attention, width, gradient, here=device)

    def _heads(self, x_BTW: Tensor) -> Tensor:
        return x_BTW.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """x + attention(norm x), then x + mlp(norm x)."""

    def __init__(self, config: ModelConfig, encoding: Encoding, precision: Precision) -> None:
        super().__init__()
        self.norm_attention = RMSNorm(config.width)
        self.attention = Attention(config, encoding, precision)
        self.norm_mlp = RMSNorm(config.width)
        self.gate = Linear(config.width, config.mlp, precision)
        self.up = Linear(config.width, config.mlp, precision)
        self.down = Linear(config.mlp, config.width, precision)

    def forward(
        self, x_BTW: Tensor, positions: Positions, cache: LayerCache | None, before_BSW: Tensor | None
    ) -> Tensor:
        before_BSW = None if before_BSW is None else self.norm_attention(before_BSW)
        x_BTW = x_BTW + self.attention(self.norm_attention(x_BTW), positions, cache, before_BSW)
        return self.feed_forward(x_BTW)

    def feed_forward(self, x_BTW: Tensor) -> Tensor:
        """The second half of a layer, x + mlp(norm x), which no encoding touches."""
        normed_BTW, dtype = self.norm_mlp(x_BTW), self.up.precision.linear
        return x_BTW + self.down(gated(self.gate(normed_BTW, dtype), self.up(normed_BTW, dtype)))


class Model(nn.Module):
    """Token ids `[B, T]` to logits `[B, T, V]`."""

    def __init__(
        self, config: ModelConfig, encodings: Sequence[Encoding], *, vocab: int, length: int, precision: Precision
    ) -> None:
        super().__init__()
        self.precision = precision
        self.config, self.vocab, self.length = config, vocab, length
        self.embedding = nn.Parameter(torch.empty(vocab, config.width))
        self.layers = nn.ModuleList(Layer(config, encoding, precision) for encoding in encodings)
        self.norm = RMSNorm(config.width)
        self.head = Linear(config.width, vocab, precision)

    def forward(self, tokens_BT: Tensor, *, cache: Cache | None = None, memory: Memory | None = None) -> Tensor:
        """Logits of every token. With a cache or a memory, the tokens continue the text whose state it holds.

        Encodings of two axes see the tokens on a grid: that of `grid_shape`, or of the columns that the cache states.

        A model that was trained with a memory reads longer inputs segment by segment, as in training. Raises
        Unsupported for a position that the encoding does not have.
        """
        if self.config.memory and memory is None:
            return self._by_segments(tokens_BT, Cache() if cache is None else cache)
        return self.head(self._states(tokens_BT, cache, memory))

    def logits_in_slices(
        self, tokens_BT: Tensor, last: int | None = None, *, cache: Cache | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Logits `[B, n, V]` of slices of the last tokens, in order: one slice, unless the vocabulary is large.

        `last` is the number of tokens (None: all); slices count from the first of these. Without a cache, each layer
        computes only what their logits depend on. A model with a memory computes all logits, and yields one slice.
        """
        last = last or tokens_BT.shape[1]
        step = max(1, SLICE_NUMBERS // (len(tokens_BT) * self.vocab))
        if self.config.memory:
            yield slice(None), self(tokens_BT, cache=cache)[:, -last:]
            return
        x_BTW = self._states(tokens_BT, cache, None, last if cache is None else None)[:, -last:]
        for first in range(0, last, step):
            part = slice(first, min(first + step, last))
            yield part, self.head(x_BTW[:, part])

    def under(self, encodings: Sequence[Encoding], engine: Engine | None = None) -> Self:
        """A copy that shares its weights, with these encodings on its layers."""
        copied = copy.deepcopy(self, {id(p): p for p in self.parameters()})
        for attention, encoding in zip(copied.attention, encodings, strict=True):
            attention.encoding = encoding
            attention.wanted = engine or attention.wanted
        return copied

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor, memory: Memory | None = None) -> Tensor:
        """Mean nats per token of a training step, over the targets that are not -100. Logits are computed in parts."""
        x_NW = self._states(tokens_BT, None, memory).flatten(0, 1)
        return vocabulary_loss(x_NW, self.head.weight, targets_BT.flatten(), self.precision.linear)

    def _by_segments(self, tokens_BT: Tensor, cache: Cache) -> Tensor:
        """Logits, segment by segment of the training length; the cache serves as the memory, without gradient."""
        parts = []
        while tokens_BT.shape[1]:
            room = self.length - cache.tokens % self.length
            if room == self.length and cache.tokens:
                cache.keep_last(self.config.memory)
            parts.append(self.head(self._states(tokens_BT[:, :room], cache, None)))
            tokens_BT = tokens_BT[:, room:]
        return torch.cat(parts, dim=1)

    def _states(self, tokens_BT: Tensor, cache: Cache | None, memory: Memory | None, last: int | None = None) -> Tensor:
        """The last layer's output `[B, T, W]`, normed; appends the tokens to the cache or the memory.

        With `last`, which goes with neither a cache nor a memory, it is that of so many last tokens, `[B, last, W]`.
        """
        past = cache.held if cache else memory.held if memory else 0
        caches = None if cache is None else cache.extended(len(self.layers), tokens_BT.shape[1])
        positions = self._positions(past + tokens_BT.shape[1], tokens_BT.device, cache)
        first = self.encodings[0]
        x_BTW = first.embed(F.embedding(tokens_BT, self.embedding), positions[id(first)].pos[past:], tokens_BT)
        reads = self._reads(tokens_BT.shape[1], last or tokens_BT.shape[1])
        for n, (layer, (read, put_out)) in enumerate(zip(self.layers, reads, strict=True)):
            before_BSW = memory.before(n) if memory else None
            if memory is not None:
                memory.remember(n, x_BTW)
            at = positions[id(self.encodings[n])]
            if last is not None:
                x_BTW, at = x_BTW[:, -read:], at.last(read)
                before_BSW, x_BTW = x_BTW.tensor_split([read - put_out], dim=1)
            x_BTW = layer(x_BTW, at, caches[n] if caches else None, before_BSW)
        return self.norm(x_BTW)

    def _reads(self, tokens: int, last: int) -> list[tuple[int, int]]:
        """How many of the last tokens each layer reads, and of how many it puts out, to compute the `last` of `tokens`.

        A layer whose queries see only the last keys reads no more than these, and what is mixed into them. One with
        angles of its own, or with a blank that is shown the whole call, reads everything: these may look at any token.
        """
        reads = []
        for encoding in reversed(self.encodings):
            read = tokens
            whole = any(blank == "phase" or BLANKS[blank].takes_any("x") for blank in encoding.blanks)
            if encoding.reach is not None and not encoding.sinks and encoding.axes == 1 and not whole:
                mixed = encoding.mixed_tokens - 1 + (self.config.shifted > 0)
                read = min(tokens, last + encoding.reach - 1 + mixed)
            reads.append((read, last))
            last = read
        return reads[::-1]

    @property
    def encodings(self) -> list[Encoding]:
        """The encoding of each layer; layers may share an instance."""
        return [attention.encoding for attention in self.attention]

    @property
    def shape(self) -> Shape:
        """The sizes that its encodings are built for."""
        return self.config.shape(self.length, self.vocab)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.embedding.device

    @property
    def attention_dtype(self) -> torch.dtype:
        """The number format of queries and keys."""
        return self.precision.attention

    @property
    def size(self) -> int:
        """The number of parameters, including those of the encoding."""
        return sum(p.numel() for p in self.parameters())

    @property
    def choices(self) -> list[Choice]:
        """The attention engine of each layer, and why no faster one runs."""
        return [attention.choice for attention in self.attention]

    @property
    def engine(self) -> str:
        """The names of the engines that run, joined by +."""
        return "+".join(dict.fromkeys(choice.name for choice in self.choices))

    @property
    def engine_reason(self) -> str:
        """Why no faster engine runs; empty if the fastest one does."""
        return "; ".join(dict.fromkeys(choice.reason for choice in self.choices if choice.reason))

    def begin_step(self, progress: float, draw: torch.Generator) -> None:
        """Prepare every encoding for a training step; `progress` is the share of the steps that are done."""
        begin_step(self, progress, draw)

    def use_engine(self, engine: str | Engine) -> None:
        """Run every layer on an engine, given itself or by its name; UsageError if it cannot run an encoding."""
        for attention in self.attention:
            attention.wanted = engine
        assert self.choices  # raises for an engine that cannot

    def encoding_parameters(self) -> list[nn.Parameter]:
        """The parameters of the encodings, each once."""
        return list({id(p): p for encoding in self.encodings for p in encoding.parameters()}.values())

    @property
    def attention(self) -> list[Attention]:
        """The attention of each layer."""
        return [layer.attention for layer in self.layers]  # type: ignore[misc]

    def _positions(self, tokens: int, device: torch.device, cache: Cache | None) -> dict[int, Positions]:
        distinct = {id(encoding): encoding for encoding in self.encodings}
        columns = cache.columns if cache else None
        if cache is not None and columns is None and any(encoding.axes == 2 for encoding in distinct.values()):
            raise ValueError("tokens on a grid are decoded with the number of its columns: Cache(columns=...)")
        return {key: encoding.locate(tokens, device, columns) for key, encoding in distinct.items()}
