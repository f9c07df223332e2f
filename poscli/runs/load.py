"""The trained model of a run."""

from __future__ import annotations

import torch

from poscli.config.plugins import check_plugins
from poscli.model.initialise import fresh_model
from poscli.model.language_model import LanguageModel
from poscli.model.transformer import Model
from poscli.model.weights import load_weights
from poscli.runs import checkpoint
from poscli.runs.run import Run
from poscli.system.errors import UsageError


def load_model(run: Run, device: torch.device) -> LanguageModel:
    """The model of a complete run or of a checkpoint, ready for evaluation."""
    if run.config.checkpoint is None:
        return load_trained(run, device)
    from poscli.checkpoints.run import load_checkpoint  # which imports transformers where it is used

    return load_checkpoint(run.config, device)


def load_trained(run: Run, device: torch.device) -> Model:
    """The trained model of a complete run, ready for evaluation; CorruptError if a plugin's source has changed.

    UsageError for a checkpoint, which is no model of poscli.
    """
    if run.config.checkpoint is not None:
        raise UsageError(f"{run.id} is a checkpoint of transformers, and this works with poscli's own models only")
    config = run.config.model_copy(update={"encoding": run.trained or run.config.encoding})
    check_plugins(config, run.env)
    model = fresh_model(config, run.env["corpus"]["vocab"], device)
    load_weights(model, checkpoint.load(run.checkpoints, config.steps).model)
    return model.eval().requires_grad_(False)
