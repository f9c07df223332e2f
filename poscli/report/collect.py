"""Reading the results of all runs in a folder."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from poscli.runs.schema import EVAL_COLUMNS, POSITION_COLUMNS, TRAIN_COLUMNS, Columns, read_table, read_tables
from poscli.system.console import note
from poscli.system.errors import PoscliError

FIRST_COMMANDS = "run `poscli train --enc alibi` and `poscli extrapolate --max-len 8192` first"


def collect(runs: Path, measures: Columns | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the rows of every evaluated run in a folder: (eval rows, position rows).

    `measures` are columns that tasks add to the schema; they are kept where a file has them. PoscliError if no run is
    evaluated.
    """
    own = sorted(Path(runs).glob("*/eval.csv"))
    evals = own + sorted(Path(runs).glob("*/as/*/eval.csv"))
    if not evals:
        raise PoscliError(f"no evaluated runs in {runs}: {FIRST_COMMANDS}")
    waiting = len({path.parent for path in Path(runs).glob("*/config.toml")} - {path.parent for path in own})
    if waiting:
        note(f"{waiting} of {waiting + len(own)} runs are not evaluated yet and left out: poscli extrapolate")
    positions = [path for path in (folder.with_name("position.csv") for folder in evals) if path.exists()]
    return read_tables(evals, EVAL_COLUMNS, measures), read_tables(positions, POSITION_COLUMNS)


def trained_tokens(runs: Path) -> dict[str, int]:
    """The number of tokens that each run in a folder was trained on, by run id."""
    found: dict[str, int] = {}
    for path in sorted(Path(runs).glob("*/train.csv")):
        if len(log := read_table(path, TRAIN_COLUMNS)):
            home = path.parent
            ids = [home.name, *(f"{home.name}.as.{other.name}" for other in home.glob("as/*"))]
            found |= dict.fromkeys(ids, int(log["tokens"].max()))
    return found
