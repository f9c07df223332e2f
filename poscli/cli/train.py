"""`poscli train`: train one model per encoding."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from poscli.cli import complete
from poscli.cli.from_model import Part, from_model
from poscli.cli.options import MOST, Device, Json, Out
from poscli.config.request import TrainRequest
from poscli.config.run import ModelConfig
from poscli.system.console import emit, note, out
from poscli.system.errors import PARTIAL


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
    seed: Annotated[
        int, typer.Option(help="Seed of the weights and of the order of the data.", min=0, max=MOST)
    ] = 0,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Train a tiny language model with each encoding given. Goes on with interrupted runs, skips complete ones."""
    results = _train(enc, seed, request, device, out_)
    emit(json_, results, lambda: _show(results, 16 * request.length))
    if any(row["status"] == "diverged" for row in results):
        raise typer.Exit(PARTIAL)


def _train(
    encodings: list[str], seed: int, request: TrainRequest, device_name: str, out_: Path
) -> list[dict[str, Any]]:
    from poscli.config.resolve import resolve
    from poscli.runs.summary import training_summary
    from poscli.system.device import device_of
    from poscli.tasks import open_task
    from poscli.training.train import train as train_run

    device = device_of(device_name)
    configs = [resolve(request, encoding, seed, device) for encoding in encodings]
    task = open_task(request.task, request.corpus, request.tokenizer)
    task.check(request.length)
    results = []
    for config in configs:
        run = train_run(config.model_copy(update={"corpus": task.corpus}), task, out_ / "runs", device)
        results.append(training_summary(run))
    return results


def _show(results: list[dict[str, Any]], longest: int) -> None:
    for row in results:
        loss = "no finite loss" if row["bpb"] is None else f"{row['bpb']:.3f} bits per byte"
        out().print(
            f"{row['run_id']}: {row['status']}, {loss} in training "
            f"after {row['tokens']:,} tokens, {row['seconds']:.0f} s, {row['tokens_per_s']:,.0f} tokens/s",
            markup=False,
            soft_wrap=True,
        )
    note(f"next: poscli extrapolate --max-len {longest}")
