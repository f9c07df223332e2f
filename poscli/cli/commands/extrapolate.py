"""`poscli extrapolate`: evaluate trained runs at growing lengths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.cli import complete, plan
from poscli.cli.commands import command
from poscli.cli.options import AddedOptions, Device, Json, Out, carried, from_model
from poscli.config.request import ExtrapolateRequest, refuse_smoke_with_tokens
from poscli.system.console import emit, note, out
from poscli.system.errors import PARTIAL, UsageError

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from poscli.evaluation.measure import EvaluationSetup
    from poscli.runs.run import Run


Encodings = Annotated[
    list[str] | None,
    typer.Option("--enc", "-e", help="Evaluate only runs of this encoding; repeatable.", autocompletion=complete.specs),
]
Runs = Annotated[
    list[str] | None,
    typer.Option(
        "--run", help="Evaluate only the run whose id is, or begins with, this; repeatable.",
        autocompletion=complete.runs,
    ),
]  # fmt: skip
Judge = Annotated[
    str,
    typer.Option(
        "--judge",
        help="With --why: a run on the same text, trained on windows of 8 times the length or more, which finds the "
        "tokens that long context makes predictable; --why says how this model does on them.",
        autocompletion=complete.runs,
    ),
]  # fmt: skip
Smoke = Annotated[
    bool, typer.Option("--smoke", help="Score only a few hundred tokens, to see whether everything runs.")
]

Force = Annotated[
    bool, typer.Option("--force", help="Evaluate again, whatever evaluation is there; the trained model stays.")
]


class OtherModels(AddedOptions):
    """Options of `poscli extrapolate` that name models to evaluate which are not runs that poscli has trained."""

    def setups(
        self, request: ExtrapolateRequest, device: torch.device, runs: Path, *, smoke: bool, selected: list[str]
    ) -> list[EvaluationSetup]:
        """The evaluations of these models, [] if none is named; nothing is written.

        `runs` is the folder for their runs, `smoke` scores only a few hundred tokens, and `selected` are the trained
        runs and encodings that the command names. UsageError for options that do not go together.
        """
        raise NotImplementedError


@command("extrapolate", after="train")
@from_model({"baselines": ("--baseline",), "protocols": ("--protocol",)})
def extrapolate(
    request: ExtrapolateRequest,
    *,
    enc: Encodings = None,
    run: Runs = None,
    others: list[OtherModels],
    judge: Judge = "",
    smoke: Smoke = False,
    dry_run: plan.DryRun = False,
    force: Force = False,
    yes: plan.Yes = False,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Evaluate every trained run at 1, 2, 4, ... times its training length, up to --max-len.

    With --model, evaluate a checkpoint of transformers in the same way: Llama, Pythia, Qwen, BLOOM, ... Under torchrun,
    the windows are shared out over the ranks.
    """
    import pandas as pd

    from poscli.estimate import evaluations
    from poscli.report.summary import as_json
    from poscli.runs.run import opened_runs
    from poscli.system.device import device_of
    from poscli.system.ranks import connected, ranks, together
    from poscli.workflows import evaluate

    refuse_smoke_with_tokens(request, smoke)
    runs, selected = out_ / "runs", [*(run or []), *(enc or [])]
    with connected(device_of(device)) as own_device:
        with together():
            _refuse_several_ranks(request)
        judging = _judge(judge, request, runs)
        setups = [
            setup
            for models in others
            for setup in models.setups(request, own_device, runs, smoke=smoke, selected=selected)
        ]
        named = bool(run or setups)
        if not setups:
            setups = _selected(request, run or [], enc or [], smoke, judging, own_device, runs)
        _agree(setups)
        with together():
            if ranks().first:
                jobs = evaluations(setups, why=request.why, judge=judging, anew=force)
                plan.announce_longest(setup.settings for setup in setups)
                if dry_run:
                    plan.show(jobs, json_)
                else:
                    plan.confirm(sum(job.seconds for job in jobs), "--max-len or --tokens", yes=yes)
        if dry_run:
            return
        tables = evaluate(setups, why=request.why, judge=judging, force=force)
        if ranks().first:
            rows = as_json(pd.concat(tables, ignore_index=True))
            emit(json_, rows, lambda: _show(setups, tables, by_verdict=bool(request.as_), why=request.why))
            note(f"next: poscli report{carried(out_)}")
        left_out = not named and bool(opened_runs(runs)[1])  # damaged runs
        if left_out or any((table["status"] != "ok").all() for table in tables):
            raise typer.Exit(PARTIAL)


