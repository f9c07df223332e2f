"""Verify, train and evaluate, as the commands of these names do."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from poscli import workflows
from poscli.api.keywords import checked, read, takes
from poscli.api.measured import Measured
from poscli.api.names import spec_of
from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.run import ModelConfig
from poscli.equation import Encoding
from poscli.model.load import load_trained
from poscli.model.transformer import Model
from poscli.runs.run import Run
from poscli.runs.select import with_known_plugins
from poscli.system import plugins
from poscli.system.device import device_of
from poscli.system.errors import UsageError
from poscli.system.plugins import blamed
from poscli.tasks import open_task
from poscli.verify import Verdict
from poscli.verify import verify as check_all

SHAPE = {"model": ModelConfig}  # `layers`, `width`, ... are options beside those of the request


@checked
def verify(encoding: str | type[Encoding], *, seed: int = 0) -> Verdict:
    """Check that an encoding does what every encoding must do: causality, cached decoding, engines, gradients, ...

    `seed` draws the input and the weights. The verdict has a `status`, `passed` or `failed`, and the findings.
    """
    plugins.forget_edited()
    with blamed():
        return check_all(spec_of(encoding), seed)


@takes(TrainRequest, SHAPE)
@checked
def train(
    enc: str | type[Encoding],
    *,
    seed: int = 0,
    device: str = "auto",
    out: str | Path = "results",
    force: bool = False,
    **options: Any,
) -> Run:
    """Train a tiny language model with an encoding; an interrupted run goes on, a complete one is returned at once.

    The run lies in the folder `out`. `force` deletes what the run has so far. A run that diverges or does not fit the
    memory is returned with that state, as `run.status()` says. UsageError for options that cannot be trained.
    """
    plugins.forget_edited()
    request = read(TrainRequest, options, "train", SHAPE)
    with blamed():
        setup = workflows.prepare(request, [spec_of(enc)], [seed], device_of(device))
        return workflows.train(setup, Path(out) / "runs", force=force)[0]


@takes(ExtrapolateRequest)
@checked
def extrapolate(
    run: Run,
    *,
    judge: Run | None = None,
    smoke: bool = False,
    device: str = "auto",
    force: bool = False,
    **options: Any,
) -> Measured:
    """Evaluate a trained run at 1, 2, 4, ... times its training length; what was measured before is not repeated.

    `judge` is a run that says which tokens need long context, for `why=True`; `smoke` scores only a few hundred tokens.
    A damaged evaluation is made again; `force` makes any evaluation again, and leaves the trained model as it is.
    """
    plugins.forget_edited()
    request = read(ExtrapolateRequest, options, "extrapolate")
    if judge is not None and not request.why:
        raise UsageError(f"judge = {judge.id}: it judges the key tokens of why; give why=True too")
    with blamed():
        known = with_known_plugins([run], strict=True)
        setups = workflows.setups_of(
            known, request, device_of(device), smoke=smoke, judge=judge, open_task=cache(open_task)
        )
        return Measured.of(workflows.evaluate(setups, why=request.why, judge=judge, force=force))


@checked
def load(run: Run, *, device: str = "auto") -> Model:
    """The trained model of a run: a torch module from token ids `[B, T]` to logits `[B, T, vocabulary]`."""
    plugins.forget_edited()
    with blamed():
        return load_trained(run, device_of(device))
