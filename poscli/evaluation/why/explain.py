"""`poscli extrapolate --why`: make every analysis of a trained run and write its table beside the evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from poscli.equation import Unsupported
from poscli.evaluation.extrapolate import trained_model
from poscli.evaluation.measure import EvaluationSetup
from poscli.evaluation.protocol import EvaluationSettings, in_turns
from poscli.evaluation.scoring import run_columns
from poscli.evaluation.sources import record_of
from poscli.evaluation.why.attribution import attribution
from poscli.evaluation.why.dilution import dilution
from poscli.evaluation.why.key_tokens import key_token_rows, key_tokens, refuse_judge
from poscli.evaluation.why.receptive import receptive
from poscli.evaluation.why.sample import Sample
from poscli.evaluation.why.saturation import saturation
from poscli.model.transformer import Model
from poscli.runs.details import DETAILS
from poscli.runs.load import load_trained
from poscli.runs.results import explained_under, write_explanation
from poscli.runs.run import Run
from poscli.runs.schema import frame
from poscli.system.console import note
from poscli.system.memory import is_out_of_memory
from poscli.system.progress import Meter
from poscli.system.signals import Interrupted, stoppable
from poscli.tasks import Task

NEAR = 4  # times L: the windows of attribution, whose attention is computed eagerly
NEAR_TOKENS, FAR_TOKENS = 2**14, 2**15  # read in windows of NEAR * L tokens, and of the longest length
KEY_TOKENS = 2**17  # read by the judge and the model to find and to score key tokens, which are rare
FEWEST_WINDOWS = 4
SCORED_SHARE = 1 / 8  # of L, at the end of each window, so that every scored token has nearly all of it before it

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Request:
    """The run to explain, its task and settings, the device, and the run that judges key tokens, if any does."""

    run: Run
    task: Task
    settings: EvaluationSettings
    device: torch.device
    judge: Run | None = None


def explain(request: Request) -> None:
    """Write the tables of all analyses of a run, unless they were written under the same settings before.

    UsageError for a run that cannot be judged by the judge. A run without a trained model is left out with a note. A
    signal raises Interrupted; the same command begins the analyses of this run anew.
    """
    run, settings = request.run, request.settings
    if request.judge is not None:
        refuse_judge(request.judge, run)
    if run.status()["state"] != "complete" or not request.task.same_text or len(settings.lengths) < 2:
        note(f"{run.id} has nothing to explain: it needs a trained model, one text, and a length beyond its own")
        return
    record = record_of(run, settings) | ({"judge": request.judge.id} if request.judge else {})
    with run.locked():
        if explained_under(run) == record:
            note(f"{run.id} is explained already: nothing to do")
            return
        write_explanation(run, _tables(request), record)


def _tables(request: Request) -> dict[str, Any]:
    """The table of every analysis, by the name of its file."""
    setup = EvaluationSetup(request.run, request.task, request.settings, request.device)
    model, near, far = trained_model(setup), _sample(setup, NEAR, NEAR_TOKENS), _sample(setup, None, FAR_TOKENS)
    analyses: dict[str, Callable[[], Rows]] = {
        "why/attribution": lambda: attribution(model, near),
        "why/saturation": lambda: saturation(model, far),
        "why/receptive": lambda: receptive(model, near, len(near.spans)),
        "why/dilution": lambda: dilution(model, far),
    }
    if request.judge is not None:
        judge = load_trained(request.judge, request.device)
        analyses["why/key_tokens"] = lambda: _of_key_tokens(model, judge, _sample(setup, None, KEY_TOKENS))
    tables = {}
    with stoppable() as stop, Meter(f"why {request.run.config.encoding}", len(analyses)) as progress:
        for name, make in analyses.items():
            rows = _attempt(name, make)
            tables[name] = frame([run_columns(setup) | row for row in rows], DETAILS[name])
            progress.advance(1, name.removeprefix("why/").replace("_", " "))
            if stop:
                raise Interrupted(f"stopped after {name}; the same command begins these analyses anew", stop.signum)
    return tables


def _attempt(name: str, make: Callable[[], Rows]) -> Rows:
    """The rows of an analysis; none, with a note, where the encoding ends before the window or the memory does."""
    try:
        return make()
    except Unsupported as error:
        note(f"no {name}: {error}")
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        note(f"no {name}: it does not fit the memory")
    return []


def _sample(setup: EvaluationSetup, ratio: int | None, tokens: int) -> Sample:
    """Windows of the longest length within `ratio` times L (None: of all), which end where sliding windows do.

    They hold about so many tokens together.
    """
    settings, plan = setup.settings, setup.plan
    protocol = next(name for name in reversed(plan.protocols) if len(plan.variants(name)) > 1)
    lengths = [length for length in settings.lengths if ratio is None or length <= ratio * settings.train_length]
    windows = max(FEWEST_WINDOWS, tokens // lengths[-1])
    spans = in_turns(plan.spans(protocol, settings.lengths[-1]), seed=2)[:windows]
    return Sample(
        task=setup.task,
        text=setup.task.text(lengths[-1]),
        spans=spans[np.lexsort((spans[:, 1], spans[:, 0]))],
        scored=max(1, int(settings.train_length * SCORED_SHARE)),
        train_length=settings.train_length,
        length=lengths[-1],
        device=setup.device,
    )


def _of_key_tokens(model: Model, judge: Model, sample: Sample) -> Rows:
    return key_token_rows(model, sample, key_tokens(judge, sample))
