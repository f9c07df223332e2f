"""`poscli ls`: what can be trained, on what, and what has been trained."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from poscli.cli import complete
from poscli.cli.commands import COMMANDS, Command
from poscli.cli.options import Json, Out
from poscli.system.console import emit, note, out
from poscli.system.errors import PARTIAL, UsageError
from poscli.system.registry import Registry
from poscli.system.text import counted, printable

app = typer.Typer(help="List encodings, layouts, tasks, corpora, tokenizers, protocols, baselines, runs or suites.")
COMMANDS.add("ls", Command(app, after="new"))


@app.command()
def encodings(
    chosen: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="List only these, as --verbose does.", autocompletion=complete.encodings
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show formulas, papers and known equalities too.")
    ] = False,
    json_: Json = False,
) -> None:
    """List every position encoding with its options, their defaults, and which of them are lengths."""
    from poscli.report.catalogue import describe_encodings, options_text

    rows = describe_encodings(chosen or ())
    columns = ["name", "family", "tier", "engine", "options", "lengths"]
    table = [
        row | {"options": row["unavailable"] or options_text(row), "lengths": ", ".join(row["lengths"])} for row in rows
    ]
    emit(json_, rows, lambda: _encodings_verbose(rows) if verbose or chosen else _table(table, columns))


@app.command()
def layouts(json_: Json = False) -> None:
    """List the named layouts of layers, such as rnope-swa, with the specs that their names stand for."""
    from poscli.report.catalogue import describe_layouts

    rows = describe_layouts()
    emit(json_, rows, lambda: _paragraphs(_about_layout(row) for row in rows))


def _about_layout(row: dict[str, Any]) -> tuple[str, str, list[str]]:
    layers = counted(row["layers"], "layer") if row["layers"] else ""
    return row["layout"], layers, [row["unavailable"], row["spec"], row["note"], row["paper"]]


@app.command()
def runs(
    watch: Annotated[
        bool, typer.Option("--watch", help="Show what is being worked on, also by other machines, until Ctrl-C.")
    ] = False,
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """List every run with its state, its loss, and what is being done on it now.

    Damaged runs are named with the command that repairs them, and the exit code is 3; it is 5 if none can be read.
    """
    from poscli.cli.screen import watch_runs
    from poscli.runs.summary import run_summaries
    from poscli.specs import with_layouts

    if watch and json_:
        raise UsageError("--watch is a screen for people, and --json a document: give one of them")
    if watch:
        watch_runs(out_ / "runs")
        return
    rows = run_summaries(out_ / "runs")
    columns = ["run_id", "encoding", "seed", "corpus", "length", "state", "step", "steps", "bpb", "evaluated", "doing"]
    columns.append("machine")
    named = [row | {"encoding": with_layouts(row["encoding"] or "")} for row in rows]
    empty = f"no runs in {out_ / 'runs'}; train one: poscli train --enc alibi"
    emit(json_, rows, lambda: _table(named, columns, empty))
    for row in rows:
        if row["damaged"]:
            note(f"{row['run_id']} is damaged: {row['damaged']}")
    if any(row["damaged"] for row in rows):
        raise typer.Exit(PARTIAL)


@app.command()
def corpora(json_: Json = False) -> None:
    """List the kinds of text that a model can be trained on."""
    from poscli.data.corpora import describe_corpora

    rows = describe_corpora()
    emit(json_, rows, lambda: _table(rows, ["corpus", "what", "unavailable"]))


@app.command()
def tasks(json_: Json = False) -> None:
    """List what a model can be asked to do, what is measured of it, and the accuracy of a guess."""
    from poscli.tasks import TASKS

    _registered("task", TASKS, json_, facts=("measured", "chance"))


@app.command()
def tokenizers(json_: Json = False) -> None:
    """List the ways to turn text into tokens."""
    from poscli.data.tokenizers import TOKENIZERS

    _registered("tokenizer", TOKENIZERS, json_)


@app.command()
def protocols(json_: Json = False) -> None:
    """List the evaluation protocols: which windows are read and which tokens count."""
    from poscli.evaluation.protocol import PROTOCOLS

    _registered("protocol", PROTOCOLS, json_)


@app.command()
def baselines(json_: Json = False) -> None:
    """List what a model is compared with, beside specs of wrappers such as window or sink(4)+window."""
    from poscli.evaluation.baseline import BASELINES, Masked

    _registered("baseline", BASELINES, json_, {"baseline": "window, sink(4)+window, ...", "what": _summary(Masked)})


@app.command()
def suites(
    folder: Annotated[Path, typer.Option(help="Folder of the suites.")] = Path("suites"), json_: Json = False
) -> None:
    """List the suites of a folder, for `poscli run`."""
    from poscli.config.suite import suite_titles

    rows: list[dict[str, Any]] = [
        {"suite": str(path), "title": title, "unavailable": why} for path, (title, why) in suite_titles(folder).items()
    ]
    emit(
        json_,
        rows,
        lambda: _table(rows, ["suite", "title", "unavailable"], f"no suites in {folder}; name a folder with --folder"),
    )


def _registered(
    kind: str, registry: Registry[Any], json_: bool, *further: dict[str, str], facts: tuple[str, ...] = ()
) -> None:
    """List a registry: each name with a line about it and attributes of the class, or why it cannot be used here."""
    rows: list[dict[str, Any]] = []
    for name in registry.names():
        why = registry.missing(name)
        row = {"what": ""} | dict.fromkeys(facts)
        if not why:
            plugin = registry.get(name)
            row = {"what": _summary(plugin)} | {fact: getattr(plugin, fact) for fact in facts}
        rows.append({kind: name, **row, "unavailable": why})
    rows += [row | {"unavailable": ""} for row in further]
    emit(json_, rows, lambda: _table(rows, [kind, "what", *facts, "unavailable"]))


def _summary(thing: Any) -> str:
    """One line about a registered class: its summary, or the first line of its docstring."""
    return getattr(thing, "summary", "") or (inspect.getdoc(thing) or "").partition("\n")[0]


def _encodings_verbose(rows: list[dict[str, Any]]) -> None:
    """Print a paragraph per encoding: formula, facts, options, paper."""
    from poscli.report.catalogue import lengths_text, options_text

    paragraphs = []
    for row in rows:
        lines = [row["unavailable"], row["formula"], *(f"Fact: {fact}." for fact in row["facts"])]
        if row["options"]:
            lines += [f"Options: {options_text(row)}", lengths_text(row)]
        if row.get("after"):
            lines.append(
                f"After training: evaluates models trained with {', '.join(row['after'])}".replace("*", "anything")
            )
        paragraphs.append((row["name"], f"{row['family']}, tier {row['tier']}", [*lines, row["paper"]]))
    _paragraphs(paragraphs)


def _paragraphs(paragraphs: Iterable[tuple[str, str, list[str]]]) -> None:
    """Print a paragraph for each name: words about it beside it, and below it those of the lines that are not empty."""
    for name, beside, lines in paragraphs:
        out().print(Text(name, style="bold"), *([Text(beside, style="dim")] if beside else []))
        for line in filter(None, lines):
            out().print(Padding(Text(printable(line)), (0, 0, 0, 4)))


def _table(rows: list[dict[str, Any]], columns: list[str], empty: str = "nothing") -> None:
    if not rows:
        out().print(empty)
        return
    kept = [c for c in columns if any(row.get(c) not in (None, "") for row in rows)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in kept:
        numeric = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=column in columns[:1])
    for row in rows:
        table.add_row(*(printable(_cell(row.get(column))) for column in kept))
    out().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
