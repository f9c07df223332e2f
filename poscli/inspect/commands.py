"""`poscli inspect`: pictures and measured properties of encodings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poscli.cli import complete
from poscli.cli.commands import command
from poscli.cli.options import Json, Out, from_model
from poscli.inspect.settings import DrawnShape, InspectSettings
from poscli.system.console import emit, note, out
from poscli.system.errors import PARTIAL, UsageError

FLAGS = {"length": ("--length", "-L"), "properties": ("--properties/--no-properties",)}

Encodings = Annotated[
    list[str] | None,
    typer.Argument(
        help="Encoding specs: rope, 'rope|none', or your own path/to/file.py:Class; several are drawn side by side, on "
        "the same axes, six to a sheet.",
        autocompletion=complete.specs,
    ),
]
Runs = Annotated[
    list[str] | None,
    typer.Option(
        "--run",
        help="A trained run, by its id or the beginning of it: its weights, and attention in its own text; repeatable.",
        autocompletion=complete.runs,
    ),
]
Everything = Annotated[
    bool, typer.Option("--all", help="A gallery of all that `poscli ls encodings` shows, without property sheets.")
]
Folder = Annotated[
    Path | None, typer.Option("--to", help="Folder of the files; by default OUT/inspect/ENC.", show_default=False)
]


@command("inspect", after="new")
@from_model(FLAGS, {"model": DrawnShape})
def inspect(
    settings: InspectSettings,
    enc: Encodings = None,
    run: Runs = None,
    all_: Everything = False,
    to: Folder = None,
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Show what an encoding does: tables, angles, biases, attention by distance, and its measured properties.

    What shifts change and how long an input may be is measured by `poscli verify`, time and memory by `poscli bench`.
    """
    import torch

    from poscli.inspect.session import folder_of, groups_of, inspect_groups, show_inspected, write_sheets
    from poscli.system.files import check_folder

    check_folder(to or out_ / "inspect", "--out" if to is None else "--to")
    torch.set_num_threads(1)  # the tensors are too small for a second thread to pay
    if bool(enc or run) == all_:
        raise UsageError("name an encoding or a --run to inspect, or give --all, not both: poscli inspect rope")
    if all_:
        _gallery(settings, to or out_ / "inspect" / "gallery", json_)
        return
    groups = groups_of(enc or [], run or [], out_ / "runs", settings)
    inspected = inspect_groups(groups, settings)
    files = write_sheets(inspected, to or folder_of(groups, out_))
    document = {"inspected": [each.record() for each in inspected], "files": [str(path) for path in files]}
    emit(json_, document, lambda: show_inspected(inspected, out()))
    for path in files:
        note(f"wrote {path}")


def _gallery(settings: InspectSettings, folder: Path, json_: bool) -> None:
    """Draw every encoding and the contact sheet; exit code 3 if one of them could not be drawn."""
    from poscli.inspect.gallery import draw_gallery, show_gallery

    gallery = draw_gallery(settings, folder)
    emit(json_, gallery.record(), lambda: show_gallery(gallery, out()))
    note(f"wrote {gallery.page} and {len(gallery.files) - 1} pictures beside it")
    if gallery.failed:
        raise typer.Exit(PARTIAL)
