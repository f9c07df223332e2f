"""From evaluated runs to cells."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from poscli.board.cells import MADE_ON, PER_NAT, Cell, MadeBy, Scored, TaskCell, documents_file, key_of, write_kept
from poscli.config.code import MEASURING, TRAINING, code_of
from poscli.config.run import Recipe, RunConfig
from poscli.data.corpora import source_of
from poscli.evaluation.evaluate import settings_of
from poscli.evaluation.plan import record_of
from poscli.evaluation.posthoc import posthoc_specs
from poscli.report.accuracy import learned_at
from poscli.report.pooling import ACCURACY
from poscli.runs.results import (
    evaluated_parts,
    evaluated_under,
    has_evaluation,
    tables_of,
    training_log,
)
from poscli.runs.run import AS, Run, open_run, run_exists
from poscli.runs.schema import FULL
from poscli.sweep.job import Job
from poscli.system.errors import CorruptError, UsageError
from poscli.system.text import counted
from poscli.tasks import TASKS

TUNED = ("matrix_lr", "encoding_lr", "embedding_lr")  # tuning varies the first and one of the other two
SAME_TOKENS, APART = "fixed", "nonoverlapping"  # protocols: the same tokens at every length; windows without overlap


def labels_of(job: Job) -> list[str]:
    """The names of the encodings whose cells a job gives: that of its training, and those that it is read as."""
    trained = job.config.encoding
    return [
        trained,
        *(f"{trained}{AS}{other}" for other in posthoc_specs(job.config, job.extrapolate.as_, strict=False)),
    ]


def configuration_of(job: Job) -> str:
    """A hash of everything that decides the losses of a job but for the encoding, its recipe and the seed.

    Values that are defaults are not in it, so that a setting that poscli learns later does not end a season.
    """
    free = {"encoding": "", "seed": 0, "plugins": {}, "tuning": None, "recipe": Recipe()}
    config = job.config.model_copy(update=free).model_dump(mode="json", exclude_defaults=True)
    scored = job.extrapolate.model_dump(mode="json", exclude_defaults=True, exclude={"as_", "on"})
    content = json.dumps([job.fingerprint, config, scored], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:8]


def source_of_encoding(spec: str, config: RunConfig) -> str:
    """A hash of the source of the encodings in a spec, or in the name of a model that is read as another one.

    If some of them are plugins, it is of the source of the plugins alone, without poscli's own encodings beside them.
    """
    own = code_of(spec.replace(AS, "|"), MEASURING).split("-")[0]
    outside = " ".join(sorted(config.plugins.values()))  # without their names, which have the path of a file
    return hashlib.sha256(outside.encode()).hexdigest()[:8] if outside else own


@dataclass(frozen=True)
class BoardJob:
    """A job for a table of a season, or for a task of it: `table` is then the name of the task.

    `names` has the names on the board of specs that are called otherwise there.
    """

    season: str
    table: str
    job: Job
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_task(self) -> bool:
        """Whether the job asks for right answers, and reads no text of the season."""
        return not TASKS.get(self.job.config.task).reads_text

    @property
    def keys(self) -> set[str]:
        """The keys of all cells that the job gives."""
        texts = [{}] if self.is_task else [{"text": text} for text in self.job.extrapolate.on]
        return {key_of(**self.fields(label), **text) for label in labels_of(self.job) for text in texts}

    def fields(self, label: str) -> dict[str, Any]:
        """The fields that make up the key of a cell of this job, for one of its encodings, except the text."""
        config = self.job.config
        # The rates that tuning has chosen, with the one that it left alone; none for those of all.
        rates = {name: float(getattr(config.recipe, name)) for name in TUNED} if config.tuning else {}
        return {
            **({"task": self.table} if self.is_task else {"table": self.table, "recipe": rates}),
            "season": self.season,
            "encoding": self.names.get(label, label),
            "configuration": configuration_of(self.job),
            "source": source_of_encoding(label, config),
            "trained_at": config.length,
            "seed": config.seed,
        }

    def fields_of(self, run: Run) -> dict[str, Any]:
        """`fields` of the encoding of an evaluation."""
        return self.fields(run.label.removesuffix(self.job.config.recipe_mark))


def gather(of: BoardJob, folder: Path) -> int:
    """Write the cells of a job whose run is evaluated to a folder; returns how many were new.

    Nothing is written of evaluations that are missing, or were made under other settings. CorruptError where a cell
    says something else already.
    """
    new = 0
    for part in _evaluations(of.job):
        if of.is_task:
            answers = _answers(part, of)
            new += write_kept(folder / answers.file, answers)
        elif text := _text_in_season(part.corpus, of.job):
            cell, scored = _cell(part, text, of)
            if scored is not None:
                write_kept(folder / documents_file(scored), scored)
            new += write_kept(folder / cell.file, cell)
    return new


def refuse_other_source(jobs: Sequence[Job]) -> None:
    """UsageError if runs of jobs were trained or scored with other code of their encodings than is there now.

    A run is found by its configuration, which holds the code of plugins, but not that of built-in encodings. So its
    losses could be taken for those of another source.
    """
    others = [job for job in jobs if not _is_of_this_source(job)]
    if others:
        first, *more = others
        named = f"{first.folder} and {counted(len(more), 'other run')}" if more else str(first.folder)
        names = " ".join(job.folder.name for job in others)
        raise UsageError(
            f"{named}: trained or scored with other code of {first.config.encoding} than is there now; restore that "
            f"code, or delete what it made with `poscli rm --out {first.runs.parent} {names}`"
        )


def _is_of_this_source(job: Job) -> bool:
    """Whether a job's run was trained and scored with the code that its encodings have now; True if there is no run."""
    if not run_exists(job.folder):
        return True
    made_by: list[tuple[str, tuple[str, ...], str]] = [
        (job.config.encoding, TRAINING, str(open_run(job.folder).env.get("code", "")))
    ]
    for part in _evaluations(job):
        measured = tables_of(part, TASKS.get(job.config.task).columns).rows["measured_code"]
        made_by.append((part.config.encoding, MEASURING, str(measured.iloc[0])))
    return all(code_of(spec, rooms).split("-")[0] == code.split("-")[0] for spec, rooms, code in made_by)


