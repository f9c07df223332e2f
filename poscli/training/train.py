"""Training a run: from its configuration to a folder with a trained model."""

from __future__ import annotations

from pathlib import Path

import torch

from poscli.config.run import SCHEMA, RunConfig
from poscli.model import compiled
from poscli.model.initialise import fresh_model
from poscli.model.transformer import Model
from poscli.runs.run import ENDED, Run, create
from poscli.system.console import note, warn_once
from poscli.system.provenance import describe
from poscli.tasks import Task
from poscli.training.trainer import Trainer


def train(config: RunConfig, task: Task, runs: Path, device: torch.device) -> Run:
    """Train a run to its end, going on where it stopped; a run that has ended stays as it is."""
    model = fresh_model(config, task.vocab, device)
    _announce(model)
    made_of = {
        "parameters": model.size,
        "engine": model.engine,
        "engine_reason": model.engine_reason,
        "compiled": compiled.wanted(device),
    }
    env = {"schema": SCHEMA, "corpus": task.describe(), **describe(device), **made_of}
    run = create(runs, config, env)
    with run.locked():
        state = run.status()["state"]
        if state in ENDED:
            note(f"{run.id} is {state} already: nothing to train")
            return run
        trainer = Trainer(run, model, task)
        if trainer.step:
            note(f"{run.id}: going on from step {trainer.step} of {config.steps}")
        if trainer.train() == "diverged":
            note(f"{run.id} diverged: {run.status()['message']}")
    return run


def _announce(model: Model) -> None:
    """Announce once per encoding why it does not run on the fastest engine."""
    for encoding, choice in zip(model.encodings, model.choices, strict=True):
        if choice.reason:
            warn_once(f"{encoding.name} runs on the engine {choice.name} ({choice.reason})")
