"""The tables of a run: its training log and its evaluation, as sealed CSV files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from poscli.config.run import Recalibration
from poscli.runs.details import DETAILS, OF_EVALUATION, OF_WHY
from poscli.runs.run import EVAL, EVALUATED, EXPLAINED, POSITION, POSTHOC, TRAIN, Run, evaluated_as, open_run
from poscli.runs.schema import (
    ADDED_COLUMNS,
    EVAL_COLUMNS,
    POSITION_COLUMNS,
    TRAIN_COLUMNS,
    Columns,
    frame,
    join_tables,
    parse_table,
    table_text,
)
from poscli.runs.sealed import Sealed
from poscli.system.errors import CorruptError

Rows = list[dict[str, Any]]

TOKENIZER = "tokenizer"
LATER = ADDED_COLUMNS | {TOKENIZER: EVAL_COLUMNS[TOKENIZER]}  # columns that tables of earlier versions lack


def write_training_log(run: Run, rows: Rows) -> None:
    """Write train.csv."""
    run.files.write(TRAIN, table_text(frame(rows, TRAIN_COLUMNS)))


def training_log(run: Run) -> pd.DataFrame:
    """The rows of train.csv; empty before the first checkpoint, and for a model that poscli did not train.

    CorruptError if the file is damaged or was deleted.
    """
    if run.config.checkpoint is not None or (not run.files.has(TRAIN) and run.status()["step"] == 0):
        return frame([], TRAIN_COLUMNS)
    return parse_table(run.files.read(TRAIN), run.train_csv, TRAIN_COLUMNS)


class Tables(NamedTuple):
    """The tables of one evaluation or several: eval.csv, position.csv, and by name those of DETAILS."""

    rows: pd.DataFrame
    positions: pd.DataFrame
    details: Mapping[str, pd.DataFrame] = MappingProxyType({})


def write_evaluation(run: Run, tables: Tables, settings: dict[str, Any]) -> None:
    """Write the tables of an evaluation. eval.json is removed first and written last: with it, the others are whole."""
    run.files.remove(EVALUATED)
    run.files.write(POSITION, table_text(tables.positions))
    _write_details(run, tables.details, OF_EVALUATION)
    run.files.write(EVAL, table_text(tables.rows))
    content: dict[str, Any] = {"encoding": run.config.encoding, "settings": settings}
    if run.recalibration:
        content["recalibration"] = run.recalibration.model_dump()
    run.files.write(EVALUATED, json.dumps(content, indent=2) + "\n")


def write_explanation(run: Run, tables: Mapping[str, pd.DataFrame], settings: dict[str, Any]) -> None:
    """Write the tables of --why, by the names of their files in DETAILS; why.json is written last."""
    run.files.remove(EXPLAINED)
    _write_details(run, tables, OF_WHY)
    run.files.write(EXPLAINED, json.dumps(settings, indent=2) + "\n")


def explained_under(run: Run) -> dict[str, Any] | None:
    """The settings of the analyses whose tables are there; None if there are none."""
    return run.files.read_object(EXPLAINED) if run.files.has(EXPLAINED) else None


def is_evaluated(run: Run) -> bool:
    """Whether the tables of an evaluation are there, damaged or not."""
    return run.files.has(EVALUATED)


def evaluated_under(run: Run) -> dict[str, Any] | None:
    """The settings of the evaluation whose tables are there; None if there is none."""
    return run.files.read_object(EVALUATED).get("settings") if is_evaluated(run) else None


def open_evaluated(folder: Path) -> Run:
    """The evaluated run in a folder, which may be the folder of a post-hoc evaluation inside that of its training."""
    if folder.parent.name != POSTHOC:
        return open_run(folder)
    home = open_run(folder.parent.parent)
    known = Sealed(folder, home.files.cure).read_object(EVALUATED)
    how = Recalibration.model_validate(known["recalibration"]) if "recalibration" in known else None
    run = evaluated_as(home, str(known.get("encoding")), how)
    if run.folder != folder:
        raise CorruptError(f"{folder} was renamed: it holds the evaluation of {run.folder.name}; {home.files.cure}")
    return run


def evaluated_parts(run: Run) -> list[Run]:
    """The finished post-hoc evaluations of a trained run."""
    folders = sorted((run.folder / POSTHOC).glob("*"))
    return [open_evaluated(folder) for folder in folders if (folder / EVALUATED).exists()]


def evaluation(run: Run, measures: Columns | None = None) -> pd.DataFrame:
    """The rows of eval.csv; `measures` are columns that tasks add, kept where the file has them."""
    expected = {name: column for name, column in EVAL_COLUMNS.items() if name not in LATER}
    table = parse_table(run.files.read(EVAL), run.eval_csv, expected, LATER | (measures or {}))
    known = dict.fromkeys(ADDED_COLUMNS, "") | {TOKENIZER: run.tokenizer}
    return table.assign(**{n: pd.Series(text, table.index, "str") for n, text in known.items() if n not in table})


def evaluations(runs: Sequence[Run], measures: Columns | None = None) -> Tables:
    """The tables of several evaluated runs, joined. CorruptError if a file is damaged."""
    evals = [evaluation(run, measures) for run in runs]
    positions = [parse_table(run.files.read(POSITION), run.position_csv, POSITION_COLUMNS) for run in runs]
    details = {name: [_detail(run, name) for run in runs] for name in DETAILS}
    return Tables(
        join_tables(evals, EVAL_COLUMNS),
        join_tables(positions, POSITION_COLUMNS),
        {name: join_tables(tables, DETAILS[name]) for name, tables in details.items()},
    )


def _write_details(run: Run, tables: Mapping[str, pd.DataFrame], kinds: Mapping[str, Columns]) -> None:
    """Write a table of every kind, so that one which is missing was deleted; a kind without a table has no rows."""
    for name, columns in kinds.items():
        run.files.write(f"{name}.csv", table_text(tables.get(name, frame([], columns))))


def _detail(run: Run, name: str) -> pd.DataFrame:
    """One of the DETAILS of a run; without rows if it was not made, as by older versions and without --why."""
    file = f"{name}.csv"
    made = run.files.has(EVALUATED if name in OF_EVALUATION else EXPLAINED)
    if not (made and run.files.was_written(file)):
        return frame([], DETAILS[name])
    return parse_table(run.files.read(file), run.folder / file, DETAILS[name])
