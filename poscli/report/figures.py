"""The three figures of a report.

Every function takes tidy rows of one training length (`poscli.runs.schema`), pools their seeds and returns a page with
its alternative text. Encodings without a number are marked in a strip above the axes; none is left out. A line is
broken at a length without a number. Encodings that are not trained are drawn, and marked at the ends of their lines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from poscli.drawing.axes import (
    LENGTH_AXIS,
    POSITIVE_TINT,
    draw_line,
    headroom,
    length_axis,
    log_ticks,
    mark_training,
    name_axes,
    remark,
    signed_axis,
)
from poscli.drawing.page import End, Failure, Page, clip_name, failure_rows
from poscli.drawing.style import MAX_COLORED_LINES, Styles, styles_for
from poscli.drawing.text import number, signed
from poscli.report.bands import bands
from poscli.report.findings import gain_finding, perplexity_finding, position_finding
from poscli.report.guessing import untrained
from poscli.report.origin import bits_per, footnote, unit_of
from poscli.report.per_byte import is_per_byte
from poscli.report.pooling import LN2, NothingToPlot, headline, pool, the_train_length
from poscli.report.summary import ratio_name
from poscli.report.verdicts import NOT_TRAINED
from poscli.runs.schema import FULL

MIN_RATIO_FOR_LOG_AXIS = 2.5  # largest over smallest value
SKIPPED_POSITIONS = 1 / 16  # of the training length: losses there are so high that they would flatten the curve
MIN_GAIN_AXIS_BPB = 0.01  # upper end of the gain axis where all gains are smaller
BASELINE_DASHES = {":": "dotted", "-.": "dash-dotted", "--": "dashed"}  # further baselines are not drawn


class Drawing(NamedTuple):
    """A drawn page that is not saved yet, and its alternative text: the title and the finding."""

    page: Page
    alt: str


def perplexity_by_length(
    rows: pd.DataFrame, *, styles: Styles | None = None, trained: Mapping[str, int] | None = None
) -> Drawing:
    """Perplexity by the length of the window, one line per encoding, with its band if there are few.

    `styles` keeps the look of an encoding over several figures; `trained` maps run ids to tokens of training.
    """
    protocol = headline(rows).perplexity
    train_length, unit = the_train_length(rows), unit_of(rows)
    named = bits_per(rows) if is_per_byte(rows) else "perplexity"
    score, read = (named, "token") if is_per_byte(rows) else (f"perplexity per {unit}", unit)
    points, good, guessing = *_points(rows, protocol, "ppl"), untrained(rows)
    styles = styles or _styles(points, "ppl")
    failures = _failures(points, styles)
    page, last = Page(good["encoding"].nunique(), len(failures)), int(points["length"].max())
    for name, line in _lines(points, "ppl"):
        draw_line(page.axes, line["length"], line["ppl"], styles[name])
    told = bands(page.axes, _lines(points, "ppl"), styles, rows[rows["protocol"] == protocol])
    length_axis(page.axes, sorted(set(points["length"])), train_length)
    scale = _log_where_wide(page.axes, good["ppl"])
    name_axes(page.axes, LENGTH_AXIS, f"{score}{scale} (lower is better)")
    headroom(page.axes)
    mark_training(page.axes, train_length)
    page.label_ends(_ends(good, "ppl", styles, _marking(_perplexity_label, guessing)), failures)
    title = f"Which encodings still predict well at {ratio_name(last / train_length)} their training length?"
    heading = f"{named} at {last} (times its own at {train_length})"
    note = f"{footnote(rows, protocol, trained)} {told}"
    return _finish(page, title, perplexity_finding(points, read, guessing, named), heading, note)


def context_gain_by_length(
    rows: pd.DataFrame, *, styles: Styles | None = None, trained: Mapping[str, int] | None = None
) -> Drawing:
    """Context gain by length: the loss with the context cut to L minus the loss with the whole context."""
    protocol = headline(rows).gain
    if not protocol:
        raise NothingToPlot("no protocol measured a gain")
    train_length = the_train_length(rows)
    points, good, guessing = *_points(rows, protocol, "gain"), untrained(rows)
    styles = styles or _styles(points, "gain")
    failures = _failures(points, styles)
    page = Page(good["encoding"].nunique(), len(failures))
    shift = _dodge([name for name in sorted(set(good["encoding"])) if styles[name].strong])
    for name, line in _lines(points, "gain"):
        x = line["length"].where(line["ratio"] <= 1, line["length"] * shift.get(name, 1.0))
        draw_line(page.axes, x, line["gain"], styles[name])
        if styles[name].strong:
            page.axes.vlines(x, line["gain_low"], line["gain_high"], color=styles[name].color, linewidth=1.3, zorder=5)
    baselines = _baselines(rows, protocol) if len(styles) <= MAX_COLORED_LINES else {}
    drawn = _draw_baselines(page.axes, baselines, styles)
    length_axis(page.axes, sorted(set(points["length"])), train_length)
    scale = _gain_axis(page.axes, pd.concat([good, *baselines.values()]), train_length)
    name_axes(page.axes, LENGTH_AXIS, f"context gain, {bits_per(rows)}{scale}")
    mark_training(page.axes, train_length, at=0)
    page.label_ends(_ends(good, "gain", styles, _marking(_gain_label, guessing)), failures)
    title = "Does context longer than in training help, or do harm?"
    heading = f"gain at {points['length'].max()}"
    note = f"{footnote(rows, protocol, trained)} Bars: 95 % intervals of the gain.{drawn}"
    return _finish(page, title, gain_finding(points, guessing), heading, note)


def loss_by_position(
    positions: pd.DataFrame,
    *,
    styles: Styles | None = None,
    bytes_per_token: float = 1.0,
    origin: str = "",
    guessing: Collection[str] = (),
    unit: str = "bits per byte",
) -> Drawing:
    """Loss by position in the longest window on which each encoding was evaluated.

    Position tables count tokens, which `bytes_per_token` converts to bytes. `origin` says how the tables were made;
    `guessing` names the encodings that are not trained, and `unit` is what losses are in, which they do not tell.
    """
    if positions.empty:
        raise NothingToPlot("no run has a loss by position")
    train_length = the_train_length(positions)
    skipped = int(train_length * SKIPPED_POSITIONS)
    bins = _bins(positions, skipped, bytes_per_token)
    styles = styles or _styles(bins, "bits")
    good = bins.dropna(subset=["bits"])
    page, last = Page(good["encoding"].nunique()), int(bins["to"].max())
    for name, line in bins.groupby("encoding"):
        draw_line(page.axes, line["length"], line["bits"], styles[name], every=3)
    scale = _log_where_wide(page.axes, bins["bits"])
    length_axis(page.axes, _octaves(train_length, int(bins["from"].min()), last), train_length)
    name_axes(page.axes, "position in the window", f"{unit}{scale} (lower is better)")
    headroom(page.axes)
    mark_training(page.axes, train_length)
    page.label_ends(_ends(good, "bits", styles, _marking(_bits_label, guessing)))
    title = "Where in a long window does prediction get worse?"
    heading = f"{unit} at the end of the window"
    note = f"{origin} Windows of {last} tokens; the first {skipped} positions are costly for all and not shown."
    return _finish(page, title, position_finding(bins, guessing, unit), heading, note.strip())


def _points(rows: pd.DataFrame, protocol: str, column: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(all points of a protocol, those with a number in this column)."""
    points = pool(rows, protocol)
    good = points[np.isfinite(points[column])]
    if good.empty:
        raise NothingToPlot(f"protocol {protocol} gave no number at any length")
    return points, good


