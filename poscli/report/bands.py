"""The intervals of perplexities in a picture, as bands around the lines."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from matplotlib.axes import Axes

from poscli.drawing.style import Styles
from poscli.drawing.text import distinct, listed
from poscli.report.per_byte import is_per_byte
from poscli.statistics import FEWEST_SEEDS

MOST_BANDS = 6  # most of the width of a band is the spread of documents, the same for all: more bands hide each other


def bands(axes: Axes, lines: Iterable[tuple[str, pd.DataFrame]], styles: Styles, rows: pd.DataFrame) -> str:
    """Draw the band of every line, unless there are too many; return what the footnote must say about them.

    `lines` are pooled points by encoding, and `rows` those of eval.csv that they come from.
    """
    lines = list(lines)
    if len(lines) > MOST_BANDS:
        return "No bands: those of so many encodings would hide each other. The gain has its intervals."
    for name, line in lines:
        if styles[name].strong:
            x, low, high = line["length"], line["ppl_low"], line["ppl_high"]
            axes.fill_between(x, low, high, color=styles[name].color, alpha=0.09, linewidth=0)
    if rows.groupby("encoding")["seed"].nunique().max() >= FEWEST_SEEDS:
        return "Bands: 95 % intervals over seeds and documents."
    units = listed(distinct(rows["resampled"])) or "documents"
    same = "" if is_per_byte(rows) else ", which are the same for all encodings"
    return f"Bands: 95 % intervals over {units}{same}."
