"""Which property of a long window breaks a model: its positions, distances, number of keys, or first tokens lost.

All losses are those of the same tokens. The base is the model on the last L tokens, at positions 0 to L-1, L the
training length; the full window has l tokens. Four changes lie between the two, and each is made alone:

- offset: the last L tokens at the positions that they have in the long window, n to n + L - 1 with n = l - L;
- gap: the last L tokens, of which the second half stands as in `offset` and the first half as in training, so that
  distances between the halves are as large as in the long window, neighbours are neighbours, and keys as many as in
  training;
- crowd: all l tokens, but no distance and no position beyond those of training: crowd.py says how;
- sinkless: the last L tokens, of which the first FIRST, to which a model may have learned to attend, are hidden from
  the second half, in those layers whose later queries do not see the first tokens of the long window. Without such a
  layer this is void.

Two changes contain another one: `gap` also moves the second half to the positions of `offset`, and under `crowd` a
window hides the first tokens, too. Where both explain half of the harm or more, and the containing change does not add
as much again to the contained one, the part of its own cause is open. It is open, too, where a change does more than
twice the harm of the full window: a gap, say, also parts tokens that the long window leaves together.

Where an encoding's definition says that a change cannot matter, the change is void. A change of positions is made all
the same, and a loss that does change is a fault of the encoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poscli.attention import ENGINES, BlockSizes, Engine, attend
from poscli.equation import BLANKS, Encoding, Operands, Positions, Unsupported
from poscli.equation.composed import Composed
from poscli.equation.reference import relative_values, scores, weights
from poscli.equation.shapes import BlankInputs
from poscli.evaluation.measure import PASS_TOKENS
from poscli.model.language_model import LanguageModel
from poscli.model.transformer import Model
from poscli.statistics.intervals import ratio_interval, ratio_of_means
from poscli.system.memory import is_out_of_memory
from poscli.verify.noise import rounding
from poscli.why.crowd import crowd_engine, refuses
from poscli.why.sample import Sample

BASE, FULL = "base", "full"
SMALLEST_HARM = 0.01  # nats per token; a smaller one is not explained
BROKEN = 0.2  # nats per token from which a model is said to break
PAIR_NUMBERS = 2**24  # at a time, of the B H T S numbers that scores take, or of their vectors
FIRST = 4  # first tokens that attention may need to see: four are enough for every model of arXiv:2309.17453

Array = NDArray[np.float64]
ModelT = TypeVar("ModelT", bound=LanguageModel)


@dataclass(frozen=True, eq=False)
class ChangeOutcome:
    """The losses `[n, scored]` under one change, or the reason why there are none, or why they mean nothing."""

    losses: Array | None
    status: str = "ok"
    reason: str = ""


def attribution(model: LanguageModel, sample: Sample) -> list[dict[str, Any]]:
    """The rows of the table, one per change, with the columns ATTRIBUTION_COLUMNS."""
    return rows(measure(model, sample), sample)


def rows(outcomes: dict[str, ChangeOutcome], sample: Sample) -> list[dict[str, Any]]:
    """The rows of the table, from what `measure` found."""
    counted = sample.text.counts(sample.spans, sample.scored)
    nll = {c: math.nan if o.losses is None else float(o.losses[counted].mean()) for c, o in outcomes.items()}
    broken = nll[FULL] - nll[BASE]
    documents = np.unique(np.repeat(sample.spans[:, 0], sample.scored)[counted.ravel()], return_inverse=True)[1]

    def by_document(change: str) -> Array:
        """The sum of the harm of a change in each document, `[1, D]`."""
        one, base = (outcomes[name].losses for name in (change, BASE))
        assert one is not None
        assert base is not None
        return np.asarray(np.bincount(documents, (one - base)[counted]), np.float64)[None]

    def share(change: str) -> dict[str, float]:
        known = broken >= SMALLEST_HARM and not math.isnan(nll[change])
        numbers = (math.nan,) * 3
        if known:
            numbers = ratio_of_means(by_document(change), by_document(FULL), np.bincount(documents).astype(float))
        return dict(zip(("share", "share_low", "share_high"), numbers, strict=True))

    def ends_of_harm(change: str) -> dict[str, float]:
        ends = (math.nan, math.nan)
        if not math.isnan(nll[change]) and not math.isnan(nll[BASE]):
            ends = ratio_interval(by_document(change)[0], np.bincount(documents).astype(float))
        return dict(zip(("harm_low", "harm_high"), ends, strict=True))

    return [
        {
            "change": change,
            "train_length": sample.train_length,
            "length": sample.length,
            "status": outcome.status,
            "reason": outcome.reason,
            "nll": nll[change],
            "harm": nll[change] - nll[BASE],
            **ends_of_harm(change),
            **share(change),
        }
        for change, outcome in outcomes.items()
    ]


def measure(model: LanguageModel, sample: Sample) -> dict[str, ChangeOutcome]:
    """The losses under every change, in the order of the rows; the model is in evaluation mode."""
    long, length = sample.length, sample.train_length
    base = _outcome(lambda: model, sample, length)
    changed = {
        FULL: _outcome(lambda: model, sample, long),
        "offset": _short(model, sample, "offset", lambda index: index + long - length),
        "gap": _short(model, sample, "gap", lambda index: index + (long - length) * (index >= length // 2)),
        "crowd": _crowd(model, sample),
        "sinkless": _sinkless(model, sample),
    }
    return {BASE: base} | {change: _checked(each, base, model, sample) for change, each in changed.items()}


def _outcome(changed: Callable[[], LanguageModel], sample: Sample, window: int) -> ChangeOutcome:
    """The losses of a changed model on windows of `window` tokens, or the reason why there are none."""
    try:
        losses = sample.losses(changed(), window, whole=True)  # a changed engine counts queries from the first one
    except Unsupported as error:
        return ChangeOutcome(None, "unsupported", str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return ChangeOutcome(None, "not measured", f"{window} tokens do not fit the memory")
    if not np.isfinite(losses).all():
        return ChangeOutcome(None, "not measured", "a loss is not finite")
    return ChangeOutcome(losses)


def _short(model: LanguageModel, sample: Sample, change: str, places: Places) -> ChangeOutcome:
    """The losses on the last L tokens if the encodings are told other places; void, with its reason, by definition."""
    if reason := _by_segments(model):
        return ChangeOutcome(None, "not measured", reason)
    outcome = _outcome(lambda: relocate(model, places), sample, sample.train_length)
    reason = _void(model, sample.device, change)
    return replace(outcome, status="void", reason=reason) if reason and outcome.losses is not None else outcome


def _checked(outcome: ChangeOutcome, base: ChangeOutcome, model: LanguageModel, sample: Sample) -> ChangeOutcome:
    """An outcome; if it is void, its reason goes on with how much the losses changed all the same."""
    if outcome.status != "void" or outcome.losses is None or base.losses is None:
        return outcome
    apart, limit = float(np.abs(outcome.losses - base.losses).max()), _rounding(model, sample)
    if apart <= limit:
        return replace(outcome, reason=f"nothing can change: {outcome.reason}")
    fault = f"but the loss of a token changes by {apart:.2g} nats, and rounding explains {limit:.1g}"
    return replace(outcome, status="fault", reason=f"by definition nothing may change ({outcome.reason}), {fault}")


def _rounding(model: LanguageModel, sample: Sample) -> float:
    """The largest difference of a token's loss to allow between two correct computations, in nats."""
    text = sample.tokens(sample.train_length)[: max(1, PASS_TOKENS // sample.train_length), :-1]
    kinds = {model.attention_dtype, *(weight.dtype for weight in model.parameters())}
    if isinstance(model, Model):
        kinds.add(model.precision.linear)  # in which weights of float32 are used
    coarsest = max(torch.finfo(kind).eps for kind in kinds)
    return 2 * rounding(model, text, coarsest)  # the target's logit may fall, and all others rise


def _crowd(model: LanguageModel, sample: Sample) -> ChangeOutcome:
    """The losses if no distance and no position exceeds those of training."""
    length = sample.train_length
    if reason := _by_segments(model):
        return ChangeOutcome(None, "not measured", reason)
    if "embed" in model.encodings[0].blanks:
        reason = "a position belongs to a token, not to a pair of tokens, so no distance can be shortened for a query"
        return ChangeOutcome(None, "not measured", reason)
    if reason := next(filter(None, map(refuses, model.encodings)), ""):
        return ChangeOutcome(None, "not measured", reason)

    def crowded() -> LanguageModel:
        return relocate(model, lambda index: index.clamp(max=length - 1), crowd_engine(length))

    return _outcome(crowded, sample, sample.length)


def _sinkless(model: LanguageModel, sample: Sample) -> ChangeOutcome:
    """The losses on the last L tokens if later ones do not see the first; void if a long window hides none of them.

    Only layers that lose the first tokens of the long window do so here: the others see them in both windows.
    """
    if reason := _by_segments(model):
        return ChangeOutcome(None, "not measured", reason)
    if not any(_loses_first(each, sample.length) for each in model.encodings):
        return ChangeOutcome(None, "void", "the first tokens of a long window stay in sight")

    def changed() -> LanguageModel:
        attend_without = partial(without_first, length=sample.length)
        blind = Engine("sinkless", attend_without, lambda *_: "", "later queries do not see the first tokens")
        return relocate(model, lambda index: index, blind)

    return _outcome(changed, sample, sample.train_length)


def _loses_first(encoding: Encoding, length: int) -> bool:
    """Whether the last query of a window of `length` tokens does not see all of its first tokens."""
    return encoding.reach is not None and encoding.reach < length and encoding.sinks < FIRST


def without_first(encoding: Encoding, x: Operands, _: BlockSizes, *, length: int) -> Tensor:
    """Attention output `[B, H, T, E]` of the formula, with the first tokens hidden from the second half of the queries.

    The first half sees them, so that no other token becomes one that sees only itself. Nothing is hidden by an encoding
    whose queries still see them at the end of a window of `length` tokens.
    """
    first = FIRST if _loses_first(encoding, length) else 0
    batch, heads, keys, width = x.k_BHSD.shape
    vectors = width if {"relative_keys", "relative_queries", "relative_values"} & encoding.blanks else 1
    rows = max(1, PAIR_NUMBERS // (batch * heads * keys * vectors))
    half, parts = x.queries // 2, []
    for bounds in ((0, half), (half, x.queries)):
        for start, stop in pairwise([*range(*bounds, rows), bounds[1]]):
            part = x.block(start, stop)
            s_BHTS = scores(encoding, part)
            s_BHTS[..., : first * (start >= half)] = -math.inf
            p_BHTS = weights(encoding, part, s_BHTS)
            o_BHTE = p_BHTS @ part.v_BHSE
            more = relative_values(encoding, part, p_BHTS) if "relative_values" in encoding.blanks else 0
            parts.append(o_BHTE + more)
    return torch.cat(parts, dim=2)


def _by_segments(model: LanguageModel) -> str:
    """Why nothing can be changed in a model with a memory; '' for other models."""
    if not (isinstance(model, Model) and model.config.memory):
        return ""
    return "with a memory, a long window is read in segments, whose positions, distances and keys are those of training"


def _void(model: LanguageModel, device: torch.device, change: str) -> str:
    """Why a change of positions cannot matter by definition; '' if it can."""
    if not any(uses_positions(encoding, device) for encoding in model.encodings):
        return "it uses no positions"
    if change == "offset" and all(each.relative and not each.rescales for each in model.encodings):
        return "scores depend on differences of positions only"
    return ""


# A model whose encodings are told other places of its tokens

# From the places of the tokens `[S]`, which count from 0, to the places that the encodings are told.
Places = Callable[[Tensor], Tensor]


class Relocated(Composed):
    """An encoding that is told that its tokens stand at other places, from which it makes its own positions.

    The places are changed before the encoding's own blank `positions`. Positions that follow the length of the input,
    such as interpolated ones, therefore follow the last place that they are told, as if the input ended there.
    """

    def __init__(self, encoding: Encoding, places: Places) -> None:
        super().__init__([encoding])
        self.blanks |= {"positions"}
        self.places = places
        self.train(encoding.training)

    def positions(self, index: Tensor) -> Tensor:
        return super().positions(self.places(index))


def relocate(model: ModelT, places: Places, engine: Engine | None = None) -> ModelT:
    """A copy of a model that shares its weights, in which every encoding is told other places, on an engine."""
    # Layers that share an encoding share the relocated one too.
    relocated = {encoding: Relocated(encoding, places) for encoding in dict.fromkeys(model.encodings)}
    return model.under([relocated[encoding] for encoding in model.encodings], engine)


@torch.no_grad()
def uses_positions(encoding: Encoding, device: torch.device) -> bool:
    """Whether a blank is told positions; one that may also ignore them is tried at two positions on a small input."""
    blanks = [BLANKS[name] for name in encoding.blanks]
    if any(blank.takes_any("pos", "d", "d_TS", "i") for blank in blanks):
        return True
    if not any(blank.takes_any("x") for blank in blanks):
        return False
    inputs = BlankInputs.of(encoding.shape)
    x, q, index = inputs.x_BTW.to(device), inputs.q_BHTD.to(device), torch.arange(inputs.tokens, device=device)
    features = encoding.features(x)
    here, there = (
        attend(ENGINES["reference"], encoding, q, q, q, Positions(pos=pos, step=None), features)
        for pos in (index, 2 * index)
    )
    return not torch.equal(here, there)


# The sentence about it

# What breaks a model if one change alone explains at least half of the harm.
CAUSES = {"offset": "position", "gap": "distance", "crowd": "number of keys", "sinkless": "loss of the first tokens"}
ENOUGH = 0.5
LITTLE = 0.2  # the harm is said not to be by a cause whose share is surely less
TOO_MUCH = 2.0  # a larger share does not explain the harm
CONTAINS = {"gap": "offset", "crowd": "sinkless"}  # changes, and the other one that each of them makes as well
# What usually mends each cause, whatever the encoding.
REMEDIES = {
    "position": "a relative encoding, or training on randomized positions (randomized)",
    "distance": "distances interpolated (rope-linear, yarn) or clipped (rerope) to those of training, or a window",
    "number of keys": "a temperature that grows with the logarithm of the number of keys (ssmax, logn)",
    "loss of the first tokens": "first tokens that stay in sight beside the window (sink)",
}


def what_breaks(rows: list[dict[str, Any]], *, many: bool = False) -> str:
    """What breaks a model, from the rows of `attribution`: a sentence without its subject; void causes are left out.

    With `many` the subject is more than one encoding.
    """
    full = next(row for row in rows if row["change"] == FULL)
    if full["status"] != "ok":
        return f"{'were' if many else 'was'} not measured: {full['reason']}"
    if not full["harm"] >= SMALLEST_HARM:
        return f"{'do' if many else 'does'} not break"
    if not is_harmed(full):
        return f"{'are' if many else 'is'} not shown to break"
    broken, harmed = ("break", "are harmed") if many else ("breaks", "is harmed")
    verb = broken if full["harm"] >= BROKEN else harmed
    untold = [CAUSES[change] for change in open_changes(rows)]
    parts = f"; the part{'s' * (len(untold) > 1)} of {_join(untold, 'and')} {'are' if len(untold) > 1 else 'is'} open"
    return f"{verb}{_by(causes(rows), bool(untold))}" + parts * bool(untold)


def is_harmed(full: Mapping[str, Any]) -> bool:
    """Whether the long window does a harm that counts and is no chance, from the row of the full window.

    Where the interval of the harm is not known, the harm alone decides.
    """
    return bool(full["harm"] >= SMALLEST_HARM and not full["harm_low"] <= 0)


def open_changes(rows: list[dict[str, Any]]) -> list[str]:
    """The changes that tell nothing about their own cause, in the order of CAUSES.

    They do too much harm, or another change, which they contain, explains it; or they could not be made, where others
    could.
    """
    share, unmade = _shares(rows), {row["change"] for row in rows if row["status"] == "not measured"}

    def is_open(change: str) -> bool:
        contained = share.get(CONTAINS.get(change, ""), 0.0)
        return share[change] > TOO_MUCH or (contained >= ENOUGH and ENOUGH <= share[change] < contained + ENOUGH)

    return [change for change in CAUSES if share and (change in unmade or (change in share and is_open(change)))]


def remedies(rows: list[dict[str, Any]]) -> list[str]:
    """What usually mends each cause that explains at least half of the harm."""
    return [f"against {cause}: {REMEDIES[cause]}" for cause in causes(rows).enough]


class Causes(NamedTuple):
    """The causes that were told apart, by how much of the harm each explains alone; all empty without a harm."""

    enough: list[str]  # at least half of it
    part: list[str]  # less, but perhaps a part that counts
    little: list[str]  # surely less than a fifth


def causes(rows: list[dict[str, Any]]) -> Causes:
    """The causes of the harm, from the rows of `attribution`.

    Where a share has no interval, the share itself says how much it may be.
    """
    untold, found = open_changes(rows), Causes([], [], [])
    ends = {row["change"]: row["share_high"] for row in rows}
    for change, share in _shares(rows).items():
        if change not in untold:
            most = share if math.isnan(ends[change]) else ends[change]
            kind = found.enough if share >= ENOUGH else found.little if most < LITTLE else found.part
            kind.append(CAUSES[change])
    return found


def _shares(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The share of the harm that each measured change explains alone, in the order of CAUSES; none without harm."""
    share = {row["change"]: row["share"] for row in rows if row["status"] == "ok" and not math.isnan(row["share"])}
    return {change: share[change] for change in CAUSES if change in share}


def _by(found: Causes, untold: bool) -> str:
    """The end of the sentence of `what_breaks`."""
    others = [*found.part, *found.little]
    if not (found.enough or untold) and len(others) > 1:
        return f" by none of {_join(others, 'and')} alone, only by their combination"
    by = f" by {_join(found.enough, 'and by')}" * bool(found.enough)
    by += f", in part by {_join(found.part, 'and by')}" * bool(found.part)
    by += f", not by {_join(found.little, 'nor by')}" * bool(found.little)
    if found.enough or untold:
        return by
    return f"{by}; no other cause was measured" if others else ", but no cause was measured"


def _join(words: list[str], last: str) -> str:
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
