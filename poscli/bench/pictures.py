"""The pictures of a bench: what training costs, what long inputs cost, and another library beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

from poscli.bench.bars import Bar, BarPage
from poscli.bench.settings import YARDSTICK
from poscli.bench.work import AUTO
from poscli.evaluate import BATCH_TOKENS
from poscli.report.axes import draw as draw_line
from poscli.report.axes import length_axis, log_ticks, name_axes
from poscli.report.canvas import LONGEST, End, Failure, Page
from poscli.report.style import FAINT, INK, PALETTE, Style, styles_for
from poscli.report.words import amount, names, number, span

LABELLED = 8  # lines of their own: the most costly ones; the others share a band
WORTH = 1.25  # times `none`: what stays below belongs to the band
BAND, LOWER = "#e3edf4", "#bcd4e5"
ABOUT = "length of the window that the model reads, and as a multiple of its training length"
TRAINING, EVALUATION = PALETTE[0], PALETTE[1]


def draw(rows: pd.DataFrame, against: pd.DataFrame, folder: Path) -> list[Path]:
    """Every picture that these tables have numbers for."""
    rows = rows.assign(label=_labels(rows))
    wanted: list[tuple[str, pd.DataFrame, Callable[[pd.DataFrame, Path], None]]] = [
        ("training.png", rows[(rows["what"] == "train") & (rows["status"] == "ok")], training_cost),
        ("time.png", _evaluations(rows), time_by_length),
        ("memory.png", _evaluations(rows), memory_by_length),
        ("against.png", against.dropna(subset=["speedup"]), beside_another),
    ]
    made = []
    for name, table, picture in wanted:
        if len(table):
            picture(table, folder / name)
            made.append(folder / name)
    return made


def training_cost(rows: pd.DataFrame, path: Path) -> None:
    """Bars: the time of a training step over that of `none`."""
    rows = rows.sort_values("ratio")
    page = BarPage([_cost_bar(row) for _, row in rows.iterrows()])
    page.name_axis(f"time of a training step, as a multiple of that of {YARDSTICK}, which has no position encoding")
    finding = _finding(rows.assign(cost=rows["ratio"]), 1.1, "take", "as long", lambda row: f"{number(row['ratio'])}x")
    footnote = (
        f"{_made(rows)} A whole step on {rows['batch'].max()} windows of {rows['length'].max()} tokens, in turns with "
        f"{YARDSTICK}. Bars: medians; thin lines: from the least turn to the most. {_noise(rows)}"
    )
    page.say("What does a position encoding cost in training?", finding, "", footnote)
    page.save(path)


def time_by_length(rows: pd.DataFrame, path: Path) -> None:
    """Lines: the time of a forward pass over that of `none`, by length."""
    rows = rows.assign(value=rows["ratio"], cost=rows["ratio"])
    page = _by_length(rows, f"times as long as {YARDSTICK}", lambda value: f"{number(value)}x")
    last = _last(rows)
    finding = _finding(last, 1.15, "take", "as long", lambda row: f"{number(row['ratio'])}x")
    _say(page, rows, "What does a position encoding cost on long inputs?", finding)
    page.save(path)


def memory_by_length(rows: pd.DataFrame, path: Path) -> None:
    """Lines: the peak memory of a forward pass, by length."""
    rows = rows.assign(value=rows["peak_mb"], cost=rows["peak_mb"] / rows["none_peak_mb"])
    page = _by_length(rows, "peak memory of a forward pass, MiB", lambda value: f"{amount(value)} MiB")
    finding = _finding(_last(rows), 1.2, "take", "as much", lambda row: f"{amount(row['peak_mb'])} MiB")
    _say(page, rows, "How much memory do long inputs take?", finding)
    page.save(path)


def beside_another(against: pd.DataFrame, path: Path) -> None:
    """Bars: how many times faster than the other library, in training and at the longest evaluation of each."""
    library = against["peer"].iloc[0]
    peer = library.split()[0]
    groups = sorted(against.groupby("encoding"), key=lambda item: -item[1]["speedup"].max())
    page = BarPage([bar for _, part in groups for bar in _speedups(part)])
    page.name_axis(f"times faster than {peer}")
    faster = sum(bar.value >= 1 for bar in page.bars)
    finding = f"poscli is the faster one in {faster} of {len(page.bars)} comparisons, {peer} in the rest."
    footnote = (
        f"{_made(against)} {library}: same layers, widths, heads, vocabulary, optimizer and tokens, in turns. Bars: "
        f"its time over poscli's, medians; thin lines: from the least turn to the most. Blue: a training step; orange: "
        f"the longest evaluation of both; MiB: peak memory. Eager: {peer} has no fused attention for this encoding."
    )
    page.say(f"The same models in poscli and in {peer}", finding, f"poscli : {peer}", footnote)
    page.save(path)


def _cost_bar(row: pd.Series) -> Bar:
    color = FAINT if row["encoding"] == YARDSTICK else PALETTE[0 if row["ratio"] <= WORTH else 1]
    text = f"{row['ratio']:.2f}x   {amount(row['tokens_per_s'])} tokens/s"
    return Bar(row["label"], row["ratio"], row["ratio_low"], row["ratio_high"], text, color)


def _speedups(part: pd.DataFrame) -> Iterator[Bar]:
    """One encoding: a training step, then the longest evaluation."""
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


def _by_length(rows: pd.DataFrame, up: str, say: Callable[[float], str]) -> Page:
    """A line for `none` and for each of the costly encodings, a band for the others."""
    good = rows[rows["status"] == "ok"].sort_values("length")
    lines, others = _divided(good)
    lengths = sorted(set(rows["length"]))
    styles = styles_for([name for name in lines if name != YARDSTICK]) | {YARDSTICK: Style(INK, "-", "")}
    failures = _failures(rows, styles)
    page = Page(len(lines) + 1, len(failures))
    for name, line in lines.items():
        draw_line(page.axes, line["length"], line["value"], styles[name])
    length_axis(page.axes, lengths, int(rows["train_length"].iloc[0]))
    band = _band(page, others, say)
    log_ticks(page.axes)
    name_axes(page.axes, ABOUT, f"{up}, log scale")
    ends = [_end(name, line, lengths[-1], styles[name], say) for name, line in lines.items()]
    page.label_ends([*ends, *band], failures)
    return page


def _say(page: Page, rows: pd.DataFrame, title: str, finding: str) -> None:
    """The words around a figure over lengths."""
    _, others = _divided(rows[rows["status"] == "ok"])
    inside = " Band: all others, from the least to the most; its darker part: the lower half." if len(others) else ""
    together = f" Windows are read together, {BATCH_TOKENS} tokens in all, or one by one where they are longer."
    page.say(title, finding, f"at {rows['length'].max()} tokens", _made(rows) + together + inside)


def _divided(good: pd.DataFrame) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    """The lines, the most costly first, and the rows of the band."""
    named = [*_costly(good), YARDSTICK]
    lines = {name: good[good["label"] == name] for name in named if (good["label"] == name).any()}
    return lines, good[~good["label"].isin(lines)]


def _costly(good: pd.DataFrame) -> list[str]:
    """Labels of the encodings that get a line, the most costly first; all of them where there are few."""
    last = good.groupby("label").tail(1).sort_values("cost", ascending=False)
    last = last[last["label"] != YARDSTICK]
    if len(last) > LABELLED:
        last = last[last["cost"] > WORTH].head(LABELLED)
    return list(last["label"])


def _band(page: Page, others: pd.DataFrame, say: Callable[[float], str]) -> list[End]:
    """From the least to the most of all others, their lower half darker, and its label."""
    if others.empty:
        return []
    reach = others.groupby("length")["value"].agg(["min", "median", "max"])
    page.axes.fill_between(reach.index, reach["min"], reach["max"], color=BAND, linewidth=0, zorder=1)
    page.axes.fill_between(reach.index, reach["min"], reach["median"], color=LOWER, linewidth=0, zorder=1)
    low, middle, _ = reach.iloc[-1]
    text = f"{others['label'].nunique()} others, half below {say(middle)}"
    return [End(float(reach.index[-1]), (low * middle) ** 0.5, text, Style(PALETTE[0], "-", ""))]


def _end(name: str, line: pd.DataFrame, right: int, style: Style, say: Callable[[float], str]) -> End:
    """The label of a line; the number only where it reaches the last length."""
    last = line.iloc[-1]
    text = f"{name} {say(last['value'])}" if last["length"] == right else name
    return End(last["length"], last["value"], text, style)


def _failures(rows: pd.DataFrame, styles: dict[str, Style]) -> list[Failure]:
    """Encodings that give no number at the same lengths for the same cause share a row of the strip."""
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, part in rows[rows["status"] != "ok"].groupby(["label", "status"]):
        alike.setdefault((str(name[1]), tuple(sorted(part["length"]))), []).append(str(name[0]))
    plain = Style(INK, "-", "x")
    return [
        Failure(lengths, _failed(who, status), styles.get(who[0], plain) if len(who) == 1 else plain)
        for (status, lengths), who in alike.items()
    ]


def _failed(who: list[str], status: str) -> str:
    text = f"{names(who)}: {status}"
    return text if len(text) <= LONGEST or len(who) == 1 else f"{len(who)} encodings: {status}"


def _last(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows at the longest length that gave a number."""
    good = rows[rows["status"] == "ok"]
    return good[good["length"] == good["length"].max()]


