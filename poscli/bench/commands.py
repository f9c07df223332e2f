"""`poscli bench`: what each encoding costs, compared with no encoding and with what the machine can do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.bench.settings import BenchSettings
from poscli.cli.commands import command
from poscli.cli.options import Device, Json, from_model
from poscli.system.console import emit, note, out
from poscli.system.errors import PARTIAL, UsageError

if TYPE_CHECKING:
    import torch

    from poscli.bench.session import Bench

FLAGS = {"encodings": ("--enc", "-e"), "engines": ("--engine",), "train_length": ("--train-length", "-L")}


@command("bench", after="inspect")
@from_model(FLAGS)
def bench(
    settings: BenchSettings,
    threads: Annotated[
        int | None, typer.Option(help="Threads of torch on the CPU; by default torch chooses.", min=1)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the rows that this machine has measured before.")
    ] = False,
    device: Device = "auto",
    out_: Annotated[Path, typer.Option("--out", help="Folder of the tables and pictures.")] = Path("results/bench"),
    json_: Json = False,
) -> None:
    """Speed and memory of training, evaluating and decoding, per encoding and engine, as ratios to no encoding.

    All encodings up to 32768 tokens take an hour on two cores, and a few minutes with --quick.
    """
    import torch

    from poscli.bench.session import Bench
    from poscli.system.device import device_of
    from poscli.system.files import check_folder

    check_folder(out_, "--out")
    if threads:
        torch.set_num_threads(_affordable(threads))
    where = device_of(device)
    session = Bench(settings, where, out_, resume=resume)
    session.run()
    _report(session, where, out_, json_)


def _affordable(threads: int) -> int:
    """A number of threads, unless it is many times that of the cores, where threads only wait for each other."""
    most = 4 * (os.cpu_count() or 1)
    if threads > most:
        raise UsageError(f"--threads {threads}: this machine has {os.cpu_count()} cores; give 1 to {most}")
    return threads


def _report(session: Bench, device: torch.device, folder: Path, json_: bool) -> None:
    """Draw the pictures, print the tables, and name the files."""
    from poscli.bench.show import draw_costs, show_bench
    from poscli.report import records
    from poscli.system.provenance import describe

    costs, limits = tables = [file.table() for file in session.files]
    files = [file.path for file in session.files if file.rows]
    files += draw_costs(session.own(costs), folder)
    payload = {"environment": describe(device), "rows": records(costs), "limits": records(limits)}
    payload["files"] = [str(path) for path in files]
    emit(json_, payload, lambda: show_bench(session.here(costs), session.here(limits), out()))
    for path in files:
        note(f"wrote {path}")
    if any((table["status"] == "failed").any() for table in tables):
        raise typer.Exit(PARTIAL)
