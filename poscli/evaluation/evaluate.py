"""Evaluate one run: measure its model at growing lengths, and write the tables of its losses.

`evaluate_run` is the way in. It loads the model, measures the windows of the plan (measure.py), and turns their losses
into rows (tables.py). A run that is recalibrated must have been trained so before.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from poscli.config.request import ExtrapolateRequest
from poscli.config.run import RunConfig
from poscli.config.validate import longest_window
from poscli.equation import Encoding, Unsupported
from poscli.evaluation.losses import NLL, MeasuredLosses
from poscli.evaluation.measure import Evaluation, EvaluationSetup, score
from poscli.evaluation.plan import record_of
from poscli.evaluation.posthoc import with_encoding
from poscli.evaluation.protocol import EvaluationSettings
from poscli.evaluation.tables import answer_rows, eval_rows, position_rows, recall_rows, unit_rows
from poscli.model.language_model import LanguageModel
from poscli.model.load import load_model, load_recalibrated
from poscli.model.transformer import Model
from poscli.runs.lock import holder_of
from poscli.runs.results import (
    Tables,
    discard_evaluation,
    evaluated_under,
    evaluation,
    fault_of,
    has_evaluation,
    write_evaluation,
)
from poscli.runs.run import EVALUATED, FAILED_STATES, UNFINISHED, Run
from poscli.runs.schema import DETAILS, EVAL_COLUMNS, POSITION_COLUMNS, frame
from poscli.system.console import note, warn_once
from poscli.system.errors import DataError, LockedError, UsageError
from poscli.system.progress import Meter
from poscli.system.ranks import any_rank, ranks, together
from poscli.system.seeds import generator
from poscli.tasks import TASKS, Task

if TYPE_CHECKING:
    import pandas as pd

OF_CHECKPOINTS = "sink(4)+window"  # measured as well: without its first tokens in view, a large model breaks
LONGEST_RATIO = 16  # times the training length, unless another length is asked for
CHECKPOINT_STRIDE = 128
SMOKE_WINDOWS = 4  # sliding windows per length in a smoke evaluation
SEARCH_WINDOWS = 4  # of training text; each candidate of a search is judged by its loss on them


def evaluate_run(setup: EvaluationSetup, *, force: bool = False) -> pd.DataFrame:
    """Evaluate a run and write its tables, unless they were written under the same settings before; returns its rows.

    Tables that are damaged are written again, after a note that says so. With `force` all is measured again, whatever
    is there. The rows of a run whose training failed say why. Of several ranks, the first one holds the run's lock and
    writes, and the others read what it wrote. UsageError if the training is not complete, LockedError if another
    process works on the run, DataError if the text is another one than that of the training.
    """
    run, task, settings = setup.run, setup.task, setup.settings
    refuse_other_text(run, task)
    with together():
        if ranks().first:
            refuse_unfinished(run)
    with ExitStack() as held:
        with together():
            if ranks().first:
                held.enter_context(run.locked())
                if run.trained:  # a folder of its own, which no training repairs
                    run.files.forget_damaged()
                if not force:
                    _discard_damaged(run, task)
            known = ranks().first and not force and is_evaluated(run, settings)
        if any_rank(known):
            note(f"{run.id} is evaluated already: nothing to do")
            return evaluation(run, task.columns)
        with together():
            status = run.status()
            model = None if status["state"] in FAILED_STATES else model_to_measure(setup)
        if ranks().first and not force and has_evaluation(run) and not _only_more(run, settings):
            note(f"{run.id} was evaluated under other settings; these results replace that evaluation")
        with together():
            if force and ranks().first:  # only now: every rank has a model to measure
                discard_evaluation(run)
        if model is None:
            without = MeasuredLosses(None, status["state"], status["message"])
            measured = dict.fromkeys(setup.plan.measurements(), without)
        else:
            measured = Evaluation(setup, model).measure()
        with together():
            if ranks().first:
                details = {
                    "units": frame(list(unit_rows(setup, measured)), DETAILS["units"]),
                    "recall": frame(list(recall_rows(setup, measured)), DETAILS["recall"]),
                    "answers": frame(list(answer_rows(setup, measured)), DETAILS["answers"]),
                }
                rows = frame(list(eval_rows(setup, measured)), EVAL_COLUMNS | task.columns)
                positions = frame(list(position_rows(setup, measured)), POSITION_COLUMNS)
                tables = Tables(rows, positions, {} if model is None else details)
                write_evaluation(run, tables, record_of(run, settings))
                return rows
        return evaluation(run, task.columns)


def is_evaluated(run: Run, settings: EvaluationSettings) -> bool:
    """Whether a run's tables were made under these settings, and are sound."""
    return evaluated_under(run) == record_of(run, settings) and not fault_of(run)


def _only_more(run: Run, settings: EvaluationSettings) -> bool:
    """Whether these settings ask for what a run's tables have, on more tokens, so that it is gone on with."""
    before, asked = evaluated_under(run) or {}, record_of(run, settings)
    return {**before, "tokens": settings.tokens} == asked and before["tokens"] < settings.tokens