def _finding(rows: pd.DataFrame, cheap: float, verb: str, much: str, say: Callable[[pd.Series], str]) -> str:
    """How many encodings cost little, and which costs most; of rows of one length with their `cost`."""
    others = rows[rows["label"] != YARDSTICK].sort_values("cost")
    if others.empty:
        return f"{YARDSTICK} by itself."
    few, worst = int((others["cost"] <= cheap).sum()), others.iloc[-1]
    finding = (
        f"At {worst['length']} tokens {few} of {len(others)} encodings {verb} at most {cheap:g} times {much} as none"
    )
    return f"{finding}; the most: {worst['label']}, {say(worst)}." if worst["cost"] > cheap else f"{finding}."


def _evaluations(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the evaluation, if there are several lengths to draw a line through."""
    found = rows[rows["what"] == "eval"]
    return found if found.loc[found["status"] == "ok", "length"].nunique() > 1 else found.iloc[:0]


def _labels(rows: pd.DataFrame) -> pd.Series:
    """The encoding, and the engine where one was asked for."""
    asked = rows["asked"].where(rows["asked"] != AUTO, "")
    return rows["encoding"].where(asked == "", rows["encoding"] + " on " + asked)


def _made(rows: pd.DataFrame) -> str:
    """On what, with which model, how often."""
    good = rows[rows["status"] == "ok"]
    row = good.iloc[-1]
    on = row["device"] if row["device"] != "cpu" else f"{row['machine']}, {row['threads']} threads"
    turns = span(good["repeats"])
    model = f"{row['layers']} layers of width {row['width']}, {row['heads']} heads, {row['dtype']}"
    return f"{on}; torch {row['torch']}; {model}; {turns} turns."


def _noise(rows: pd.DataFrame) -> str:
    """How far a ratio of equals strays."""
    none = rows[(rows["label"] == YARDSTICK)]
    if none.empty:
        return ""
    low, high = none["ratio_low"].iloc[0], none["ratio_high"].iloc[0]
    return f"{YARDSTICK} against itself: {low:.2f} to {high:.2f}, the noise of this machine."
