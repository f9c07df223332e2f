"""`poscli train`: train one model per encoding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poscli.cli import complete, plan
from poscli.cli.from_model import Part, from_model
from poscli.cli.options import MOST, Device, Json, Out, carried
from poscli.config.request import TrainRequest
from poscli.config.run import ModelConfig, RunConfig
from poscli.system.console import emit, note, out
from poscli.system.errors import PARTIAL, UsageError

if TYPE_CHECKING:
    import torch

    from poscli.tasks import Task

LARGEST_SEED = 2**63 - 1  # that a table holds
WITHOUT_MODEL = {"diverged", "oom"}  # states in which a training has ended without a model to evaluate


@from_model({"length": ("--length", "-L"), "recipe": ("--set",)}, {"model": Part(ModelConfig, "the preset's")})
def train(
    enc: Annotated[
        list[str],
        typer.Option(
            "--enc",
            "-e",
            help="Encoding spec, e.g. alibi, 'rope(base=500000)', 'rope|none'; repeatable.",
            autocompletion=complete.encodings,
        ),
    ],
    request: TrainRequest,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the order of the data.", min=0, max=MOST)] = 0,
    dry_run: plan.DryRun = False,
    force: plan.Force = False,
    yes: plan.Yes = False,
    fsdp: Annotated[
        bool, typer.Option("--fsdp", help="Under torchrun, divide the weights among the ranks (FSDP2).")
    ] = False,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Train a tiny language model with each encoding given. Goes on with interrupted runs, skips complete ones."""
    from poscli.system.device import device_of
    from poscli.system.ranks import any_rank, joined, ranks, together

    _refuse_one_rank(fsdp)
    with joined(device_of(device)) as own:
        work = _agreed(enc, seed, request, own, sharded=fsdp)
        with together():
            if ranks().first:
                _begin(work, out_ / "runs", dry_run=dry_run, force=force, yes=yes, json_=json_)
        if dry_run:
            return
        results = _train(work, out_ / "runs")
        emit(json_, results, lambda: _show(results))
        note(f"next: poscli extrapolate --max-len {16 * work.configs[0].length}{carried(out_)}")
        partial = any_rank(any(row["status"] in WITHOUT_MODEL for row in results))
    if partial:
        raise typer.Exit(PARTIAL)


def _refuse_one_rank(fsdp: bool) -> None:
    """UsageError for weights that are to be divided where there is only one process."""
    from poscli.system.ranks import ranks

    if fsdp and ranks().count == 1:
        raise UsageError(
            "--fsdp divides the weights among several ranks, and this is one process; leave it out, or start the "
            "command with torchrun --nproc-per-node N -m poscli train ... (docs/PARALLEL.md)"
        )


@dataclass(frozen=True)
class _Work:
    """The runs to train, with the task and the device they share."""

    configs: list[RunConfig]
    task: Task
    device: torch.device
    sharded: bool = False  # whether ranks divide the weights among them


def _agreed(encodings: list[str], seed: int, request: TrainRequest, device: torch.device, *, sharded: bool) -> _Work:
    """The work of all ranks; UsageError if they disagree. One rank per machine reads the corpus before the others."""
    import torch

    from poscli import __version__
    from poscli.system.provenance import commit
    from poscli.system.ranks import agree, ranks, together

    found: list[_Work] = []
    for turn in (True, False):
        with together():
            if (ranks().local == 0) is turn:
                found.append(replace(_work(encodings, seed, request, device), sharded=sharded))
    work = found[0]
    configurations = {
        f"{name} of {config.encoding}": value for config in work.configs for name, value in config.model_dump().items()
    }
    versions = {"poscli": f"{__version__} {commit()}".rstrip(), "torch": torch.__version__}
    options = {"--fsdp": sharded, "device": device.type}
    text = {"the contents of the corpus": work.task.fingerprint}
    agree(versions | options | {"--enc": [config.encoding for config in work.configs]} | configurations | text)
    return work


def _begin(work: _Work, runs: Path, *, dry_run: bool, force: bool, yes: bool, json_: bool) -> None:
    """Show what is going to be done, or ask whether to do it, and delete what is to be trained anew."""
    from poscli.sweep.planned import trainings

    jobs = trainings(work.configs, work.task, runs, work.device, anew=force)
    if dry_run:
        plan.show(jobs, json_)
        return
    plan.confirm(sum(job.seconds for job in jobs), "--tokens or --preset", yes=yes)
    if force:
        plan.delete(jobs, runs)


def _work(encodings: list[str], seed: int, request: TrainRequest, device: torch.device) -> _Work:
    """Everything that is asked for, checked: nothing is trained if any part of it cannot be."""
    from poscli import specs
    from poscli.config.resolve import resolve
    from poscli.tasks import open_task

    specs.refuse_twice(encodings)
    configs = [resolve(request, encoding, seed, device) for encoding in encodings]
    task = open_task(request.task, request.corpus, request.tokenizer)
    task.check(configs[0].length)
    return _Work([config.model_copy(update={"corpus": task.corpus}) for config in configs], task, device)


def _train(work: _Work, runs: Path) -> list[dict[str, Any]]:
    """Train every run; returns what each has come to, on the first rank."""
    from poscli.runs.summary import training_summary
    from poscli.system.ranks import ranks
    from poscli.training.train import train as train_run

    trained = [train_run(config, work.task, runs, work.device, sharded=work.sharded) for config in work.configs]
    return [training_summary(run) for run in trained if ranks().first]


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
