"""Progress on stderr: a bar on a terminal, a line every 15 seconds elsewhere, nothing if POSCLI_QUIET is set."""

from __future__ import annotations

import os
import time
from types import TracebackType

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from poscli.system.console import err

SECONDS_BETWEEN_LINES = 15.0  # if stderr is no terminal


class Meter:
    """Shows how much of a job of `total` units of work is done, and a few words about its state; for a `with` block."""

    def __init__(self, label: str, total: float, done: int = 0) -> None:
        self.label, self.total, self.done_at_start = label, total, done
        self.done: float = done
        self.start = self.last_line = time.monotonic()
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

    def advance(self, amount: float, words: str = "") -> None:
        """Add `amount` to the work done, and show `words`."""
        self.done += amount
        if self.bar and self.task is not None:
            self.bar.update(self.task, completed=self.done, words=words)
        elif not self.quiet and time.monotonic() - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            share = self.done / self.total
            err.print(f"{self.label}  {share:4.0%}  {words}  {self._left()} left", soft_wrap=True)

    def _left(self) -> str:
        pace = (time.monotonic() - self.start) / max(self.done - self.done_at_start, 1e-9)
        seconds = round(pace * (self.total - self.done))
        return f"{seconds // 60}:{seconds % 60:02d}"


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:3.0f}%", markup=False),
        TextColumn("{task.fields[words]}", style="cyan", markup=False),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=err,
    )
