"""The tables that a bench prints: costs of the encodings, comparisons with peers, limits of the machine."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from poscli.drawing.text import amount, counted, listed, number

LEGEND = (
    "x none: time over that of `none`, measured in turns; the line of `none` itself shows the noise of this machine. "
    "MFU: FLOP/s of the model over those of a matrix product, measured in turns. MiB: peak memory of that pass alone."
)
STYLES = {"oom": "magenta", "unsupported": "dim", "skipped": "dim", "failed": "red"}

Value = Callable[[pd.Series], str]


def show(costs: pd.DataFrame, limits: pd.DataFrame, against: pd.DataFrame, console: Console) -> None:
    """Print the tables of a bench, as `ResultFile.table` returns them, and below each the failures by cause."""
    if len(costs):
        console.print(_overview(costs))
        console.print(Text(LEGEND, style="dim"))
        _failures(costs, console)
    for _, rows in against.groupby("peer", sort=False) if len(against) else ():
        console.print(_comparison(rows))
        _failures(rows, console)
    if len(limits):
        console.print(_limits(limits))
        _failures(limits.assign(encoding=limits["limit"], what="", length=limits["shape"]), console)


def _ranked(costs: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each encoding and engine; the cheapest in training come first, then the cheapest in evaluation."""
    return sorted((part for _, part in costs.groupby(["encoding", "asked"], sort=True)), key=_rank)


def _rank(part: pd.DataFrame) -> tuple[float, float]:
    """Ratios to `none` in training and in the longest evaluation, infinite where there is none."""
    last = [part.loc[part["what"] == what].sort_values("length")["ratio"].dropna() for what in ("train", "eval")]
    train, evaluation = (float(values.iloc[-1]) if len(values) else float("inf") for values in last)
    return train, evaluation


def _overview(costs: pd.DataFrame) -> Table:
    """A line per encoding and engine, a column per workload and length."""
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
    table = _table(("encoding", "engine"), [title for title, *_ in columns])
    for part in _ranked(costs):
        engines = dict.fromkeys(engine for engine in part["engine"] if engine)
        cells = [_cell(_find(part, what, length), value) for _, what, length, value in columns]
        table.add_row(Text(part["encoding"].iloc[0]), Text(" ".join(engines) or "-"), *cells)
    return table


def _comparison(against: pd.DataFrame) -> Table:
    """A line per encoding, workload and length, for the rows of one peer."""
    peer = against["peer"].iloc[0]
    titles = ["length", "poscli\ntokens/s", f"{peer.split()[0]}\ntokens/s", "times\nfaster", "least..most"]
    table = _table(("encoding", "work", "theirs"), [*titles, "poscli\nMiB", "theirs\nMiB", "parameters", "theirs"])
    table.title = f"beside {peer}"
    for _, row in against.iterrows():
        spread = f"{number(row['speedup_low'])}..{number(row['speedup_high'])}"
        numbers = [number(row["speedup"]), {0: "-", 1: "one run"}.get(row["repeats"], spread)]
        speeds, memory = ([row[name], row[f"peer_{name}"]] for name in ("tokens_per_s", "peak_mb"))
        texts = [*(_or_dash(value) for value in speeds), *numbers, *(_or_dash(value) for value in memory)]
        sizes = [amount(row["parameters"]), amount(row["peer_parameters"])]
        table.add_row(row["encoding"], row["what"], row["peer_attention"], str(row["length"]), *texts, *sizes)
    return table


def _limits(limits: pd.DataFrame) -> Table:
    """A line per limit of the machine."""
    first = limits.iloc[0]
    table = _table(("limit", "dtype", "of what"), ["shape", "rate", "least ms", "ms", "most ms"])
    table.title = f"limits of {first['machine']} ({first['device']}), {counted(first['threads'], 'threads')}"
    for _, row in limits.iterrows():
        times = [number(1000 * row[name]) for name in ("seconds_min", "seconds", "seconds_max")]
        rate = f"{number(row['rate'])} {row['unit']}"
        table.add_row(row["limit"], row["dtype"], row["why"], Text(row["shape"]), rate, *times)
    return table


def _failures(rows: pd.DataFrame, console: Console) -> None:
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


def _or_dash(value: float) -> str:
    return "-" if pd.isna(value) else amount(value)


def _table(words: tuple[str, ...], numbers: list[str]) -> Table:
    """An empty table with columns of words, aligned left, and of numbers, aligned right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left", title_style="bold")
    for title in words:
        table.add_column(title, no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table
