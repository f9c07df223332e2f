"""The pictures of a bench: cost of training, time and memory by length, comparison with a peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

from poscli.bench.settings import AUTO, YARDSTICK
from poscli.drawing.axes import LENGTH_AXIS, length_axis, log_ticks, name_axes
from poscli.drawing.axes import draw as draw_line
from poscli.drawing.bars import Bar, BarPage
from poscli.drawing.page import End, Failure, Page, failure_rows
from poscli.drawing.style import FAINT, INK, PALETTE, Style, styles_for
from poscli.drawing.text import amount, counted, low_to_high, number
from poscli.evaluation.measure import PASS_TOKENS

MOST_LINES = 8  # the most costly encodings get a line each; the others share a band
CHEAP = 1.25  # cost as a multiple of `none`: cheaper encodings are drawn in the band, and in blue as bars
BAND, LOWER_HALF = "#e3edf4", "#bcd4e5"
TRAINING, EVALUATION = PALETTE[0], PALETTE[1]


def draw(costs: pd.DataFrame, against: pd.DataFrame, folder: Path) -> list[Path]:
    """Draw every picture for which the tables of costs and of comparisons have numbers; returns the files."""
    rows = costs.assign(label=_labels(costs))
    wanted: list[tuple[str, pd.DataFrame, Callable[[pd.DataFrame, Path], None]]] = [
        ("training.png", rows[(rows["what"] == "train") & (rows["status"] == "ok")], training_cost),
        ("time.png", _evaluations(rows), time_by_length),
        ("memory.png", _evaluations(rows), memory_by_length),
    ]
    compared = against.dropna(subset=["speedup"])
    for peer, part in compared.groupby(compared["peer"].map(_without_version), sort=False):
        wanted.append((f"against-{peer}.png", part, speed_beside_peer))
    made = []
    for name, table, picture in wanted:
        if len(table):
            picture(table, folder / name)
            made.append(folder / name)
    return made


def training_cost(rows: pd.DataFrame, path: Path) -> None:
    """Bars: time of a training step as a multiple of that of `none`."""
    rows = rows.sort_values("ratio")
    page = BarPage([_cost_bar(row) for _, row in rows.iterrows()])
    page.name_axis(f"time of a training step, as a multiple of that of {YARDSTICK}, which has no position encoding")
    finding = _finding(rows.assign(cost=rows["ratio"]), 1.1, "take", "as long", lambda row: f"{number(row['ratio'])}x")
    footnote = (
        f"{_made(rows)} A whole step on {rows['batch'].max()} windows of {rows['length'].max()} tokens, in turns with "
        f"{YARDSTICK}. Bars: medians; thin lines: from the least turn to the most. {_noise(rows)}"
    )
    page.write("What does a position encoding cost in training?", finding, "", footnote)
    page.save(path)


def time_by_length(rows: pd.DataFrame, path: Path) -> None:
    """Lines: time of a forward pass as a multiple of that of `none`, by length."""
    rows = rows.assign(value=rows["ratio"], cost=rows["ratio"])
    page = _by_length(rows, f"times as long as {YARDSTICK}", lambda value: f"{number(value)}x")
    last = _last(rows)
    finding = _finding(last, 1.15, "take", "as long", lambda row: f"{number(row['ratio'])}x")
    _write(page, rows, "What does a position encoding cost on long inputs?", finding)
    page.save(path)


def memory_by_length(rows: pd.DataFrame, path: Path) -> None:
    """Lines: peak memory of a forward pass in MiB, by length."""
    rows = rows.assign(value=rows["peak_mb"], cost=rows["peak_mb"] / rows["none_peak_mb"])
    page = _by_length(rows, "peak memory of a forward pass, MiB", lambda value: f"{amount(value)} MiB")
    finding = _finding(_last(rows), 1.2, "take", "as much", lambda row: f"{amount(row['peak_mb'])} MiB")
    _write(page, rows, "How much memory do long inputs take?", finding)
    page.save(path)


def speed_beside_peer(against: pd.DataFrame, path: Path) -> None:
    """Bars: speedup over a peer, in training and in the longest evaluation of each encoding."""
    library = against["peer"].iloc[0]
    peer = _without_version(library)
    groups = sorted(against.groupby("encoding"), key=lambda item: -item[1]["speedup"].max())
    page = BarPage([bar for _, part in groups for bar in _speedups(part)])
    page.name_axis(f"times faster than {peer}")
    faster = sum(bar.value >= 1 for bar in page.bars)
    share = f"all {faster}" if faster == len(page.bars) else f"{faster} of {len(page.bars)}"
    rest = "" if faster == len(page.bars) else f", {peer} in the rest"
    finding = f"poscli is the faster one in {share} comparisons{rest}."
    footnote = (
        f"{_made(against)} {library}: same layers, widths, heads, vocabulary, optimizer and tokens, in turns. Bars: "
        f"its time over poscli's, medians; thin lines: from the least turn to the most. Blue: a training step; orange: "
        f"the longest evaluation of both; MiB: peak memory. Eager: {peer} has no fused attention for this encoding."
    )
    page.write(f"Models of one shape in poscli and in {peer}", finding, f"poscli : {peer}", footnote)
    page.save(path)


def _without_version(peer: str) -> str:
    return peer.split()[0]


def _cost_bar(row: pd.Series) -> Bar:
    color = FAINT if row["encoding"] == YARDSTICK else PALETTE[0 if row["ratio"] <= CHEAP else 1]
    text = f"{row['ratio']:.2f}x   {amount(row['tokens_per_s'])} tokens/s"
    return Bar(row["label"], row["ratio"], row["ratio_low"], row["ratio_high"], text, color)


def _speedups(part: pd.DataFrame) -> Iterator[Bar]:
    """The bars of one encoding: a training step, then the longest evaluation."""
    shown = [part[part["what"] == "train"], part[part["what"] == "eval"].sort_values("length").tail(1)]
    for n, (_, row) in enumerate(pd.concat(shown).iterrows()):
        trained = row["what"] == "train"
        work = "training" if trained else f"reading {row['length']}"
        pairs = [f"{amount(row[name])} : {amount(row[f'peer_{name}'])}" for name in ("tokens_per_s", "peak_mb")]
        text = f"{row['speedup']:.2f}x {work}, {pairs[0]} tokens/s" + ("" if trained else f", {pairs[1]} MiB")
        if row["peer_attention"] == "eager":
            text += ", eager"
        spread = row["speedup_low"], row["speedup_high"]
        color = TRAINING if trained else EVALUATION
        yield Bar("" if n else row["encoding"], row["speedup"], *spread, text, color)


def _by_length(rows: pd.DataFrame, axis_name: str, text_of: Callable[[float], str]) -> Page:
    """A page with a line for `none` and for each costly encoding, and a band for the others.

    Rows have a `label`, a `value` to draw, and a `cost`, the multiple of `none` by which they are ranked. `text_of`
    formats a value, and `axis_name` names the vertical axis.
    """
    good = rows[rows["status"] == "ok"].sort_values("length")
    lines, others = _divided(good)
    lengths = sorted(set(rows["length"]))
    styles = styles_for([name for name in lines if name != YARDSTICK]) | {YARDSTICK: Style(INK, "-", "")}
    failures = _failures(rows, styles)
    page = Page(len(lines) + 1, len(failures))
    for name, line in lines.items():
        draw_line(page.axes, line["length"], line["value"], styles[name])
    length_axis(page.axes, lengths, int(rows["train_length"].iloc[0]))
    band = _band(page, others, text_of)
    log_ticks(page.axes)
    name_axes(page.axes, LENGTH_AXIS, f"{axis_name}, log scale")
    ends = [_end(name, line, lengths[-1], styles[name], text_of) for name, line in lines.items()]
    page.label_ends([*ends, *band], failures)
    return page


def _write(page: Page, rows: pd.DataFrame, title: str, finding: str) -> None:
    """Write title, finding and footnote of a figure over lengths."""
    _, others = _divided(rows[rows["status"] == "ok"])
    inside = " Band: all others, from the least to the most; its darker part: the lower half." if len(others) else ""
    together = f" Windows are read together, {PASS_TOKENS} tokens in all, or one by one where they are longer."
    page.write(title, finding, f"at {rows['length'].max()} tokens", _made(rows) + together + inside)


def _divided(good: pd.DataFrame) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    """The rows of each line by label, the most costly first, and the rows of the band."""
    named = [*_costly(good), YARDSTICK]
    lines = {name: good[good["label"] == name] for name in named if (good["label"] == name).any()}
    return lines, good[~good["label"].isin(lines)]


def _costly(good: pd.DataFrame) -> list[str]:
    """Labels of the encodings that get a line, the most costly first; all encodings where there are few."""
    last = good.groupby("label").tail(1).sort_values("cost", ascending=False)
    last = last[last["label"] != YARDSTICK]
    if len(last) > MOST_LINES:
        last = last[last["cost"] > CHEAP].head(MOST_LINES)
    return list(last["label"])


def _band(page: Page, others: pd.DataFrame, text_of: Callable[[float], str]) -> list[End]:
    """Draw a band from the smallest to the largest value, darker up to the median; returns its label."""
    if others.empty:
        return []
    reach = others.groupby("length")["value"].agg(["min", "median", "max"])
    page.axes.fill_between(reach.index, reach["min"], reach["max"], color=BAND, linewidth=0, zorder=1)
    page.axes.fill_between(reach.index, reach["min"], reach["median"], color=LOWER_HALF, linewidth=0, zorder=1)
    low, middle, _ = reach.iloc[-1]
    text = f"{others['label'].nunique()} others, half below {text_of(middle)}"
    return [End(float(reach.index[-1]), (low * middle) ** 0.5, text, Style(PALETTE[0], "-", ""))]


def _end(name: str, line: pd.DataFrame, right: int, style: Style, text_of: Callable[[float], str]) -> End:
    """The label at the end of a line, with its value if the line reaches the last length."""
    last = line.iloc[-1]
    text = f"{name} {text_of(last['value'])}" if last["length"] == right else name
    return End(last["length"], last["value"], text, style)


def _failures(rows: pd.DataFrame, styles: dict[str, Style]) -> list[Failure]:
    """The rows of the strip of failures."""
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, part in rows[rows["status"] != "ok"].groupby(["label", "status"]):
        alike.setdefault((str(name[1]), tuple(sorted(part["length"]))), []).append(str(name[0]))
    return failure_rows(alike, styles)


def _last(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with a number at the longest length that has any."""
    good = rows[rows["status"] == "ok"]
    return good[good["length"] == good["length"].max()]


