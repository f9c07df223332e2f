"""An estimate of the memory that a case needs, made before it runs.

It counts activations and masks, which come on top of the weights that are in memory already.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from poscli.config.run import ModelConfig
from poscli.equation import TIERS
from poscli.model.transformer import Model
from poscli.system.memory import MIB

BLOCK_BYTES = 128 * MIB  # buffer of an engine that works block by block


@dataclass(frozen=True)
class Needs:
    """Memory of attention, in score matrices [B, H, S, S] except for `buffer`."""

    at_once: float = 0.0
    kept: float = 0.0  # by every layer, for the backward pass
    buffer: float = 0.0  # bytes


def needs(engine: str, blanks: frozenset[str], head_width: int) -> Needs:
    """Needs of an engine for an encoding's blanks, as measured on CPU at 1024 tokens over the registered encodings.

    The reference holds every term as a matrix, and relative vectors pair by pair. The engine `blocks` holds one block
    in a forward pass, but its backward pass keeps every block. All other engines count as torch's fused attention.
    """
    vectors = len(blanks & {"relative_keys", "relative_queries", "relative_values"})
    rows = bool(blanks & {*TIERS["row"]})
    if engine == "reference":
        pairs, table = rows or bool(blanks & {*TIERS["pair"]}), "distance_bias" in blanks
        return Needs(
            at_once=4 + 2 * table + 8 * pairs + 1.5 * head_width * vectors,
            kept=2.5 + 1.5 * table + 5 * pairs + 1.2 * head_width * vectors,
        )
    per_pair = "bias" in blanks or vectors > 0  # a term that the fused kernel needs as a matrix
    if engine == "blocks":
        return Needs(kept=2 + 6 * rows + 2 * per_pair, buffer=BLOCK_BYTES)
    return Needs(kept=3 * per_pair, buffer=BLOCK_BYTES * per_pair)


def needs_of_model(model: Model, training: bool) -> Needs:
    """The largest needs of any layer, on the engines that the model runs on."""
    width = model.config.width // model.config.heads
    with torch.set_grad_enabled(training):
        pairs = list(zip(model.choices, model.encodings, strict=True))
    each = [needs(choice.name, encoding.blanks, width) for choice, encoding in pairs]
    return Needs(*(max(getattr(n, field) for n in each) for field in ("at_once", "kept", "buffer")))


def estimate(config: ModelConfig, vocab: int, needs: Needs, *, batch: int, length: int, training: bool) -> float:
    """Peak bytes of a forward pass or of a training step, right within a factor of three.

    The sum of the scores, the activations of one layer (of all layers in training) and the logits, 4 bytes per number.
    """
    layers = config.layers if training else 0
    scores = 4 * batch * config.heads * length**2 * (needs.at_once + layers * needs.kept)
    activations = (24 if training else 8) * config.width + (6 if training else 3) * config.mlp  # of a layer, per token
    tokens = 4 * batch * length * (activations * max(1, layers) + vocab * (4 if training else 2))
    return scores + tokens + needs.buffer
