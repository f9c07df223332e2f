"""Runs of several tokenizers in one section: their losses compare per byte only, never per token.

Rows of such a section are converted: what counted tokens counts bytes, and a score that was a perplexity per token is
bits per byte. `is_per_byte` tells such rows, and summaries of them, from all others.
"""

from __future__ import annotations

import pandas as pd

from poscli.drawing.text import listed, low_to_high
from poscli.system.errors import UsageError

TOKENS = "scored_tokens"  # column of converted rows: what `tokens` was
# In nats per token; converted to nats per byte.
NATS = (
    "nll", "nll_low", "nll_high", "gain", "gain_low", "gain_high", "unigram", "chance", "optimum", "guess_gain_low",
    "seeds_nll_low", "seeds_nll_high", "seeds_gain_low", "seeds_gain_high",
)  # fmt: skip


def is_per_byte(table: pd.DataFrame) -> bool:
    """Whether rows of eval.csv, or a summary of them, are of several tokenizers."""
    return "tokenizer" in table and table["tokenizer"].nunique() > 1 and table["fingerprint"].nunique() > 1


def is_summed_per_byte(summary: pd.DataFrame) -> bool:
    """Whether the summary of a section is of several tokenizers, so that its `ppl` columns hold bits per byte."""
    mixed = summary["fingerprint"].str.contains(", ").any()
    return bool("tokenizer" in summary and mixed and summary["tokenizer"].nunique() > 1)


def positions_per_byte(positions: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Losses by position in nats per byte, if the rows of their runs, which count tokens, are of several tokenizers."""
    if not is_per_byte(rows):
        return positions
    sums = rows[rows["status"] == "ok"].groupby("run_id")[["tokens", "bytes"]].sum()
    ratio = (
        positions["run_id"].map(sums["tokens"] / sums["bytes"]).astype(float)
    )  # an empty column would not hold numbers
    return positions.assign(nll=positions["nll"] * ratio)


def without_perplexities(summary: pd.DataFrame) -> pd.DataFrame:
    """A summary for files: where its `ppl` columns hold bits per byte, which `bpb` says already, they are empty."""
    if not is_summed_per_byte(summary):
        return summary
    empty = [name for name in summary.columns if name.startswith("ppl_") or name == "growth"]
    return summary.assign(**dict.fromkeys(empty, float("nan")))


def spec_of(tokenizer: str) -> str:
    """The spec in the column `tokenizer`, which may be followed by the tokenizer's fingerprint in brackets."""
    return tokenizer.rpartition(" (")[0] or tokenizer


def refuse_several_tokenizers(rows: pd.DataFrame, *, mix: bool) -> None:
    """UsageError if rows are of several tokenizers and may not be mixed.

    One spec that was trained on several corpora counts as one: these have sections of their own.
    """
    if mix or not is_per_byte(rows):
        return
    runs = rows.groupby(rows["tokenizer"].map(spec_of))["run_id"].nunique()
    if len(runs) < 2:
        return
    told = listed([f"{name} ({count} run{'s' * (count != 1)})" for name, count in runs.items()])
    raise UsageError(
        f"these runs have the tokenizers {told}, whose losses per token cannot be compared: --mix compares them in "
        "bits per byte; or give the runs of each an --out of their own"
    )


def per_byte(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of eval.csv of several tokenizers, per byte; other rows as they are. A row without a number keeps none."""
    if not is_per_byte(rows):
        return rows
    ratio = rows["tokens"] / rows["bytes"].where(rows["bytes"] > 0)
    columns = {name: rows[name] * ratio for name in NATS if name in rows}
    return rows.assign(**columns, tokens=rows["bytes"], ppl=rows["bpb"], **{TOKENS: rows["tokens"]})


def scored_tokens(rows: pd.DataFrame) -> pd.Series:
    """The tokens scored in each row, also of converted rows."""
    return rows[TOKENS] if TOKENS in rows else rows["tokens"]


def windows_in_bytes(rows: pd.DataFrame) -> str:
    """How many bytes a window of L tokens is, by tokenizer: `256 tokens are about 958 bytes (3.74 each)`.

    Empty if every token is a byte. The numbers come from the scored tokens.
    """
    if "tokenizer" not in rows:
        return ""
    scored = rows[(rows["status"] == "ok") & (rows["bytes"] > 0)]
    scored = scored.assign(tokens=scored_tokens(scored))
    if scored.empty or (scored["tokens"] == scored["bytes"]).all():
        return ""
    found = []
    for name, part in scored.groupby("tokenizer"):
        each = part["bytes"].sum() / part["tokens"].sum()
        lengths = sorted(set(part["train_length"]))
        size = low_to_high([round(each * length) for length in lengths])
        found.append(f"{spec_of(str(name))}: {low_to_high(lengths)} tokens are about {size} bytes ({each:.3g} each)")
    return "; ".join(found)
