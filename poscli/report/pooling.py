"""From rows of single runs to one point per encoding and length, pooled over seeds; failures are kept.

Losses are averaged in nats over seeds, so a pooled perplexity is a geometric mean. Gains and bits are per byte of the
original text, because nats per token cannot be compared between tokenizers. Rows of several tokenizers are converted
(`per_byte`): what counted tokens counts bytes, and what was a perplexity per token is bits per byte.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from poscli.drawing.text import listed, low_to_high, number, signed
from poscli.evaluation.plan import PAIRED
from poscli.report.verdicts import only_guesses
from poscli.runs.schema import EVAL_COLUMNS, FULL, perplexity
from poscli.statistics import FEWEST_SEEDS, Triple
from poscli.statistics.comparison import LN2, LossTable
from poscli.statistics.intervals import Case, many_differences
from poscli.system.errors import UsageError
from poscli.system.text import counted

ACCURACY = "accuracy"  # the measure of the tasks that have right answers
POINT = [
    "encoding", "length", "ratio", "seeds", "failed", "status", "reason", "parameters", "documents", "nll", "ppl",
    "ppl_low", "ppl_high", "bpb", "excess", "gain", "gain_low", "gain_high",
]  # fmt: skip
# (nll or gain, protocol, encoding, length) -> ends of its 95 % interval over seeds and documents, in nats per token
Ends = Mapping[tuple[str, str, str, int], tuple[float, float]]
TOKENS = "scored_tokens"  # column of rows of several tokenizers: what `tokens` was
# In nats per token; `per_byte` converts them to nats per byte.
NATS = (
    "nll", "nll_low", "nll_high", "gain", "gain_low", "gain_high", "unigram", "chance", "optimum", "blind",
    "guess_gain_low",
)  # fmt: skip


class Headline(NamedTuple):
    """The protocols that summary and figures quote; `gain` is empty where no protocol measured a gain."""

    perplexity: str
    gain: str


def headline(rows: pd.DataFrame) -> Headline:
    """Choose the protocols to quote among those in the rows.

    Perplexity comes from `sliding`, the gain from `fixed`. Where the rows lack these, perplexity comes from the first
    protocol in the rows and the gain from the first that has one.
    """
    protocols = list(dict.fromkeys(rows["protocol"]))
    with_gain = dict.fromkeys(rows.loc[rows["gain"].notna(), "protocol"])
    perplexity = "sliding" if "sliding" in protocols else protocols[0]
    return Headline(perplexity, "fixed" if "fixed" in protocols else next(iter(with_gain), ""))


def gain_protocol(rows: pd.DataFrame, protocol: str) -> str:
    """The protocol whose gain is shown with the losses of a protocol: its own if it has one, else the quoted one.

    The quoted protocol of losses is shown with the quoted protocol of gains, as everywhere in a report. Empty if
    neither measured a gain.
    """
    quoted = headline(rows)
    measured = set(rows.loc[rows["gain"].notna() & (rows["variant"] == FULL), "protocol"])
    if protocol in measured and protocol != quoted.perplexity:
        return protocol
    return quoted.gain if quoted.gain in measured else ""


def task_measures(rows: pd.DataFrame) -> list[str]:
    """The numeric columns that a task added to the schema, such as `accuracy`, if any row has a number there."""
    others = [name for name in rows.columns if name not in (*EVAL_COLUMNS, TOKENS)]
    added = rows[others].select_dtypes("number")
    return [str(name) for name in added.columns if added[name].notna().any()]


def is_answered(table: pd.DataFrame) -> bool:
    """Whether rows of eval.csv, or a summary of them, are of a task with right answers, which judge encodings."""
    name = "effective" if "max_length" in table else ACCURACY  # in a summary, accuracies are by length
    return bool(name in table and table[name].notna().any())


def sound(rows: pd.DataFrame) -> pd.Series:
    """Which rows have a loss that is a number."""
    return (rows["status"] == "ok") & np.isfinite(rows["nll"])


def of_model(rows: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """The rows of the model itself, without baselines, under a protocol, that have a loss."""
    return rows[(rows["protocol"] == protocol) & (rows["variant"] == FULL) & sound(rows)]


def on_different_windows(rows: pd.DataFrame) -> bool:
    """Whether models that read the same tokens were scored on different windows; the rows are as from `of_model`."""
    windows = rows.groupby(["tokenizer", "length"])[["tokens", "bytes"]].nunique()
    return bool((windows > 1).any(axis=None))


def the_train_length(rows: pd.DataFrame) -> int:
    """The only training length of these rows; UsageError if there are several, which cannot be compared."""
    lengths = sorted(set(rows["train_length"]))
    if len(lengths) != 1:
        known = ", ".join(map(str, lengths)) or "none"
        raise UsageError(f"training lengths {known}: one table or plot needs exactly one; split the rows first")
    return int(lengths[0])


def ratio_name(ratio: float) -> str:
    """Write a multiple of the training length, such as `4x`."""
    return f"{ratio:g}x"


def pool(rows: pd.DataFrame, protocol: str, variant: str = FULL, ends: Ends | None = None) -> pd.DataFrame:
    """One point per (encoding, length) of one protocol and variant, over its seeds, sorted by both.

    `status` is `ok` or the first failure among the seeds; `failed` counts failed seeds. Numbers come from the seeds
    that have one. `gain` and its interval are in bits per byte; of rows of several tokenizers, `ppl` and its interval
    are, too. Measures of a task are averaged over seeds. The intervals of the model, but not of baselines, are those of
    `ends` where these have them (`intervals_of`); all others are over documents only.
    """
    measures, known = task_measures(rows), ends if ends and variant == FULL else {}
    chosen = rows[(rows["protocol"] == protocol) & (rows["variant"] == variant)]
    chosen = chosen.drop_duplicates(["run_id", "length"], keep="last").assign(sound=sound)
    columns = {str(name): chosen[name].to_numpy() for name in chosen.columns}  # a hundred times faster to cut
    groups = sorted(chosen.groupby(["encoding", "length"]).indices.items())
    points = []
    for (name, length), at in groups:
        exact = {measure: known.get((measure, protocol, name, length)) for measure in ("nll", "gain")}
        points.append(_pooled({column: values[at] for column, values in columns.items()}, measures, exact))
    table = pd.DataFrame(points, columns=[*POINT, *measures])
    if is_per_byte(rows):  # the score is then the loss in bits per byte, which its logarithm was
        table[["ppl", "ppl_low", "ppl_high"]] = np.log(table[["ppl", "ppl_low", "ppl_high"]].astype(float)) / LN2
    return table


def _pooled(
    part: dict[str, np.ndarray], measures: list[str], exact: Mapping[str, tuple[float, float] | None]
) -> dict[str, Any]:
    """The point of the rows of one encoding at one length, given by their columns; `exact` are ends that are known."""
    good = {name: values[part["sound"]] for name, values in part.items()}
    runs, failed = len(part["sound"]), int((~part["sound"]).sum())
    point = {
        "encoding": part["encoding"][0],
        "length": int(part["length"][0]),
        "ratio": int(part["length"][0]) / int(part["train_length"][0]),
        "seeds": runs,
        "failed": failed,
        "parameters": int(part["parameters"].max()),
        "status": "ok",
        "reason": "",
    }
    if failed:
        status, reason = (part[name][~part["sound"]][0] for name in ("status", "reason"))
        reason = reason or "no finite loss"
        point["status"] = "nonfinite" if status == "ok" else status
        point["reason"] = reason if failed == runs else f"{failed} of {runs} seeds: {reason}"
    if failed == runs:
        return point
    nll = good["nll"]
    low, high = _interval(good, "nll", np.ones(len(nll)), exact["nll"])
    point |= {
        "nll": nll.mean(),
        "ppl": perplexity(nll.mean()),
        "ppl_low": perplexity(low),
        "ppl_high": perplexity(high),
        "bpb": _mean(good["bpb"]),
        "excess": _mean(good["bpb"] * (1 - good["optimum"] / good["nll"])),  # bits per byte above the optimum
        "documents": int(good["documents"].max()),
    }
    won = {name: values[~np.isnan(good["gain"])] for name, values in good.items()}  # seeds without a gain do not count
    if len(won["gain"]):
        bits = won["tokens"] / np.where(won["bytes"] > 0, won["bytes"], math.nan) / LN2
        point["gain"] = _mean(won["gain"] * bits)
        point["gain_low"], point["gain_high"] = _interval(won, "gain", bits, exact["gain"])
    return point | {name: _mean(good[name]) for name in measures}


def _mean(values: np.ndarray) -> float:
    """The mean of the values that are numbers; NaN if none is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _interval(
    good: dict[str, np.ndarray], column: str, scale: np.ndarray, exact: tuple[float, float] | None
) -> tuple[float, float]:
    """The 95 % interval of a mean over seeds: the `exact` one if it is known, else that over documents.

    The interval over documents is that of the mean of the seeds, as if these seeds were all there are. It is as wide as
    that of one seed, because all seeds are scored on the same documents.
    """
    if exact is not None and not math.isnan(exact[0]):
        return _mean(exact[0] * scale), _mean(exact[1] * scale)
    values, lows, highs = (good[name] * scale for name in (column, f"{column}_low", f"{column}_high"))
    return values.mean() - (values - lows).mean(), values.mean() + (highs - values).mean()


