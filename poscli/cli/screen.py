"""What is being worked on, for people: one screen on a terminal, plain lines elsewhere.

The screen of a sweep and that of `poscli ls runs --watch` are the same, read from the folders of the runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from poscli.runs.results import has_evaluation
from poscli.runs.run import ENDED, Run, open_run, run_exists
from poscli.runs.summary import Activity, activity
from poscli.specs import with_layouts
from poscli.sweep.drive import SweepResults, TimeLeft, Watcher, run_jobs
from poscli.system.console import err, note, out, warn_once
from poscli.system.errors import TERMINATED, CorruptError, Interrupted
from poscli.system.progress import duration
from poscli.system.signals import stoppable
from poscli.system.text import counted

if TYPE_CHECKING:
    from poscli.sweep.job import Job, Outcome
    from poscli.sweep.workers import Workers

BAR_WIDTH = 24
SECONDS_BETWEEN_PAINTS = 0.5
InProgress = tuple[str, Activity | None]  # the label of a run, and what is done on it; None: nothing to show yet


def screen(headline: str, work: Sequence[InProgress]) -> RenderableType:
    """A headline, and a line for each run that is being worked on; its machine, if there are several."""
    several = len({now.host for _, now in work if now}) > 1
    table = Table.grid(padding=(0, 2, 0, 0))
    for label, now in work:
        cells: list[RenderableType] = [Text(label)]
        if now is None:
            cells += [Text("at work", style="dim")]
        else:
            bar = ProgressBar(total=1.0, completed=now.share, width=BAR_WIDTH)
            left = Text(f"{duration(now.seconds_left)} left", style="progress.remaining")
            cells += [Text(now.label.partition(" ")[0]), bar, Text(f"{now.share:4.0%}"), left]
            words = Text(now.words, style="cyan", no_wrap=True, overflow="ellipsis")
            cells += [words, Text(now.host if several else "", style="dim")]
        table.add_row(*cells)
    return Group(Text(headline, style="bold"), table)


class Lines(Watcher):
    """Reports a sweep line by line: each job as it begins and as it ends, and once why it waits."""

    def __init__(
        self, jobs: Sequence[Job], seconds: Sequence[float], workers: int, on_end: Callable[[int], None]
    ) -> None:
        self.jobs, self.workers, self.on_end = jobs, workers, on_end
        self.estimate = TimeLeft(seconds, workers)
        self.failed = 0
        self.waits: dict[int, str] = {}  # jobs that were postponed, and what was said of it

    def began(self, number: int) -> None:
        self.estimate.began(number)
        if number not in self.waits:  # else it is tried again, every two seconds for as long as its run is taken
            note(f"[{number + 1}/{len(self.jobs)}] {self.jobs[number].label}")

    def ended(self, number: int, outcome: Outcome) -> None:
        self.on_end(number)
        seconds = self.estimate.ended(number)
        self.failed += bool(outcome.error)
        for warning in outcome.warnings:
            warn_once(warning)
        if outcome.error:
            err.print(f"error: {self.jobs[number].label}: {outcome.error}", style="red", soft_wrap=True)
        elif self.workers > 1:
            note(f"{self.jobs[number].label}: done in {duration(seconds)}; {self.headline()}")

    def postponed(self, number: int, why: str) -> None:
        self.estimate.postponed(number)
        if self.waits.get(number) != why:
            self.waits[number] = why
            note(f"{self.jobs[number].label} {why}")

    def headline(self) -> str:
        """How far the sweep is, and how long the rest takes."""
        done, total = len(self.estimate.done), len(self.jobs)
        failed = f", {self.failed} failed" if self.failed else ""
        left = f", about {duration(self.estimate.left())} left" if done < total else ""
        return f"{done} of {total} runs done{failed}{left}"


class Screen(Lines):
    """Reports a sweep on a terminal: one line for each run that a worker has, renewed while they work."""

    def __init__(
        self, jobs: Sequence[Job], seconds: Sequence[float], workers: int, on_end: Callable[[int], None]
    ) -> None:
        super().__init__(jobs, seconds, workers, on_end)
        self.live = Live(console=err, auto_refresh=False, transient=True)
        self.painted = 0.0

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def began(self, number: int) -> None:
        self.estimate.began(number)

    def look(self) -> None:
        if time.monotonic() - self.painted < SECONDS_BETWEEN_PAINTS:
            return
        self.painted = time.monotonic()
        work = [(self.jobs[n].label, activity(self.jobs[n].folder)) for n in sorted(self.estimate.running)]
        self.live.update(screen(self.headline(), work), refresh=True)


SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_LINES = 15.0  # if stdout is not a terminal and nothing else changes


def watch_runs(runs: Path) -> None:
    """Show what is being worked on until Ctrl-C: a screen on a terminal, a line for each change elsewhere."""
    console, folder = out(), _Folder(runs)
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    said, when = "", 0.0
    with stoppable(obeys=True) as stop, live or nullcontext():
        while not stop:
            headline, work = folder.look()
            if live:
                live.update(screen(headline, work), refresh=True)
            elif headline != said or time.monotonic() - when > SECONDS_BETWEEN_LINES:
                said, when = headline, time.monotonic()
                console.print(headline, *map(_line, work), sep="\n")
            time.sleep(SECONDS_BETWEEN_LOOKS)
    if stop.signum and (ended := Interrupted("stopped watching", stop.signum)).exit_code == TERMINATED:
        raise ended


class _Folder:
    """The runs of a folder. Each is read once, and after that only its status."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.known: dict[Path, Run] = {}

    def look(self) -> tuple[str, list[InProgress]]:
        """How many runs are in which state, and what is being done on those that a process works on."""
        states: Counter[str] = Counter()
        work: list[InProgress] = []
        for run in self._present():
            state = run.status()["state"]
            now = activity(run.folder)
            if now is not None or state == "training":
                work.append((f"{with_layouts(run.label)}, seed {run.config.seed}", now))
                states["at work"] += 1
            else:
                evaluated = state in ENDED and has_evaluation(run)
                states["evaluated" if evaluated else "trained" if state == "complete" else state] += 1
        parts = [f"{count} {state}" for state, count in sorted(states.items(), key=lambda item: item[0] != "at work")]
        return f"{counted(states.total(), 'run')} in {self.runs}: {', '.join(parts) or 'none yet'}", work

    def _present(self) -> list[Run]:
        """The runs that are there now, by name; one that is damaged, or being created or deleted, is left out."""
        runs = []
        for folder in sorted(self.runs.glob("*")):
            try:
                if folder not in self.known and run_exists(folder):
                    self.known[folder] = open_run(folder)
                if folder in self.known and run_exists(folder):
                    self.known[folder].status()
                    runs.append(self.known[folder])
            except CorruptError:
                continue
        return runs


def _line(work: InProgress) -> str:
    label, now = work
    if now is None:
        return f"  {label}: at work"
    return f"  {label}: {now.label.partition(' ')[0]} {now.share:.0%}, {duration(now.seconds_left)} left on {now.host}"


def run_shown(
    jobs: Sequence[Job],
    seconds: Sequence[float],
    workers: Workers,
    on_end: Callable[[int], None] = lambda number: None,
) -> SweepResults:
    """Execute jobs, and show how far they are, by the estimated seconds of each.

    `on_end` is called with the number of each job that has ended, also in failure, before that is shown.
    """
    if workers.elsewhere and err.is_terminal:
        with Screen(jobs, seconds, workers.count, on_end) as shown:
            return run_jobs(jobs, workers, shown)
    return run_jobs(jobs, workers, Lines(jobs, seconds, workers.count, on_end))
