"""Doubts about a section's numbers that a reader cannot see in the numbers themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import scipy  # whose parts are loaded when they are used

from poscli.config.code import MEASURING, TRAINING, code_of
from poscli.drawing.text import amount, distinct, listed, low_to_high
from poscli.report.catalogue import spec_in_label
from poscli.report.collect import Trained
from poscli.report.comparison import SPANS
from poscli.report.origin import items_of, machines
from poscli.report.pooling import Point, guesses, headline, is_per_byte, of_model, on_different_windows, ratio_name
from poscli.report.verdicts import NOT_TRAINED, is_failure
from poscli.runs.run import AS
from poscli.runs.schema import FULL
from poscli.statistics import FEWEST_SEEDS

MAX_SIZE_RATIO = 1.15  # models that differ by a larger factor in parameters are not comparable without a warning
OVER_SPANS = "Few documents are long enough: intervals come from spans of text and are too narrow; score more --tokens."
Curve = Sequence[tuple[int, float]]  # tokens seen, and the training loss in nats per token
SMOOTHED = 20  # a training loss is averaged over this part of the rows of its log
NAMED = 6  # encodings in a sentence about the age of results
FARTHEST = 10  # times the tokens seen; an extrapolation beyond that is not told
CERTAIN = 2.0  # standard errors by which a slope must lie below zero


def caveats(rows: pd.DataFrame, summary: pd.DataFrame, points: Sequence[Point]) -> list[str]:
    """Doubts about one section, the most important first; `points` are those of the protocol that reports quote."""
    notes, quoted = [], headline(rows)
    # Lengths before the longest one without a number, whose cause no verdict tells.
    failed = set(summary.loc[summary["verdict"].map(is_failure), "encoding"])
    holes: dict[str, list[Point]] = {}
    for point in points:
        if point.status not in ("ok", "infinite") and point.encoding not in failed:
            holes.setdefault(point.encoding, []).append(point)
    for name, part in holes.items():
        lengths = listed([ratio_name(point.ratio) for point in part])
        notes.append(f"{name} failed at {lengths} ({part[0].status}): {part[0].reason}.")
    seeds = rows.groupby("encoding")["seed"].nunique()
    few = [str(name) for name in seeds[seeds < FEWEST_SEEDS].index]
    if seeds.max() < FEWEST_SEEDS:
        some = "One seed" if seeds.max() == 1 else f"Fewer than {FEWEST_SEEDS} seeds"
        spread = f"intervals cover the choice of {items_of(rows)}, not the spread between seeds"
        notes.append(f"{some} per encoding: {spread}.")
    elif few:
        notes.append(
            f"Fewer than {FEWEST_SEEDS} seeds for {listed(few)}: intervals leave out the spread between seeds."
        )
    if (rows[rows["protocol"].isin(quoted)]["resampled"] == SPANS).any():  # which are not independent
        notes.append(OVER_SPANS)
    sizes = summary["parameters"]
    if sizes.max() > MAX_SIZE_RATIO * sizes.min():
        spread = f"{amount(sizes.min())} to {amount(sizes.max())}"
        notes.append(f"Models have {spread} parameters: size may explain part of a difference.")
    main = rows[rows["protocol"] == quoted.perplexity]
    scored = of_model(rows, quoted.perplexity)
    own = main[main["variant"] == FULL]
    if own.groupby("length")["stride"].nunique().max() > 1:
        notes.append("Runs were evaluated with different strides: evaluate them again with one --stride to compare.")
    elif on_different_windows(scored):  # then perplexities do not compare to the last digit
        notes.append(
            "Runs were scored on different windows of the text: evaluate all with the same --tokens, --max-len and "
            "--lengths to compare."
        )
    if len(dtypes := distinct(rows["dtype"])) > 1:
        notes.append(f"Evaluated in {listed(dtypes)}: small differences may be rounding.")
    if len(names := machines(rows)) > 1:
        which = "seconds, tokens per second and memory in eval.csv"
        notes.append(f"Measured on {listed(names)}: {which} do not compare between them.")
    return notes


def age_note(rows: pd.DataFrame) -> list[str]:
    """One sentence that names the encodings whose results are older than the code, and why; none if no result is."""
    encodings, engines, unknown = list[str](), list[str](), list[str]()
    names = list(map(str, rows["encoding"].unique()))
    for name in names:
        part, spec = rows[rows["encoding"] == name], spec_in_label(name)
        measured = set(part["measured_code"].fillna(""))
        trained = set(part["trained_code"].fillna("")) - {""}
        if "" in measured:
            unknown.append(name)
            continue
        for then, now in ((trained, code_of(spec, TRAINING)), (measured, code_of(spec, MEASURING))):
            own, rooms = now.split("-")
            # A model that is evaluated under another encoding was trained with the code of its own.
            if AS not in name and any(each.split("-")[0] != own for each in then if own) and name not in encodings:
                encodings.append(name)
            if any(each.split("-")[1] != rooms for each in then) and name not in engines:
                engines.append(name)

    def whose(part: list[str]) -> str:
        return "all" if len(part) == len(names) > 1 else listed(part, NAMED)

    reasons = [
        (unknown, "made before results said by which code"),
        (encodings, "the code of the encoding has changed since"),
        (engines, "the code that trains or measures has changed since"),
    ]
    found = [f"{whose(part)} ({why})" for part, why in reasons if part]
    if not found:
        return []
    again = "Train and evaluate them again, with --force, to see whether the numbers have"
    return [f"Older than the code: {'; '.join(found)}. {again}."]


def budget_note(rows: pd.DataFrame, summary: pd.DataFrame, trained: Mapping[str, Trained]) -> list[str]:
    """How many tokens the untrained encodings saw, what the others needed, and what would probably be enough.

    Empty where all are trained, where no training log is known, or where the text is not that of the training. Losses
    are those of training batches.
    """
    lost = [str(name) for name in summary.loc[summary["verdict"] == NOT_TRAINED, "encoding"]]
    if not lost or is_per_byte(rows) or rows["trained_on"].any():  # more training teaches nothing of another text
        return []
    costs = guesses(rows).dropna(subset="guess")[["run_id", "encoding", "guess"]].itertuples(index=False)
    known = [(str(name), trained[run].curve, guess) for run, name, guess in costs if run in trained]
    known = [(name, curve, guess) for name, curve, guess in known if len(curve)]
    short = [each for each in known if each[0] in lost]
    if not short:
        return []
    seen = low_to_high({curve[-1][0] for _, curve, _ in short})
    sentences = [f"Not trained: {listed(lost, 3)} saw {seen} tokens."]
    others = [passed(curve, guess) for name, curve, guess in known if name not in lost]
    if needed := [tokens for tokens in others if tokens is not None]:
        sentences.append(
            f"The training loss of the encodings that did train fell below that of a guess after {low_to_high(needed)} "
            "tokens."
        )
    totals, slow = [], []
    for name, curve, guess in short:
        total = tokens_until(curve, guess)
        if total is None or total > FARTHEST * curve[-1][0]:
            slow.append(name)
        else:
            totals.append(max(total, curve[-1][0]))
    if totals:
        rounded = (float(f"{total:.2g}") for total in (min(totals), max(totals)))
        about = " to ".join(dict.fromkeys(amount(total) for total in rounded))
        sentences.append(
            f"If {'their' if len(short) > 1 else 'its'} training loss goes on falling as in the second half of "
            f"training, linearly in the logarithm of the tokens, it reaches that of a guess after about {about} tokens "
            "in all: an extrapolation, so train on clearly more."
        )
    if slow:
        sentences.append(
            f"For {listed(list(dict.fromkeys(slow)), 3)} it cannot be told how many would do: the loss no longer falls "
            f"or too slowly to reach that of a guess within {FARTHEST} times the tokens."
        )
    return [" ".join(sentences)]


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
    if late.sum() < 5:
        return None
    line = scipy.stats.linregress(np.log(tokens[late]), losses[late])
    if line.slope + CERTAIN * line.stderr >= 0:
        return None
    return math.exp(min(700.0, (guess - line.intercept) / line.slope))
