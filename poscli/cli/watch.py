"""`poscli ls runs --watch`: what is being worked on in a results folder, by any process that shares it."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from rich.live import Live

from poscli.cli.screen import Work, screen
from poscli.runs.results import has_evaluation
from poscli.runs.run import ENDED, Run, open_run, run_exists
from poscli.runs.summary import activity
from poscli.system.console import out
from poscli.system.errors import TERMINATED, CorruptError
from poscli.system.progress import duration
from poscli.system.signals import Interrupted, stoppable

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_LINES = 15.0  # if stdout is no terminal and nothing else changes


def watch(runs: Path) -> None:
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

    def look(self) -> tuple[str, list[Work]]:
        """How many runs are in which state, and what is being done on those that a process works on."""
        states: Counter[str] = Counter()
        work: list[Work] = []
        for run in self._present():
            state = run.status()["state"]
            now = activity(run.folder)
            if now is not None or state == "training":
                work.append((f"{run.label}, seed {run.config.seed}", now))
                states["at work"] += 1
            else:
                evaluated = state in ENDED and has_evaluation(run)
                states["evaluated" if evaluated else "trained" if state == "complete" else state] += 1
        parts = [f"{count} {state}" for state, count in sorted(states.items(), key=lambda item: item[0] != "at work")]
        total = states.total()
        return f"{total} run{'s' * (total != 1)} in {self.runs}: {', '.join(parts) or 'none yet'}", work

    def _present(self) -> list[Run]:
        """The runs that are there now, by name; one that is damaged, or being created or deleted, is left out."""
        found = []
        for folder in sorted(self.runs.glob("*")):
            try:
                if folder not in self.known and run_exists(folder):
                    self.known[folder] = open_run(folder)
                if folder in self.known and run_exists(folder):
                    self.known[folder].status()
                    found.append(self.known[folder])
            except CorruptError:
                continue
        return found


def _line(work: Work) -> str:
    label, now = work
    if now is None:
        return f"  {label}: at work"
    return f"  {label}: {now.label.partition(' ')[0]} {now.share:.0%}, {duration(now.seconds_left)} left on {now.host}"
