"""Which models learned nothing: at their training length they predict no better than a guess that reads no context."""

from __future__ import annotations

import numpy as np
import pandas as pd

from poscli.drawing.text import number, signed
from poscli.report.per_byte import is_per_byte
from poscli.report.pooling import ACCURACY, headline, sound
from poscli.report.verdicts import only_guesses
from poscli.runs.schema import FULL


def untrained(rows: pd.DataFrame) -> dict[str, str]:
    """The encodings of these rows with a seed that only guesses at the training length, each with the numbers.

    The guess is the better of two: by the frequency of the tokens in the training text (`unigram`), and evenly among
    the vocabulary (`chance`). One such seed is enough, as one failed seed is: a mean over seeds would hide it. A seed
    that has more answers right than the guess has learned something, whatever its loss.
    """
    own = rows[(rows["protocol"] == headline(rows).perplexity) & (rows["variant"] == FULL)]
    own = own[sound(own) & (own["length"] == own["train_length"])].drop_duplicates("run_id", keep="last")
    found = {}
    for name, runs in own.groupby("encoding"):
        losses = zip(runs["nll"], runs["guess_gain_low"], runs[["unigram", "chance"]].min(axis=1), strict=True)
        answers = _answers(runs) if ACCURACY in runs else [False] * len(runs)
        guesses = [loss for loss, right in zip(losses, answers, strict=True) if only_guesses(*loss) and not right]
        if guesses:
            unit = "byte" if is_per_byte(rows) else "token"
            found[str(name)] = _reason(*guesses[0], seeds=(len(guesses), len(runs)), unit=unit)
    return found


def _answers(runs: pd.DataFrame) -> list[bool]:
    """Which runs of a task have more answers right than a guess by frequency, by two standard errors."""
    guess = np.exp(-runs[["unigram", "chance"]].min(axis=1))
    error = np.sqrt(guess * (1 - guess) / runs["tokens"].clip(lower=1))
    return list(runs[ACCURACY] > guess + 2 * error)


def _reason(nll: float, gain_low: float, guess: float, seeds: tuple[int, int], unit: str = "token") -> str:
    some = f"{seeds[0]} of {seeds[1]} seeds: " if seeds[0] < seeds[1] else ""
    close = f" (the 95 % interval of the difference begins at {signed(gain_low)})" if nll < guess else ""
    loss = f"its loss at its training length is {number(nll)} nats per {unit}"
    return f"{some}{loss}, and guessing costs {number(guess)}{close}"