def _evaluations(job: Job) -> Iterator[Run]:
    """What is there of the evaluations of a job: of its run, and of the weights under other encodings."""
    if not run_exists(job.folder):
        return
    run = open_run(job.folder)
    wanted = {label + job.config.recipe_mark for label in labels_of(job)}
    settings = settings_of(job.config, job.extrapolate)
    for part in ([run] if has_evaluation(run) else []) + evaluated_parts(run):
        known = part.recalibration is None and part.label in wanted
        if known and evaluated_under(part) == record_of(part, settings):
            yield part


def _text_in_season(corpus: str, job: Job) -> str:
    """What the season calls a corpus that a job scores, which may be a relative path; "" for another corpus."""
    texts = job.extrapolate.on
    return corpus if corpus in texts else next((text for text in texts if source_of(text).spec == corpus), "")


def _cell(run: Run, text: str, of: BoardJob) -> tuple[Cell, Scored | None]:
    """The cell of an evaluation on a text, and the documents that it scored; None if no length has a loss."""
    tables = tables_of(run)
    rows, units = (each[each["variant"] == FULL] for each in (tables.rows, tables.details["units"]))
    apart = rows[rows["protocol"] == APART].sort_values("length")["nll"]
    rows, units = (each[each["protocol"] == SAME_TOKENS] for each in (rows, units))
    rows = rows.sort_values("length")
    units = units.sort_values("unit", kind="stable")
    scored, losses = None, []
    for length in rows["length"]:
        part = units[units["length"] == length]
        losses.append(tuple(round(PER_NAT * nats) for nats in (part["nll"] * part["tokens"]).tolist()))
        if len(part) and scored is None:
            names_of_units, tokens, sizes = (tuple(part[name].tolist()) for name in ("unit", "tokens", "bytes"))
            scored = Scored(
                season=of.season,
                text=text,
                fingerprint=run.fingerprint,
                units=names_of_units,
                tokens=tokens,
                bytes=sizes,
            )
    cell = Cell(
        **of.fields_of(run),
        **_found_in(rows, run),
        text=text,
        documents="" if scored is None else scored.key,
        hundredths=tuple(losses),
        nonoverlapping=tuple(None if math.isnan(nats) else round(nats, 4) for nats in apart.tolist()),
        parameters=int(rows.iloc[-1]["parameters"]),
    )
    return cell, scored


def _answers(run: Run, of: BoardJob) -> TaskCell:
    """The cell of an evaluation on a task with right answers."""
    kind = TASKS.get(of.job.config.task)
    rows = tables_of(run, kind.columns).rows
    rows = rows[(rows["protocol"] == kind.protocols[0]) & (rows["variant"] == FULL)].sort_values("length")
    log = training_log(run.training if run.trained else run)
    learned = log[log[ACCURACY].notna()] if ACCURACY in log else log[:0]
    steps = [(int(row.step), int(row.tokens), float(row.accuracy)) for row in learned.itertuples()]
    at = learned_at(steps)
    return TaskCell(
        **of.fields_of(run),
        **_found_in(rows, run),
        accuracy=tuple(None if math.isnan(share) else round(share, 4) for share in rows[ACCURACY].tolist()),
        chance=round(float(kind.chance or 0.0), 4),
        learned_at=int(at) if math.isfinite(at) else None,
    )


def _found_in(rows: pd.DataFrame, run: Run) -> dict[str, Any]:
    """The fields of a cell that its rows in an evaluation, by ascending length, give."""
    last = rows.iloc[-1]
    if fault := run.status_fault():  # without it, nothing says when the training ended
        raise CorruptError(fault)
    return {
        "lengths": tuple(rows["length"].tolist()),
        "status": tuple(rows["status"].tolist()),
        "reason": next(filter(None, rows["reason"].tolist()), ""),
        "origin": MadeBy(
            **{name: last[name] for name in MADE_ON},
            code=f"{last['trained_code']} {last['measured_code']}",
            date=str(run.status()["updated"]),
        ),
    }
