"""Key tokens: does a model do well on the tokens that need a long context?

Most tokens can be predicted from the text just before them, and their losses hide the few that cannot. After LongPPL
(arXiv:2410.23771), a judge finds those few: another model, trained on windows of at least 8 L. A token is a key token
if the judge's loss falls by more than 2 nats when its context grows from L to 8 L, and is below 2 nats then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from poscli.evaluation.recall import gain_numbers
from poscli.model.transformer import Model
from poscli.runs.run import Run
from poscli.system.errors import UsageError
from poscli.why.sample import Sample

KEY, OTHER = "key", "other"
GROWTH = 8  # times L: the context with which the judge predicts a key token
FALL, LOW = 2.0, 2.0  # nats: by how much the judge's loss falls at least, and below what it ends
FEWEST_TOKENS = 20  # with fewer tokens of a kind, their mean says nothing


def refuse_judge(judge: Run, run: Run) -> None:
    """UsageError if the trained model of the run `judge` cannot judge that of `run`; it says why in one line."""
    if judge.home == run.home:
        raise UsageError(f"{run.id} cannot judge itself; name another run as the judge")
    if judge.fingerprint != run.fingerprint:
        raise UsageError(
            f"the judge {judge.id} was trained on another text or tokenizer than {run.id}; train one on it"
        )
    _refuse_short(judge.config.length, run.config.length)


def refuse_itself(judge: Model, model: Model) -> None:
    """UsageError if two models have the same weights: a run, or a copy of it, would judge itself."""
    own, other = model.state_dict(), judge.state_dict()
    if own.keys() == other.keys() and all(torch.equal(own[name], other[name]) for name in own):
        raise UsageError("the judge has the weights of the model that it is to judge; name another run as the judge")


def key_tokens(judge: Model, sample: Sample) -> NDArray[np.bool_]:
    """Which scored tokens are key tokens, `[n, scored]`, by two passes of the judge.

    UsageError if the judge was trained on windows below 8 L, on another vocabulary, or if the windows are shorter.
    """
    short, long = sample.train_length, GROWTH * sample.train_length
    _refuse_short(judge.length, short)
    if judge.vocab != sample.task.vocab:
        raise UsageError(
            f"the judge knows {judge.vocab} tokens and the text has {sample.task.vocab}; it must share the tokenizer"
        )
    if sample.length < long:
        raise UsageError(
            f"key tokens need windows of {long} tokens, {GROWTH} times the training length; give --max-len"
        )
    cropped, whole = sample.losses(judge, short), sample.losses(judge, long)
    return (cropped - whole > FALL) & (whole < LOW) & sample.text.counts(sample.spans, sample.scored)


def key_token_rows(model: Model, sample: Sample, key: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """The loss of key tokens and of all others under a model, cropped to L and with the longest window."""
    counts = sample.text.counts(sample.spans, sample.scored)
    cropped, whole = sample.losses(model, sample.train_length), sample.losses(model, sample.length)
    documents = np.broadcast_to(sample.spans[:, :1], counts.shape)
    return [
        {"kind": kind} | _numbers(whole[chosen], cropped[chosen], documents[chosen], kind)
        for kind, chosen in ((KEY, counts & key), (OTHER, counts & ~key))
    ]


def _numbers(
    whole: NDArray[np.float64], cropped: NDArray[np.float64], documents: NDArray[np.int64], kind: str
) -> dict[str, Any]:
    counts = {"tokens": len(whole), "documents": len(np.unique(documents))}
    if len(whole) < FEWEST_TOKENS:
        return counts | {"reason": f"{len(whole)} {kind} tokens are too few for a mean; at least {FEWEST_TOKENS} count"}
    return counts | gain_numbers(whole, cropped, documents) | {"reason": ""}


def _refuse_short(trained: int, length: int) -> None:
    """UsageError if a judge was trained on windows of fewer tokens than 8 L."""
    if trained < GROWTH * length:
        raise UsageError(
            f"the judge was trained on windows of {trained} tokens; train one with --length {GROWTH * length}, "
            f"{GROWTH} times the training length of the model that it judges"
        )
