"""`poscli tune`: choose the learning rates of an encoding, with the same budget for all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from poscli.cli import complete, plan
from poscli.cli.commands import command
from poscli.cli.options import Device, Json, Nested, Out, from_model
from poscli.config.request import TrainRequest
from poscli.config.run import ModelConfig
from poscli.system.console import emit, note, out


@command("tune", after="train")
@from_model({"length": ("--length", "-L"), "recipe": ("--set",)}, {"model": Nested(ModelConfig, "the preset's")})
def tune(
    enc: Annotated[
        list[str],
        typer.Argument(help="Encoding specs, such as alibi or 'rope|none'.", autocompletion=complete.specs),
    ],
    request: TrainRequest,
    dry_run: plan.DryRun = False,
    force: plan.Force = False,
    yes: plan.Yes = False,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Choose learning rates by nine trials with half of the tokens, judged at L on documents that are never scored.

    Suites take the result with recipe = "tuned". The same command goes on where it stopped.
    """
    from poscli.estimate import trainings
    from poscli.sweep.tune import FOLDER, tuning_of
    from poscli.system.device import device_of
    from poscli.workflows import prepare

    setup = prepare(request, enc, [0], device_of(device))
    setup.task.tuning()
    tunings = [tuning_of(config, setup, out_) for config in setup.configs]
    left = [config for each in tunings if force or each.known() is None for config in each.setup.configs]
    jobs = trainings(left, setup.task, out_ / FOLDER / "runs", setup.device, anew=force)
    if dry_run:
        plan.show(jobs, json_)
        return
    plan.confirm(sum(job.seconds for job in jobs), "--tokens or --preset", yes=yes)
    found = [each.find(force=force) for each in tunings]
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
        out().print(f"best *: {rates}; spread {each['spread']:.3f}, how much the recipe matters", markup=False)


def _cell(trial: dict[str, Any], best: dict[str, float]) -> str:
    loss = "-" if trial["bpb"] is None else f"{trial['bpb']:.3f}"
    return f"{loss} *" if all(trial[name] == value for name, value in best.items()) else f"{loss}  "
