"""An estimate of the memory of a forward pass or a training step, made before it runs.

It counts activations and masks, which come on top of the weights; size.py counts those.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from poscli.config.run import ModelConfig
from poscli.equation import BLANKS, Encoding
from poscli.system.memory import MIB

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


def estimate(
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
