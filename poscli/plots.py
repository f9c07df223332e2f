"""The three figures of a report. Each returns its title and the finding it shows, for alternative texts.

Every function takes tidy rows of one training length (`poscli.results`), pools their seeds and writes one PNG.
Encodings that give no number are marked in a strip above the axes, never left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from poscli.report.axes import draw, gain_axis, headroom, length_axis, log_ticks, mark_training, name_axes
from poscli.report.canvas import LONGEST, End, Failure, Page, clip
from poscli.report.findings import gain_finding, perplexity_finding, position_finding
from poscli.report.series import LN2, NothingToPlot, pool, the_train_length
from poscli.report.style import INK, MOST, Style, Styles, styles_for
from poscli.report.summary import ratio_name
from poscli.report.words import kinds, made_with, names, number, signed, unit_of

LENGTH = "length of the window that the model reads, and as a multiple of its training length"
WIDE = 2.5  # values that differ by more than this factor need a log axis
SKIPPED = 16  # of the training length: the first positions cost so much that they would flatten all that follows


def perplexity_by_length(
    rows: pd.DataFrame,
    path: Path,
    *,
    protocol: str = "sliding",
    styles: Styles | None = None,
    trained: Mapping[str, int] | None = None,
) -> str:
    """Perplexity against the length of the window, a line per encoding with its band.

    `styles` keeps an encoding's look over several figures; `trained` says on how many tokens each run was trained.
    """
    train_length, unit = the_train_length(rows), unit_of(rows)
    points, good = _points(rows, protocol)
    styles = styles or _styles(points, "ppl")
    failures = _failures(points, styles)
    page, last = Page(good["encoding"].nunique(), len(failures)), int(points["length"].max())
    for name, line in good.groupby("encoding"):
        draw(page.axes, line["length"], line["ppl"], styles[name])
        _band(page.axes, line, styles[name])
    length_axis(page.axes, sorted(set(points["length"])), train_length)
    scale = _log_where_wide(page.axes, good["ppl"])
    name_axes(page.axes, LENGTH, f"perplexity per {unit}{scale} (lower is better)")
    headroom(page.axes)
    mark_training(page.axes, train_length)
    page.label_ends(_ends(good, "ppl", styles, _perplexity_label), failures)
    title = f"Which encodings still predict well at {ratio_name(last / train_length)} their training length?"
    heading = f"perplexity at {last} (times its own at {train_length})"
    footnote = f"{made_with(rows, protocol, trained)} {_bands(rows, protocol)}"
    return _finish(page, path, title, perplexity_finding(points, unit), heading, footnote)


def context_gain_by_length(
    rows: pd.DataFrame,
    path: Path,
    *,
    styles: Styles | None = None,
    trained: Mapping[str, int] | None = None,
) -> str:
    """Context gain against the length: the loss with the context cut to L minus the loss with all of it."""
    train_length = the_train_length(rows)
    points, good = _points(rows, "fixed")
    styles = styles or _styles(points, "gain")
    failures = _failures(points, styles)
    page = Page(good["encoding"].nunique(), len(failures))
    shift = _dodge([name for name in sorted(set(good["encoding"])) if styles[name].strong])
    for name, line in good.groupby("encoding"):
        x = line["length"].where(line["ratio"] <= 1, line["length"] * shift.get(name, 1.0))
        draw(page.axes, x, line["gain"], styles[name])
        if styles[name].strong:
            page.axes.vlines(x, line["gain_low"], line["gain_high"], color=styles[name].color, linewidth=1.3, zorder=5)
    masked = _draw_masked(page.axes, rows, styles)
    length_axis(page.axes, sorted(set(points["length"])), train_length)
    scale = gain_axis(page.axes, pd.concat([good, masked]), train_length)
    name_axes(page.axes, LENGTH, f"context gain, bits per byte{scale}")
    mark_training(page.axes, train_length, at=0)
    page.label_ends(_ends(good, "gain", styles, lambda name, line: f"{name} {signed(line['gain'].iloc[-1])}"), failures)
    title = "Does context longer than in training help, or do harm?"
    heading = f"gain at {points['length'].max()}"
    note = " Thin dotted lines: the same models, attention masked to the last L tokens." if len(masked) else ""
    footnote = f"{made_with(rows, 'fixed', trained)} Bars: 95 % intervals of the gain.{note}"
    return _finish(page, path, title, gain_finding(points), heading, footnote)


def loss_by_position(
    positions: pd.DataFrame,
    path: Path,
    *,
    styles: Styles | None = None,
    bytes_per_token: float = 1.0,
    origin: str = "",
) -> str:
    """Loss against the position in the longest window that each encoding was evaluated at.

    Position tables count tokens, not bytes: `bytes_per_token` converts; `origin` says how they were made.
    """
    if positions.empty:
        raise NothingToPlot("no run has a loss by position")
    train_length = the_train_length(positions)
    skipped = train_length // SKIPPED
    bins = _bins(positions, skipped, bytes_per_token)
    styles = styles or _styles(bins, "bits")
    page, last = Page(bins["encoding"].nunique()), int(bins["to"].max())
    for name, line in bins.groupby("encoding"):
        draw(page.axes, line["length"], line["bits"], styles[name], every=3)
    scale = _log_where_wide(page.axes, bins["bits"])
    length_axis(page.axes, _octaves(train_length, int(bins["from"].min()), last), train_length)
    name_axes(page.axes, "position in the window", f"bits per byte{scale} (lower is better)")
    headroom(page.axes)
    mark_training(page.axes, train_length)
    page.label_ends(_ends(bins, "bits", styles, lambda name, line: f"{name} {line['bits'].iloc[-1]:.2f}"))
    title = "Where in a long window does prediction get worse?"
    heading = "bits per byte at the end of the window"
    footnote = f"{origin} Windows of {last} tokens; the first {skipped} positions are costly for all and not shown."
    return _finish(page, path, title, position_finding(bins), heading, footnote.strip())


def _points(rows: pd.DataFrame, protocol: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All points of a protocol, and those that have a number."""
    points = pool(rows, protocol)
    good = points.dropna(subset=["gain" if protocol == "fixed" else "ppl"])
    if good.empty:
        raise NothingToPlot(f"protocol {protocol} gave no number at any length")
    return points, good


