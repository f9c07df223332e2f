"""The tables of a run: its training log and its evaluation, as sealed CSV files; and whether they agree."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from poscli.runs.repair import DamagedEvaluation, damaged_part, part_of
from poscli.runs.run import AGAIN, EVAL, EVALUATED, EXPLAINED, LOSSES, POSITION, POSTHOC, TRAIN, Run, open_run
from poscli.runs.schema import (
    ADDED_COLUMNS,
    CROP,
    DETAILS,
    EVAL_COLUMNS,
    FULL,
    LEARNED_COLUMNS,
    OF_EVALUATION,
    OF_WHY,
    POSITION_COLUMNS,
    TRAIN_COLUMNS,
    Columns,
    frame,
    join_tables,
    parse_table,
    perplexity,
    table_text,
)
from poscli.runs.sealed import Sealed
from poscli.system.errors import CorruptError, ForeignError

if TYPE_CHECKING:
    import pandas as pd

Rows = list[dict[str, Any]]

TOKENIZER = "tokenizer"
BLIND = "blind"
# Columns that tables of earlier versions lack.
LATER_DETAILS = ("harm_low", "harm_high")
LATER = ADDED_COLUMNS | {name: EVAL_COLUMNS[name] for name in (TOKENIZER, BLIND)}


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
    return parse_table(run.files.read(TRAIN), run.train_csv, TRAIN_COLUMNS, LEARNED_COLUMNS, cure=AGAIN)


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
        known = run.files.read_object(EXPLAINED)
    except CorruptError:
        return None
    known.pop("sums", None)  # checksums of the tables, which earlier versions wrote here
    return known


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
    for name in (EVALUATED, EXPLAINED, *(f"{LOSSES}/{path.name}" for path in (run.folder / LOSSES).glob("*.parquet"))):
        run.files.remove(name)


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
    import pandas as pd

    expected = {name: column for name, column in EVAL_COLUMNS.items() if name not in LATER}
    table = parse_table(run.files.read(EVAL), run.eval_csv, expected, LATER | (measures or {}), AGAIN)
    known = dict.fromkeys(ADDED_COLUMNS, "") | {TOKENIZER: run.tokenizer, BLIND: math.nan}
    added = {name: value for name, value in known.items() if name not in table}
    return table.assign(**{name: pd.Series(value, table.index, LATER[name][0]) for name, value in added.items()})


def tables_of(run: Run, measures: Columns | None = None) -> Tables:
    """The tables of the evaluation of a run, without those of --why.

    DamagedEvaluation if a file is missing or not what was written, or if the tables contradict each other.
    """
    try:
        check_evaluation(run)
        rows = evaluation(run, measures)
        positions = parse_table(run.files.read(POSITION), run.position_csv, POSITION_COLUMNS, cure=AGAIN)
        details = {name: _detail(run, name) for name in OF_EVALUATION}
    except DamagedEvaluation:
        raise
    except CorruptError as error:
        raise _damaged(run, error) from error
    file, fault = contradiction(rows, positions, details)
    if file:
        raise DamagedEvaluation(run, f"{run.folder / file} is wrong: {fault}")
    return Tables(rows, positions, details)


def check_evaluation(run: Run) -> None:
    """DamagedEvaluation if a file of an evaluation is missing or not what was written. Contents are not compared."""
    try:
        run.files.read_object(EVALUATED)
        for name in (EVAL, POSITION, *(f"{each}.csv" for each in OF_EVALUATION)):
            if name in (EVAL, POSITION) or run.files.was_written(name):
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
    try:
        if run.files.has(EXPLAINED):
            run.files.read_object(EXPLAINED)
        return {name: _detail(run, name) for name in OF_WHY}
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


def _detail(run: Run, name: str) -> pd.DataFrame:
    """One of the DETAILS of a run; without rows if it was not made, as by older versions and without --why."""
    file = f"{name}.csv"
    made = run.files.has(EVALUATED if name in OF_EVALUATION else EXPLAINED)
    if not (made and run.files.was_written(file)):
        return frame([], DETAILS[name])
    needed = {column: each for column, each in DETAILS[name].items() if column not in LATER_DETAILS}
    table = parse_table(run.files.read(file), run.folder / file, needed, DETAILS[name], cure=AGAIN)
    return table.reindex(columns=list(DETAILS[name]))


EPSILON = float(np.finfo(np.float64).eps)
ACCURACY = "accuracy"  # the column of tasks that have right answers
CASE = ["length", "protocol", "variant"]  # what tells the rows of eval.csv apart
DERIVED = ["ratio", "bpb", "ppl", "gain"]  # columns of eval.csv that follow from others


def contradiction(rows: pd.DataFrame, positions: pd.DataFrame, details: Mapping[str, pd.DataFrame]) -> tuple[str, str]:
    """The first file that contradicts eval.csv, which may be itself, and how; two empty texts if all agree.

    `rows` are those of eval.csv, `positions` those of position.csv, `details` those of units.csv and answers.csv by
    name. A table of units without rows is not looked at, because versions without that table wrote none.
    """
    others = {"position.csv": positions} | {f"{name}.csv": table for name, table in details.items()}
    strange = [name for name, table in others.items() if not set(table["run_id"]) <= set(rows["run_id"])]
    faults = (
        *((name, "it is of another run than eval.csv") for name in strange),
        *(("eval.csv", fault) for fault in _within(rows)),
        *(("position.csv", fault) for fault in _of_positions(rows, positions)),
        *(("units.csv", fault) for fault in _of_units(rows, details["units"])),
        *(("answers.csv", fault) for fault in _of_answers(rows, details["answers"])),
    )
    return faults[0] if faults else ("", "")


def _within(rows: pd.DataFrame) -> Iterator[str]:
    """What a row of eval.csv says twice, and differently."""
    if rows.duplicated(CASE).any():
        yield "it has a row twice"
    scored = rows[rows["status"] == "ok"]
    crops = scored[scored["variant"] == CROP].set_index(["length", "protocol"])["nll"].to_dict()
    for row in scored[[*CASE, "train_length", "nll", "tokens", "bytes", *DERIVED]].to_dict("records"):
        nll, tokens = row["nll"], row["tokens"]
        expected = {
            "ratio": row["length"] / row["train_length"],
            "bpb": nll / math.log(2) * tokens / max(1, row["bytes"]),
            "ppl": perplexity(nll),
        }
        if (crop := crops.get((row["length"], row["protocol"]))) is not None:
            expected["gain"] = crop - nll
        for name, value in expected.items():
            scale = max(abs(nll), 1.0) * max(abs(value), 1.0)
            if not _equal(row[name], value, tokens, scale):
                yield f"{_case(row)} has {name} {row[name]:g}, where its other columns make {value:g}"


def _of_positions(rows: pd.DataFrame, positions: pd.DataFrame) -> Iterator[str]:
    """Lengths whose bins of positions do not fill the windows, each with the same number of them."""
    measured = set(rows.loc[(rows["status"] == "ok") & (rows["variant"] == FULL), "length"])
    if set(positions["length"]) != measured:
        yield "it has other lengths than eval.csv"
    for length, part in positions.groupby("length"):
        starts, ends = part["from"].to_numpy(), part["to"].to_numpy()
        per_position = set(part["tokens"] / (ends - starts + 1))
        filled = starts[0] == 1 and ends[-1] == length and (starts[1:] == ends[:-1] + 1).all()
        if not filled or len(per_position) > 1 or part["tail_slope"].nunique() > 1:
            yield f"the bins of length {length} do not fill its windows"


def _of_units(rows: pd.DataFrame, units: pd.DataFrame) -> Iterator[str]:
    """Rows of eval.csv that are not the mean over their units."""
    if units.empty:
        return
    counted = units[[*CASE, "tokens", "bytes"]].assign(total=units["nll"] * units["tokens"])
    totals = counted.groupby(CASE).sum()
    sums = totals.to_dict("index")
    told = rows.loc[rows["status"] == "ok", [*CASE, "tokens", "bytes", "nll"]].to_dict("records")
    scored = {tuple(row[name] for name in CASE): row for row in told}
    if set(sums) != set(scored):
        yield "it has other lengths, protocols or variants than eval.csv"
        return
    for case, row in scored.items():
        total = sums[case]
        for name in ("tokens", "bytes"):
            if total[name] != row[name]:
                yield f"its {name} of {_case(row)} add up to {total[name]:.0f}, and eval.csv has {row[name]}"
        mean = total["total"] / total["tokens"]
        if not _equal(mean, row["nll"], row["tokens"], abs(row["nll"])):
            yield f"its mean nll of {_case(row)} is {mean:g}, and eval.csv has {row['nll']:g}"


def _of_answers(rows: pd.DataFrame, answers: pd.DataFrame) -> Iterator[str]:
    """Lengths whose answers are not as many, or not as often right, as eval.csv says."""
    if ACCURACY not in rows:
        return
    measured = rows[(rows["status"] == "ok") & (rows["variant"] == FULL) & rows[ACCURACY].notna()]
    for length, part in answers.groupby("length"):
        tokens, right = int(part["tokens"].sum()), int(part["right"].sum())
        rows_of_length = measured[measured["length"] == length]
        if not ((rows_of_length["tokens"] == tokens) & ((rows_of_length[ACCURACY] * tokens - right).abs() < 0.5)).any():
            yield f"{right} of its {tokens} answers at length {length} are right, and eval.csv has another share"


def _equal(one: float, other: float, terms: int, scale: float) -> bool:
    """Whether two numbers differ by rounding only: the tables hold all digits, and each term is rounded once."""
    if math.isnan(other):
        return math.isnan(one)
    return one == other or abs(one - other) <= 4 * EPSILON * max(1, terms) * max(scale, EPSILON)


def _case(row: Mapping[str, object]) -> str:
    length, protocol, variant = (row[name] for name in CASE)
    return f"length {length}, {protocol}, {variant}"
