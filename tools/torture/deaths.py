"""The process dies at a file-system operation, or the operation is refused: full disk, I/O error, no permission."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import faults
from .pipeline import STAGES, Undisturbed, arguments
from .processes import DIED, Ended, command, steady_clock

ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EACCES": errno.EACCES}


def operations(whole: Undisturbed, stage: str, base: Path) -> list[str]:
    """The kinds of all file-system operations of a stage, in order."""
    folder = Path(tempfile.mkdtemp(dir=base))
    out, listed = whole.start(stage, folder / "count"), folder / "operations"
    counter = faults.Counter((str(out),))

    def prepare() -> None:
        steady_clock()
        counter.install()
        _list_at_exit(counter, listed)

    ended = command(*arguments(stage, out), prepare=prepare)
    assert ended.code == 0, ended.err
    return listed.read_text().split()


def trials(whole: Undisturbed, base: Path) -> Iterator[tuple[str, int, str]]:
    """Every (stage, operation, kind of operation)."""
    for stage in STAGES:
        for at, kind in enumerate(operations(whole, stage, base)):
            yield stage, at, kind


def death(whole: Undisturbed, folder: Path, stage: str, at: int) -> list[str]:
    """Die at an operation of a stage. Nothing may look damaged then, and the same commands must end the same way."""
    out = whole.start(stage, folder)
    ended = _disturbed(out, stage, at, faults.die)
    found = [] if ended.code == DIED else [f"did not die: code {ended.code}"]
    found += [f"ls runs after death: {fault}" for fault in command("ls", "runs", "--out", out).faults(0)]
    return found + whole.finish(stage, out)


def refusal(whole: Undisturbed, folder: Path, stage: str, at: int, error: str) -> list[str]:
    """The system refuses an operation of a stage: one line that names a path, and the same commands go on."""
    out = whole.start(stage, folder)
    ended = _disturbed(out, stage, at, faults.refuse(ERRORS[error]))
    found = ended.faults(0, 1)
    reason = os.strerror(ERRORS[error])
    if ended.code == 1 and not (reason in ended.err and str(out) in ended.err):
        found.append(f"the error names no path or no reason: {ended.err.strip().splitlines()[-1:]}")
    return found + whole.finish(stage, out)


def _disturbed(out: Path, stage: str, at: int, fault: faults.Fault) -> Ended:
    def prepare() -> None:
        steady_clock()
        faults.Counter((str(out),), at, fault).install()

    return command(*arguments(stage, out), prepare=prepare)


def _list_at_exit(counter: faults.Counter, path: Path) -> None:
    """Write the operations counted when the process ends, which is by os._exit."""
    leave = os._exit

    def leaving(code: int) -> None:
        path.write_text("\n".join(counter.kinds))
        leave(code)

    os._exit = leaving  # type: ignore[assignment]
