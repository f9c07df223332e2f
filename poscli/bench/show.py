"""What a bench has found: tables in the terminal, and pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich import bar, box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from poscli.bench.settings import AUTO, YARDSTICK
from poscli.drawing.axes import (
    AXIS_NAME_POINTS,
    LENGTH_AXIS,
    draw_line,
    fixed_ticks,
    length_axis,
    log_ticks,
    name_axes,
)
from poscli.drawing.page import WIDTH, End, Page, clip, failure_rows, written
from poscli.drawing.style import FAINT, INK, PALETTE, QUIET, Style, styles_for
from poscli.drawing.text import amount, listed, low_to_high, number
from poscli.evaluation.measure import PASS_TOKENS
from poscli.system.files import write_atomic
from poscli.system.text import counted

LEGEND = (
    "x none: time over that of `none`, measured in turns; the line of `none` itself shows the noise of this machine. "
    "MFU: FLOP/s of the model over those of a matrix product, measured in turns. MiB: peak memory of that pass alone."
)
MOST_LINES = 8  # the most costly encodings get a line each; the others share a band
CHEAP = 1.25  # cost as a multiple of `none`: cheaper encodings are drawn in the band, and in blue as bars
BAR_WIDTH = 40  # characters of a bar in the terminal
BAND, LOWER_HALF = "#e3edf4", "#bcd4e5"
STYLES = {"oom": "magenta", "unsupported": "dim", "skipped": "dim", "failed": "red"}
# Of bars: ticks of their axis, those that are shown before any other but 1, and their smallest distance in inches.
TICKS = (
    *(0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2, 2.5, 3, 4, 5, 7),
    *(10, 15, 20, 30, 50, 100, 200),
)
ROUND_TICKS = (2, 5, 10, 0.5)
TICK_GAP = 0.4


@dataclass(frozen=True)
class Bar:
    """A ratio with its spread, its name at the left and a text at the right."""

    name: str
    value: float
    low: float
    high: float
    text: str
    color: str


class BarPage(Page):
    """Bars that begin at 1 on a log axis, so that a ratio of 2 is as long as one of 1/2."""

    def __init__(self, bars: Sequence[Bar]) -> None:
        super().__init__(int(1.25 * len(bars)) + 1)
        self.size = 7.2
        # Room for the names at the left and the texts at the right, and a line at 1.
        left = 0.3 + self._width([clip(each.name) for each in bars], self.size)
        right = 0.35 + self._width([each.text for each in bars], self.size)
        axes, box = self.axes, self.axes.get_position()
        axes.set_position((left / WIDTH, box.y0, (WIDTH - left - right) / WIDTH, box.height))
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.grid(visible=True, axis="x", color="#e6e6e6", linewidth=0.7)
        axes.spines["left"].set_visible(False)
        axes.axvline(1, color=INK, linewidth=1.0, zorder=3)
        ends = [end for each in bars for end in (each.low, each.high, each.value)]
        low, high = min(0.97, *ends), max(1.1, *ends)
        axes.set_xscale("log")
        axes.set_xlim(low / 1.02, high * (high / low) ** 0.03)
        axes.set_ylim(len(bars) - 0.4, -0.6)
        ticks = self._ticks()
        fixed_ticks(axes.xaxis, ticks, [f"{tick:g}x" for tick in ticks])
        for row, each in enumerate(bars):
            self._draw(row, each)

    def _ticks(self) -> list[float]:
        """Ticks inside the axis, at least TICK_GAP apart: 1 first, then round ones, then those closest to 1."""
        left, right = self.axes.get_xlim()
        inches = self.axes.get_position().width * WIDTH / np.log(right / left)  # of a factor e
        kept: list[float] = []
        for tick in sorted(TICKS, key=lambda tick: (tick != 1, tick not in ROUND_TICKS, abs(np.log(tick)))):
            if left <= tick <= right and all(abs(np.log(tick / other)) * inches > TICK_GAP for other in kept):
                kept.append(tick)
        return sorted(kept)

    def _draw(self, row: int, drawn: Bar) -> None:
        self.axes.barh(row, drawn.value - 1, left=1, height=0.66, color=drawn.color, zorder=2)
        self.axes.hlines(row, drawn.low, drawn.high, color=INK, linewidth=1.0, zorder=4)
        look: dict[str, Any] = {"fontsize": self.size, "va": "center", "annotation_clip": False, "parse_math": False}
        beside = self.axes.get_yaxis_transform()
        for x, shift, side, color, text in (
            (0, -5, "right", INK, clip(drawn.name)),
            (1, 6, "left", QUIET if drawn.color == FAINT else INK, drawn.text),
        ):
            self.axes.annotate(
                text,
                (x, row),
                xycoords=beside,
                xytext=(shift, 0),
                textcoords="offset points",
                ha=side,
                color=color,
                **look,
            )

    def name_axis(self, text: str) -> None:
        """Write what the bars measure below the axis."""
        self.axes.set_xlabel(text, fontsize=AXIS_NAME_POINTS)


Value = Callable[[pd.Series], str]


def show_bench(costs: pd.DataFrame, limits: pd.DataFrame, console: Console) -> None:
    """Print the tables of a bench, as `ResultFile.table` returns them, and below each the failures by cause."""
    if len(costs):
        console.print(_overview(costs))
        console.print(Text(LEGEND, style="dim"))
        print_failures(costs, console)
    if len(limits):
        console.print(_limits(limits))
        print_failures(limits.assign(encoding=limits["limit"], what="", length=limits["shape"]), console)


def show_breakdown(parts: pd.DataFrame, console: Console) -> None:
    """Print a table of the parts with bars for each case of `--profile`, and below all the failures by cause."""
    good = parts[parts["status"] == "ok"]
    for _, case in good.groupby(["encoding", "asked", "what"], sort=False):
        first, table = case.iloc[0], number_table(("part",), ["ms", "%"])
        table.add_column(width=BAR_WIDTH)
        windows = f"{counted(first['batch'], 'window')} of {first['length']} tokens"
        table.title = f"{first['encoding']} on {first['engine']}, {first['what']}, {windows}"
        for _, row in case.iterrows():
            length = bar.Bar(1.0, 0.0, row["share"], width=BAR_WIDTH)
            table.add_row(row["part"], number(1000 * row["seconds"]), f"{100 * row['share']:.0f}", length)
        table.add_section()
        table.add_row("all", number(1000 * first["profiled_seconds"]), "100")
        console.print(table)
        console.print(Text(f"without the profiler: {number(1000 * first['plain_seconds'])} ms", style="dim"))
    print_failures(parts, console)


def _rank(part: pd.DataFrame) -> tuple[float, ...]:
    """Ratios to `none` in training and in the longest evaluation, infinite where there is none."""
    last = [part.loc[part["what"] == what].sort_values("length")["ratio"].dropna() for what in ("train", "eval")]
    return tuple(float(values.iloc[-1]) if len(values) else float("inf") for values in last)


def _overview(costs: pd.DataFrame) -> Table:
    """A line per encoding and engine, the cheapest ones in training first, and a column per workload and length."""
    lengths, pasts = (sorted(set(costs.loc[costs["what"] == what, "length"])) for what in ("eval", "decode"))
    columns: list[tuple[str, str, int | None, Value]] = []
    if (costs["what"] == "train").any():
        columns += [
            ("train\ntokens/s", "train", None, lambda row: amount(row["tokens_per_s"])),
            ("train\nx none", "train", None, lambda row: number(row["ratio"])),
            ("train\nMFU", "train", None, lambda row: f"{row['mfu']:.2f}"),
        ]
    columns += [(f"{length}\nx none", "eval", length, lambda row: number(row["ratio"])) for length in lengths]
    columns += [(f"{length}\nMiB", "eval", length, lambda row: amount(row["peak_mb"])) for length in lengths[-1:]]
    columns += [(f"decode\n{past}, ms", "decode", past, lambda row: number(1000 * row["seconds"])) for past in pasts]
    table = number_table(("encoding", "engine"), [title for title, *_ in columns])
    for part in sorted((part for _, part in costs.groupby(["encoding", "asked"], sort=True)), key=_rank):
        engines = dict.fromkeys(engine for engine in part["engine"] if engine)
        cells = [_cell(_find(part, what, length), value) for _, what, length, value in columns]
        table.add_row(Text(part["encoding"].iloc[0]), Text(" ".join(engines) or "-"), *cells)
    return table


def _limits(limits: pd.DataFrame) -> Table:
    """A line per limit of the machine."""
    first = limits.iloc[0]
    table = number_table(("limit", "dtype", "of what"), ["shape", "rate", "least ms", "ms", "most ms"])
    table.title = f"limits of {first['machine']} ({first['device']}), {counted(first['threads'], 'thread')}"
    for _, row in limits.iterrows():
        times = [number(1000 * row[name]) for name in ("seconds_min", "seconds", "seconds_max")]
        rate = f"{number(row['rate'])} {row['unit']}"
        table.add_row(row["limit"], row["dtype"], row["why"], Text(row["shape"]), rate, *times)
    return table


def print_failures(rows: pd.DataFrame, console: Console) -> None:
    """Print one line for each cause of a failure, with the encodings, workloads and lengths that it affects."""
    bad = rows[rows["status"] != "ok"]
    for (status, message), part in bad.groupby(["status", "message"], sort=False):
        who = listed(list(dict.fromkeys(part["encoding"])))
        lengths = listed([str(length) for length in dict.fromkeys(part["length"])], 3)
        works = listed(list(dict.fromkeys(part["what"])))
        text = f"{status}: {who} ({works} {lengths}): {message}"
        console.print(Text(text, style=STYLES.get(str(status), "")), soft_wrap=True)


def _find(part: pd.DataFrame, what: str, length: int | None) -> pd.Series | None:
    """The row of a workload and a length, of any length for None; None if there is none."""
    rows = part[(part["what"] == what) & ((part["length"] == length) | (length is None))]
    return None if rows.empty else rows.iloc[-1]


def _cell(row: pd.Series | None, value: Value) -> Text:
    """The value of a row, its status if it has no value, or a dash."""
    if row is None:
        return Text("-")
    if row["status"] != "ok":
        return Text(row["status"], style=STYLES.get(row["status"], ""))
    return Text(value(row))


def number_table(words: tuple[str, ...], numbers: list[str]) -> Table:
    """An empty table with columns of words, aligned left, and of numbers, aligned right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left", title_style="bold")
    for title in words:
        table.add_column(title, no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def draw_costs(costs: pd.DataFrame, folder: Path) -> list[Path]:
    """Draw every picture for which the table of costs has numbers; returns the files."""
    asked = costs["asked"].where(costs["asked"] != AUTO, "")
    rows = costs.assign(label=costs["encoding"].where(asked == "", costs["encoding"] + " on " + asked))
    trained, evaluated = rows[(rows["what"] == "train") & (rows["status"] == "ok")], rows[rows["what"] == "eval"]
    files = []
    if len(trained):
        files.append(folder / "training.png")
        draw_training_cost(trained, files[-1])
    if evaluated.loc[evaluated["status"] == "ok", "length"].nunique() > 1:
        files += [folder / "time.png", folder / "memory.png"]
        draw_time_by_length(evaluated, files[-2])
        draw_memory_by_length(evaluated, files[-1])
    return files


def draw_training_cost(rows: pd.DataFrame, path: Path) -> None:
    """Bars: time of a training step as a multiple of that of `none`."""
    rows = rows.sort_values("ratio")
    bars = []
    for _, row in rows.iterrows():
        color = FAINT if row["encoding"] == YARDSTICK else PALETTE[0 if row["ratio"] <= CHEAP else 1]
        text = f"{row['ratio']:.2f}x   {amount(row['tokens_per_s'])} tokens/s"
        bars.append(Bar(row["label"], row["ratio"], row["ratio_low"], row["ratio_high"], text, color))
    page = BarPage(bars)
    page.name_axis(f"time of a training step, as a multiple of that of {YARDSTICK}, which has no position encoding")
    finding = _finding(rows.assign(cost=rows["ratio"]), 1.1, "as long", lambda row: f"{number(row['ratio'])}x")
    none, noise = rows[rows["label"] == YARDSTICK], ""
    if len(none):
        low, high = none["ratio_low"].iloc[0], none["ratio_high"].iloc[0]
        noise = f"{YARDSTICK} against itself: {low:.2f} to {high:.2f}, the noise of this machine."
    windows = f"{rows['batch'].max()} windows of {rows['length'].max()} tokens"
    footnote = (
        f"{how_measured(rows)} A whole step on {windows}, in turns with {YARDSTICK}. Bars: medians; thin lines: from "
        f"the least turn to the most. {noise}"
    )
    page.write("What does a position encoding cost in training?", finding, "", footnote)
    write_atomic(path, written(page.figure, "png"))


def draw_time_by_length(rows: pd.DataFrame, path: Path) -> None:
    """Lines: time of a forward pass as a multiple of that of `none`, by length."""
    rows = rows.assign(value=rows["ratio"], cost=rows["ratio"])
    finding = _finding(_last(rows), 1.15, "as long", lambda row: f"{number(row['ratio'])}x")
    title = "What does a position encoding cost on long inputs?"
    _draw_by_length(rows, path, title, finding, f"times as long as {YARDSTICK}", lambda value: f"{number(value)}x")


def draw_memory_by_length(rows: pd.DataFrame, path: Path) -> None:
    """Lines: peak memory of a forward pass in MiB, by length."""
    rows = rows.assign(value=rows["peak_mb"], cost=rows["peak_mb"] / rows["none_peak_mb"])
    finding = _finding(_last(rows), 1.2, "as much", lambda row: f"{amount(row['peak_mb'])} MiB")
    axis_name = "peak memory of a forward pass, MiB"
    title = "How much memory do long inputs take?"
    _draw_by_length(rows, path, title, finding, axis_name, lambda value: f"{amount(value)} MiB")


def _draw_by_length(
    rows: pd.DataFrame, path: Path, title: str, finding: str, axis_name: str, text_of: Callable[[float], str]
) -> None:
    """A page with a line for `none` and for each costly encoding, and a band for the others.

    Rows have a `label`, a `value` to draw, and a `cost`, the multiple of `none` by which they are ranked. `text_of`
    formats a value, and `axis_name` names the vertical axis.
    """
    good = rows[rows["status"] == "ok"].sort_values("length")
    costly = good.groupby("label").tail(1).sort_values("cost", ascending=False)
    costly = costly[costly["label"] != YARDSTICK]
    if len(costly) > MOST_LINES:
        costly = costly[costly["cost"] > CHEAP].head(MOST_LINES)
    lines = {name: part for name in (*costly["label"], YARDSTICK) if len(part := good[good["label"] == name])}
    others = good[~good["label"].isin(lines)]
    styles = styles_for([name for name in lines if name != YARDSTICK]) | {YARDSTICK: Style(INK, "-", "")}
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, part in rows[rows["status"] != "ok"].groupby(["label", "status"]):
        alike.setdefault((str(name[1]), tuple(sorted(part["length"]))), []).append(str(name[0]))
    failures = failure_rows(alike, styles)
    page = Page(len(lines) + 1, len(failures))
    lengths = sorted(set(rows["length"]))
    ends = []
    for label, line in lines.items():
        draw_line(page.axes, line["length"], line["value"], styles[label])
        last = line.iloc[-1]
        text = f"{label} {text_of(last['value'])}" if last["length"] == lengths[-1] else label
        ends.append(End(last["length"], last["value"], text, styles[label]))
    length_axis(page.axes, lengths, int(rows["train_length"].iloc[0]))
    if len(others):
        ends.append(_draw_band(page, others, text_of))
    log_ticks(page.axes)
    name_axes(page.axes, LENGTH_AXIS, f"{axis_name}, log scale")
    page.label_ends(ends, failures)
    together = f" Windows are read together, {PASS_TOKENS} tokens in all, or one by one where they are longer."
    band = " Band: all others, from the least to the most; its darker part: the lower half." if len(others) else ""
    page.write(title, finding, f"at {lengths[-1]} tokens", how_measured(rows) + together + band)
    write_atomic(path, written(page.figure, "png"))


def _draw_band(page: Page, others: pd.DataFrame, text_of: Callable[[float], str]) -> End:
    """Draw a band from the smallest to the largest value, darker up to the median; returns its label."""
    reach = others.groupby("length")["value"].agg(["min", "median", "max"])
    page.axes.fill_between(reach.index, reach["min"], reach["max"], color=BAND, linewidth=0, zorder=1)
    page.axes.fill_between(reach.index, reach["min"], reach["median"], color=LOWER_HALF, linewidth=0, zorder=1)
    low, middle, _ = reach.iloc[-1]
    text = f"{others['label'].nunique()} others, half below {text_of(middle)}"
    return End(float(reach.index[-1]), (low * middle) ** 0.5, text, Style(PALETTE[0], "-", ""))


def _last(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with a number at the longest length that has any."""
    good = rows[rows["status"] == "ok"]
    return good[good["length"] == good["length"].max()]


def _finding(rows: pd.DataFrame, cheap: float, much: str, text_of: Callable[[pd.Series], str]) -> str:
    """One sentence: how many encodings cost at most `cheap` times `none`, and which one costs most.

    The rows are of one length and have a `cost`. `much` is "as long" or "as much"; `text_of` formats the largest cost.
    """
    others = rows[rows["label"] != YARDSTICK].sort_values("cost")
    if others.empty:
        return f"{YARDSTICK} by itself."
    few, worst = int((others["cost"] <= cheap).sum()), others.iloc[-1]
    finding = (
        f"At {worst['length']} tokens {few} of {len(others)} encodings take at most {cheap:g} times {much} as none"
    )
    return f"{finding}; the most: {worst['label']}, {text_of(worst)}." if worst["cost"] > cheap else f"{finding}."


def how_measured(rows: pd.DataFrame) -> str:
    """How the numbers were measured, for a footnote: machine, model, turns."""
    good = rows[rows["status"] == "ok"]
    row = good.iloc[-1]
    on = row["device"] if row["device"] != "cpu" else f"{row['machine']}, {counted(row['threads'], 'thread')}"
    turns = low_to_high(good["repeats"])
    turns += " turn" if turns == "1" else " turns"
    model = f"{row['layers']} layers of width {row['width']}, {row['heads']} heads, {row['dtype']}"
    return f"{on}; torch {row['torch']}; {model}; {turns}."
