"""Reading the results of all runs in a folder."""

from __future__ import annotations

from pathlib import Path

from poscli.runs.results import Tables, evaluated_parts, evaluations, is_evaluated, training_log
from poscli.runs.run import list_runs
from poscli.runs.schema import Columns
from poscli.system.console import note
from poscli.system.errors import PoscliError

FIRST_COMMANDS = "run `poscli train --enc alibi` and `poscli extrapolate --max-len 8192` first"


def collect(runs: Path, measures: Columns | None = None) -> Tables:
    """Read the tables of every evaluated run in a folder.

    `measures` are columns that tasks add to the schema; they are kept where a file has them. PoscliError if no run is
    evaluated, CorruptError if a file of any run is damaged.
    """
    trained = list_runs(Path(runs))
    own = [run for run in trained if is_evaluated(run)]
    found = own + [part for run in trained for part in evaluated_parts(run)]
    if not found:
        raise PoscliError(f"no evaluated runs in {runs}: {FIRST_COMMANDS}")
    if waiting := len(trained) - len(own):
        note(f"{waiting} of {len(trained)} runs are not evaluated yet and left out: poscli extrapolate")
    return evaluations(found, measures)


def trained_tokens(runs: Path) -> dict[str, int]:
    """The number of tokens that each run in a folder was trained on, by run id."""
    found: dict[str, int] = {}
    for run in list_runs(Path(runs)):
        if len(log := training_log(run)):
            ids = [run.id, *(part.id for part in evaluated_parts(run))]
            found |= dict.fromkeys(ids, int(log["tokens"].max()))
    return found
