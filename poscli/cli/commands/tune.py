"""`poscli tune`: choose the learning rates of an encoding, with the same budget for all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from poscli.cli import complete, plan
from poscli.cli.commands import command
from poscli.cli.commands.run_suite import Cpus, WorkerCount
from poscli.cli.options import Device, Json, Out, from_model
from poscli.config.request import TrainRequest
from poscli.config.run import ModelConfig
from poscli.system.console import emit, note, out


@command("tune", after="train")
@from_model({"length": ("--length", "-L"), "recipe": ("--set",)}, {"model": ModelConfig})
def tune(
    enc: Annotated[
        list[str],
        typer.Argument(help="Encoding specs, such as alibi or 'rope|none'.", autocompletion=complete.specs),
    ],
    request: TrainRequest,
    dry_run: plan.DryRun = False,
    force: plan.Force = False,
    yes: plan.Yes = False,
    workers: WorkerCount = None,
    cpus: Cpus = None,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Choose learning rates by nine trials with half of the tokens, judged at L on documents that are never scored.

    Suites take the result with recipe = "tuned". The same command goes on where it stopped.
    """
    from poscli.cli.screen import run_shown
    from poscli.sweep.crew import Crew
    from poscli.sweep.job import needed, sweeps, trials_of
    from poscli.sweep.tune import tuning_of
    from poscli.system.device import device_of, threads
    from poscli.workflows import prepare

    crew = Crew(workers=workers, cpus=cpus, device=device)
    crew.check()
    setup = prepare(request, enc, [0], device_of(device))
    setup.task.tuning()
    tunings = [tuning_of(config, setup, out_) for config in setup.configs]
    jobs = trials_of(tunings, device, anew=force)
    crew = crew.suited_to([job.config for job in jobs])
    planned = sweeps(jobs, anew=force, threads=crew.threads)
    if dry_run:
        plan.show(planned, json_, crew)
        return
    plan.confirm(crew.seconds_for(planned), "--tokens or --preset", yes=yes)
    with threads(crew.threads), crew.assembled(needed(planned), tunings[0].folder / "runs") as at_work:
        for each in tunings if force else ():
            each.forget()
        run_shown(jobs, [job.seconds for job in planned], at_work)
        found = [each.find() for each in tunings]
    emit(json_, found, lambda: _show(found))
    for each in tunings:
        note(f"written: {each.file}")


def _show(found: list[dict[str, Any]]) -> None:
    """The nine losses of each encoding as a table, the best one marked."""
    from poscli.data import loss_unit

    for each in found:
        first, second = each["best"]
        columns = list(dict.fromkeys(trial[second] for trial in each["trials"]))
        unit = loss_unit([each["corpus"]])
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"{each['encoding']}: bits per {unit} at L")
        for name in (first, *(f"{second} {rate:g}" for rate in columns)):
            table.add_column(name, justify="right")
        for rate in dict.fromkeys(trial[first] for trial in each["trials"]):
            cells = [_cell(trial, each["best"]) for trial in each["trials"] if trial[first] == rate]
            table.add_row(f"{rate:g}", *cells)
        out().print(table)
        rates = ", ".join(f"{name} {value:g}" for name, value in each["best"].items())
        lost = sum(trial["bpb"] is None for trial in each["trials"])
        without = f" without {lost} that diverged" if lost else ""
        out().print(f"best *: {rates}; spread {each['spread']:.3f}{without}", markup=False)


def _cell(trial: dict[str, Any], best: dict[str, float]) -> str:
    loss = "-" if trial["bpb"] is None else f"{trial['bpb']:.3f}"
    return f"{loss} *" if all(trial[name] == value for name, value in best.items()) else f"{loss}  "
