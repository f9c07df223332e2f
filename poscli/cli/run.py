"""`poscli run`: train, evaluate and report a suite."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poscli.cli import complete
from poscli.cli.options import Device, Json, Out
from poscli.cli.report import present
from poscli.system.console import err
from poscli.system.errors import PARTIAL, PoscliError


def run(
    suite: Annotated[
        Path,
        typer.Argument(help="The suite, a TOML file such as suites/quick.toml.", autocompletion=complete.suites),
    ],
    to: Annotated[Path | None, typer.Option("--to", help="Folder of the report; by default OUT/SUITE.")] = None,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Train, evaluate and report every encoding and seed of a suite. The same command goes on where it stopped."""
    from poscli.config.suite import load
    from poscli.runs.results import evaluations, open_evaluated
    from poscli.sweep.runners import Here
    from poscli.sweep.suite import jobs_of, run_jobs
    from poscli.tasks import task_columns

    results = run_jobs(jobs_of(load(suite), device, out_ / "runs"), Here(), _failed)
    folders, failures = results.folders, results.failures
    if not folders:
        raise PoscliError(f"every run of {suite} failed; the first: {failures[0]['error']}")
    rows, positions = evaluations([open_evaluated(folder) for folder in folders], task_columns())
    present(rows, positions, to or out_ / suite.stem, out_ / "runs", json_, failures=failures)
    if failures or (rows["status"] == "diverged").any():
        raise typer.Exit(PARTIAL)


def _failed(message: str) -> None:
    """Show at once why a job failed; the others go on."""
    err.print(f"error: {message}", markup=False, style="red", soft_wrap=True)
