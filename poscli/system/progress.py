"""Progress on stderr: a bar on a terminal, a line every 15 seconds elsewhere, nothing if POSCLI_QUIET is set.

Work on a run also leaves its progress in a file of the run's folder, for those who watch from other processes.
"""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from types import TracebackType

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from poscli.system.console import err
from poscli.system.files import remove_display, write_display

SECONDS_BETWEEN_LINES = 15.0  # if stderr is not a terminal
SECONDS_BETWEEN_WRITES = 1.0  # of the file


class Meter:
    """Shows how much of a job of `total` units of work is done, and a few words about its state; for a `with` block.

    `file`, if given, holds the same as a JSON object while the block runs, renewed about once a second: label, done,
    total, words, seconds_left, and the process and the host that work.
    """

    def __init__(self, label: str, total: float, done: int = 0, *, file: Path | None = None) -> None:
        self.label, self.total, self.done_at_start, self.file = label, total, done, file
        self.done: float = done
        self.start = self.last_line = self.last_write = time.monotonic()
        self.quiet = bool(os.environ.get("POSCLI_QUIET"))
        self.bar = _bar() if err.is_terminal and not self.quiet else None
        self.task = self.bar.add_task(label, total=total, completed=done, words="") if self.bar else None

    def __enter__(self) -> Meter:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()
        if self.file:
            remove_display(self.file)

    def advance(self, amount: float, words: str = "") -> None:
        """Add `amount` to the work done, and show `words`."""
        self.done += amount
        if self.bar and self.task is not None:
            self.bar.update(self.task, completed=self.done, words=words)
        elif not self.quiet and time.monotonic() - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            share = self.done / self.total
            err.print(f"{self.label}  {share:4.0%}  {words}  {duration(self._left())} left", soft_wrap=True)
        if self.file and time.monotonic() - self.last_write >= SECONDS_BETWEEN_WRITES:
            self.last_write = time.monotonic()
            work = {"label": self.label, "done": self.done, "total": self.total, "words": words}
            worker = {"seconds_left": self._left(), "process": os.getpid(), "host": platform.node()}
            write_display(self.file, json.dumps(work | worker))

    def _left(self) -> float:
        """The seconds that the rest takes at the pace so far."""
        pace = (time.monotonic() - self.start) / max(self.done - self.done_at_start, 1e-9)
        return pace * (self.total - self.done)


def duration(seconds: float) -> str:
    """A duration for people: m:ss below an hour, h:mm:ss below two days, then whole days, then whole years.

    >>> duration(42), duration(3723), duration(10**6), duration(10**9), duration(10**20)
    ('0:42', '1:02:03', '12 days', '32 years', '1,000 years or more')
    """
    day, year = 24 * 3600, 365.25 * 24 * 3600
    if seconds > 1000 * year:
        return "1,000 years or more"
    if seconds >= 2 * year:
        return f"{seconds / year:.0f} years"
    if seconds >= 2 * day:
        return f"{seconds / day:.0f} days"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class _TimeColumn(ProgressColumn):
    """The time left, or, once the work is done, the time it took; in words where it is days or years."""

    max_refresh = 0.5  # seconds between two updates: a number that changes more often cannot be read

    def render(self, task: Task) -> Text:
        seconds = task.finished_time if task.finished else task.time_remaining
        return Text("-:--" if seconds is None else duration(seconds), style="progress.remaining")


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:3.0f}%", markup=False),
        TextColumn("{task.fields[words]}", style="cyan", markup=False),
        _TimeColumn(),
        console=err,
    )
