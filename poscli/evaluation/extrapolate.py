"""Evaluate a trained run at growing lengths, and write its tables."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

import pandas as pd
import torch

from poscli.config.count import longest_window
from poscli.config.request import ExtrapolateRequest
from poscli.config.run import RunConfig
from poscli.evaluation.measure import Evaluation, EvaluationSetup, Measurements
from poscli.evaluation.posthoc import with_encoding
from poscli.evaluation.protocol import EvaluationSettings
from poscli.evaluation.scoring import answer_table, eval_rows, failed_rows, position_rows, recall_table, unit_rows
from poscli.evaluation.search import search_constants
from poscli.evaluation.sources import record_of
from poscli.model.language_model import LanguageModel
from poscli.model.load import load_model, load_recalibrated
from poscli.model.transformer import Model
from poscli.runs.results import (
    Tables,
    discard_evaluation,
    evaluated_under,
    evaluation,
    fault_of,
    write_evaluation,
)
from poscli.runs.run import EVALUATED, Run
from poscli.runs.schema import DETAILS, EVAL_COLUMNS, POSITION_COLUMNS, frame
from poscli.system.console import note, warn_once
from poscli.system.errors import DataError, UsageError
from poscli.system.ranks import any_rank, ranks, together
from poscli.tasks import TASKS, Task

FAILED_STATES = ("diverged", "oom", "failed")  # of a training: every row of its evaluation has this status
OF_CHECKPOINTS = "sink(4)+window"  # measured as well: without its first tokens in view, a large model breaks
LONGEST_RATIO = 16  # times the training length, unless another length is asked for
SMOKE_WINDOWS = 4  # sliding windows per length in a smoke evaluation


def settings_of(config: RunConfig, request: ExtrapolateRequest, smoke: bool = False) -> EvaluationSettings:
    """Settings for a run: by default up to 16 times its training length, with the stride of its task."""
    length = config.length
    stride = TASKS.get(config.task).strides(length)[0] if request.stride is None else request.stride
    longest = round(max(request.lengths, default=LONGEST_RATIO) * length)
    return EvaluationSettings(
        train_length=length,
        max_len=longest if request.max_len is None else longest_window(request.max_len, length),
        tokens=SMOKE_WINDOWS * stride if smoke else request.tokens,
        stride=stride,
        ratios=request.lengths,
        ngram=request.ngram,
        baselines=tuple(dict.fromkeys([*request.baselines, *([OF_CHECKPOINTS] if config.checkpoint else [])])),
        protocols=tuple(request.protocols),
    )


def extrapolate(
    run: Run,
    task: Task,
    settings: EvaluationSettings,
    device: torch.device,
    *,
    force: bool = False,
) -> pd.DataFrame:
    """Evaluate a run at every length and write its tables, unless they were written under the same settings before.

    Tables that are damaged or contradict each other are written again, after a note that says so. `force`: all is
    measured again, whatever is there. Of several ranks, the first one holds the run's lock and writes, and the others
    read what it wrote.
    """
    refuse_other_text(run, task)
    with ExitStack() as held:
        with together():
            if ranks().first:
                held.enter_context(run.locked())
                _clear(run, task, force=force)
            known = ranks().first and is_evaluated(run, settings)
        if not any_rank(known):
            rows = _evaluate(EvaluationSetup(run, task, settings, device))
            return evaluation(run, task.columns) if rows is None else rows
        note(f"{run.id} is evaluated already: nothing to do")
        return evaluation(run, task.columns)


def _clear(run: Run, task: Task, *, force: bool) -> None:
    """Remove what says that a run is evaluated if that is damaged, which a note tells, or if all is to be made again.

    UsageError, and nothing is removed, if there is no end of a training to evaluate.
    """
    if force:
        _refuse_unfinished(run, run.status()["state"])
        discard_evaluation(run)
    elif fault := fault_of(run, task.columns):
        note(f"{fault}: evaluating {run.id} again")
        run.files.remove(EVALUATED)


def refuse_other_text(run: Run, task: Task) -> None:
    """DataError if a task's text is not the one that a run was trained on."""
    if task.fingerprint != run.fingerprint:
        raise DataError(
            f"{run.id} was trained on {run.config.corpus} with fingerprint {run.fingerprint}, which now has "
            f"{task.fingerprint}: its files or the Python version changed; restore them, or train again"
        )


