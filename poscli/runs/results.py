"""The tables of a run: its training log and its evaluation, as sealed CSV files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from poscli.runs.repair import DamagedEvaluation, damaged_part, part_of
from poscli.runs.run import AGAIN, EVAL, EVALUATED, EXPLAINED, LOSSES, POSITION, POSTHOC, TRAIN, Run, open_run
from poscli.runs.schema import (
    DETAILS,
    EVAL_COLUMNS,
    LEARNED_COLUMNS,
    OF_EVALUATION,
    OF_WHY,
    POSITION_COLUMNS,
    TRAIN_COLUMNS,
    Columns,
    frame,
    join_tables,
    parse_table,
    table_text,
)
from poscli.runs.sealed import Sealed
from poscli.system.errors import CorruptError, ForeignError

if TYPE_CHECKING:
    import pandas as pd

Rows = list[dict[str, Any]]


def write_training_log(run: Run, rows: Rows) -> None:
    """Write train.csv."""
    measured = LEARNED_COLUMNS if any(name in row for row in rows for name in LEARNED_COLUMNS) else {}
    run.files.write(TRAIN, table_text(frame(rows, TRAIN_COLUMNS | measured)))


def training_log(run: Run) -> pd.DataFrame:
    """The rows of train.csv; empty before the first checkpoint, and for a model that poscli did not train.

    It has the LEARNED_COLUMNS where the file has them. CorruptError if the file is damaged or was deleted.
    """
    if run.config.checkpoint is not None or (not run.files.has(TRAIN) and run.status()["step"] == 0):
        return frame([], TRAIN_COLUMNS)
    return _table(run, TRAIN, TRAIN_COLUMNS, LEARNED_COLUMNS)


class Tables(NamedTuple):
    """The tables of one evaluation or several: eval.csv, position.csv, and by name those of DETAILS."""

    rows: pd.DataFrame
    positions: pd.DataFrame
    details: Mapping[str, pd.DataFrame] = MappingProxyType({})
    left_out: Mapping[str, str] = MappingProxyType({})  # damaged runs by id: what is wrong, and what repairs it


def write_evaluation(run: Run, tables: Tables, settings: dict[str, Any]) -> None:
    """Write the tables of an evaluation. eval.json is removed first and written last: with it, the others are whole."""
    run.files.remove(EVALUATED)
    texts = {POSITION: table_text(tables.positions)} | _texts(tables.details, OF_EVALUATION)
    texts[EVAL] = table_text(tables.rows)
    content: dict[str, Any] = {"encoding": run.config.encoding, "settings": settings}
    if run.recalibration:
        content["recalibration"] = run.recalibration.model_dump()
    if run.other_corpus:
        content["on"] = run.other_corpus.model_dump()
    _write(run, texts, EVALUATED, content)


def write_explanation(run: Run, tables: Mapping[str, pd.DataFrame], settings: dict[str, Any]) -> None:
    """Write the tables of --why, by the names of their files in DETAILS; why.json is written last."""
    run.files.remove(EXPLAINED)
    _write(run, _texts(tables, OF_WHY), EXPLAINED, settings)


def explained_under(run: Run) -> dict[str, Any] | None:
    """The settings of the analyses whose tables are there; None if there are none, or one of them is damaged."""
    if not run.files.has(EXPLAINED):
        return None
    try:
        explanations_of(run)
        return run.files.read_object(EXPLAINED)
    except CorruptError:
        return None


def has_evaluation(run: Run) -> bool:
    """Whether the tables of an evaluation are there, damaged or not."""
    return run.files.has(EVALUATED)


def was_evaluated(run: Run) -> bool:
    """Whether an evaluation was ever finished, also if its eval.json is missing now."""
    return has_evaluation(run) or run.files.was_written(EVALUATED)


def evaluated_under(run: Run) -> dict[str, Any] | None:
    """The settings of the evaluation whose tables are there; None if there is none, or its eval.json is damaged."""
    try:
        return run.files.read_object(EVALUATED).get("settings") if has_evaluation(run) else None
    except CorruptError:
        return None


def discard_evaluation(run: Run) -> None:
    """Forget an evaluation, its analyses and its stored losses, so that all are measured anew; the model stays."""
    stored = [f"{LOSSES}/{path.name}" for path in (run.folder / LOSSES).glob("*.parquet")]
    run.files.forget(EVALUATED, EXPLAINED, EVAL, *stored)


def open_evaluated(folder: Path) -> Run:
    """The evaluated run in a folder, which may be the folder of a post-hoc evaluation inside that of its training."""
    if folder.parent.name != POSTHOC:
        return open_run(folder)
    home = open_run(folder.parent.parent)
    try:
        known = Sealed(folder, AGAIN).read_object(EVALUATED)
        run = part_of(home, known)
    except (CorruptError, ValueError) as error:
        fault = str(error).splitlines()[0].removesuffix(f"; {AGAIN}")
        raise damaged_part(home, folder, fault) from error
    if run.folder != folder:
        raise ForeignError(f"{folder} was renamed: it holds the evaluation of {run.folder.name}; give it that name")
    return run


def part_folders(run: Run) -> list[Path]:
    """The folders of the post-hoc evaluations of a trained run that were finished, damaged or not."""
    folders = sorted((run.folder / POSTHOC).glob("*"))
    return [folder for folder in folders if os.path.lexists(folder / EVALUATED) or os.path.lexists(folder / EVAL)]


def evaluated_parts(run: Run) -> list[Run]:
    """The post-hoc evaluations of a trained run that can be opened."""
    parts = []
    for folder in part_folders(run):
        with suppress(CorruptError):
            parts.append(open_evaluated(folder))
    return parts


def evaluation(run: Run, measures: Columns | None = None) -> pd.DataFrame:
    """The rows of eval.csv; `measures` are columns that tasks add, kept where the file has them."""
    return _table(run, EVAL, EVAL_COLUMNS, measures)


def tables_of(run: Run, measures: Columns | None = None) -> Tables:
    """The tables of the evaluation of a run, without those of --why.

    DamagedEvaluation if a file is missing or not what was written.
    """
    try:
        check_evaluation(run)
        rows = evaluation(run, measures)
        positions = _table(run, POSITION, POSITION_COLUMNS)
        details = {name: _table(run, f"{name}.csv", columns) for name, columns in OF_EVALUATION.items()}
    except DamagedEvaluation:
        raise
    except CorruptError as error:
        raise _damaged(run, error) from error
    return Tables(rows, positions, details)


def check_evaluation(run: Run) -> None:
    """DamagedEvaluation if a file of an evaluation is missing or not what was written. None is parsed."""
    try:
        run.files.read_object(EVALUATED)
        for name in (EVAL, POSITION, *(f"{each}.csv" for each in OF_EVALUATION)):
            run.files.read(name)
    except CorruptError as error:
        raise _damaged(run, error) from error


def fault_of(run: Run, measures: Columns | None = None) -> str:
    """What is wrong with the evaluation of a run, in words; "" if it is sound, or was never made."""
    try:
        if was_evaluated(run):
            tables_of(run, measures)
    except DamagedEvaluation as error:
        return error.fault
    return ""


def explanations_of(run: Run) -> dict[str, pd.DataFrame]:
    """The tables of --why by name, without rows where they were not made; DamagedEvaluation if one is damaged."""
    if not run.files.has(EXPLAINED):
        return {name: frame([], columns) for name, columns in OF_WHY.items()}
    try:
        run.files.read_object(EXPLAINED)
        return {name: _table(run, f"{name}.csv", columns) for name, columns in OF_WHY.items()}
    except CorruptError as error:
        raise _damaged(run, error, why=True) from error


def all_tables(run: Run, measures: Columns | None = None) -> Tables:
    """The tables of the evaluation of a run, with those of --why. DamagedEvaluation if one of them is damaged."""
    tables = tables_of(run, measures)
    return tables._replace(details={**tables.details, **explanations_of(run)})


def join_evaluations(evaluated: Sequence[Tables]) -> Tables:
    """The tables of several evaluations as one of each kind."""
    return Tables(
        join_tables([tables.rows for tables in evaluated], EVAL_COLUMNS),
        join_tables([tables.positions for tables in evaluated], POSITION_COLUMNS),
        {name: join_tables([tables.details[name] for tables in evaluated], DETAILS[name]) for name in DETAILS},
    )


def evaluation_tables(runs: Sequence[Run], measures: Columns | None = None) -> Tables:
    """The tables of several evaluated runs, joined. DamagedEvaluation if a file is damaged."""
    return join_evaluations([all_tables(run, measures) for run in runs])


def _texts(tables: Mapping[str, pd.DataFrame], kinds: Mapping[str, Columns]) -> dict[str, str]:
    """The content of a file for every kind of table, so that one which is missing was deleted."""
    return {
        f"{name}.csv": table_text(tables[name] if name in tables else frame([], columns))
        for name, columns in kinds.items()
    }


def _write(run: Run, texts: Mapping[str, str], record: str, content: dict[str, Any]) -> None:
    """Write tables, and then the file that says how they were made. Tables of an earlier time are no longer valid."""
    for name, text in texts.items():
        run.files.write(name, text)
    run.files.write(record, json.dumps(content, indent=2) + "\n")
    run.files.settle(*texts, record)


def _damaged(run: Run, error: CorruptError, *, why: bool = False) -> DamagedEvaluation:
    return DamagedEvaluation(run, str(error).removesuffix(f"; {AGAIN}"), why=why)


def _table(run: Run, name: str, columns: Columns, optional: Columns | None = None) -> pd.DataFrame:
    """A table of a run; CorruptError if it is missing or not what was written. `optional` is as in `parse_table`."""
    return parse_table(run.files.read(name), run.folder / name, columns, optional, AGAIN)
