"""The trained model of a run."""

from __future__ import annotations

import torch

from poscli.config.plugins import check_plugins
from poscli.model.initialise import fresh_model
from poscli.model.transformer import Model
from poscli.model.weights import load_weights
from poscli.runs import checkpoint
from poscli.runs.run import Run


def load_trained(run: Run, device: torch.device) -> Model:
    """The trained model of a complete run, ready for evaluation; CorruptError if a plugin's source has changed."""
    config = run.config.model_copy(update={"encoding": run.trained or run.config.encoding})
    check_plugins(config, run.env)
    model = fresh_model(config, run.env["corpus"]["vocab"], device)
    load_weights(model, checkpoint.load(run.checkpoints, config.steps).model)
    return model.eval().requires_grad_(False)