def _lines(points: pd.DataFrame, column: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each encoding that has a number, with all lengths; NaN at those without one, where its line must be broken."""
    lengths = sorted(set(points["length"]))
    finite = points.assign(**{column: points[column].where(np.isfinite(points[column]))})
    for name, line in finite.groupby("encoding"):
        if line[column].notna().any():
            yield str(name), line.set_index("length").reindex(lengths).reset_index()


def _bins(positions: pd.DataFrame, skipped: int, bytes_per_token: float) -> pd.DataFrame:
    """The bins of each encoding's longest window after the skipped positions; `length` is the middle of a bin."""
    longest = positions[positions["length"] == positions.groupby("encoding")["length"].transform("max")]
    bins = longest.groupby(["encoding", "from", "to"], as_index=False)["nll"].mean()
    bins = bins[bins["to"] > skipped]
    loss = bins["nll"].where(np.isfinite(bins["nll"]))
    if loss.isna().all():
        raise NothingToPlot("no position has a loss")
    middle = (bins["from"] * bins["to"]) ** 0.5
    return bins.assign(length=middle, bits=loss / LN2 / bytes_per_token)


def _styles(points: pd.DataFrame, column: str) -> Styles:
    """Styles for a figure that is drawn alone, ranked by the values at the last length."""
    last = points[points["length"] == points["length"].max()].dropna(subset=[column])
    ranked = list(last.sort_values(column, ascending=column != "gain")["encoding"])
    return styles_for(ranked, sorted(set(points["encoding"]) - set(ranked)))


Label = Callable[[str, pd.DataFrame], str]  # from the name of an encoding and its points to the text at its end


def _marking(label: Label, guessing: Collection[str]) -> Label:
    """The label, with a mark on the encodings that are not trained."""
    return lambda name, line: label(name, line) + (f", {NOT_TRAINED}" if name in guessing else "")


def _ends(points: pd.DataFrame, column: str, styles: Styles, label: Label) -> list[End]:
    """A label for the end of every line; a line that ends early is labelled with its name only."""
    right = points["length"].max()
    ends = []
    for name, line in points.groupby("encoding"):
        last = line.iloc[-1]
        if len(line) == 1 and last["length"] < right:
            continue  # a single point where all lines start cannot be labelled; the strip of failures names it
        text = clip_name(label(name, line), name) if last["length"] == right else name
        ends.append(End(last["length"], last[column], text, styles[name]))
    return ends


def _failures(points: pd.DataFrame, styles: Styles) -> list[Failure]:
    """The rows of the strip of failures."""
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, part in points[(points["status"] != "ok") | np.isinf(points["ppl"])].groupby("encoding"):
        first = part.iloc[0]
        some = f" ({first['failed']}/{first['seeds']} seeds)" if 0 < first["failed"] < first["seeds"] else ""
        status = "infinite" if first["status"] == "ok" else first["status"]
        cause = f"{status} from {ratio_name(first['ratio'])}{some}"
        alike.setdefault((cause, tuple(part["length"])), []).append(str(name))
    return failure_rows(alike, styles)


def _dodge(strong: list[str]) -> dict[str, float]:
    """Factors on x that move the points of each encoding a little sideways, so that error bars do not overlap."""
    middle, step = (len(strong) - 1) / 2, min(0.04, 0.2 / max(1, len(strong)))
    return {name: 2 ** (step * (index - middle)) for index, name in enumerate(strong)}


def _baselines(rows: pd.DataFrame, protocol: str) -> dict[str, pd.DataFrame]:
    """The gains under each baseline, by its name; a baseline whose gains are all zero, such as `crop`, is left out."""
    found = {}
    for variant in dict.fromkeys(rows.loc[rows["protocol"] == protocol, "variant"]):
        points = pool(rows, protocol, variant)
        if variant != FULL and (points["gain"].dropna() != 0).any():
            found[variant] = points
    return dict(list(found.items())[: len(BASELINE_DASHES)])


def _draw_baselines(axes: Axes, baselines: Mapping[str, pd.DataFrame], styles: Styles) -> str:
    """Draw the gains under each baseline as thin lines; return what to add to the footnote."""
    note = ""
    for (variant, points), (dash, look) in zip(baselines.items(), BASELINE_DASHES.items(), strict=False):
        for name, line in _lines(points, "gain"):
            axes.plot(line["length"], line["gain"], dash, color=styles[name].color, linewidth=0.8, zorder=3)
        note += f" Thin {look} lines: the same models under the baseline {variant}."
    return note


def _gain_axis(axes: Axes, gains: pd.DataFrame, train_length: int) -> str:
    """Make y an axis of gains and explain both of its sides; return what to add to its name."""
    high = max(float(gains[["gain", "gain_high"]].max(axis=None)), MIN_GAIN_AXIS_BPB)
    low = min(float(gains[["gain", "gain_low"]].min(axis=None)), -high / 2)
    scale = signed_axis(axes, low, high)
    above = "above zero: gains from context longer than in training; at zero: as if cut to L"
    remark(axes, (train_length, 1), (4, -11), above, halo=POSITIVE_TINT)
    remark(axes, (axes.get_xlim()[1], 0), (-3, 5), f"below zero: worse than cut to L = {train_length}", ha="right")
    return scale


def _log_where_wide(axes: Axes, values: pd.Series) -> str:
    """Make y logarithmic if the values differ widely; return what to add to the name of the axis."""
    if values.max() <= MIN_RATIO_FOR_LOG_AXIS * values.min():
        return ""
    log_ticks(axes)
    return ", log scale"


def _octaves(train_length: int, first: int, last: int) -> list[int]:
    """The training length times powers of two, from `first` to `last`."""
    below = [train_length >> power for power in range(4, 0, -1) if train_length % (1 << power) == 0]
    above = [train_length << power for power in range(24)]
    return [length for length in below + above if first <= length <= last] or [train_length]


def _perplexity_label(name: str, line: pd.DataFrame) -> str:
    own, value = line.loc[line["ratio"] == 1, "ppl"], line["ppl"].iloc[-1]
    growth = f" ({number(value / own.iloc[0])}x)" if len(own) and line["ratio"].iloc[-1] > 1 else ""
    return f"{name} {number(value)}{growth}"


def _gain_label(name: str, line: pd.DataFrame) -> str:
    return f"{name} {signed(line['gain'].iloc[-1])}"


def _bits_label(name: str, line: pd.DataFrame) -> str:
    return f"{name} {line['bits'].iloc[-1]:.2f}"


def _finish(page: Page, title: str, finding: str, heading: str, note: str) -> Drawing:
    page.write(title, finding, heading, note)
    return Drawing(page, f"{title} {finding}")