def _bins(positions: pd.DataFrame, skipped: int, bytes_per_token: float) -> pd.DataFrame:
    """The bins of each encoding's longest window, past the first positions; `length` is the middle of a bin."""
    longest = positions[positions["length"] == positions.groupby("encoding")["length"].transform("max")]
    bins = longest.groupby(["encoding", "from", "to"], as_index=False)["nll"].mean().dropna()
    bins = bins[bins["to"] > skipped]
    if bins.empty:
        raise NothingToPlot("no position has a loss")
    middle = (bins["from"] * bins["to"]) ** 0.5
    return bins.assign(length=middle, bits=bins["nll"] / LN2 / bytes_per_token)


def _styles(points: pd.DataFrame, column: str) -> Styles:
    """Styles ranked by the values at the last length, for a figure that is drawn by itself."""
    last = points[points["length"] == points["length"].max()].dropna(subset=[column])
    ranked = list(last.sort_values(column, ascending=column != "gain")["encoding"])
    return styles_for(ranked, sorted(set(points["encoding"]) - set(ranked)))


def _ends(points: pd.DataFrame, column: str, styles: Styles, label: Callable[[str, pd.DataFrame], str]) -> list[End]:
    """A label for the end of every line; one that ends early gets its name only."""
    right = points["length"].max()
    ends = []
    for name, line in points.groupby("encoding"):
        last = line.iloc[-1]
        if len(line) == 1 and last["length"] < right:
            continue  # a single mark among all the others' starts: the strip of failures names it
        text = label(name, line) if last["length"] == right else name
        ends.append(End(last["length"], last[column], text, styles[name]))
    return ends


