"""The report in the terminal, printed with rich. Colours repeat what the text says; nothing depends on them."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from rich import box
from rich.console import Console, Group, JustifyMethod
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from poscli.drawing.text import amount, number
from poscli.report import verdicts
from poscli.report.data import Report
from poscli.report.groups import split
from poscli.report.origin import UNKNOWN_MACHINE, bits_per, machines
from poscli.report.pooling import (
    headline,
    is_per_byte,
    is_summed_per_byte,
    ratio_name,
    task_measures,
    tokenizer_spec,
    untrained,
)
from poscli.report.summary import summarize
from poscli.report.table import (
    failures,
    folded,
    gain_text,
    legend,
    short_bits,
    summary_columns,
    verdict_sentences,
)
from poscli.report.why import broken_by
from poscli.runs.results import Tables
from poscli.runs.schema import FULL
from poscli.specs import with_layouts
from poscli.statistics.comparison import BETTER, LN2, WORSE
from poscli.system.text import printable_line

COLORS = {
    verdicts.USES_CONTEXT: "green", verdicts.MAY_USE_CONTEXT: "green", verdicts.HOLDS: "cyan",
    verdicts.DEGRADES: "yellow", verdicts.BREAKS: "red", verdicts.UNCLEAR: "yellow", verdicts.NOT_TESTED: "dim",
    verdicts.NOT_TRAINED: "magenta", verdicts.UNDERTRAINED: "magenta", verdicts.SOLVED: "green",
    verdicts.FADES: "yellow", verdicts.UNSOLVED: "red",
}  # fmt: skip
WORDS = {BETTER: "green", WORSE: "red"}
FAILED_COLOR = "magenta"
OPTIONAL_COLUMNS = ("params", "bpb", "bpc", "growth")  # dropped from the left where the terminal is too narrow


def print_report(report: Report, console: Console) -> None:
    """Print every section: the answer, the summary, what its columns mean, failures and caveats."""
    for line in (report.about.title, report.about.description):
        if line:
            console.print(Text(printable_line(line)))
    for line in report.about.left_out:
        console.print(Text(printable_line(f"left out: {line}"), style="yellow"))
    for section in report.sections:
        console.print(Text(section.title, style="bold"))
        console.print(Text.assemble((section.answer.text, "bold"), f" {section.answer.basis}"))
        console.print(Text(verdict_sentences(section.summary)))
        console.print()
        without, table = _fitting(section.summary, console)
        console.print(table)
        for line in legend(section.summary, section.headline, without=without):
            console.print(Text(line, style="dim"))
        for analysis in section.analyses:
            console.print(Text(f"{analysis.title}{'' if analysis.title.endswith('?') else ':'} {analysis.answer}"))
            for line in analysis.points:
                console.print(Text(f"- {line}"))
        for name, verdict, reason in failures(section.summary):
            console.print(Text(f"{name}: {verdict}: {reason}", style=COLORS.get(verdict, FAILED_COLOR)))
        for note in section.notes:
            console.print(Text(f"note: {note}", style="yellow"))
        console.print()


def show_fresh(tables: Sequence[pd.DataFrame], console: Console) -> None:
    """Print new rows of `eval.csv`, one table per run: a line per run and length."""
    tables = [rows.assign(encoding=rows["encoding"].map(with_layouts)) for rows in tables]
    console.print(lengths_table(tables))
    guessing = [(name, verdicts.NOT_TRAINED, reason) for rows in tables for name, reason in untrained(rows).items()]
    for name, word, reason in folded(guessing):
        console.print(Text(printable_line(f"{name}: {word}: {reason}"), style=COLORS[word]))


def show_verdicts(tables: Tables, console: Console) -> None:
    """Print a line per encoding of these evaluations, with the verdict that the report will have."""
    for group in split(tables.rows, tables.positions, tables.details):
        console.print(Text(group.title, style="bold"))
        console.print(_fitting(summarize(group), console)[1])


def show_why(tables: Tables, console: Console) -> None:
    """Print what a long window does to the models of these evaluations, and what it is that breaks them."""
    for group in split(tables.rows, tables.positions, tables.details):
        found = broken_by(group.details["why/attribution"], {FULL: ()}, summarize(group))
        for line in () if found is None else (found.answer, *found.points):
            console.print(Text(printable_line(line)))


def summary_table(summary: pd.DataFrame, *, wide: bool, without: Sequence[str]) -> Table:
    """The summary as a table, the best number of each column in bold; `without` lists columns to leave out.

    A table that is not `wide` gives the interval of a gain as ± its larger half.
    """
    if is_summed_per_byte(summary):  # then bits are the score, which no width leaves out
        without = [name for name in without if name != short_bits(summary)]
    columns = [column for column in summary_columns(summary, wide=wide) if column.name.split()[0] not in without]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    for column in columns:
        side: JustifyMethod = "right" if column.right else "left"
        folds = column.name in ("encoding", "machine")
        table.add_column(
            Text(column.name),
            justify=side,
            no_wrap=not (folds or column.name == "verdict"),
            overflow="fold",
            min_width=12 if folds else None,
        )
    for row in range(len(summary)):
        cells = []
        for column in columns:
            text = column.cells[row]
            style = COLORS.get(text, FAILED_COLOR) if column.name == "verdict" else "bold" * (row == column.best)
            cells.append(Text(text, style=style))
        table.add_row(*cells)
    return table


def comparison_table(table: pd.DataFrame, *, of_answers: bool = False, bits: str = "bits per byte") -> Group:
    """Differences between two runs or encodings, one line per length: of losses, in `bits`, or of accuracies.

    The table is as from `compare_named`.
    """
    first = table.iloc[0]
    losses = ("loss", bits.replace(" per ", "/"), first["resampled"])
    score, unit, items = ("accuracy", "accuracy", "episodes") if of_answers else losses
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name, side in (("length", "right"), (f"difference, {unit} [95 %]", "right"), ("p", "right"), ("", "left")):
        shown.add_column(Text(name), justify=side)  # type: ignore[arg-type]
    for row in table.to_dict("records"):
        shown.add_row(
            f"{row['length']} ({ratio_name(row['ratio'])})",
            Text(gain_text(row["difference"], row["low"], row["high"])),
            "-" if row["p_holm"] != row["p_holm"] else f"{row['p_holm']:.3f}",
            Text(
                row["word"].replace("documents", "episodes" if of_answers else "documents"),
                style=WORDS.get(row["word"], ""),
            ),
        )
    names = [with_layouts(str(first[name])) for name in ("encoding", "baseline")]
    title = f"{', compared with '.join(names)}, on {first['corpus']}"
    seeds = "one seed" if table["seeds"].max() == 1 else f"{table['seeds'].max()} seeds"
    tests = int(table["p"].notna().sum())
    caption = (
        f"{score} ({first['protocol']}) of the first minus that of the second, over {seeds} and {first['documents']} "
        f"{items}; p by Holm's method for {tests} test{'s' * (tests != 1)}; a report counts the tests of all its "
        "encodings"
    )
    return Group(Text(printable_line(title), "italic"), shown, Text(printable_line(caption), "dim italic"))


def lengths_table(tables: Sequence[pd.DataFrame]) -> Table:
    """New rows of `eval.csv`, one table per run: a line per run and length.

    Columns follow from the protocols and measures in the rows, and from what differs between them.
    """
    every = pd.concat(tables, ignore_index=True)
    several_tokenizers = is_per_byte(every)  # then perplexities of different rows do not compare
    several_texts = every["corpus"].nunique() > 1
    quoted, measures = headline(every), task_measures(every)
    others = [name for name in dict.fromkeys(every["protocol"]) if name != quoted.gain]
    protocols = others or [quoted.perplexity]
    machine = ["machine"] if len(machines(every)) > 1 else []  # times of different machines do not compare
    failed = any((rows["status"] != "ok").any() for rows in tables)  # 80 columns have no room for "ok" on every line
    short = [name if len(name) <= 9 else f"{name[:8]}." for name in map(printable_line, protocols)]
    gain = [f"gain, {bits_per(every).replace(' per ', '/')}\n[95 %]"] if quoted.gain else []
    heads = ["length", *(f"{name}\nppl" for name in short), short_bits(every), *measures, *gain, "tok/s", *machine]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("encoding", overflow="fold", min_width=8)
    for head in heads:
        table.add_column(Text(head), justify="right", no_wrap=True)
    if failed:
        table.add_column("status", overflow="fold")
    for rows in tables:
        explained: set[str] = set()
        for _, part in rows.groupby("length", sort=True):
            model = part[part["variant"] == FULL].set_index("protocol")
            scored = model.loc[quoted.perplexity] if quoted.perplexity in model.index else model.iloc[0]
            cells = [
                scored["encoding"]
                + (f" [{tokenizer_spec(scored['tokenizer'])}]" if several_tokenizers else "")
                + (f", seed {scored['seed']}" if scored["seed"] else "")
                + (f", {scored['corpus']}" if several_texts else ""),
                f"{scored['length']} ({ratio_name(scored['ratio'])})",
                *(number(model.loc[name, "ppl"]) if name in model.index else "-" for name in protocols),
                *(number(scored.get(name, float("nan"))) for name in ("bpb", *measures)),
                *([_gain(model, quoted.gain)] if quoted.gain else []),
                "-" if pd.isna(scored["tokens_per_s"]) else amount(scored["tokens_per_s"]),
                *(scored[name] or UNKNOWN_MACHINE for name in machine),
            ]
            status = [_status(part, explained)] if failed else []
            table.add_row(*(Text(printable_line(cell)) for cell in cells), *status)
        table.add_section()
    return table


def _fitting(summary: pd.DataFrame, console: Console) -> tuple[tuple[str, ...], Table]:
    """(columns left out, table): the widest summary that fits the terminal; if none fits, names are folded."""
    unbounded = console.options.update(max_width=10_000)
    for wide, dropped in ((True, 0), *((False, count) for count in range(len(OPTIONAL_COLUMNS) + 1))):
        without = OPTIONAL_COLUMNS[:dropped]
        table = summary_table(summary, wide=wide, without=without)
        if Measurement.get(console, unbounded, table).maximum <= console.width:
            break
    return without, table


def _gain(model: pd.DataFrame, protocol: str) -> str:
    """The gain of one run at one length with its interval, from nats per token to bits per byte or cell."""
    if protocol not in model.index or not model.loc[protocol, "ratio"] > 1:
        return "-"
    row = model.loc[protocol]
    to_bits = row["tokens"] / row["bytes"] / LN2 if row["bytes"] else float("nan")
    return gain_text(*(float(row[name]) * to_bits for name in ("gain", "gain_low", "gain_high")))


def _status(part: pd.DataFrame, explained: set[str]) -> Text:
    """The status of one run at one length, with its reason where the status is not `explained` yet."""
    failed = part[(part["status"] != "ok") & (part["variant"] == FULL)]
    if failed.empty:
        return Text("ok")
    status, reason = failed["status"].iloc[0], failed["reason"].iloc[0]
    text = printable_line(status if status in explained or not reason else f"{status}: {reason}")
    explained.add(status)
    return Text(text, style=FAILED_COLOR)
