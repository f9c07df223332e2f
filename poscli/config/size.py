"""The size of a run: its parameters, and the memory that training and evaluation need, before anything is allocated.

Parameters are exact. Memory is counted from the blanks that an encoding fills and the engine that runs it; for inputs
long enough to matter, measured peaks of a forward pass lie within a factor of three, of training within one of six.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import torch

from poscli import specs
from poscli.attention import Place, choose
from poscli.config.run import ModelConfig, RunConfig
from poscli.equation import BLANKS, Encoding
from poscli.specs import Spec
from poscli.specs.build import abstract, encoding_parameters
from poscli.system.errors import UsageError
from poscli.system.memory import MIB, unaffordable
from poscli.system.ranks import ranks

BLOCK_BYTES = 128 * MIB  # buffer of an engine that works block by block
BLOCK_QUERIES = 1024  # queries of its largest block
PAIR_NUMBERS = 16  # numbers per pair in the buffer: a short input does not fill it


@dataclass(frozen=True)
class Needs:
    """Memory of attention, in score matrices [B, H, S, S] except for `block` and `buffer`."""

    at_once: float = 0.0
    kept: float = 0.0  # by every layer, for the backward pass
    kept_once: float = 0.0  # by every layer, of one text: terms that all texts share, [H, S, S]
    block: float = 0.0  # in matrices [H, BLOCK_QUERIES, S]
    buffer: float = 0.0  # bytes, at most


def needs(engine: str, blanks: frozenset[str], head_width: int, learned: bool = True) -> Needs:
    """Needs of an engine for an encoding's blanks, as measured on CPU at 1024 tokens over the registered encodings.

    The reference holds every term as a matrix, and relative vectors pair by pair. The engine `blocks` holds one block
    in a forward pass, but its backward pass keeps every block. Our own kernels (`native`) hold nothing but a bias of
    pairs. All other engines count as torch's fused attention, whose backward pass holds blocks of the gradient of a
    `learned` bias.
    """
    memory = [BLANKS[blank].memory for blank in blanks]
    vectors, table = memory.count("vectors"), "distances" in memory
    rows = "rows" in memory
    if engine == "reference":
        pairs = rows or "keys" in memory or "pairs" in memory
        return Needs(
            at_once=4 + 2 * table + 8 * pairs + 1.5 * head_width * vectors,
            kept=2.5 + 1.5 * table + 5 * pairs + 1.2 * head_width * vectors,
        )
    if engine == "native":
        shared = "features" not in blanks
        of_pairs = "pairs" in memory
        return Needs(kept=of_pairs and not shared, kept_once=of_pairs and shared, buffer=BLOCK_BYTES * of_pairs)
    per_pair = "pairs" in memory or vectors > 0  # a term that the fused kernel needs as a matrix
    if engine == "blocks":
        return Needs(kept=2 + 4 * rows + 2 * per_pair, buffer=BLOCK_BYTES)
    shared = per_pair and not vectors and "features" not in blanks
    return Needs(
        kept=3 * (per_pair and not shared),
        kept_once=3 * shared,
        block=6 * (learned and (table or "keys" in memory)),
        buffer=BLOCK_BYTES * per_pair,
    )


def largest_needs(layers: Iterable[tuple[str, Encoding]], head_width: int) -> Needs:
    """The largest needs of any layer; each is given by the name of its engine and its encoding."""
    each = [
        needs(engine, encoding.blanks, head_width, learned=any(p.requires_grad for p in encoding.parameters()))
        for engine, encoding in layers
    ]
    return Needs(*(max(getattr(n, field.name) for n in each) for field in fields(Needs)))


def activation_bytes(
    config: ModelConfig, vocab: int, needs: Needs, *, batch: int, length: int, training: bool, memory: int = 0
) -> float:
    """Peak bytes of a forward pass or of a training step.

    They are right within a factor of three where an input is long enough to matter. For a short text with a learned
    bias they may be five times too many, because every block is counted as if it were full.

    The sum of the scores, the activations of one layer (of all layers in training) and the logits, 4 bytes per number.
    `memory` is the number of earlier tokens that the windows attend to as well.
    """
    layers, keys = config.layers if training else 0, length + memory
    matrix = 4 * config.heads * length * keys  # bytes of the scores of one text
    scores = matrix * (batch * (needs.at_once + layers * needs.kept) + layers * needs.kept_once)
    block = 4 * config.heads * min(length, BLOCK_QUERIES) * keys * needs.block if training else 0
    activations = (24 if training else 8) * config.width + (6 if training else 3) * config.mlp  # of a layer, per token
    tokens = 4 * batch * length * (activations * max(1, layers) + vocab * (4 if training else 2))
    remembered = 4 * batch * memory * config.width * config.layers
    return scores + block + tokens + remembered + min(needs.buffer, PAIR_NUMBERS * matrix * batch)


VOCAB = 257  # of the tokenizer `bytes`; a count that is exact for a task takes the task's own
SLICE_NUMBERS = 1 << 25  # logits that are in memory at once in an evaluation: 128 MiB in float32
NUMBER = 4  # bytes of a weight, a gradient and an optimizer's number

# Numbers per parameter in a training step: weight, gradient, two moments of AdamW; Muon has one moment, and its batches
# of orthogonalised matrices take temporaries for the other.
TRAINED, TEMPORARY = 4, 3
CERTAIN = 8  # an estimate of so many times the free memory cannot be wrong
MOST_SEGMENTS = 8  # more segments than a memory reaches back in training


def parameter_count(model: ModelConfig, encoding: str, length: int, vocab: int = VOCAB) -> int:
    """The number of parameters of a model with the encodings of a spec. Time and memory do not depend on the result.

    UsageError if the encoding has tensors too large to exist.
    """
    return _dense(model, vocab) + encoding_parameters(specs.parse(encoding), model.shape(length, vocab))


def run_parameters(config: RunConfig, vocab: int) -> int:
    """The number of parameters of a run's model, or of its checkpoint."""
    if config.checkpoint is not None:
        return config.checkpoint.parameters
    return parameter_count(config.model, config.encoding, config.length, vocab)


