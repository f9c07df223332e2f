"""The memory that a model needs on the engines it runs on."""

from __future__ import annotations

import torch

from poscli.config.needs import Needs, largest_needs
from poscli.model.transformer import Model


def needs_of_model(model: Model, training: bool) -> Needs:
    """The largest needs of any layer, on the engines that the model runs on."""
    with torch.set_grad_enabled(training):
        engines = [choice.name for choice in model.choices]
    return largest_needs(zip(engines, model.encodings, strict=True), model.config.width // model.config.heads)