def _finding(rows: pd.DataFrame, cheap: float, verb: str, much: str, text_of: Callable[[pd.Series], str]) -> str:
    """One sentence: how many encodings cost at most `cheap` times `none`, and which one costs most.

    The rows are of one length and have a `cost`. `much` is "as long" or "as much"; `text_of` formats the largest cost.
    """
    others = rows[rows["label"] != YARDSTICK].sort_values("cost")
    if others.empty:
        return f"{YARDSTICK} by itself."
    few, worst = int((others["cost"] <= cheap).sum()), others.iloc[-1]
    finding = (
        f"At {worst['length']} tokens {few} of {len(others)} encodings {verb} at most {cheap:g} times {much} as none"
    )
    return f"{finding}; the most: {worst['label']}, {text_of(worst)}." if worst["cost"] > cheap else f"{finding}."


def _evaluations(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of evaluations; no rows if fewer than two lengths have a number."""
    found = rows[rows["what"] == "eval"]
    return found if found.loc[found["status"] == "ok", "length"].nunique() > 1 else found.iloc[:0]


def _labels(rows: pd.DataFrame) -> pd.Series:
    """The name of each row's line: its encoding, with the engine if one was asked for."""
    asked = rows["asked"].where(rows["asked"] != AUTO, "")
    return rows["encoding"].where(asked == "", rows["encoding"] + " on " + asked)


def _made(rows: pd.DataFrame) -> str:
    """How the numbers were measured, for a footnote: machine, model, turns."""
    good = rows[rows["status"] == "ok"]
    row = good.iloc[-1]
    on = row["device"] if row["device"] != "cpu" else f"{row['machine']}, {counted(row['threads'], 'threads')}"
    turns = low_to_high(good["repeats"])
    turns += " turn" if turns == "1" else " turns"
    model = f"{row['layers']} layers of width {row['width']}, {row['heads']} heads, {row['dtype']}"
    return f"{on}; torch {row['torch']}; {model}; {turns}."


def _noise(rows: pd.DataFrame) -> str:
    """The spread of the ratio of `none` to itself, for a footnote; empty without such a row."""
    none = rows[rows["label"] == YARDSTICK]
    if none.empty:
        return ""
    low, high = none["ratio_low"].iloc[0], none["ratio_high"].iloc[0]
    return f"{YARDSTICK} against itself: {low:.2f} to {high:.2f}, the noise of this machine."