def _failures(points: pd.DataFrame, styles: Styles) -> list[Failure]:
    """The rows of the strip: encodings that fail at the same lengths for the same cause share one."""
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, part in points[points["status"] != "ok"].groupby("encoding"):
        first = part.iloc[0]
        some = f" ({first['failed']}/{first['seeds']} seeds)" if first["failed"] < first["seeds"] else ""
        cause = f"{first['status']} from {ratio_name(first['ratio'])}{some}"
        alike.setdefault((cause, tuple(part["length"])), []).append(str(name))
    return [
        Failure(lengths, _failed(who, cause), styles[who[0]] if len(who) == 1 else Style(INK, "-", "x"))
        for (cause, lengths), who in alike.items()
    ]


def _failed(who: list[str], cause: str) -> str:
    """Who failed and how, as short as the margin asks."""
    if len(who) == 1:
        return f"{clip(who[0], max(8, LONGEST - len(cause) - 2))}: {cause}"
    text = f"{names(who)}: {cause}"
    return text if len(text) <= LONGEST else f"{len(who)} encodings: {cause}"


def _dodge(strong: list[str]) -> dict[str, float]:
    """Factors that move each name's marks a little sideways on a log axis, so that error bars stand side by side."""
    middle, step = (len(strong) - 1) / 2, min(0.04, 0.2 / max(1, len(strong)))
    return {name: 2 ** (step * (index - middle)) for index, name in enumerate(strong)}


def _draw_masked(axes: Axes, rows: pd.DataFrame, styles: Styles) -> pd.DataFrame:
    """The gain of the same models with attention masked to width L, as thin dotted lines, where they stay legible."""
    masked = pool(rows, "fixed", "window").dropna(subset=["gain"])
    if len(styles) > MOST or not masked["ratio"].max() > 1:
        return masked.iloc[:0]
    for name, line in masked.groupby("encoding"):
        axes.plot(line["length"], line["gain"], ":", color=styles[name].color, linewidth=0.8, zorder=3)
    return masked


def _band(axes: Axes, line: pd.DataFrame, style: Style) -> None:
    if style.strong:
        x, low, high = line["length"], line["ppl_low"], line["ppl_high"]
        axes.fill_between(x, low, high, color=style.color, alpha=0.09, linewidth=0)


def _bands(rows: pd.DataFrame, protocol: str) -> str:
    if rows.groupby("encoding")["seed"].nunique().max() > 1:
        return "Bands: lowest to highest seed."
    units = names(kinds(rows.loc[rows["protocol"] == protocol, "resampled"])) or "documents"
    return f"Bands: 95 % intervals over {units}, whose difficulty all encodings share."


def _log_where_wide(axes: Axes, values: pd.Series) -> str:
    """Make y logarithmic where the values need it; what to add to the axis's name."""
    if values.max() <= WIDE * values.min():
        return ""
    log_ticks(axes)
    return ", log scale"


def _octaves(train_length: int, first: int, last: int) -> list[int]:
    """The training length times powers of two, within first..last."""
    below = [train_length >> power for power in range(4, 0, -1) if train_length % (1 << power) == 0]
    above = [train_length << power for power in range(24)]
    return [length for length in below + above if first <= length <= last] or [train_length]


def _perplexity_label(name: str, line: pd.DataFrame) -> str:
    own, value = line.loc[line["ratio"] == 1, "ppl"], line["ppl"].iloc[-1]
    growth = f" ({number(value / own.iloc[0])}x)" if len(own) and line["ratio"].iloc[-1] > 1 else ""
    return f"{name} {number(value)}{growth}"


def _finish(page: Page, path: Path, title: str, finding: str, heading: str, footnote: str) -> str:
    page.say(title, finding, heading, footnote)
    page.save(path)
    return f"{title} {finding}"
