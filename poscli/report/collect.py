"""Reading the results of all runs in a folder, of which damaged ones are left out by name.

A report may be sent to others, so that it tells nobody where the files of this machine lie (`shown`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from poscli.report.trained import Trained
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

# An absolute path: a corpus or a checkpoint to its end, or the file of a plugin in a spec.
WHOLE, FILE = re.compile(r"(?<![^:])/(?!/).+", re.DOTALL), re.compile(r"(?<![\w.~/-])/[\w.~/-]+\.py\b")
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


def shown(text: str) -> str:
    """A corpus, a spec or a message without absolute paths: they are relative to the current folder, or begin with ~.

    Any result names the same file as before to a command that is run in the current folder.
    """
    text = text.replace(f"{Path.cwd()}/", "") if Path.cwd() != Path("/") else text
    home = os.path.expanduser("~")  # noqa: PTH111 - unlike Path.home, it does not fail where there is none
    text = re.sub(rf"(?<![\w.~-]){re.escape(home)}/", "~/", text) if len(home) > 1 else text
    pattern = WHOLE if not FILE.search(text) else FILE
    return pattern.sub(lambda path: os.path.relpath(path.group()), text)


def shown_table(table: pd.DataFrame) -> pd.DataFrame:
    """A table of results whose texts hold no absolute paths."""
    names = list(table.select_dtypes(["object", "string"]).columns)
    known = {text: shown(text) for name in names for text in table[name].unique() if isinstance(text, str)}
    return table.assign(**{name: table[name].map(lambda value: known.get(value, value)) for name in names})


def shown_runs(runs: Mapping[str, Trained]) -> dict[str, Trained]:
    """What is known about runs, without absolute paths in their configurations and settings."""

    def shown_value(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [shown_value(each) for each in value]
        return shown(value) if isinstance(value, str) else value

    known = {}
    for run_id, run in runs.items():
        config, names = run.config, ("encoding", "task", "corpus", "tokenizer")
        changed: dict[str, Any] = {name: shown(getattr(config, name)) for name in names}
        if config.checkpoint is not None:
            changed["checkpoint"] = config.checkpoint.model_copy(update={"source": shown(config.checkpoint.source)})
        config, settings = config.model_copy(update=changed), {k: shown_value(v) for k, v in run.settings.items()}
        known[run_id] = replace(run, config=config, settings=settings, trained_as=shown(run.trained_as))
    return known