def _show(setups: Sequence[EvaluationSetup], tables: Sequence[pd.DataFrame], *, by_verdict: bool, why: bool) -> None:
    """Print what was measured: the rows of each run, or a line per encoding with its verdict; then why it breaks."""
    from poscli.report import terminal
    from poscli.runs.results import evaluation_tables
    from poscli.tasks import task_columns

    if by_verdict:
        terminal.show_verdicts(evaluation_tables([setup.run for setup in setups], task_columns()), out())
    else:
        terminal.show_fresh(tables, out())
    if why:
        terminal.show_why(evaluation_tables([setup.run for setup in setups], task_columns()), out())


def _refuse_several_ranks(request: ExtrapolateRequest) -> None:
    """UsageError for what only one process can do, if there are several."""
    from poscli.system.ranks import ranks

    count = ranks().count
    if count > 1 and request.why:
        raise UsageError(
            f"--why runs in one process, and there are {count} ranks; leave it out, and repeat the command with --why "
            "and without torchrun when the evaluation is done: it makes the analyses only"
        )
    if count > 1 and request.recalibrate is not None:
        raise UsageError(
            f"--recalibrate {request.recalibrate} trains in one process, and there are {count} ranks; run the command "
            "without torchrun"
        )


def _agree(setups: list[EvaluationSetup]) -> None:
    """UsageError if the ranks disagree about what to evaluate, or with what."""
    import torch

    import poscli
    from poscli.evaluation.plan import record_of
    from poscli.system.device import device_name
    from poscli.system.provenance import commit
    from poscli.system.ranks import agree, ranks

    if ranks().count == 1:
        return
    agree(
        {
            "the version of poscli": poscli.__version__,
            "the commit of poscli": commit(),
            "the version of torch": torch.__version__,
            "the runs": [setup.run.id for setup in setups],
            "the fingerprint of the corpus": {setup.run.id: setup.task.fingerprint for setup in setups},
            "the settings": {setup.run.id: record_of(setup.run, setup.settings) for setup in setups},
            "the device": device_name(setups[0].device) if setups else "",
        }
    )


def _judge(judge: str, request: ExtrapolateRequest, runs: Path) -> Run | None:
    """The run of this id, or None if none is named; UsageError if it is not one run, or judges nothing."""
    from poscli.runs.select import select

    if not judge:
        return None
    if not request.why:
        raise UsageError(f"--judge {judge} judges the key tokens of --why; give --why too")
    judges = select(runs, [judge], [])
    if len(judges) > 1:
        raise UsageError(f"--judge {judge} begins the ids of {len(judges)} runs; give more of one")
    return judges[0]


def _selected(
    request: ExtrapolateRequest,
    ids: list[str],
    encodings: list[str],
    smoke: bool,
    judge: Run | None,
    device: torch.device,
    runs: Path,
) -> list[EvaluationSetup]:
    """The evaluations of every selected run: by default of all whose training has ended."""
    from functools import cache

    from poscli.runs.select import select, trained, with_known_plugins
    from poscli.tasks import open_task
    from poscli.workflows import setups_of

    selected = with_known_plugins(select(runs, ids, encodings), strict=bool(ids))
    return setups_of(
        selected if ids else trained(selected),
        request,
        device,
        strict=bool(ids or encodings),
        smoke=smoke,
        judge=judge,
        open_task=cache(open_task),
    )