@dataclass(frozen=True, kw_only=True)
class Point:
    """One encoding at one length under one protocol, over its seeds; a number that is not known is NaN."""

    encoding: str
    length: int
    ratio: float  # of the length to the training length
    seeds: int
    failed: int
    status: str  # ok, infinite, or that of the first failed seed
    reason: str
    ppl: float  # of several tokenizers, bits per byte
    ppl_low: float
    ppl_high: float
    loss: Triple  # bits per byte, and the ends of the interval
    gain: Triple  # the context gain, likewise
    measures: Mapping[str, float]  # of a task

    @property
    def is_known(self) -> bool:
        """Whether there is a finite loss."""
        return not math.isnan(self.loss[0])


def points_of(
    rows: pd.DataFrame,
    protocol: str,
    variant: str = FULL,
    exact: Mapping[tuple[str, int], np.ndarray] | None = None,
    ends: Ends | None = None,
) -> tuple[Point, ...]:
    """The points of a protocol and variant, sorted by encoding and length.

    `exact` are the losses with intervals over seeds and documents, by encoding and length; without them, intervals are
    those over documents from eval.csv. `ends` are as in `pool`.
    """
    table, several_tokenizers = pool(rows, protocol, variant, ends), is_per_byte(rows)
    scored = rows[(rows["protocol"] == protocol) & (rows["variant"] == variant) & sound(rows) & (rows["bytes"] > 0)]
    sums = scored.groupby(["encoding", "length"])[["tokens", "bytes"]].sum()
    per_byte_of = {} if several_tokenizers else (sums["tokens"] / sums["bytes"]).to_dict()
    measures, points = task_measures(rows), []
    for row in table.to_dict("records"):
        key = str(row["encoding"]), int(row["length"])
        per_byte = float(per_byte_of.get(key, 1.0))
        low, high = (math.nan, math.nan) if exact is None else map(float, exact[key][1:])
        if math.isnan(low):
            scores = (float(row["ppl_low"]), float(row["ppl_high"]))
            known = (end if end and math.isfinite(end) else math.nan for end in scores)
            bits = scores if several_tokenizers else (math.log2(end) * per_byte for end in known)
            low, high = bits
        bpb = float(row["bpb"])
        point = Point(
            encoding=key[0],
            length=key[1],
            ratio=float(row["ratio"]),
            seeds=int(row["seeds"]),
            failed=int(row["failed"]),
            status=str(row["status"]) if row["status"] != "ok" or math.isfinite(bpb) else "infinite",
            reason=str(row["reason"]),
            ppl=float(row["ppl"]),
            ppl_low=float(row["ppl_low"]),
            ppl_high=float(row["ppl_high"]),
            loss=(bpb if math.isfinite(bpb) else math.nan, low, high),
            gain=(float(row["gain"]), float(row["gain_low"]), float(row["gain_high"])),
            measures={name: float(row[name]) for name in measures},
        )
        points.append(point)
    return tuple(points)


