"""`poscli bench`: what each encoding costs, beside `none` and beside what the machine can do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from poscli.cli.options import Device, Json, count
from poscli.console import emit, note, out
from poscli.errors import PARTIAL, UsageError

QUICK = {"lengths": (512, 2048), "past": (512,), "repeats": 3, "seconds": 2.0, "limit": 20.0}


def bench(
    enc: Annotated[
        list[str] | None, typer.Option("--enc", "-e", help="Encoding spec; several are allowed. [every registered one]")
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="Attention engine, such as blocks; auto is the fastest one. [auto]")
    ] = None,
    what: Annotated[
        list[str] | None, typer.Option(help="Only this: machine, train, eval or decode; several are allowed.")
    ] = None,
    against: Annotated[
        str, typer.Option(help="Time the same shapes in another library too: x-transformers.", show_default=False)
    ] = "",
    preset: Annotated[str, typer.Option(help="Shape of the model: nano, tiny, small or base.")] = "tiny",
    lengths: Annotated[
        str | None, typer.Option(help="Evaluation lengths, such as 512,4096. [512, 1024, ... up to --max-len]")
    ] = None,
    max_len: Annotated[int, typer.Option(help="Longest evaluation, in tokens.", min=1)] = 32768,
    past: Annotated[str | None, typer.Option(help="Tokens in the cache when decoding. [512,4096]")] = None,
    train_length: Annotated[
        int, typer.Option("--train-length", "-L", help="Tokens in a training window.", min=8)
    ] = 512,
    batch: Annotated[int | None, typer.Option(help="Training windows at once. [2048 tokens' worth]", min=1)] = None,
    repeats: Annotated[int | None, typer.Option(help="Turns of every case. [5]", min=1)] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="No turn of a case begins after this; a longer first run is not repeated. [10]"),
    ] = None,
    limit: Annotated[
        float | None, typer.Option(help="Runs that are expected to take longer, in seconds, are skipped. [60]")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Of torch on the CPU. [its own choice]", min=1)] = None,
    precision: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="512 and 2048 tokens, three turns of two seconds.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Keep rows that the same machine has measured.")] = False,
    device: Device = "auto",
    out_: Annotated[Path, typer.Option("--out", help="Folder of the tables and pictures.")] = Path("results/bench"),
    json_: Json = False,
) -> None:
    """Speed and memory of training, evaluating and decoding, per encoding and engine, as ratios to no encoding.

    All encodings up to 32768 tokens take an hour on two cores, --quick some minutes.
    """
    values: dict[str, Any] = {
        "encodings": enc or (),
        "engines": engine,
        "what": what,
        "preset": preset,
        "train_length": train_length,
        "batch": batch,
        "lengths": _lengths(lengths, "--lengths", max_len) or (None if quick else _doublings(max_len)),
        "past": _lengths(past, "--past", max_len) or (None if quick else _up_to(max_len)),
        "repeats": repeats,
        "seconds": seconds,
        "limit": limit,
        "precision": precision,
    }
    given = {name: value for name, value in values.items() if value is not None}
    _bench((QUICK if quick else {}) | given, threads, device, out_, against, resume, json_)


def _bench(
    values: dict[str, Any], threads: int | None, device: str, folder: Path, against: str, resume: bool, json_: bool
) -> None:
    import torch

    from poscli.bench import pictures, terminal
    from poscli.bench.session import Bench
    from poscli.bench.settings import Settings
    from poscli.config import validated
    from poscli.environment import describe, device_of
    from poscli.report import records

    if threads:
        torch.set_num_threads(threads)
    where = device_of(device)
    session = Bench(validated(Settings, values, "bench"), where, folder, against=against, resume=resume)
    session.run()
    tables = [table.frame() for table in (session.rows, session.limits, session.against)]
    files = [table.path for table in (session.rows, session.limits, session.against) if table.rows]
    files += pictures.draw(session.own(tables[0]), session.own(tables[2]), folder)
    named = zip(("rows", "limits", "against"), map(records, tables), strict=True)
    payload = {"environment": describe(where), **dict(named), "files": [str(path) for path in files]}
    emit(json_, payload, lambda: terminal.show(tables[0], tables[1], tables[2], out()))
    for path in files:
        note(f"wrote {path}")
    if any((table["status"] == "failed").any() for table in tables):
        raise typer.Exit(PARTIAL)


def _lengths(text: str | None, option: str, longest: int) -> tuple[int, ...] | None:
    """Numbers of tokens, separated by commas, without those above the longest."""
    if text is None:
        return None
    asked = [count(part, option) for part in text.split(",")]
    kept = tuple(length for length in asked if length <= longest)
    if not kept:
        raise UsageError(f"{option} {text}: all above --max-len {longest}; raise that, or give shorter ones")
    return kept


def _up_to(longest: int) -> tuple[int, ...]:
    """512 and 4096, or the longest allowed."""
    return tuple(past for past in (512, 4096) if past <= longest) or (longest,)


def _doublings(longest: int) -> tuple[int, ...]:
    """512, 1024, ... up to the longest.

    >>> _doublings(3000), _doublings(100)
    ((512, 1024, 2048), (100,))
    """
    return tuple(512 << n for n in range((longest // 512).bit_length())) or (longest,)
