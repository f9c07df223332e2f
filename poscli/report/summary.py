"""The answer as a table: one row per encoding, what it reaches at every length, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from poscli.errors import UsageError
from poscli.report.series import pool, the_train_length

USES, HOLDS, FADES, BREAKS = "uses context", "extrapolates", "degrades", "breaks"
UNCLEAR, UNTESTED = "unclear", "not tested"

HEAD = ["corpus", "fingerprint", "train_length", "max_length", "encoding", "seeds", "parameters"]
GAIN = ("gain_bpb", "gain_bpb_low", "gain_bpb_high")  # eval.csv has gains too, in nats per token
TAIL = ["growth", *GAIN, "verdict", "reason"]
# Many tokens make a loss of 0.0003 bits per byte significant, and nobody would mind it: an encoding degrades where even
# the upper end of its interval is worse than MARGIN (0.7 % in perplexity per byte), and breaks where the loss itself is
# above RUIN (23 %).
MARGIN, RUIN = 0.01, 0.3
MEANING = {
    USES: "better than the same model with its context cut to L: it reads beyond L and gains from it",
    HOLDS: f"not worse than with its context cut to L by {MARGIN} bits per byte; flat without gain, it is a sliding "
    "window in disguise",
    FADES: f"worse than with its context cut to L by {MARGIN} bits per byte or more: the longer context does harm",
    BREAKS: f"worse than with its context cut to L by {RUIN} bits per byte or more: of no use at this length",
    UNCLEAR: "no interval for the gain: too few documents are long enough",
    UNTESTED: "not evaluated at the longest length, or at the training length only",
}


def summarize(rows: pd.DataFrame, *, mix: bool = False) -> pd.DataFrame:
    """One row per encoding over its seeds, best perplexity at the longest length first, failures last.

    Columns: corpus, fingerprint, train_length, max_length, encoding, seeds, parameters; per length ratio `ppl_4x` and
    `bpb_4x` (protocol `sliding`); `growth`, perplexity at the longest length over that at 1x; `gain_bpb`,
    `gain_bpb_low`, `gain_bpb_high`, the context gain there in bits per byte (protocol `fixed`); `verdict`; `reason`
    of a failure.
    Rows of several corpora are refused unless `mix`; of several training lengths, always.
    """
    train_length = the_train_length(rows)
    prints = sorted(set(rows["fingerprint"]))
    if len(prints) > 1 and not mix:
        raise UsageError(
            f"corpora {', '.join(prints)}: losses on different text cannot be compared; select one, or say --mix"
        )
    sliding, fixed = pool(rows, "sliding"), pool(rows, "fixed")
    last = int(rows["length"].max())
    head = {
        "corpus": ", ".join(sorted(set(rows["corpus"]))),
        "fingerprint": ", ".join(prints),
        "train_length": train_length,
        "max_length": last,
    }
    ratios = sorted(set(rows["length"] / train_length))
    names = sorted(set(rows["encoding"]))
    lines = [head | _line(name, rows, sliding, fixed, ratios, last / train_length) for name in names]
    return _sorted(pd.DataFrame(lines))


def records(summary: pd.DataFrame) -> list[dict[str, Any]]:
    """The summary as JSON can take it: numbers without a value (NaN, infinity) become None."""
    return [{key: _plain(value) for key, value in row.items()} for row in summary.to_dict("records")]


def standings(summary: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Those with a number at the longest length, best first; and those without."""
    last = [name for name in summary.columns if name.startswith("ppl_")][-1]
    scored = summary[last].notna() & ~summary["verdict"].map(is_failure)
    return list(summary.loc[scored, "encoding"]), list(summary.loc[~scored, "encoding"])


def join(summaries: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Summaries of several groups under each other, with the columns of all lengths in order."""
    ratios = sorted({ratio for summary in summaries for ratio in ratios_of(summary)}, key=lambda name: float(name[:-1]))
    lengths = [f"{column}_{ratio}" for column in ("ppl", "bpb") for ratio in ratios]
    return pd.concat(summaries, ignore_index=True)[[*HEAD, *lengths, *TAIL]]


def ratio_name(ratio: float) -> str:
    """How a multiple of the training length is written: `4x`."""
    return f"{ratio:g}x"


def ratios_of(summary: pd.DataFrame) -> list[str]:
    """The multiples of the training length that this summary has columns for, shortest first."""
    return [name.removeprefix("ppl_") for name in summary.columns if name.startswith("ppl_")]


def is_failure(verdict: str) -> bool:
    """Whether a verdict is the status of a failure."""
    return verdict not in MEANING


def verdict(gain: float, gain_low: float, gain_high: float) -> str:
    """What the context gain and its 95 % interval, in bits per byte, say."""
    if math.isnan(gain_low) or math.isnan(gain_high):
        return UNCLEAR
    if gain_low > 0:
        return USES
    if gain_high > -MARGIN:
        return HOLDS
    return FADES if gain > -RUIN else BREAKS


def _line(
    name: str, rows: pd.DataFrame, sliding: pd.DataFrame, fixed: pd.DataFrame, ratios: list[float], last: float
) -> dict:
    runs = rows[rows["encoding"] == name]
    at = sliding[sliding["encoding"] == name].set_index("ratio")
    long = fixed[(fixed["encoding"] == name) & (fixed["ratio"] == last)]
    line: dict[str, Any] = {
        "encoding": name,
        "seeds": runs["seed"].nunique(),
        "parameters": int(runs["parameters"].max()),
    }
    for column in ("ppl", "bpb"):
        line |= {f"{column}_{ratio_name(ratio)}": at[column].get(ratio, math.nan) for ratio in ratios}
    line["growth"] = at["ppl"].get(last, math.nan) / at["ppl"].get(1.0, math.nan)
    line |= {column: long[column.replace("_bpb", "")].iloc[0] if len(long) else math.nan for column in GAIN}
    word, reason = _judge(at, long, last)
    return line | {"verdict": word, "reason": reason}


def _judge(sliding: pd.DataFrame, long: pd.DataFrame, last: float) -> tuple[str, str]:
    """The verdict at the longest length; a failure under either protocol comes before any number."""
    ends = [sliding.loc[last]] if last in sliding.index else []
    ends += [long.iloc[0]] if len(long) else []
    for end in ends:
        if end["status"] != "ok":
            return str(end["status"]), str(end["reason"])
    if len(long) == 0:
        reason = "no document is long enough for the fixed protocol" if ends else "evaluate it up to the same length"
        return UNTESTED, reason
    if last <= 1:
        return UNTESTED, "evaluated at its training length only"
    return verdict(*(long[name].iloc[0] for name in ("gain", "gain_low", "gain_high"))), ""


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    ppl = [name for name in table.columns if name.startswith("ppl_")]
    keys = table.assign(_failed=table["verdict"].map(is_failure))
    order = keys.sort_values(["_failed", ppl[-1], ppl[0], "encoding"], na_position="last").index
    return table.loc[order].reset_index(drop=True)


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