def intervals_of(rows: pd.DataFrame, units: LossTable) -> Ends:
    """The intervals over the seeds and documents of each encoding, in nats per token.

    Those are known of every encoding with FEWEST_SEEDS runs that have a loss, under every protocol; NaN where documents
    are too few. Of rows of several tokenizers, which `per_byte` has converted, they are per byte, and known wherever
    there is a loss: the intervals of eval.csv are over tokens, and documents differ in how many bytes a token has.
    """
    by_bytes, keys, cases = is_per_byte(rows), [], dict[str, list[Case | None]](nll=[], gain=[])
    for protocol in rows["protocol"].unique():
        for (name, length), group in of_model(rows, protocol).groupby(["encoding", "length"]):
            runs = list(group["run_id"].unique())
            if len(runs) < (1 if by_bytes else FEWEST_SEEDS):
                continue
            keys.append((protocol, str(name), int(length)))
            at = (runs, protocol, int(length), FULL)
            for column, losses in (("nll", units.losses(*at)), ("gain", units.gains(*at, PAIRED))):
                counts = None if losses is None else losses.bytes if by_bytes else losses.tokens
                cases[column].append(None if losses is None or counts is None else (losses.nats, counts))
    ends = {}
    for column, each in cases.items():
        for key, (_, low, high, _) in zip(keys, many_differences(each, test=False).tolist(), strict=True):
            ends[column, *key] = (low, high)
    return ends


