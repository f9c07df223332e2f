"""Progress on stderr: a bar on a terminal, a line now and then in a log file, silence when asked."""

from __future__ import annotations

import os
import time
from types import TracebackType

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from poscli.console import err

LINE_EVERY = 15.0  # seconds between lines where there is no terminal


class Meter:
    """How far a job is: `total` units of work, and a few words that change."""

    def __init__(self, label: str, total: float, done: float = 0) -> None:
        self.label, self.total, self.done, self.first = label, total, done, done
        self.start = self.last_line = time.monotonic()
        self.bar = _bar() if err.is_terminal else None
        self.task = self.bar.add_task(label, total=total, words="") if self.bar else None
        if self.bar and self.task is not None:
            self.bar.update(self.task, completed=done)

    def __enter__(self) -> Meter:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def advance(self, amount: float, words: str = "") -> None:
        """Note work done."""
        self.done += amount
        if self.bar and self.task is not None:
            self.bar.update(self.task, completed=self.done, words=words)
        elif time.monotonic() - self.last_line >= LINE_EVERY:
            self.last_line = time.monotonic()
            share = self.done / self.total
            err.print(f"{self.label}  {share:4.0%}  {words}  {self._left()} left", markup=False, soft_wrap=True)

    def _left(self) -> str:
        pace = (time.monotonic() - self.start) / max(self.done - self.first, 1e-9)
        seconds = round(pace * (self.total - self.done))
        return f"{seconds // 60}:{seconds % 60:02d}"


class Silent(Meter):
    """No progress at all (--quiet)."""

    def __init__(self, label: str, total: float, done: float = 0) -> None:
        super().__init__(label, total, done)
        self.bar = None

    def advance(self, amount: float, words: str = "") -> None:
        """Note work done; say nothing."""
        self.done += amount


def meter(label: str, total: float, done: float = 0) -> Meter:
    """A meter for a job, to be used in a `with` statement."""
    return (Silent if os.environ.get("POSCLI_QUIET") else Meter)(label, total, done)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:3.0f}%"),
        TextColumn("{task.fields[words]}", style="cyan"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=err,
    )
