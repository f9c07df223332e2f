"""A bench for people at a terminal: one line per encoding and engine, then the other library, then the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from poscli.report.words import amount, names, number

LEGEND = (
    "x none: times longer than the same work with `none`, in turns with it (its own line shows how far equals stray). "
    "MFU: model FLOPs of a step over those of a matrix product, in turns with it. MiB: peak memory of that pass alone."
)
STYLES = {"oom": "magenta", "unsupported": "dim", "skipped": "dim", "failed": "red"}

Value = Callable[[pd.Series], str]


def show(rows: pd.DataFrame, limits: pd.DataFrame, against: pd.DataFrame, console: Console) -> None:
    """Print what a bench found."""
    if len(rows):
        console.print(_overview(rows))
        console.print(Text(LEGEND, style="dim"))
        _failures(rows, console)
    if len(against):
        console.print(_comparison(against))
        _failures(against, console)
    if len(limits):
        console.print(_limits(limits))
        _failures(limits.assign(encoding=limits["limit"], what="", length=limits["shape"]), console)


def ranked(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each encoding and engine, those that cost least in training (else in evaluation) first."""
    groups = {f"{name} ({asked})": part for (name, asked), part in rows.groupby(["encoding", "asked"], sort=True)}
    yield from sorted(groups.items(), key=lambda item: _rank(item[1]))


def _rank(part: pd.DataFrame) -> tuple[float, float]:
    last = [part.loc[part["what"] == what].sort_values("length")["ratio"].dropna() for what in ("train", "eval")]
    train, evaluation = (float(values.iloc[-1]) if len(values) else float("inf") for values in last)
    return train, evaluation


def _overview(rows: pd.DataFrame) -> Table:
    """A line per encoding and engine, a column per kind of work and length."""
    lengths, pasts = (sorted(set(rows.loc[rows["what"] == what, "length"])) for what in ("eval", "decode"))
    columns: list[tuple[str, str, int | None, Value]] = []
    if (rows["what"] == "train").any():
        columns += [
            ("train\ntokens/s", "train", None, lambda row: amount(row["tokens_per_s"])),
            ("train\nx none", "train", None, lambda row: number(row["ratio"])),
            ("train\nMFU", "train", None, lambda row: f"{row['mfu']:.2f}"),
        ]
    columns += [(f"{length}\nx none", "eval", length, lambda row: number(row["ratio"])) for length in lengths]
    columns += [(f"{length}\nMiB", "eval", length, lambda row: amount(row["peak_mb"])) for length in lengths[-1:]]
    columns += [(f"decode\n{past}, ms", "decode", past, lambda row: number(1000 * row["seconds"])) for past in pasts]
    table = _table(("encoding", "engine"), [title for title, *_ in columns])
    for _, part in ranked(rows):
        engines = dict.fromkeys(engine for engine in part["engine"] if engine)
        cells = [_cell(_find(part, what, length), value) for _, what, length, value in columns]
        table.add_row(Text(part["encoding"].iloc[0]), Text(" ".join(engines) or "-"), *cells)
    return table


def _comparison(against: pd.DataFrame) -> Table:
    """A line per encoding and kind of work."""
    peer = against["peer"].iloc[0]
    titles = ["length", "poscli\ntokens/s", f"{peer.split()[0]}\ntokens/s", "times\nfaster", "least..most"]
    table = _table(("encoding", "work", "theirs"), [*titles, "poscli\nMiB", "theirs\nMiB", "parameters", "theirs"])
    table.title = f"beside {peer}"
    for _, row in against.iterrows():
        spread = f"{number(row['speedup_low'])}..{number(row['speedup_high'])}"
        numbers = [number(row["speedup"]), spread if row["repeats"] > 1 else "one run"]
        speeds, memory = ([row[name], row[f"peer_{name}"]] for name in ("tokens_per_s", "peak_mb"))
        texts = [*(_or_dash(value) for value in speeds), *numbers, *(_or_dash(value) for value in memory)]
        sizes = [amount(row["parameters"]), amount(row["peer_parameters"])]
        table.add_row(row["encoding"], row["what"], row["peer_attention"], str(row["length"]), *texts, *sizes)
    return table


def _limits(limits: pd.DataFrame) -> Table:
    """A line per limit."""
    first = limits.iloc[0]
    table = _table(("limit", "dtype", "of what"), ["shape", "rate", "least ms", "ms", "most ms"])
    table.title = f"limits of {first['machine']} ({first['device']}), {first['threads']} threads"
    for _, row in limits.iterrows():
        times = [number(1000 * row[name]) for name in ("seconds_min", "seconds", "seconds_max")]
        rate = f"{number(row['rate'])} {row['unit']}"
        table.add_row(row["limit"], row["dtype"], row["why"], Text(row["shape"]), rate, *times)
    return table


def _failures(rows: pd.DataFrame, console: Console) -> None:
    """One line per cause."""
    bad = rows[rows["status"] != "ok"]
    for (status, message), part in bad.groupby(["status", "message"], sort=False):
        who = names(list(dict.fromkeys(part["encoding"])))
        lengths = names([str(length) for length in dict.fromkeys(part["length"])], 3)
        works = names(list(dict.fromkeys(part["what"])))
        text = f"{status}: {who} ({works} {lengths}): {message}"
        console.print(Text(text, style=STYLES.get(str(status), "")), soft_wrap=True)


def _find(part: pd.DataFrame, what: str, length: int | None) -> pd.Series | None:
    rows = part[(part["what"] == what) & ((part["length"] == length) | (length is None))]
    return None if rows.empty else rows.iloc[-1]


def _cell(row: pd.Series | None, value: Value) -> Text:
    if row is None:
        return Text("-")
    if row["status"] != "ok":
        return Text(row["status"], style=STYLES.get(row["status"], ""))
    return Text(value(row))


def _or_dash(value: float) -> str:
    return "-" if pd.isna(value) else amount(value)


def _table(words: tuple[str, ...], numbers: list[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left", title_style="bold")
    for title in words:
        table.add_column(title, no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table