def untrained(rows: pd.DataFrame) -> dict[str, str]:
    """The encodings of these rows with a seed that only guesses at the training length, each with the numbers.

    The guess is the better of two: by the frequency of the tokens in the training text (`unigram`), and evenly among
    the vocabulary (`chance`). One such seed is enough, as one failed seed is: a mean over seeds would hide it. A seed
    that has more answers right than the guess, by two standard errors, has learned something, whatever its loss.
    """
    losses_at_l = guesses(rows)
    reasons = {}
    for name, runs in losses_at_l.groupby("encoding"):
        losses = zip(runs["nll"], runs["guess_gain_low"], runs["guess"], strict=True)
        guessing = [only_guesses(*each) for each in losses]
        if ACCURACY in runs:
            share = np.exp(-runs["guess"])
            error = np.sqrt(share * (1 - share) / runs["tokens"].clip(lower=1))
            guessing = list(np.array(guessing) & ~(runs[ACCURACY] > share + 2 * error))
        if not any(guessing):
            continue
        first, unit = runs[guessing].iloc[0], "byte" if is_per_byte(rows) else "token"
        nll, low, guess = (float(first[column]) for column in ("nll", "guess_gain_low", "guess"))
        some = f"{sum(guessing)} of {len(runs)} seeds: " if sum(guessing) < len(runs) else ""
        close = f" (the 95 % interval of the difference begins at {signed(low)})" if nll < guess else ""
        loss = f"its loss at its training length is {number(nll)} nats per {unit}"
        reasons[str(name)] = f"{some}{loss}, and guessing costs {number(guess)}{close}"
    return reasons


def guesses(rows: pd.DataFrame) -> pd.DataFrame:
    """The row of each run at its training length, with what a guess costs there in nats: `guess`."""
    scored = of_model(rows, headline(rows).perplexity)
    scored = scored[scored["length"] == scored["train_length"]].drop_duplicates("run_id", keep="last")
    return scored.assign(guess=scored[["unigram", "chance"]].min(axis=1))


