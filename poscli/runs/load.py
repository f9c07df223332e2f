"""The trained model of a run, and its tokenizer."""

from __future__ import annotations

import torch

from poscli.config.plugins import check_plugins
from poscli.data.tokenizers import TRAINED, Tokenizer, TrainedTokenizer, tokenizer
from poscli.model.initialise import fresh_model, load_weights
from poscli.model.language_model import LanguageModel
from poscli.model.transformer import Model
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
    return load_for_training(run, device).eval().requires_grad_(False)


def load_tokenizer(run: Run) -> Tokenizer:
    """The tokenizer of a run. One that was trained on the corpus is read from the run's folder, not from the corpus.

    CorruptError if its file is missing or not what training wrote.
    """
    made = tokenizer(run.config.tokenizer)
    if not isinstance(made, TrainedTokenizer):
        return made
    return made.trained((run.training if run.trained else run).files.read(TRAINED))


def load_for_training(run: Run, device: torch.device) -> Model:
    """The model of `load_trained`, ready to be trained further."""
    if run.config.checkpoint is not None:
        raise UsageError(f"{run.id} is a checkpoint of transformers, and this works with poscli's own models only")
    trained = run.training if run.trained else run
    check_plugins(trained.config, trained.env)
    model = fresh_model(trained.config, trained.env["corpus"]["vocab"], device)
    load_weights(model, checkpoint.load_model(trained.checkpoints, trained.config.steps))
    return model


def load_recalibrated(run: Run, model: Model) -> None:
    """Give the model of a post-hoc evaluation, under its encoding, the weights of its recalibration."""
    load_weights(model, checkpoint.load_model(run.checkpoints, run.steps))