def _discard_damaged(run: Run, task: Task) -> None:
    """Remove what says that a run is evaluated if its evaluation is damaged, which a note tells."""
    if fault := fault_of(run, task.columns):
        note(f"{fault}: evaluating {run.id} again")
        run.files.remove(EVALUATED)


def refuse_unfinished(run: Run) -> None:
    """UsageError if the training of a run has not ended, LockedError if it goes on: if any process holds its lock."""
    state = run.status()["state"]
    if state == "training":
        raise LockedError(f"{run.id} is being trained by {holder_of(run.folder)}; wait for it to end")
    if state in UNFINISHED:
        raise UsageError(f"{run.id} is {state}, not complete; repeat the command that began it to finish it")


def model_to_measure(setup: EvaluationSetup) -> LanguageModel:
    """The trained model of a run under the encoding that it is evaluated as.

    Lengths at which the encoding overflows its dtype are announced before the work begins.
    """
    run = setup.run
    model = load_model(run, setup.device)
    if run.under_another:
        model = with_encoding(model, run.config.encoding, run.trained)
        for encoding in model.encodings:
            encoding.eval().requires_grad_(False)
    if run.recalibration:
        assert isinstance(model, Model), "checkpoints are not trained"
        load_recalibrated(run, model)
    for encoding in dict.fromkeys(model.encodings):
        dtype = model.attention_dtype
        if (longest := encoding.longest(dtype)) is not None and longest < setup.settings.max_len:
            kind = str(dtype).removeprefix("torch.")
            warn_once(
                f"{encoding.name} overflows {kind} beyond {longest:,} tokens: longer inputs will be `unsupported`"
            )
    search_constants(model, setup.task, setup.settings.lengths[-1])
    return model


def refuse_other_text(run: Run, task: Task) -> None:
    """DataError if a task's text is not the one that a run was trained on."""
    if task.fingerprint != run.fingerprint:
        raise DataError(
            f"{run.id} was trained on {run.config.corpus} with fingerprint {run.fingerprint}, which now has "
            f"{task.fingerprint}: its files or the Python version changed; restore them, or train again"
        )


def settings_of(config: RunConfig, request: ExtrapolateRequest, smoke: bool = False) -> EvaluationSettings:
    """Settings for a run: by default up to 16 times its training length, with the stride of its task.

    That of checkpoints is larger: their windows are long, and each costs as much however few of its tokens are scored.
    """
    length, stride = config.length, request.stride
    if stride is None:
        task = TASKS.get(config.task)
        moves = config.checkpoint is not None and task.same_text  # an episode is as long as its window
        stride = min(CHECKPOINT_STRIDE, length // 2) if moves else task.strides(length)[0]
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


def search_constants(model: LanguageModel, task: Task, length: int) -> None:
    """Fit the constants of every encoding of a model that searches for some, such as LongRoPE's factors.

    They are judged by the loss on windows of `length` tokens of training text, or where nothing is for training, of the
    text for tuning. DataError if that is too short.
    """
    parts = dict.fromkeys(module for encoding in model.encodings for module in encoding.modules())
    searching = [part for part in parts if isinstance(part, Encoding) and part.evaluations]
    if not searching or length <= model.shape.length:
        return
    text = task
    if task.segments(length) > 0:
        task.check(length)
    elif (text := task.tuning()).segments(length) < 1:
        raise DataError(
            f"{searching[0].name} is fitted to windows of {length} tokens that are not scored, and {task.corpus} has "
            "none: lower --max-len, add text, or give search=0"
        )
    inputs, targets = text.batch(size=SEARCH_WINDOWS, length=length, seed=0, step=0).tensors(model.device)
    for encoding in searching:
        with Meter(f"search for {encoding.name}", encoding.evaluations) as progress:

            def loss() -> float:
                mean = _mean_loss(model, task, inputs, targets)
                progress.advance(1, f"{mean:.3f} nats")
                return mean

            factor = length / model.shape.length
            try:
                least = encoding.search(loss, encoding.evaluations, generator(0, "search"), factor)
            except ValueError as error:
                raise UsageError(f"{encoding.name}: {error}; give search=0, or other options") from error
            except Unsupported as error:
                raise UsageError(f"{encoding.name} is fitted to {length} tokens: {error}; lower --max-len") from error
        windows = f"{SEARCH_WINDOWS} {'training' if text is task else 'tuning'} windows of {length} tokens"
        note(f"{encoding.name} was fitted to {windows}: {least:.3f} nats per token")


@torch.inference_mode()
def _mean_loss(model: LanguageModel, task: Task, inputs_BT: Tensor, targets_BT: Tensor) -> float:
    """Mean nats per target that counts; the windows go through the model one at a time, because they are long."""
    total = 0.0
    for tokens, targets in zip(inputs_BT, targets_BT, strict=True):
        nll = score(model, task, tokens[None], targets[None])[NLL][0]
        total += float(nll[targets >= 0].double().sum())
    return total / int((targets_BT >= 0).sum())
