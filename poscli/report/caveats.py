"""What a reader of the numbers must know and would not see in them."""

from __future__ import annotations

import pandas as pd

from poscli.report.summary import HOLDS
from poscli.report.words import amount, kinds, names, span

UNEQUAL = 1.15  # models whose sizes differ by more than this factor are not alike
COARSE = 0.05  # bits per byte: an interval of the gain that reaches further down hides real harm


def caveats(rows: pd.DataFrame, summary: pd.DataFrame) -> list[str]:
    """Doubts about one section, most important first."""
    return [*_seeds(rows), *_resampled(rows), *_coarse(summary), *_sizes(summary), *_strides(rows), *_devices(rows)]


def _seeds(rows: pd.DataFrame) -> list[str]:
    counts = rows.groupby("encoding")["seed"].nunique()
    if counts.max() > 1:
        few = [str(name) for name in counts[counts == 1].index]
        return [f"Only one seed for {names(few)}: its interval leaves out the spread between seeds."] if few else []
    return ["One seed each: intervals are over documents only, and one seed proves nothing about the spread."]


def _resampled(rows: pd.DataFrame) -> list[str]:
    """Where documents are few, the evaluation resamples spans of text, which are not independent."""
    judged = rows[rows["protocol"] != "nonoverlapping"]
    if not (judged["resampled"] == "spans").any():
        return []
    return ["Few documents are long enough: intervals come from spans of text and are too narrow; score more --tokens."]


def _coarse(summary: pd.DataFrame) -> list[str]:
    wide = summary[(summary["verdict"] == HOLDS) & (summary["gain_bpb_low"] < -COARSE)]
    if wide.empty:
        return []
    return [
        f"{names(list(wide['encoding']))}: the interval of the gain reaches {wide['gain_bpb_low'].min():.2f} bits per "
        "byte, too wide to rule out harm; score more --tokens or train more seeds."
    ]


def _sizes(summary: pd.DataFrame) -> list[str]:
    sizes = summary["parameters"]
    if sizes.max() <= UNEQUAL * sizes.min():
        return []
    return [f"Models have {amount(sizes.min())} to {amount(sizes.max())} parameters: compare like with like."]


def _strides(rows: pd.DataFrame) -> list[str]:
    strides = set(rows.loc[rows["protocol"] == "sliding", "stride"])
    if len(strides) < 2:
        return []
    return [f"Runs were evaluated with strides of {span(strides)}: evaluate them again with one --stride to compare."]


def _devices(rows: pd.DataFrame) -> list[str]:
    types = kinds(rows["dtype"])
    return [f"Evaluated in {names(types)}: small differences may be rounding."] if len(types) > 1 else []
