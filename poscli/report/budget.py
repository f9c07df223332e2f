"""How many tokens of training the encodings of a section lacked that predict no better than a guess."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from poscli.drawing.text import amount, listed, low_to_high
from poscli.report.per_byte import is_per_byte
from poscli.report.pooling import headline, sound
from poscli.report.trained import Trained
from poscli.report.verdicts import NOT_TRAINED
from poscli.runs.schema import FULL

Curve = Sequence[tuple[int, float]]  # tokens seen, and the training loss in nats per token
SMOOTHED = 20  # a training loss is averaged over this part of the rows of its log
FARTHEST = 10  # times the tokens seen; an extrapolation beyond that is not told
CERTAIN = 2.0  # standard errors by which a slope must lie below zero


def budget_note(rows: pd.DataFrame, summary: pd.DataFrame, trained: Mapping[str, Trained]) -> list[str]:
    """How many tokens the untrained encodings saw, what the others needed, and what would probably be enough.

    Empty where all are trained, or where no training log is known. Losses are those of training batches.
    """
    lost = [str(name) for name in summary.loc[summary["verdict"] == NOT_TRAINED, "encoding"]]
    if not lost or is_per_byte(rows):
        return []
    guesses = _guesses(rows)
    known = {run: (name, trained[run].curve, guess) for run, (name, guess) in guesses.items() if _has_log(run, trained)}
    short = {run: each for run, each in known.items() if each[0] in lost}
    if not short:
        return []
    seen = low_to_high({curve[-1][0] for _, curve, _ in short.values()})
    told = [f"Not trained: {listed(lost, 3)} saw {seen} tokens."]
    others = [passed(curve, guess) for name, curve, guess in known.values() if name not in lost]
    if needed := [tokens for tokens in others if tokens is not None]:
        told.append(
            f"The training loss of the encodings that did train fell below that of a guess after {low_to_high(needed)} "
            "tokens."
        )
    return [" ".join([*told, _outlook(list(short.values()))])]


def _has_log(run: str, trained: Mapping[str, Trained]) -> bool:
    return run in trained and len(trained[run].curve) > 0


def _guesses(rows: pd.DataFrame) -> dict[str, tuple[str, float]]:
    """The encoding of each run, and what a guess costs at its training length in nats per token."""
    own = rows[(rows["protocol"] == headline(rows).perplexity) & (rows["variant"] == FULL) & sound(rows)]
    own = own[own["length"] == own["train_length"]].drop_duplicates("run_id", keep="last")
    costs = own[["unigram", "chance"]].min(axis=1)
    known = zip(own["run_id"], own["encoding"], costs, strict=True)
    return {str(run): (str(name), float(cost)) for run, name, cost in known if cost == cost}


def _outlook(short: Sequence[tuple[str, Curve, float]]) -> str:
    """What is known about how much longer training would have to be."""
    totals, slow = [], []
    for name, curve, guess in short:
        total = tokens_until(curve, guess)
        if total is None or total > FARTHEST * curve[-1][0]:
            slow.append(name)
        else:
            totals.append(max(total, curve[-1][0]))
    told = []
    if totals:
        told.append(
            f"If it goes on falling as in the second half of training, linearly in the logarithm of the tokens, "
            f"{'their' if len(short) > 1 else 'its'} training loss reaches that of a guess after about "
            f"{_about(totals)} tokens in all: an extrapolation, so train on clearly more."
        )
    if slow:
        names = listed(list(dict.fromkeys(slow)), 3)
        told.append(
            f"For {names} no number can be told: the loss no longer falls, or too slowly to reach that of a guess "
            f"within {FARTHEST} times the tokens."
        )
    return " ".join(told)


def _about(totals: Sequence[float]) -> str:
    """Numbers of tokens with two significant digits."""
    rounded = [float(f"{total:.2g}") for total in (min(totals), max(totals))]
    return " to ".join(dict.fromkeys(amount(total) for total in rounded))


def passed(curve: Curve, guess: float) -> int | None:
    """After how many tokens the mean of the latest training losses first was below a guess; None if it never was.

    >>> passed([(100, 5.0), (200, 3.0), (300, 2.0)], 3.5), passed([(100, 5.0)], 3.5)
    (200, None)
    """
    width = max(1, len(curve) // SMOOTHED)
    losses = [loss for _, loss in curve]
    for end in range(width, len(curve) + 1):
        if sum(losses[end - width : end]) / width < guess:
            return curve[end - 1][0]
    return None


def tokens_until(curve: Curve, guess: float) -> float | None:
    """After how many tokens in all the training loss reaches a guess, by a line through its second half.

    The line is in the logarithm of the tokens. None if there are fewer than five rows, or if the loss does not fall by
    more than its noise.
    """
    tokens, losses = np.array(curve, float).T
    late = tokens >= tokens[-1] / 2
    x, y = np.log(tokens[late]), losses[late]
    if len(x) < 5:
        return None
    slope, start = np.polyfit(x, y, 1)
    left = y - start - slope * x
    error = math.sqrt((left @ left) / (len(x) - 2) / ((x - x.mean()) ** 2).sum())
    if slope + CERTAIN * error >= 0:
        return None
    return float(np.exp(min(700.0, (guess - start) / slope)))
