"""A probe of a checkpoint's positions with its weights: one passage, read at growing positions.

Where scores depend on differences of positions only, the logits of a passage are the same wherever it stands, but for
rounding. What moves them is a fault of the arithmetic that no configuration shows, such as angles in bfloat16, which
holds no whole number beyond 256 exactly. The stock model reads the passage at the positions it is given; models that
take no positions read it under poscli's encodings, which do. Then both are compared.

Shapes: B windows, T tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from poscli.checkpoints.architecture import Architecture
from poscli.checkpoints.checkpoint_model import (
    LEAST,
    ROUNDING_UNITS,
    CheckpointModel,
    converted,
    quiet,
    refuse_other_layers,
    relative_difference,
    stock_logits,
    stock_model,
)
from poscli.checkpoints.readings import FAR, ROUNDING, Readings, attentions, ranges, rotation_of, turns_now
from poscli.specs import parse
from poscli.system.errors import DataError
from poscli.why.attribution import relocate

TOKENS = 64  # of the passage, or half of the trained length if that is shorter
TEXT = """\
The ferry left the island at six, an hour late, because the captain had waited for the doctor. Nobody on the quay knew
why the doctor was needed on the mainland, and the doctor did not say. The sea was calm, the passengers slept, and the
captain counted the lights of the coast: three red ones, then a white one, then the long dark stretch before the
harbour. When he had counted them twice and found one too few, he woke the doctor and asked what he had seen.
"""


def passage(folder: Path, architecture: Architecture) -> tuple[Tensor, str]:
    """Token ids `[1, T]`, and what they are in words.

    Without tokenizer.json, or if it has no tokens for English, the ids are spread over the vocabulary: a loss on them
    says nothing about language, and still must not move. DataError if the tokenizer has tokens that the model does not
    have.
    """
    count = min(TOKENS, max(2, architecture.length // 2))
    path = folder / "tokenizer.json"
    spread = torch.arange(count)[None] * 37 % architecture.vocab, f"{count} tokens spread over the vocabulary"
    if not path.is_file():
        return spread
    from tokenizers import Tokenizer

    try:
        ids = Tokenizer.from_file(str(path)).encode(TEXT).ids[:count]
    except Exception as error:  # the package has no other class for whatever is wrong with the file
        raise DataError(f"{str(path)!r} is no tokenizer: {error}; download it again") from error
    if len(ids) < 2:  # of which only the second one has a loss
        return spread
    if max(ids) >= architecture.vocab:
        raise DataError(
            f"{str(path)!r} has the token {max(ids)} and the model a vocabulary of {architecture.vocab}; use the "
            "tokenizer that belongs to the model"
        )
    return torch.tensor([ids]), f"{len(ids)} tokens of English"


TIMES = (0, 1, 2, FAR)  # the starts of the passage, in trained lengths
# An error of the fastest pair's angle, in radians, changes logits by less than this many times as much of their spread.
ANGLE_UNITS = 4
FLOAT32_ANGLE = 2.0**-24  # relative error of an angle in float32, which is what transformers computes in


@dataclass(frozen=True)
class ProbeFinding:
    """One result of a probe, in a sentence with numbers."""

    name: str
    said: str
    fault: bool = False


@dataclass(frozen=True)
class Probe:
    """What a checkpoint does at positions up to four times its trained length."""

    passage: str
    dtype: str
    losses: Mapping[int, float]  # nats per token, by the position of the first token
    findings: tuple[ProbeFinding, ...]

    @property
    def faults(self) -> tuple[ProbeFinding, ...]:
        return tuple(finding for finding in self.findings if finding.fault)


def probe(folder: Path, subject: Readings, device: torch.device) -> Probe:
    """Load the checkpoint in a folder, in the number format of its weights, and probe it.

    DataError if transformers cannot load or run it, or if its tokenizer does not belong to it.
    """
    ids_BT, words = passage(folder, subject.architecture)
    stock = stock_model(folder, None, device)
    with quiet():
        return probe_model(stock, folder, subject, ids_BT.to(device), words)


@torch.inference_mode()
def probe_model(stock: Any, folder: Path, subject: Readings, ids_BT: Tensor, words: str) -> Probe:
    """Probe a stock model of transformers, loaded from a folder, with a passage, which is `words` in words.

    Afterwards poscli's encodings compute the positions of this model. DataError if transformers cannot run it.
    """
    refuse_other_layers(stock, subject.architecture, folder)
    dtype = next(stock.parameters()).dtype
    findings = list(_frequencies(stock, subject))  # before the model reads anything: a long text may change them
    stock_logits(stock, ids_BT, folder)  # refuses a model that cannot run, or whose logits are not finite
    starts = _starts(subject, ids_BT.shape[1])
    stock_at: dict[int, Tensor] = {}
    if _takes_positions(stock, subject):
        stock_at = {start: _stock_logits(stock, ids_BT, start) for start in starts}
        findings += _state(stock, subject, ids_BT, stock_at)
    texts = [ids_BT, ids_BT.repeat(1, FAR)[:, : subject.length]]  # transformers' MPT reads no more than L tokens
    unplaced = [stock(input_ids=each_BT, use_cache=False).logits[0].double() for each_BT in texts]
    model = converted(stock, subject.architecture)
    own_at = {start: _own_logits(model, ids_BT, start) for start in starts}
    moved = stock_at or own_at
    findings += _shifts(subject, moved, dtype, ids_BT)
    if stock_at:
        pairs = {f"at position {start}": (stock_at[start], own_at[start]) for start in (starts[0], starts[-1])}
    else:
        own = [_own_logits(model, each_BT, 0) for each_BT in texts]
        pairs = {f"in {len(logits_TV)} tokens": (logits_TV, own[n]) for n, logits_TV in enumerate(unplaced)}
    findings += _against_poscli(subject, pairs, _allowed(subject, starts[-1], dtype))
    losses = {start: _loss(logits_TV, ids_BT) for start, logits_TV in moved.items()}
    return Probe(words, str(dtype).removeprefix("torch."), losses, tuple(findings))


def _takes_positions(stock: Any, subject: Readings) -> bool:
    """Whether the stock model can be told where a text stands. ALiBi models ignore positions, or take none."""
    placed = subject.rotates or not _relative(subject)
    return placed and "position_ids" in inspect.signature(type(stock).forward).parameters


def _starts(subject: Readings, tokens: int) -> list[int]:
    """Where the passage begins: at multiples of L, or, for a table that ends at L, at both of its ends."""
    if _relative(subject) or subject.rotates:
        return [times * subject.length for times in TIMES]
    return sorted({0, subject.length - tokens})


def _relative(subject: Readings) -> bool:
    return all(layer.encoding.relative for layer in subject.layers)


def _rescales(subject: Readings) -> bool:
    """Whether positions depend on the length of the text by definition."""
    return any(layer.encoding.rescales for layer in subject.layers)


def _frequencies(stock: Any, subject: Readings) -> Iterator[ProbeFinding]:
    """Compare the frequencies that the loaded model holds with those that config.json states."""
    wrong: dict[str, list[int]] = {}
    for n, (attention, layer) in enumerate(zip(attentions(stock), subject.layers, strict=True)):
        name, layer_type = rotation_of(stock, attention)
        if name and layer.measured.short.speeds:
            held = turns_now(stock.get_submodule(name), layer_type)
            if difference := layer.measured.short.difference(held, subject.length):
                wrong.setdefault(difference, []).append(n)
    for difference, layers in wrong.items():
        said = f"The loaded model's frequencies of layers {ranges(layers)} are not those of config.json: {difference}."
        yield ProbeFinding("frequencies-differ", said, fault=True)
    if subject.rotates and not wrong:
        yield ProbeFinding("frequencies", f"The loaded model's frequencies are those of config.json, to {ROUNDING:g}.")


def _shifts(subject: Readings, at: Mapping[int, Tensor], dtype: torch.dtype, ids_BT: Tensor) -> Iterator[ProbeFinding]:
    """How far the logits of the passage move when it stands elsewhere."""
    first_TV = at[0]
    moves = {start: relative_difference(logits_TV, first_TV) for start, logits_TV in at.items() if start}
    furthest = max(moves, key=lambda start: moves[start] / _allowed(subject, start, dtype), default=0)
    if not furthest:
        return
    loss, there, allowed = _loss(first_TV, ids_BT), _loss(at[furthest], ids_BT), _allowed(subject, furthest, dtype)
    said = (
        f"The passage has a loss of {loss:.4f} nats per token at position 0 and {there:.4f} at {furthest}; its logits "
        f"move by {moves[furthest]:.2g} of their spread"
    )
    if not _relative(subject) or _rescales(subject):
        yield ProbeFinding("position-dependent", f"{said}, as positions of this kind do by definition.")
        return
    moved = not moves[furthest] <= allowed
    rule = "more than" if moved else "and"
    name = "positions-not-relative" if moved else "positions-relative"
    yield ProbeFinding(name, f"{said}, {rule} rounding explains {allowed:.2g}.", fault=moved)


def _state(stock: Any, subject: Readings, ids_BT: Tensor, at: Mapping[int, Tensor]) -> Iterator[ProbeFinding]:
    """Read the passage once more where it was read before a longer text: nothing may have changed."""
    start = subject.length * TIMES[-2]
    if start not in at:
        return
    again_TV = _stock_logits(stock, ids_BT, start)
    moved = relative_difference(again_TV, at[start])
    if moved > LEAST:
        said = (
            f"At position {start} the passage has a loss of {_loss(at[start], ids_BT):.4f} nats per token, and "
            f"{_loss(again_TV, ids_BT):.4f} after a text that was longer: transformers keeps frequencies between texts."
        )
        yield ProbeFinding("state-between-texts", said, fault=True)


def _against_poscli(
    subject: Readings, pairs: Mapping[str, tuple[Tensor, Tensor]], allowed: float
) -> Iterator[ProbeFinding]:
    """Compare the logits of the stock model with those under poscli's encodings, near the start and far from it."""
    differences = {where: relative_difference(own_TV, stock_TV) for where, (stock_TV, own_TV) in pairs.items()}
    differs = not max(differences.values()) <= allowed
    measured = " and ".join(f"{difference:.2g} {where}" for where, difference in differences.items())
    spec = parse(subject.architecture.spec)
    yield ProbeFinding(
        "logits-differ" if differs else "logits-agree",
        f"The logits of transformers and those under poscli's {spec} differ by {measured}, as shares of their spread, "
        f"{'more than' if differs else 'and'} rounding explains {allowed:.2g}.",
        fault=differs,
    )


def _allowed(subject: Readings, start: int, dtype: torch.dtype) -> float:
    """The largest difference of logits, relative to their spread, that rounding explains."""
    fastest = max((max(layer.measured.short.speeds, default=0.0) for layer in subject.layers), default=0.0)
    return max(LEAST, ROUNDING_UNITS * torch.finfo(dtype).eps) + ANGLE_UNITS * start * fastest * FLOAT32_ANGLE


def _stock_logits(stock: Any, ids_BT: Tensor, start: int) -> Tensor:
    positions_BT = torch.arange(start, start + ids_BT.shape[1], device=ids_BT.device)[None]
    return stock(input_ids=ids_BT, position_ids=positions_BT, use_cache=False).logits[0].double()


def _own_logits(model: CheckpointModel, ids_BT: Tensor, start: int) -> Tensor:
    return relocate(model, lambda index: index + start)(ids_BT)[0].double()


def _loss(logits_TV: Tensor, ids_BT: Tensor) -> float:
    """Nats per token of the passage."""
    return float(F.cross_entropy(logits_TV[:-1], ids_BT[0, 1:]))