def encoding_share(config: RunConfig, vocab: int) -> float:
    """The share of a model's parameters that belongs to its encodings."""
    return 1 - _dense(config.model, vocab) / parameter_count(config.model, config.encoding, config.length, vocab)


def training_bytes(config: RunConfig, device: torch.device, vocab: int = VOCAB) -> float:
    """Peak memory of a training step: weights, gradients and optimizer, and activations or the optimizer's temporaries.

    Measured peaks lie between a sixth and twice this: an encoding may need less than its blanks suggest.
    """
    needs = _needs(config, device, training=True)
    memory = min(config.model.memory, MOST_SEGMENTS * config.length)
    windows = max(1, config.batch // (config.accumulate * ranks().count))  # that a rank processes at once
    activations = activation_bytes(
        config.model, vocab, needs, batch=windows, length=config.length, training=True, memory=memory
    )
    weights = NUMBER * parameter_count(config.model, config.encoding, config.length, vocab)
    return TRAINED * weights + max(activations, TEMPORARY * weights)


def weight_bytes(config: RunConfig, vocab: int = VOCAB) -> float:
    """Memory of the weights of a run's model that is not trained any more, or of its checkpoint."""
    number = NUMBER if config.checkpoint is None else getattr(torch, config.precision).itemsize
    return float(number * run_parameters(config, vocab))


def evaluation_bytes(config: RunConfig, device: torch.device, *, batch: int, length: int, vocab: int = VOCAB) -> float:
    """Peak memory of a forward pass over `batch` windows of `length` tokens, with the weights."""
    needs, weights = _needs(config, device, training=False), weight_bytes(config, vocab)
    if not config.model.memory:  # then logits are computed in slices
        vocab = min(vocab, SLICE_NUMBERS // (batch * length))
    return weights + activation_bytes(config.model, vocab, needs, batch=batch, length=length, training=False)


def refuse_unaffordable_training(config: RunConfig, device: torch.device) -> None:
    """UsageError for a run that certainly does not fit the memory; it names what to lower.

    A run that may or may not fit is not refused: poscli/estimate.py tries a step.
    """

    def weights(c: RunConfig) -> float:  # known before the encoding is built, even abstractly
        return TRAINED * NUMBER * _dense(c.model, VOCAB)

    if unaffordable(weights(config), device):
        _refuse(config, weights(config), device, weights)
    size = training_bytes(config, device)
    if unaffordable(size / CERTAIN, device):
        _refuse(config, size, device, lambda c: training_bytes(c, device))


def _dense(model: ModelConfig, vocab: int) -> int:
    """The parameters outside the encoding: matrices and norms of the layers, the embedding, the last norm, the head."""
    layer = 4 * model.width**2 + 3 * model.width * model.mlp + 2 * model.width
    return model.layers * layer + (2 * vocab + 1) * model.width


def _needs(config: RunConfig, device: torch.device, *, training: bool) -> Needs:
    """What attention needs on the engines that run the encodings."""
    dtype = getattr(torch, config.precision) if device.type == "cuda" else torch.float32
    place = Place(device.type, dtype, config.model.width // config.model.heads, training)
    return _needs_of(config.encoding, config.model, config.length, place)


@cache
def _needs_of(encoding: str, model: ModelConfig, length: int, place: Place) -> Needs:
    """What attention needs in the layer that needs most, from one period of the alternating layers."""
    layers = specs.parse(encoding).layers[: model.layers]
    shape = replace(model.shape(length), layers=len(layers))
    built = abstract(Spec(layers), shape)
    return largest_needs([(choose(each, place=place).name, each) for each in built], shape.head_width)


def _refuse(config: RunConfig, size: float, device: torch.device, measure: Callable[[RunConfig], float]) -> None:
    """UsageError that names the option whose smallest value would save the most."""
    model = config.model
    smaller: dict[str, dict[str, Any]] = {
        f"an option of {config.encoding}": {"encoding": "none"},
        "--batch": {"batch": 1},
        "--length": {"length": 8},
        "--layers": {"model": model.model_copy(update={"layers": 1})},
        "--width": {"model": model.model_copy(update={"width": model.heads})},
        "--mlp": {"model": model.model_copy(update={"mlp": 1})},
    }

    def saved(name: str) -> float:
        try:
            return size - measure(config.model_copy(update=smaller[name]))
        except UsageError:  # the encoding does not exist in this shape
            return 0.0

    savings = {name: saved(name) for name in smaller}
    enough = 0.99 * max(savings.values())  # of several that save about as much, the first
    name = next(name for name, saving in savings.items() if saving >= enough)
    raise UsageError(f"training {config.encoding} {unaffordable(size, device)}; lower {name}")
