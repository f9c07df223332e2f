"""`poscli bench`: what each encoding costs, compared with no encoding and with what the machine can do."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poscli.bench.settings import BenchSettings
from poscli.cli.commands import command
from poscli.cli.options import Device, Json, from_model
from poscli.system.console import emit, note, out
from poscli.system.errors import PARTIAL, UsageError

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from poscli.bench.tables import ResultFile

FLAGS = {"encodings": ("--enc", "-e"), "engines": ("--engine",), "train_length": ("--train-length", "-L")}
Threads = Annotated[int | None, typer.Option(help="Threads of torch on the CPU; by default torch chooses.", min=1)]
Resume = Annotated[bool, typer.Option("--resume", help="Keep the folder's rows, and measure what has no number.")]
Folder = Annotated[Path, typer.Option("--out", help="Folder of the tables and pictures.")]


@command("bench", after="inspect")
@from_model(FLAGS)
def bench(
    settings: BenchSettings,
    threads: Threads = None,
    resume: Resume = False,
    device: Device = "auto",
    out_: Folder = Path("results/bench"),
    json_: Json = False,
) -> None:
    """Speed and memory of training, evaluating and decoding, per encoding and engine, as ratios to no encoding.

    All encodings up to 32768 tokens take an hour on two cores, and a few minutes with --quick.
    """
    from poscli.bench.breakdown import Breakdown
    from poscli.bench.session import Bench
    from poscli.bench.show import draw_costs, show_bench, show_breakdown

    where = prepared(out_, threads, device)
    if settings.profile:
        if resume:
            raise UsageError("--profile measures everything anew: leave out --resume")
        breakdown = Breakdown(settings, where, out_)
        breakdown.run()
        parts = breakdown.files[0].table()
        conclude(where, {"profile": parts}, breakdown.files, [], json_, lambda: show_breakdown(parts, out()))
        return
    session = Bench(settings, where, out_, resume=resume)
    session.run()
    costs, limits = (file.table() for file in session.files)
    own, tables = session.own(costs), {"rows": costs, "limits": limits}
    pictures = draw_costs(own, out_)
    conclude(where, tables, session.files, pictures, json_, lambda: show_bench(own, session.here(limits), out()))


def prepared(folder: Path, threads: int | None, device: str) -> torch.device:
    """The device to measure on, after the folder and the number of threads are seen to be good ones."""
    import torch

    from poscli.system.device import device_of
    from poscli.system.files import check_folder

    check_folder(folder, "--out")
    cores = os.cpu_count() or 1
    if threads and threads > 4 * cores:  # threads would only wait for each other
        raise UsageError(f"--threads {threads}: this machine has {os.cpu_count()} cores; give 1 to {4 * cores}")
    if threads:
        torch.set_num_threads(threads)
    return device_of(device)


def conclude(
    device: torch.device,
    tables: dict[str, pd.DataFrame],
    results: Sequence[ResultFile],
    pictures: Sequence[Path],
    json_: bool,
    show: Callable[[], object],
) -> None:
    """Print the tables, or a document with them, name the files, and end with exit code 3 if a measurement failed.

    Rows of earlier benches, which the files may have too, do not count.
    """
    from poscli.report import records
    from poscli.system.provenance import describe

    document: dict[str, Any] = {"environment": describe(device)}
    document |= {name: records(table) for name, table in tables.items()}
    files = [*(file.path for file in results if file.rows), *pictures]
    emit(json_, document | {"files": [str(path) for path in files]}, show)
    for path in files:
        note(f"wrote {path}")
    if any(file.failed for file in results):
        raise typer.Exit(PARTIAL)
