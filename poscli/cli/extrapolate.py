"""`poscli extrapolate`: evaluate trained runs at growing lengths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.cli import complete, plan
from poscli.cli.from_model import from_model
from poscli.cli.options import Device, Json, Out, carried
from poscli.config.request import ExtrapolateRequest
from poscli.system.console import emit, note, out
from poscli.system.errors import PARTIAL, UsageError

if TYPE_CHECKING:
    import torch

    from poscli.evaluation.protocol import EvaluationSettings
    from poscli.runs.run import Run
    from poscli.tasks import Task


Encodings = Annotated[
    list[str] | None,
    typer.Option(
        "--enc", "-e", help="Evaluate only runs of this encoding; repeatable.", autocompletion=complete.encodings
    ),
]
Runs = Annotated[
    list[str] | None,
    typer.Option(
        "--run", help="Evaluate only the run whose id is, or begins with, this; repeatable.",
        autocompletion=complete.runs,
    ),
]  # fmt: skip
Smoke = Annotated[
    bool, typer.Option("--smoke", help="Score only a few hundred tokens, to see whether everything runs.")
]


@from_model({"baselines": ("--baseline",), "protocols": ("--protocol",)})
def extrapolate(
    request: ExtrapolateRequest,
    enc: Encodings = None,
    run: Runs = None,
    smoke: Smoke = False,
    dry_run: plan.DryRun = False,
    yes: plan.Yes = False,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Evaluate every trained run at 1, 2, 4, ... times its training length, up to --max-len."""
    from poscli.evaluation.extrapolate import eval_records
    from poscli.evaluation.extrapolate import extrapolate as evaluate
    from poscli.report import terminal

    work = _work(request, run or [], enc or [], smoke, device, out_ / "runs")
    jobs = plan.evaluations(work.runs, work.tasks, work.settings, work.device)
    plan.announce_longest(work.settings)
    if dry_run:
        plan.show(jobs, json_)
        return
    plan.confirm(sum(job.seconds for job in jobs), "--max-len or --tokens", yes=yes)
    each = zip(work.runs, work.tasks, work.settings, strict=True)
    tables = [evaluate(*one, work.device) for one in each]
    if request.why:
        _explain(work, request.judge, out_ / "runs")
    emit(json_, eval_records(tables), lambda: terminal.show_fresh(tables, out(), summed=bool(request.as_)))
    note(f"next: poscli report{carried(out_)}")
    if any((table["status"] != "ok").all() for table in tables):
        raise typer.Exit(PARTIAL)


def _explain(work: _Work, judge: str, runs: Path) -> None:
    """The analyses of --why, of every run that was trained with the encoding that it is evaluated as."""
    from poscli.evaluation.why.explain import Request, explain
    from poscli.runs.select import select

    judges = select(runs, [judge], []) if judge else [None]
    if len(judges) > 1:
        raise UsageError(f"--judge {judge} begins the ids of {len(judges)} runs; give more of one")
    for run, task, settings in zip(work.runs, work.tasks, work.settings, strict=True):
        if not run.trained and run.id != getattr(judges[0], "id", None):
            explain(Request(run, task, settings, work.device, judges[0]))


@dataclass(frozen=True)
class _Work:
    """The runs to evaluate, each with its task and settings, and the device."""

    runs: list[Run]
    tasks: list[Task]
    settings: list[EvaluationSettings]
    device: torch.device


def _work(
    request: ExtrapolateRequest, ids: list[str], encodings: list[str], smoke: bool, device_name: str, runs: Path
) -> _Work:
    """Every selected run, and its weights under the encodings of --as."""
    from functools import cache

    from poscli.evaluation.extrapolate import settings_of
    from poscli.evaluation.posthoc import runs_as
    from poscli.runs.select import select, trained, with_known_plugins
    from poscli.system.device import device_of
    from poscli.tasks import open_task

    device, opened = device_of(device_name), cache(open_task)
    selected = with_known_plugins(select(runs, ids, encodings), strict=bool(ids))
    chosen = runs_as(selected if ids else trained(selected), request.as_, strict=bool(ids or encodings))
    settings = [settings_of(run.config, request, smoke) for run in chosen]
    tasks = [opened(run.config.task, run.config.corpus, run.config.tokenizer) for run in chosen]
    return _Work(chosen, tasks, settings, device)
