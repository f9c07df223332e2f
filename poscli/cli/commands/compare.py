"""`poscli compare`: two runs, or two encodings with all their seeds, length by length."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poscli.cli import complete
from poscli.cli.commands import command
from poscli.cli.options import Json, Out
from poscli.system.console import emit, note, out

RUN = "A run's id, or the beginning of one; or an encoding, which stands for all its seeds."
First = Annotated[str, typer.Argument(metavar="RUN", help=RUN, autocompletion=complete.runs)]
Second = Annotated[str, typer.Argument(metavar="RUN", help="What it is compared with.", autocompletion=complete.runs)]
Protocol = Annotated[
    str,
    typer.Option(
        "--protocol",
        help="Protocol whose losses are compared; by default the one that reports quote.",
        autocompletion=complete.protocols,
    ),
]
Corpus = Annotated[
    str,
    typer.Option(
        "--corpus",
        help="Only runs on this corpus; the beginning of its name will do.",
        autocompletion=complete.corpora,
    ),
]


@command("compare", after="report")
def compare(
    first: First,
    second: Second,
    protocol: Protocol = "",
    corpus: Corpus = "",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Is one run better than another? Differences with intervals at every length: better, worse or within noise.

    The losses are compared, or, of a task with right answers, the accuracies. Damaged runs are left out, and the exit
    code is 3 then; without any other run it is 5.
    """
    from poscli.cli.commands.report import end
    from poscli.report import collect, records
    from poscli.report.caveats import OVER_SPANS
    from poscli.report.collect import refuse_damaged, trained_runs
    from poscli.report.comparison import SPANS, compare_named
    from poscli.report.terminal import comparison_table
    from poscli.statistics import FEWEST_SEEDS
    from poscli.tasks import task_columns

    tables = collect(out_ / "runs", task_columns())
    refuse_damaged(tables, first, second)
    compared = compare_named(
        tables.rows,
        tables.details,
        first,
        second,
        trained=trained_runs(out_ / "runs"),
        protocol=protocol,
        corpus=corpus,
    )
    table, of_answers = compared.table, compared.of_answers
    drawn = comparison_table(table, of_answers=of_answers, bits=compared.bits)
    emit(json_, records(table), lambda: out().print(drawn))
    for name, reason in compared.untrained.items():
        note(f"{name} is not trained, so its losses are those of a guess: {reason}")
    over_spans = not of_answers and SPANS in set(table["resampled"])
    if (seeds := int(table["seeds"].max())) < FEWEST_SEEDS:
        items = "episodes" if of_answers else SPANS if over_spans else "documents"
        words = "one seed says nothing" if seeds == 1 else f"{seeds} seeds say little"
        note(f"{words} about other seeds: intervals and tests are over {items} only")
    if over_spans:
        note(OVER_SPANS)
    end(tables)
