"""Deleting a run: its folder disappears at once or stays whole, and nothing outside it is touched."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from poscli.runs.lock import unused
from poscli.system.errors import PoscliError, UsageError

TRASH = ".deleted"  # beside the runs; one level deeper than the folders that are listed as runs


def delete_run(folder: Path) -> None:
    """Delete a run's folder, damaged or not, with its checkpoints and evaluations.

    The folder is first moved away under another name, so that a deletion that is interrupted leaves no half of a run
    behind. Links inside the folder are removed, never followed. UsageError if the folder is itself a link or does not
    exist, LockedError if another process works on the run, PoscliError if the system refuses.
    """
    if folder.is_symlink():
        raise UsageError(f"{folder} is a symbolic link, whose target may be used elsewhere; remove the link by hand")
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; `poscli ls runs` shows the runs there are")
    trash = folder.parent / TRASH
    if trash.is_symlink():
        raise UsageError(f"{trash} is a symbolic link, where poscli moves what it deletes; remove the link by hand")
    try:
        trash.mkdir(exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=trash))
        with unused(folder):
            folder.rename(aside / folder.name)
    except OSError as error:
        raise PoscliError(f"cannot delete {folder}: {error.strerror or error}; change its permissions") from error
    finally:
        empty_trash(folder.parent)


def empty_trash(runs: Path) -> None:
    """Remove what deletions, the last one or earlier ones that were interrupted, have moved away."""
    shutil.rmtree(runs / TRASH, ignore_errors=True)  # another process may be emptying it as well; refuses a link
