"""Shows what a command is going to do: a table for --dry-run, and a question before work that takes long."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from poscli.system.console import emit, err, note, out
from poscli.system.errors import PoscliError, UsageError
from poscli.system.progress import duration

if TYPE_CHECKING:
    from poscli.estimate import PlannedJob
    from poscli.evaluation.protocol import EvaluationSettings
    from poscli.sweep.crew import Crew

ASKED_FROM = 3600.0  # seconds
REFUSED_FROM = 60 * 24 * 3600.0  # seconds: no one waits for two months by accident

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done and how long it takes; write no results.")
]
Force = Annotated[bool, typer.Option("--force", help="Delete what these runs have so far, and train them again.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before work of over an hour.")]


def announce_longest(settings: Iterable[EvaluationSettings]) -> None:
    """Say so where the longest length is shorter than --max-len, because lengths are multiples of L."""
    for each in dict.fromkeys(settings):
        longest = each.lengths[-1]
        if longest < each.max_len:
            kind = "of --lengths" if each.ratios else f"doubling of {each.train_length}"
            within = f"the largest {kind} within --max-len {each.max_len}"
            note(f"evaluating up to {longest}, {within}")


def show(jobs: list[PlannedJob], as_json: bool, crew: Crew | None = None) -> None:
    """Print the jobs, and how long a crew takes for all of them, by default this process, as a table or as JSON.

    In the table, runs that differ in nothing that it shows share a row, which has the time of all of them.
    """
    from poscli.specs import with_layouts
    from poscli.sweep.crew import Crew

    crew = crew or Crew()
    workers, total = crew.count, crew.seconds_for(jobs)
    content = {"jobs": [asdict(job) for job in jobs], "workers": workers, "seconds": total}
    several = len({job.corpus for job in jobs}) > 1
    names = ("encoding", *["corpus"] * several, "done", "parameters", "steps", "memory")
    alike: dict[tuple[str, ...], list[float]] = {}  # the times of the runs of a row
    for job in jobs:
        sizes = (f"{job.parameters:,}", f"{job.steps:,}", f"{job.memory_gib:.1f} GiB")
        row = (with_layouts(job.encoding), *[job.corpus] * several, job.done, *sizes)
        alike.setdefault(row, []).append(job.seconds)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in (*names, "runs", "time"):
        table.add_column(name, justify="left" if name in ("encoding", "corpus", "done") else "right")
    for row, times in alike.items():
        table.add_row(*map(Text, (*row, f"{len(times):,}", duration(sum(times)))))
    table.add_section()
    by = "total" if workers == 1 else f"{workers} workers"
    table.add_row(by, *[""] * (len(names) - 1), f"{len(jobs):,}", duration(total))
    emit(as_json, content, lambda: out().print(table))
    note("no results are written in a dry run; times are rough, and measured where they exceed a minute")


def confirm(seconds: float, shorter: str, *, yes: bool) -> None:
    """Before work that takes over an hour, ask; `shorter` names options to lower. With `yes` nothing is asked.

    Raises UsageError for work of two months, and where there is no terminal to ask on; PoscliError if the answer is no.
    """
    if yes or seconds <= ASKED_FROM:
        return
    about = f"this takes about {duration(seconds)}"
    if seconds > REFUSED_FROM or not (sys.stdin.isatty() and err.is_terminal):
        raise UsageError(f"{about}; lower {shorter}, or give --yes to start all the same")
    if not typer.confirm(f"{about}. Start?", err=True):
        raise PoscliError(f"not started; lower {shorter}")
