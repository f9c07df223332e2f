"""`poscli train`: train one model per encoding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poscli.cli import complete, plan
from poscli.cli.commands import command
from poscli.cli.options import MOST, Device, Json, Out, carried, from_model
from poscli.config.request import TrainRequest
from poscli.config.run import ModelConfig
from poscli.system.console import emit, note, out
from poscli.system.errors import PARTIAL

if TYPE_CHECKING:
    import torch

    from poscli.workflows import TrainingSetup


@command("train", after="")
@from_model({"length": ("--length", "-L"), "recipe": ("--set",)}, {"model": ModelConfig})
def train(
    enc: Annotated[
        list[str],
        typer.Option(
            "--enc",
            "-e",
            help="Encoding spec, e.g. alibi, 'rope(base=500000)', 'rope|none', the layout rnope-swa; repeatable.",
            autocompletion=complete.specs,
        ),
    ],
    request: TrainRequest,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the order of the data.", min=0, max=MOST)] = 0,
    dry_run: plan.DryRun = False,
    force: plan.Force = False,
    yes: plan.Yes = False,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Train a tiny language model with each encoding given. Goes on with interrupted runs, skips complete ones."""
    from poscli.estimate import MEASURED_FROM, trainings
    from poscli.runs.run import FAILED_STATES
    from poscli.runs.summary import training_summary
    from poscli.system.device import device_of
    from poscli.system.ranks import any_rank, connected, ranks, together
    from poscli.workflows import train as train_runs

    with connected(device_of(device)) as own_device:
        setup = _agreed(enc, seed, request, own_device)
        with together():
            if ranks().first:
                # Where the time is only asked whether it is an hour, counting operations is enough up to a tenth of it.
                measured_from = MEASURED_FROM if dry_run else plan.ASKED_FROM / 10
                jobs = trainings(
                    setup.configs, setup.task, out_ / "runs", setup.device, anew=force, measured_from=measured_from
                )
                if dry_run:
                    plan.show(jobs, json_)
                else:
                    plan.confirm(sum(job.seconds for job in jobs), "--tokens or --preset", yes=yes)
        if dry_run:
            return
        trained = train_runs(setup, out_ / "runs", force=force)
        results = [training_summary(run) for run in trained if ranks().first]
        emit(json_, results, lambda: _show(results))
        note(f"next: poscli extrapolate --max-len {16 * setup.configs[0].length}{carried(out_)}")
        partial = any_rank(any(row["status"] in FAILED_STATES for row in results))
    if partial:
        raise typer.Exit(PARTIAL)


def _agreed(encodings: list[str], seed: int, request: TrainRequest, device: torch.device) -> TrainingSetup:
    """What all ranks will train; UsageError if they disagree. One rank per machine reads the corpus first."""
    import torch

    from poscli import __version__
    from poscli.system.provenance import commit
    from poscli.system.ranks import agree, ranks, together
    from poscli.workflows import prepare

    for first_to_read in (True, False):
        with together():
            if (ranks().local == 0) is first_to_read:
                setup = prepare(request, encodings, [seed], device)
    configurations = {
        f"{name} of {config.encoding}": value for config in setup.configs for name, value in config.model_dump().items()
    }
    versions = {"poscli": f"{__version__} {commit()}".rstrip(), "torch": torch.__version__}
    options = {"device": device.type}
    text = {"the contents of the corpus": setup.task.fingerprint}
    agree(versions | options | {"--enc": [config.encoding for config in setup.configs]} | configurations | text)
    return setup


def _show(results: list[dict[str, Any]]) -> None:
    from poscli.data import loss_unit

    for row in results:
        loss = "no finite loss" if row["bpb"] is None else f"{row['bpb']:.3f} bits per {loss_unit([row['corpus']])}"
        out().print(
            f"{row['run_id']}: {row['status']}, {loss} in training "
            f"after {row['tokens']:,} tokens, {row['seconds']:.0f} s, {row['tokens_per_s']:,.0f} tokens/s",
            markup=False,
            soft_wrap=True,
        )
