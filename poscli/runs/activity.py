"""What is being done on runs at this moment. Whoever works on a run leaves its progress in the run's folder.

A command in another shell, the screen of a sweep, and a worker on another machine all read the same files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from poscli.runs.lock import is_locked
from poscli.runs.run import POSTHOC, PROGRESS
from poscli.system.errors import CorruptError
from poscli.system.files import read_object


@dataclass(frozen=True)
class Activity:
    """A piece of work on a run that has not ended."""

    label: str  # what is done, such as "train alibi"
    share: float  # of this piece of work, between 0 and 1
    words: str  # such as the loss
    seconds_left: float
    process: int
    host: str


def activity(folder: Path) -> Activity | None:
    """What a process does with a run, trained or evaluated as another encoding; None if nothing is being done.

    Work that has just begun shows nothing yet. Files that a killed process left behind do not count.
    """
    files = [folder / PROGRESS, *folder.glob(f"{POSTHOC}/*/{PROGRESS}")]
    found = [_read(file) for file in files if file.exists() and is_locked(file.parent)]
    return next((each for each in found if each is not None), None)


def _read(file: Path) -> Activity | None:
    """The content of a file of progress; None if it is gone, or is not what poscli writes."""
    try:
        known = read_object(file, "")
        share, seconds_left = known["done"] / known["total"], float(known["seconds_left"])
        if not (math.isfinite(share) and math.isfinite(seconds_left)):
            return None
        return Activity(
            label=str(known["label"]),
            share=min(1.0, max(0.0, share)),
            words=str(known["words"]),
            seconds_left=max(0.0, seconds_left),
            process=int(known["process"]),
            host=str(known["host"]),
        )
    except (CorruptError, ValueError, KeyError, TypeError, ArithmeticError):
        return None
