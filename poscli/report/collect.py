"""Reading the results of all runs in a folder, of which damaged ones are left out by name."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from poscli.runs.results import (
    Tables,
    all_tables,
    evaluated_parts,
    join_evaluations,
    open_evaluated,
    part_folders,
    training_log,
    was_evaluated,
)
from poscli.runs.run import opened_runs
from poscli.runs.schema import Columns
from poscli.system.console import note
from poscli.system.errors import CorruptError, PoscliError

FIRST_COMMANDS = "run `poscli train --enc alibi` and `poscli extrapolate --max-len 8192` first"


def collect(runs: Path, measures: Columns | None = None) -> Tables:
    """Read the tables of every evaluated run in a folder.

    `measures` are columns that tasks add to the schema; they are kept where a file has them. Damaged runs are left out
    with a note each, and are in `left_out`. PoscliError if no run is evaluated, CorruptError if all that are evaluated
    are damaged.
    """
    trained, damaged = opened_runs(Path(runs))
    own: list[Tables] = []
    parts: list[Tables] = []
    waiting = 0
    for home in trained:
        folders = [home.folder] if was_evaluated(home) else []
        waiting += not folders
        for folder in [*folders, *part_folders(home)]:
            part = folder != home.folder
            try:
                training_log(home)  # of which the report tells
                (parts if part else own).append(all_tables(open_evaluated(folder), measures))
            except CorruptError as error:
                damaged[f"{home.id}.as.{folder.name}" if part else home.id] = error
    found = own + parts
    if not found and damaged:
        raise next(iter(damaged.values()))
    if not found:
        raise PoscliError(f"no evaluated runs in {runs}: {FIRST_COMMANDS}")
    if waiting:
        note(f"{waiting} of {len(trained)} runs are not evaluated yet and left out: poscli extrapolate")
    left_out = {name: str(error) for name, error in damaged.items()}
    for name, reason in left_out.items():
        note(f"{name} is left out: {reason}")
    return join_evaluations(found)._replace(left_out=left_out)


def refuse_damaged(tables: Tables, *names: str) -> None:
    """CorruptError if a name is, or begins, the id of a damaged run and of no other: nothing else can be meant."""
    for name in names:
        damaged = [why for run, why in tables.left_out.items() if run.startswith(name)]
        sound = (tables.rows["run_id"].str.startswith(name) | (tables.rows["encoding"] == name)).any()
        if damaged and not sound:
            raise CorruptError(damaged[0])


def trained_tokens(runs: Path) -> dict[str, int]:
    """The number of tokens that each run in a folder was trained on, by run id; without those that are damaged."""
    found: dict[str, int] = {}
    for run in opened_runs(Path(runs))[0]:
        with suppress(CorruptError):
            if len(log := training_log(run)):
                ids = [run.id, *(part.id for part in evaluated_parts(run))]
                found |= dict.fromkeys(ids, int(log["tokens"].max()))
    return found
