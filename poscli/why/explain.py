"""`poscli extrapolate --why`: make every analysis of a trained run and write its table beside the evaluation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from poscli.equation import Unsupported
from poscli.evaluation.evaluate import model_to_measure
from poscli.evaluation.measure import EvaluationSetup
from poscli.evaluation.plan import record_of
from poscli.evaluation.protocol import EvaluationSettings, in_turns
from poscli.evaluation.tables import run_columns
from poscli.model.load import load_model
from poscli.model.transformer import Model
from poscli.runs.results import explained_under, write_explanation
from poscli.runs.run import FAILED_STATES, Run
from poscli.runs.schema import DETAILS, frame
from poscli.specs import with_layouts
from poscli.system.console import note
from poscli.system.errors import Interrupted
from poscli.system.memory import is_out_of_memory
from poscli.system.progress import Meter
from poscli.system.signals import stoppable
from poscli.tasks import Task
from poscli.why.attribution import CAUSES, attribution
from poscli.why.context_use import key_token_rows, key_tokens, receptive, refuse_judge, saturation
from poscli.why.dilution import dilution
from poscli.why.sample import Sample

NEAR = 4  # times L: the windows of attribution, whose attention is computed eagerly
NEAR_TOKENS, FAR_TOKENS = 2**14, 2**15  # read in windows of NEAR * L tokens, and of the longest length
KEY_TOKENS = 2**17  # read by the judge and the model to find and to score key tokens, which are rare
FEWEST_WINDOWS = 4
SCORED_SHARE = 1 / 8  # of L, at the end of each window, so that every scored token has nearly all of it before it

Rows = list[dict[str, Any]]


def explain(setup: EvaluationSetup, judge: Run | None = None) -> None:
    """Write the tables of all analyses of a run, unless they were written under the same settings before.

    `judge` is the run that says which tokens need long context; without one there are no key tokens. The judge itself
    is passed over, and so is a run evaluated as an encoding that it was not trained with. Of checkpoints, neither
    gradients nor the weights of attention are looked at. UsageError if the judge cannot judge this run. A run without a
    trained model is left out with a note. A signal raises Interrupted; the same command begins the analyses of this run
    anew.
    """
    run = setup.run
    if _is_passed_over(run, judge):
        if not run.under_another:
            note(f"{run.id} is the judge, and does not judge itself: nothing to explain")
        return
    check_judge(run, judge, setup.settings.lengths[-1])
    if run.status()["state"] != "complete" or not _can_explain(setup.task, setup.settings):
        note(
            f"{run.id} has nothing to explain: --why needs a trained model, a length beyond its own, and one text for "
            f"all lengths, which an image is not and a task with right answers (here {run.config.task}) has not"
        )
        return
    with run.locked():
        if is_explained(run, setup.settings, judge):
            note(f"{run.id} is explained already: nothing to do")
            return
        write_explanation(run, _tables(setup, judge), _record(run, setup.settings, judge))


def check_judge(run: Run, judge: Run | None, longest: int) -> None:
    """UsageError if a judge is given that cannot judge a run which `explain` would not pass over.

    `longest` is the longest window to be read, in tokens.
    """
    if judge is not None and not _is_passed_over(run, judge):
        refuse_judge(judge, run, longest)


def is_left_to_explain(run: Run | None, task: Task, settings: EvaluationSettings, judge: Run | None = None) -> bool:
    """Whether `explain` will have work to do with a run; `run` is None if it has yet to be trained."""
    if not _can_explain(task, settings):
        return False
    if run is None:
        return True
    failed = run.status()["state"] in FAILED_STATES
    return not (failed or _is_passed_over(run, judge) or is_explained(run, settings, judge))


def _can_explain(task: Task, settings: EvaluationSettings) -> bool:
    """Whether there are longer windows of one text; the analyses count tokens along its line, which a grid has not."""
    return task.same_text and task.axes == 1 and len(settings.lengths) >= 2


def _is_passed_over(run: Run, judge: Run | None) -> bool:
    home = run.training if run.trained else run
    return run.under_another or (judge is not None and home.id == judge.id)


def is_explained(run: Run, settings: EvaluationSettings, judge: Run | None = None) -> bool:
    """Whether the tables of a run were made under these settings and by this judge."""
    return explained_under(run) == _record(run, settings, judge)


def _record(run: Run, settings: EvaluationSettings, judge: Run | None) -> dict[str, Any]:
    """What why.json says; tables that lack a change of today's are made anew."""
    return record_of(run, settings) | {"changes": list(CAUSES)} | ({"judge": judge.id} if judge else {})


def _tables(setup: EvaluationSetup, judge: Run | None) -> dict[str, Any]:
    """The table of every analysis, by the name of its file."""
    model, near, far = (
        model_to_measure(setup),  # with the constants that the evaluation searches for
        _sample(setup, NEAR, NEAR_TOKENS),
        _sample(setup, None, FAR_TOKENS),
    )
    analyses: dict[str, Callable[[], Rows]] = {
        "why/attribution": lambda: attribution(model, near),
        "why/saturation": lambda: saturation(model, far),
        "why/receptive": lambda: receptive(model, near, len(near.spans)),
    }
    if isinstance(model, Model):
        analyses["why/dilution"] = partial(dilution, model, far)
    if judge is not None:
        judging = load_model(judge, setup.device)
        rare = _sample(setup, None, KEY_TOKENS)
        analyses["why/key_tokens"] = lambda: key_token_rows(model, rare, key_tokens(judging, rare))
    tables = {}
    run = setup.run
    meter = Meter(f"why {with_layouts(run.config.encoding)}", len(analyses), file=run.progress)
    with stoppable() as stop, meter as progress:
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
    """Windows of at most `ratio` times L (None: of the longest length), which end where those of the last protocol do.

    Only protocols with baselines count: it is `fixed` unless `--protocol` adds another one. The windows hold about
    `tokens` tokens together.
    """
    settings, plan = setup.settings, setup.plan
    protocol = next(name for name in reversed(plan.protocols) if len(plan.variants(name)) > 1)
    length = settings.lengths[-1] if ratio is None else min(ratio * settings.train_length, settings.lengths[-1])
    windows = max(FEWEST_WINDOWS, tokens // length)
    spans = in_turns(plan.spans(protocol, settings.lengths[-1]), seed=2)[:windows]
    return Sample(
        task=setup.task,
        text=setup.task.text(length),
        spans=spans[np.lexsort((spans[:, 1], spans[:, 0]))],
        scored=max(1, int(settings.train_length * SCORED_SHARE)),
        train_length=settings.train_length,
        length=length,
        device=setup.device,
        stride=settings.stride,
    )
