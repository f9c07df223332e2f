"""Doubts about a section's numbers that a reader cannot see in the numbers themselves."""

from __future__ import annotations

import pandas as pd

from poscli.drawing.text import amount, distinct, listed, low_to_high
from poscli.report.origin import items_of, machines
from poscli.report.pooling import headline, pool, sound
from poscli.report.summary import ratio_name
from poscli.report.verdicts import is_failure
from poscli.runs.schema import FULL
from poscli.statistics import FEWEST_SEEDS

MAX_SIZE_RATIO = 1.15  # models that differ by a larger factor in parameters are not comparable without a warning


def caveats(rows: pd.DataFrame, summary: pd.DataFrame) -> list[str]:
    """Doubts about one section, the most important first."""
    of_rows = [*_holes(rows, summary), *_seeds(rows), *_resampled(rows)]
    return [*of_rows, *_sizes(summary), *(_strides(rows) or _windows(rows)), *_dtypes(rows), *_machines(rows)]


def _holes(rows: pd.DataFrame, summary: pd.DataFrame) -> list[str]:
    """Lengths before the longest one without a number, whose cause no verdict tells."""
    points = pool(rows, headline(rows).perplexity)
    told = set(summary.loc[summary["verdict"].map(is_failure), "encoding"])
    notes = []
    for name, part in points[(points["status"] != "ok") & ~points["encoding"].isin(told)].groupby("encoding"):
        lengths = listed([ratio_name(ratio) for ratio in part["ratio"]])
        notes.append(f"{name} failed at {lengths} ({part['status'].iloc[0]}): {part['reason'].iloc[0]}.")
    return notes


def _seeds(rows: pd.DataFrame) -> list[str]:
    counts = rows.groupby("encoding")["seed"].nunique()
    if counts.max() >= FEWEST_SEEDS:
        few = [str(name) for name in counts[counts < FEWEST_SEEDS].index]
        told = f"Fewer than {FEWEST_SEEDS} seeds for {listed(few)}: intervals leave out the spread between seeds."
        return [told] if few else []
    some = "One seed" if counts.max() == 1 else f"Fewer than {FEWEST_SEEDS} seeds"
    return [f"{some} per encoding: intervals cover the choice of {items_of(rows)}, not the spread between seeds."]


def _resampled(rows: pd.DataFrame) -> list[str]:
    """With few documents, intervals come from resampling spans of text, which are not independent."""
    quoted = rows[rows["protocol"].isin(headline(rows))]
    if not (quoted["resampled"] == "spans").any():
        return []
    return ["Few documents are long enough: intervals come from spans of text and are too narrow; score more --tokens."]


def _sizes(summary: pd.DataFrame) -> list[str]:
    sizes = summary["parameters"]
    if sizes.max() <= MAX_SIZE_RATIO * sizes.min():
        return []
    spread = f"{amount(sizes.min())} to {amount(sizes.max())}"
    return [f"Models have {spread} parameters: size may explain part of a difference."]


def _strides(rows: pd.DataFrame) -> list[str]:
    quoted = rows[rows["protocol"] == headline(rows).perplexity]
    if quoted.groupby("length")["stride"].nunique().max() < 2:
        return []
    strides = low_to_high(set(quoted["stride"]))
    return [f"Runs were evaluated with strides of {strides}: evaluate them again with one --stride to compare."]


def _windows(rows: pd.DataFrame) -> list[str]:
    """Runs that were scored on other windows of the same text, whose perplexities do not compare to the last digit."""
    own = rows[(rows["protocol"] == headline(rows).perplexity) & sound(rows) & (rows["variant"] == FULL)]
    scored = own.groupby(["tokenizer", "length"] if "tokenizer" in own else "length")[["tokens", "bytes"]].nunique()
    if not (scored > 1).any(axis=None):
        return []
    return [
        "Runs were scored on different windows of the text: evaluate all with the same --tokens, --max-len and "
        "--lengths to compare."
    ]


def _dtypes(rows: pd.DataFrame) -> list[str]:
    dtypes = distinct(rows["dtype"])
    return [f"Evaluated in {listed(dtypes)}: small differences may be rounding."] if len(dtypes) > 1 else []


def _machines(rows: pd.DataFrame) -> list[str]:
    names = machines(rows)
    told = (
        f"Measured on {listed(names)}: seconds, tokens per second and memory in eval.csv do not compare between them."
    )
    return [told] if len(names) > 1 else []