def eval_records(tables: list[pd.DataFrame]) -> list[dict[str, Any]]:
    """The rows of several eval tables for JSON; NaN and infinity become null."""
    rows = pd.concat(tables, ignore_index=True).replace([math.inf, -math.inf], math.nan).astype(object)
    return [{str(k): v for k, v in row.items()} for row in rows.where(rows.notna(), None).to_dict("records")]


def _evaluate(setup: EvaluationSetup) -> pd.DataFrame | None:
    """Write the tables of an evaluation, and return its rows; None on other ranks than the first.

    The rows of a run whose training failed say why.
    """
    with together():
        status = setup.run.status()
        model = None if status["state"] in FAILED_STATES else _complete_model(setup, status["state"])
    measured = Evaluation(setup, model).measure() if model is not None else None
    with together():
        if not ranks().first:
            return None
        tables = _tables(setup, measured) if measured is not None else _failed(setup, status)
        write_evaluation(setup.run, tables, record_of(setup.run, setup.settings))
        return tables.rows


def _complete_model(setup: EvaluationSetup, state: str) -> LanguageModel:
    """The trained model, ready to be measured; UsageError if its training is not complete."""
    _refuse_unfinished(setup.run, state)
    model = trained_model(setup)
    _warn_of_overflow(model, setup.settings.max_len)
    search_constants(model, setup.task, setup.settings.lengths[-1])
    return model


def _refuse_unfinished(run: Run, state: str) -> None:
    if state not in ("complete", *FAILED_STATES):
        raise UsageError(f"{run.id} is {state}, not complete; repeat the command that began it to finish it")


def _failed(setup: EvaluationSetup, status: dict[str, Any]) -> Tables:
    """The tables of a run that has no model to measure."""
    rows = failed_rows(setup, status["state"], status["message"])
    return Tables(frame(list(rows), EVAL_COLUMNS | setup.task.columns), frame([], POSITION_COLUMNS))


def _tables(setup: EvaluationSetup, measured: Measurements) -> Tables:
    return Tables(
        frame(list(eval_rows(setup, measured)), EVAL_COLUMNS | setup.task.columns),
        frame(list(position_rows(setup, measured)), POSITION_COLUMNS),
        {
            "units": frame(list(unit_rows(setup, measured)), DETAILS["units"]),
            "recall": frame(list(recall_table(setup, measured)), DETAILS["recall"]),
            "answers": frame(list(answer_table(setup, measured)), DETAILS["answers"]),
        },
    )


def trained_model(setup: EvaluationSetup) -> LanguageModel:
    """The trained model of a run, under the encoding that it is to be evaluated as."""
    run = setup.run
    model = load_model(run, setup.device)
    if run.trained:
        model = with_encoding(model, run.config.encoding, run.trained)
        for encoding in model.encodings:
            encoding.eval().requires_grad_(False)
    if run.recalibration:
        assert isinstance(model, Model), "checkpoints are not trained"
        load_recalibrated(run, model)
    return model


def _warn_of_overflow(model: LanguageModel, length: int) -> None:
    """Announce, before the work begins, the lengths at which an encoding's formula overflows its dtype."""
    for encoding in dict.fromkeys(model.encodings):
        dtype = model.attention_dtype
        if (longest := encoding.longest(dtype)) is not None and longest < length:
            kind = str(dtype).removeprefix("torch.")
            warn_once(
                f"{encoding.name} overflows {kind} beyond {longest:,} tokens: longer inputs will be `unsupported`"
            )


def is_evaluated(run: Run, settings: EvaluationSettings) -> bool:
    """Whether a run's tables were made under these settings, and are sound."""
    return evaluated_under(run) == record_of(run, settings) and not fault_of(run)
