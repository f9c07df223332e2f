"""The runs of a folder: choosing some by id, by encoding and by state."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from poscli import specs
from poscli.config.plugins import check_plugins
from poscli.runs.run import FAILED_STATES, UNFINISHED, Run, opened_runs
from poscli.system.console import note
from poscli.system.errors import CorruptError, PoscliError, UsageError, near


def select(runs: Path, ids: list[str], encodings: list[str]) -> list[Run]:
    """The runs of a folder with one of these ids (or beginnings of ids) and encodings; an empty list selects all.

    Damaged runs are left out with a note; CorruptError if an id names one, or if there are no others. UsageError if
    nothing is selected.
    """
    known, damaged = opened_runs(runs)
    wanted_but_damaged = [error for name, error in damaged.items() if any(name.startswith(id_) for id_ in ids)]
    if wanted_but_damaged or (damaged and not known):
        raise (wanted_but_damaged or list(damaged.values()))[0]
    if not known:
        raise UsageError(f"there are no runs in {runs}; train one first: poscli train --enc alibi")
    for name, error in damaged.items() if not ids else ():
        note(f"{name} is left out: {error}")
    for id_ in ids:
        if not any(run.id.startswith(id_) for run in known):
            raise UsageError(f"there is no run {id_!r} in {runs}: {near(id_, [run.id for run in known])}")
    canonical = trained_encodings(known, encodings, f"in {runs}")
    selected = [run for run in known if not ids or any(run.id.startswith(id_) for id_ in ids)]
    selected = [run for run in selected if not canonical or run.config.encoding in canonical]
    if not selected:
        raise UsageError(
            f"no run {' or '.join(ids)} in {runs} has the encoding {' or '.join(canonical)}; leave out one of the two"
        )
    return selected


def trained_encodings(runs: Iterable[Run], encodings: Iterable[str], where: str) -> list[str]:
    """The canonical specs of encodings; UsageError for one that none of the runs has, which names their place `where`.

    An encoding that is named as a run has it is not loaded, because the file of a plugin may be gone.
    """
    trained_with = {run.config.encoding for run in runs}
    canonical = [text if text in trained_with else str(specs.parse(text)) for text in encodings]
    for wanted in canonical:
        if wanted not in trained_with:
            raise UsageError(f"no run {where} has the encoding {wanted}: {near(wanted, trained_with)}")
    return canonical


def newest_complete(runs: Path, id_: str = "", encoding: str = "") -> Run:
    """The newest complete run with this id (or beginning of an id) and encoding, where given.

    UsageError if there is none.
    """
    selected = select(runs, [id_] if id_ else [], [encoding] if encoding else [])
    complete = [run for run in selected if run.status()["state"] == "complete"]
    if not complete:
        run = selected[-1]
        state = run.status()["state"]
        why = "it has no trained weights" if state in FAILED_STATES else "finish it first"
        asked = f"--run {id_}: " if id_ else ""
        raise UsageError(f"{asked}{run.id} is {state}, so {why}; `poscli ls runs` shows the complete ones")
    run = complete[-1]
    if id_ and len(complete) > 1:
        note(f"--run {id_} begins the ids of {len(complete)} complete runs; the newest is taken, {run.id}")
    return run


def trained(runs: list[Run]) -> list[Run]:
    """The runs whose training has ended; a note names each of the others. UsageError if there are none."""
    waiting = [run for run in runs if run.status()["state"] in UNFINISHED]
    for run in waiting:
        note(f"{run.id} is {run.status()['state']} and left out; repeat the command that began it to finish it")
    if len(waiting) == len(runs):
        raise UsageError("no run is trained to its end; repeat the command that began one to finish it")
    return [run for run in runs if run not in waiting]


def with_known_plugins(runs: list[Run], strict: bool) -> list[Run]:
    """The runs whose plugins are what they were in training. Of the others, a note says what has changed.

    The first fault is raised instead if `strict`, or if no run is left: CorruptError or UsageError.
    """
    faults: dict[str, PoscliError] = {}
    for run in runs:
        try:
            check_plugins(run.config, run.env)
        except (CorruptError, UsageError) as fault:
            faults[run.id] = fault
    if faults and (strict or len(faults) == len(runs)):
        raise next(iter(faults.values()))
    for name, reason in faults.items():
        note(f"{name} is left out: {reason}")
    return [run for run in runs if run.id not in faults]
