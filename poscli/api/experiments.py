"""Verify, train and evaluate, as the commands of these names do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from poscli.api.keywords import checked, read, takes
from poscli.api.measured import Measured
from poscli.api.names import spec_of
from poscli.checkpoints.held import held
from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import ModelConfig, RunConfig
from poscli.equation import Encoding
from poscli.evaluation.extrapolate import settings_of
from poscli.evaluation.measure import EvaluationSetup
from poscli.evaluation.posthoc import runs_as
from poscli.model.transformer import Model
from poscli.runs.delete import delete_run
from poscli.runs.load import load_trained
from poscli.runs.run import Run
from poscli.runs.select import with_known_plugins
from poscli.system import plugins
from poscli.system.device import device_of
from poscli.system.errors import UsageError
from poscli.system.plugin_sources import blamed
from poscli.tasks import open_task
from poscli.training.recalibrate import evaluate
from poscli.training.train import train as train_run
from poscli.verify import Verdict
from poscli.verify import verify as check_all
from poscli.why.explain import check_judge, explain

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
    request, where = read(TrainRequest, options, "train", SHAPE), device_of(device)
    with blamed():
        config = resolve(request, spec_of(enc), seed, where)
        _refuse_without_source(config)
        task = open_task(request.task, request.corpus, request.tokenizer)
        task.check(config.length)
        config = config.model_copy(update={"corpus": task.corpus})
        runs = Path(out) / "runs"
        if force and (runs / config.run_id(task.fingerprint)).exists():
            delete_run(runs / config.run_id(task.fingerprint))
        return train_run(config, task, runs, where)


@checked
def checkpoint(
    model: str | Path,
    *,
    corpus: str = "stdlib",
    length: int | None = None,
    precision: str = "auto",
    device: str = "auto",
    out: str | Path = "results",
) -> Run:
    """A checkpoint of transformers as a run that `extrapolate` takes: a folder, or hf:ORG/NAME@REVISION.

    It lies in the folder `out`, without the weights, which are read where they are. `corpus` is the text to evaluate it
    on, `length` the tokens that it was trained on where config.json says it wrongly, and `precision` the number format.
    """
    from poscli.checkpoints.run import Wish, checkpoint_config  # these import transformers where they need it
    from poscli.runs.adopt import adopted, keep

    where = device_of(device)
    config, rows = checkpoint_config(Wish(str(model), corpus, length, precision), where)
    run, _ = adopted(config, rows, Path(out) / "runs", where)
    return keep(run, where)


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
    request, where = read(ExtrapolateRequest, options, "extrapolate"), device_of(device)
    with blamed():
        check_judge(run, judge)
        task = open_task(run.config.task, run.config.corpus, run.config.tokenizer)
        chosen = runs_as(with_known_plugins([run], strict=True), request, strict=True)
        setups = [EvaluationSetup(each, task, settings_of(each.config, request, smoke), where) for each in chosen]
        with held():
            tables = [evaluate(each, force=force) for each in setups]
        for each in setups if request.why else []:
            explain(each, judge)
    return Measured.of(tables)


@checked
def load(run: Run, *, device: str = "auto") -> Model:
    """The trained model of a run: a torch module from token ids `[B, T]` to logits `[B, T, vocabulary]`."""
    plugins.forget_edited()
    with blamed():
        return load_trained(run, device_of(device))


def _refuse_without_source(config: RunConfig) -> None:
    """Refuse to train a class that has no file: its results could not say which code they come from."""
    for name, source in config.plugins.items():
        if not source:
            raise UsageError(
                f"{name} has no file, so its results could not say which code they come from; write it to a file, in a "
                "notebook by a cell that begins with %%writefile my_encoding.py, and train 'my_encoding.py'"
            )