def is_per_byte(table: pd.DataFrame) -> bool:
    """Whether rows of eval.csv, or a summary of them, are of several tokenizers."""
    return table["tokenizer"].nunique() > 1 and table["fingerprint"].nunique() > 1


def is_summed_per_byte(summary: pd.DataFrame) -> bool:
    """Whether the summary of a section is of several tokenizers, so that its `ppl` columns hold bits per byte."""
    mixed = summary["fingerprint"].str.contains(", ").any()
    return bool(mixed and summary["tokenizer"].nunique() > 1)


def per_byte(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of eval.csv of several tokenizers, per byte; other rows as they are. A row without a number keeps none."""
    if not is_per_byte(rows):
        return rows
    ratio = rows["tokens"] / rows["bytes"].where(rows["bytes"] > 0)
    columns = {name: rows[name] * ratio for name in NATS}
    return rows.assign(**columns, tokens=rows["bytes"], ppl=rows["bpb"], **{TOKENS: rows["tokens"]})


def positions_per_byte(positions: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Losses by position in nats per byte, if the rows of their runs, which count tokens, are of several tokenizers."""
    if not is_per_byte(rows):
        return positions
    sums = rows[rows["status"] == "ok"].groupby("run_id")[["tokens", "bytes"]].sum()
    ratio = positions["run_id"].map(sums["tokens"] / sums["bytes"])
    return positions.assign(nll=positions["nll"] * ratio.astype(float))  # an empty column would not hold numbers


def without_perplexities(summary: pd.DataFrame) -> pd.DataFrame:
    """A summary for files: where its `ppl` columns hold bits per byte, which `bpb` says already, they are empty."""
    if not is_summed_per_byte(summary):
        return summary
    empty = [name for name in summary.columns if name.startswith("ppl_") or name == "growth"]
    return summary.assign(**dict.fromkeys(empty, float("nan")))


def tokenizer_spec(tokenizer: str) -> str:
    """The spec in the column `tokenizer`, which may be followed by the tokenizer's fingerprint in brackets."""
    return tokenizer.rpartition(" (")[0] or tokenizer


def refuse_several_tokenizers(rows: pd.DataFrame, *, mix: bool) -> None:
    """UsageError if rows are of several tokenizers and may not be mixed.

    One spec that was trained on several corpora counts as one: these have sections of their own.
    """
    if mix or not is_per_byte(rows):
        return
    runs = rows.groupby(rows["tokenizer"].map(tokenizer_spec))["run_id"].nunique()
    if len(runs) > 1:
        counts = listed([f"{name} ({counted(count, 'run')})" for name, count in runs.items()])
        raise UsageError(
            f"these runs have the tokenizers {counts}, whose losses per token cannot be compared: --mix compares them "
            "in bits per byte; or give the runs of each an --out of their own"
        )


def scored_tokens(rows: pd.DataFrame) -> pd.Series:
    """The tokens scored in each row, also of converted rows."""
    return rows[TOKENS] if TOKENS in rows else rows["tokens"]


def windows_in_bytes(rows: pd.DataFrame) -> str:
    """How many bytes a window of L tokens is, by tokenizer: `256 tokens are about 958 bytes (3.74 each)`.

    Empty if every token is a byte. The numbers come from the scored tokens.
    """
    scored = rows[(rows["status"] == "ok") & (rows["bytes"] > 0)]
    scored = scored.assign(tokens=scored_tokens(scored))
    if scored.empty or (scored["tokens"] == scored["bytes"]).all():
        return ""
    windows = []
    for name, part in scored.groupby("tokenizer"):
        each = part["bytes"].sum() / part["tokens"].sum()
        lengths = sorted(set(part["train_length"]))
        size = low_to_high([round(each * length) for length in lengths])
        windows.append(
            f"{tokenizer_spec(str(name))}: {low_to_high(lengths)} tokens are about {size} bytes ({each:.3g} each)"
        )
    return "; ".join(windows)
