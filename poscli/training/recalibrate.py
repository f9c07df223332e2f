"""Recalibration: a short training of a trained model under another encoding, before it is evaluated under that one.

It is a run of its own inside the folder of the evaluation, with checkpoints, a status and a training log, and goes on
after an interruption. The trained run stays as it is.
"""

from __future__ import annotations

import torch

from poscli.config.run import RunConfig
from poscli.evaluation.evaluate import refuse_other_text
from poscli.evaluation.posthoc import with_encoding
from poscli.model.load import load_for_training
from poscli.model.transformer import Model
from poscli.runs.run import Run
from poscli.system.console import note, warn_once
from poscli.system.seeds import derive
from poscli.tasks import Task
from poscli.training.train import has_ended
from poscli.training.trainer import Trainer

SAME = 1e-3  # logits that differ by less are taken to differ by rounding


def recalibrate(run: Run, task: Task, device: torch.device) -> None:
    """Train the model of a post-hoc evaluation under its encoding, going on where an earlier call stopped.

    A training that has ended stays as it is, and so does a run whose model was never trained to its end. One that
    diverges or does not fit the memory has that status, and no error is raised.
    """
    refuse_other_text(run, task)
    short = Run(run.folder, recalibration_config(run), run.env)
    task.check(short.config.length)
    if run.training.status()["state"] != "complete":
        return
    with run.locked():
        if has_ended(short):
            return
        trained = load_for_training(run, device)
        model = with_encoding(trained, run.config.encoding, run.trained)
        _warn_of_no_change(run, trained, model, task)
        trainer = Trainer(short, model, task)
        if (state := trainer.train()) != "complete":
            note(f"{run.id} ended as {state}: {run.status()['message']}")


def recalibration_config(run: Run) -> RunConfig:
    """The configuration of a post-hoc evaluation's recalibration, which reads other windows than the training did."""
    assert run.recalibration
    seed = derive(run.config.seed, "recalibration")
    return run.recalibration.config(run.config, run.config.encoding, seed)


@torch.no_grad()
def _warn_of_no_change(run: Run, trained: Model, model: Model, task: Task) -> None:
    """Say so if the encoding changes nothing yet at the length of the windows, so that the training only goes on."""
    config = recalibration_config(run)
    batch = task.batch(size=1, length=config.length, seed=config.seed, step=0)
    inputs, _ = batch.tensors(trained.embedding.device)
    if float((model(inputs) - trained(inputs)).abs().max()) < SAME:
        warn_once(
            f"{run.trained} as {config.encoding} is {run.trained} on windows of {config.length} tokens, so that it is "
            "only trained further; a larger --recalibrate-length, or an option such as factor, makes the difference"
        )
