"""`poscli extrapolate`: evaluate trained runs at growing lengths."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.cli import complete
from poscli.cli.from_model import from_model
from poscli.cli.options import Device, Json, Out
from poscli.config.request import ExtrapolateRequest
from poscli.system.console import emit, note, out
from poscli.system.errors import PARTIAL

if TYPE_CHECKING:
    import pandas as pd


@from_model({"baselines": ("--baseline",), "protocols": ("--protocol",)})
def extrapolate(
    request: ExtrapolateRequest,
    enc: Annotated[
        list[str] | None,
        typer.Option(
            "--enc", "-e", help="Evaluate only runs of this encoding; repeatable.", autocompletion=complete.encodings
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(
            "--run",
            help="Evaluate only the run whose id is, or begins with, this; repeatable.",
            autocompletion=complete.runs,
        ),
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Score only a few hundred tokens, to see whether everything runs.")
    ] = False,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Evaluate every trained run at 1, 2, 4, ... times its training length, up to --max-len."""
    from poscli.evaluation.extrapolate import eval_records
    from poscli.report import terminal

    tables = _extrapolate(request, run or [], enc or [], smoke, device, out_)
    emit(json_, eval_records(tables), lambda: terminal.show_fresh(tables, out(), summed=bool(request.as_)))
    note("next: poscli report")
    if any((table["status"] != "ok").all() for table in tables):
        raise typer.Exit(PARTIAL)


def _extrapolate(
    request: ExtrapolateRequest, ids: list[str], encodings: list[str], smoke: bool, device_name: str, out_: Path
) -> list[pd.DataFrame]:
    """The evaluation of every selected run, and of its weights under the encodings of --as."""
    from functools import cache

    from poscli.evaluation.extrapolate import extrapolate, settings_of
    from poscli.evaluation.posthoc import runs_as
    from poscli.runs.select import select, trained
    from poscli.system.device import device_of
    from poscli.tasks import open_task

    device, opened = device_of(device_name), cache(open_task)
    selected = select(out_ / "runs", ids, encodings)
    runs = runs_as(selected if ids else trained(selected), request.as_, strict=bool(ids or encodings))
    settings = [settings_of(run.config, request, smoke) for run in runs]
    tasks = [opened(run.config.task, run.config.corpus, run.config.tokenizer) for run in runs]
    return [extrapolate(*each, device) for each in zip(runs, tasks, settings, strict=True)]
