"""Selecting runs by id, by encoding and by state."""

from __future__ import annotations

from pathlib import Path

from poscli import specs
from poscli.runs.run import Run, list_runs
from poscli.system.console import note
from poscli.system.errors import UsageError, near

UNFINISHED = ("planned", "training", "interrupted")  # states in which a run has nothing to evaluate yet


def select(runs: Path, ids: list[str], encodings: list[str]) -> list[Run]:
    """The runs of a folder with one of these ids (or beginnings of ids) and encodings; an empty list selects all."""
    known = list_runs(runs)
    if not known:
        raise UsageError(f"there are no runs in {runs}; train one first: poscli train --enc alibi")
    for id_ in ids:
        if not any(run.id.startswith(id_) for run in known):
            raise UsageError(f"there is no run {id_!r} in {runs}: {near(id_, [run.id for run in known])}")
    canonical = [str(specs.parse(text)) for text in encodings]
    for wanted in canonical:
        if all(run.config.encoding != wanted for run in known):
            raise UsageError(
                f"no run in {runs} has the encoding {wanted}: {near(wanted, {run.config.encoding for run in known})}"
            )
    return [
        run
        for run in known
        if (not ids or any(run.id.startswith(id_) for id_ in ids))
        and (not canonical or run.config.encoding in canonical)
    ]


def trained(runs: list[Run]) -> list[Run]:
    """The runs whose training has ended; a note names each of the others. UsageError if there are none."""
    waiting = [run for run in runs if run.status()["state"] in UNFINISHED]
    for run in waiting:
        note(f"{run.id} is {run.status()['state']} and left out; repeat the command that began it to finish it")
    if len(waiting) == len(runs):
        raise UsageError("no run is trained to its end; repeat the command that began one to finish it")
    return [run for run in runs if run not in waiting]
