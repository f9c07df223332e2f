"""`poscli rm`: delete runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from poscli.cli import complete
from poscli.cli.commands import command
from poscli.cli.options import Json, Out
from poscli.system.console import emit, err, note, out
from poscli.system.errors import CorruptError, PoscliError, UsageError, near
from poscli.system.text import counted


@command("rm", after="ls")
def rm(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            help="Run whose id, or the name of whose folder, is or begins with this.", autocompletion=complete.runs
        ),
    ] = None,
    enc: Annotated[
        list[str] | None,
        typer.Option(
            "--enc", "-e", help="Delete only runs of this encoding; repeatable.", autocompletion=complete.specs
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Delete runs with their checkpoints and evaluations, damaged ones too. Reports that have been written stay."""
    folders = _selected(out_ / "runs", run or [], enc or [])
    if not (yes or _agreed(folders)):
        note("nothing deleted")
        folders = []
    from poscli.runs.run import delete_run

    for number, folder in enumerate(folders):
        try:
            delete_run(folder)
        except PoscliError:
            for deleted in folders[:number]:
                note(f"deleted {deleted}")
            raise
    rows = [{"run_id": folder.name, "folder": str(folder)} for folder in folders]
    lines, end = [f"deleted {folder}" for folder in folders], "\n" if folders else ""
    emit(json_, rows, lambda: out().print(*lines, sep="\n", end=end, soft_wrap=True))


def _agreed(folders: list[Path]) -> bool:
    """Whether the user, who sees the names, agrees. UsageError where there is nobody to ask."""
    if not (sys.stdin and sys.stdin.isatty()):
        names = ", ".join(folder.name for folder in folders)
        raise UsageError(f"{counted(len(folders), 'run')} would be deleted: {names}; confirm with --yes")
    for folder in folders:
        err.print(str(folder), soft_wrap=True)
    return typer.confirm(f"Delete {counted(len(folders), 'run')}?", err=True)


def _selected(runs: Path, ids: list[str], encodings: list[str]) -> list[Path]:
    """The folders of the runs with one of these ids (or beginnings of ids) and encodings; UsageError for none."""
    if not ids and not encodings:
        raise UsageError("name runs to delete, or an encoding with --enc; `poscli ls runs` shows the runs there are")
    known = sorted(p for p in runs.glob("*") if p.is_dir() and not p.name.startswith("."))
    for id_ in ids:
        if not id_ or not any(folder.name.startswith(id_) for folder in known):
            raise UsageError(f"there is no run {id_!r} in {runs}: {near(id_, [folder.name for folder in known])}")
    names = {folder.name for folder in known}  # an id that is a whole name selects that run alone

    def is_selected(name: str) -> bool:
        return any(name == id_ or (name.startswith(id_) and id_ not in names) for id_ in ids)

    chosen = [folder for folder in known if not ids or is_selected(folder.name)]
    return _with_encoding(chosen, encodings, f"{' or '.join(ids)} in {runs}".lstrip()) if encodings else chosen


def _with_encoding(folders: list[Path], encodings: list[str], where: str) -> list[Path]:
    """The folders whose run has one of these encodings; UsageError, which names `where`, for one that no run has."""
    from poscli.runs.run import open_run
    from poscli.runs.select import trained_encodings

    known = {}
    for folder in folders:
        try:
            known[folder] = open_run(folder)
        except CorruptError as error:
            note(f"left out, its encoding is not known: {error}")
    wanted = trained_encodings(known.values(), encodings, where)
    return [folder for folder, run in known.items() if run.config.encoding in wanted]
