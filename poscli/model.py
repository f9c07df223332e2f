"""The language model around an encoding: decoder-only, pre-norm, RMSNorm, no biases, SwiGLU.

Every weight outside the encoding is drawn from the run's seed and its own name, so it starts equal for every encoding.

Shapes: B batch, T tokens, H heads, D head width, W model width, V vocabulary, S all tokens so far.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from poscli.attention import Choice, Place, Positions, attend, choose
from poscli.cache import Cache, LayerCache, Memory
from poscli.config import ModelConfig, RunConfig
from poscli.encodings import Encoding
from poscli.encodings.compose import Both
from poscli.encodings.window import Window
from poscli.errors import CorruptError
from poscli.loss import vocabulary_loss
from poscli.seeds import derive, generator
from poscli.spec import build, parse, standin


@dataclass(frozen=True)
class Precision:
    """Dtypes of the matrix products and of attention; weights, norms and the loss are float32 always."""

    linear: torch.dtype = torch.float32
    attention: torch.dtype = torch.float32


class Linear(nn.Module):
    """x W^T in the precision of the matrix products, returned in the dtype asked for."""

    def __init__(self, inputs: int, outputs: int, precision: Precision) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.precision = precision

    def forward(self, x: Tensor, out: torch.dtype = torch.float32) -> Tensor:
        dtype = self.precision.linear
        return F.linear(x.to(dtype), self.weight.to(dtype)).to(out)


class Attention(nn.Module):
    """Multi-head attention; all that concerns positions is the encoding's."""

    def __init__(self, config: ModelConfig, encoding: Encoding, precision: Precision) -> None:
        super().__init__()
        self.heads, self.precision = config.heads, precision
        self.q, self.k, self.v, self.o = (Linear(config.width, config.width, precision) for _ in range(4))
        self.encoding = encoding
        self.wanted: str | None = None  # the engine asked for, if any

    def forward(
        self, x_BTW: Tensor, positions: Positions, cache: LayerCache | None, before_BSW: Tensor | None
    ) -> Tensor:
        """`before`: tokens that are attended to and ask nothing themselves."""
        encoding, dtype = self.encoding, self.precision.attention
        seen_BSW = x_BTW if before_BSW is None else torch.cat([before_BSW, x_BTW], dim=1)
        q, k, v = (self._heads(p(x, dtype)) for p, x in ((self.q, x_BTW), (self.k, seen_BSW), (self.v, seen_BSW)))
        features = encoding.features(seen_BSW) if "features" in encoding.blanks else None
        if cache is not None:
            k, v, features = cache.extend(k, v, features)
        o_BHTD = attend(self.choice.engine, encoding, q, k, v, positions, features)
        return self.o(o_BHTD.transpose(1, 2).flatten(2))

    @property
    def choice(self) -> Choice:
        """The engine that runs, where the weights are now."""
        weight = self.o.weight
        gradient = torch.is_grad_enabled() and weight.requires_grad
        place = Place(weight.device.type, self.precision.attention, weight.shape[1] // self.heads, gradient)
        return choose(self.encoding, self.wanted, place)

    def _heads(self, x_BTW: Tensor) -> Tensor:
        return x_BTW.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """x + attention(norm x), then x + mlp(norm x)."""

    def __init__(self, config: ModelConfig, encoding: Encoding, precision: Precision) -> None:
        super().__init__()
        self.norm_attention = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = Attention(config, encoding, precision)
        self.norm_mlp = nn.RMSNorm(config.width, eps=1e-6)
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
        """What no encoding touches: x + mlp(norm x)."""
        normed_BTW, dtype = self.norm_mlp(x_BTW), self.up.precision.linear
        return x_BTW + self.down(F.silu(self.gate(normed_BTW, dtype)) * self.up(normed_BTW, dtype))


class Model(nn.Module):
    """Token ids `[B, T]` to logits `[B, T, V]`."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        encoding: str,
        vocab: int,
        length: int,
        seed: int,
        precision: Precision | None = None,
    ) -> None:
        super().__init__()
        self.precision = precision = precision or Precision()
        self.config, self.vocab, self.length = config, vocab, length
        self.embedding = nn.Parameter(torch.empty(vocab, config.width))
        self.layers = nn.ModuleList(
            Layer(config, layer_encoding, precision)
            for layer_encoding in build(parse(encoding), config.shape(length, vocab), derive(seed, "encoding"))
        )
        self.norm = nn.RMSNorm(config.width, eps=1e-6)
        self.head = Linear(config.width, vocab, precision)
        self._draw(seed)

    def forward(self, tokens_BT: Tensor, *, cache: Cache | None = None, memory: Memory | None = None) -> Tensor:
        """Logits of every token; with a cache, the tokens continue what it holds; with a memory, its segments.

        A model that was trained with a memory reads longer inputs segment by segment, as it was trained. Raises
        Unsupported where the encoding has no such position.
        """
        if self.config.memory and memory is None:
            return self._by_segments(tokens_BT, Cache() if cache is None else cache)
        return self.head(self._states(tokens_BT, cache, memory))

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor, memory: Memory | None = None) -> Tensor:
        """Mean nats per token of a training step; logits are never all in memory where they are many."""
        x_NW = self._states(tokens_BT, None, memory).flatten(0, 1)
        return vocabulary_loss(x_NW, self.head.weight, targets_BT.flatten(), self.precision.linear)

    def _by_segments(self, tokens_BT: Tensor, cache: Cache) -> Tensor:
        """Without gradients, keys and values of a segment are as good a memory as the states they are made of."""
        parts = []
        while tokens_BT.shape[1]:
            room = self.length - cache.tokens % self.length
            if room == self.length and cache.tokens:
                cache.keep(self.config.memory)
            parts.append(self.head(self._states(tokens_BT[:, :room], cache, None)))
            tokens_BT = tokens_BT[:, room:]
        return torch.cat(parts, dim=1)

    def _states(self, tokens_BT: Tensor, cache: Cache | None, memory: Memory | None) -> Tensor:
        past = cache.held if cache else memory.held if memory else 0
        if cache is not None:
            cache.layers = cache.layers or [LayerCache() for _ in self.layers]
            cache.tokens, cache.held = cache.tokens + tokens_BT.shape[1], past + tokens_BT.shape[1]
        positions = self._positions(past + tokens_BT.shape[1], tokens_BT.device)
        first = self.encodings[0]
        x_BTW = first.embed(F.embedding(tokens_BT, self.embedding), positions[id(first)].pos[past:], tokens_BT)
        for n, layer in enumerate(self.layers):
            before_BSW = memory.before(n) if memory else None
            if memory is not None:
                memory.keep(n, x_BTW)
            at = positions[id(self.encodings[n])]
            x_BTW = layer(x_BTW, at, cache.layers[n] if cache else None, before_BSW)
        return self.norm(x_BTW)

    @property
    def encodings(self) -> list[Encoding]:
        """The encoding of each layer; layers may share one."""
        return [attention.encoding for attention in self._attention()]

    @property
    def size(self) -> int:
        """Parameters, the encoding's included."""
        return sum(p.numel() for p in self.parameters())

    @property
    def choices(self) -> list[Choice]:
        """The attention engine of each layer, and why no faster one."""
        return [attention.choice for attention in self._attention()]

    @property
    def engine(self) -> str:
        """The engines that run, by name."""
        return "+".join(dict.fromkeys(choice.name for choice in self.choices))

    @property
    def engine_reason(self) -> str:
        """Why no faster engine runs; empty where the fastest does."""
        return "; ".join(dict.fromkeys(choice.reason for choice in self.choices if choice.reason))

    def window(self, width: int) -> Model:
        """The same model, its weights shared, with every layer's attention masked to the last `width` tokens."""
        copied = copy.deepcopy(self, {id(p): p for p in self.parameters()})
        shape = self.config.shape(self.length, self.vocab)
        cut = {id(encoding): Both([encoding, Window(shape, width=width)]) for encoding in copied.encodings}
        for attention in copied._attention():
            attention.encoding = cut[id(attention.encoding)]
        return copied

    def stand_in(self, target: str, trained: str) -> Model:
        """The same model, its weights shared, with the encodings of another spec; see `spec/standin.py`."""
        copied = copy.deepcopy(self, {id(p): p for p in self.parameters()})
        others = build(parse(target), self.config.shape(self.length, self.vocab), seed=0)
        known, wanted = parse(trained).layers, parse(target).layers
        for n, (attention, other) in enumerate(zip(copied._attention(), others, strict=True)):
            before, after = standin.parts(attention.encoding), standin.parts(other)
            for i, j in standin.pairs(known[n % len(known)], wanted[n % len(wanted)]):
                after[j].load_state_dict(before[i].state_dict())
            attention.encoding = other.to(self.embedding.device)
        return copied

    def begin_step(self, progress: float, draw: torch.Generator) -> None:
        """Before a training step: `progress` is the share of the steps done; encodings may draw what they vary."""
        for module in self.modules():
            if isinstance(module, Encoding):
                module.begin_step(progress, draw)

    def use_engine(self, name: str) -> None:
        """Run every layer on the engine of this name; UsageError if it cannot."""
        for attention in self._attention():
            attention.wanted = name
        assert self.choices  # raises for an engine that cannot

    def encoding_parameters(self) -> list[nn.Parameter]:
        """The learned numbers of the encoding, each once."""
        return list({id(p): p for encoding in self.encodings for p in encoding.parameters()}.values())

    def weights(self) -> dict[str, Tensor]:
        """Everything learned, by name; what layers share appears once."""
        distinct: dict[int, str] = {}
        state = self.state_dict(keep_vars=True)
        for name, tensor in state.items():
            distinct.setdefault(id(tensor), name)
        return {name: state[name].detach().contiguous() for name in distinct.values()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Take up what `weights` gave; CorruptError if the names or shapes are others."""
        own = self.weights()
        if {n: w.shape for n, w in own.items()} != {n: w.shape for n, w in weights.items()}:
            raise CorruptError("the checkpoint is of another model than its configuration says; train it again")
        self.load_state_dict(weights, strict=False)

    def _attention(self) -> list[Attention]:
        return [layer.attention for layer in self.layers]  # type: ignore[misc]

    def _positions(self, tokens: int, device: torch.device) -> dict[int, Positions]:
        distinct = {id(encoding): encoding for encoding in self.encodings}
        return {key: Positions.of(encoding, tokens, device) for key, encoding in distinct.items()}

    def _draw(self, seed: int) -> None:
        """Matrices keep the scale of their input; what writes into the stream, and the head, starts at zero."""
        own = {id(p) for p in self.encoding_parameters()}
        for name, weight in self.named_parameters():
            if id(weight) in own or weight.ndim < 2:
                continue
            if name.endswith(("attention.o.weight", "down.weight", "head.weight")):
                nn.init.zeros_(weight)
                continue
            scale = 1.0 if name == "embedding" else weight.shape[1] ** -0.5
            with torch.no_grad():
                weight.copy_(scale * torch.randn(weight.shape, generator=generator(seed, "weights", name)))


def model_of(config: RunConfig, vocab: int, device: torch.device) -> Model:
    """The untrained model of a run, on a device."""
    model = Model(
        config.model,
        encoding=config.encoding,
        vocab=vocab,
        length=config.length,
        seed=config.seed,
        precision=precision_of(config.precision, device),
    )
    return model.to(device)


def precision_of(name: str, device: torch.device) -> Precision:
    """What a precision means on a device.

    The bfloat16 backward of torch's fused attention is 5 times slower than float32's on CPU, so there only the
    matrix products are bfloat16; on CUDA everything but norms and loss is.
    """
    if name == "float32":
        return Precision()
    dtype = getattr(torch, name)
    return Precision(linear=dtype, attention=dtype if device.type == "cuda" else torch.float32)
