"""The trained model of a run and its tokenizer, read from the run's folder; and the run of a model from elsewhere.

A satellite that evaluates models which poscli did not train, such as `checkpoints/`, has a file `models.py` with a
function `load_checkpoint(config, device)`, which returns the model of such a run as a `LanguageModel`.
"""

from __future__ import annotations

import importlib

import torch

from poscli.config.plugins import check_plugins
from poscli.data.tokenizers import TRAINED, Tokenizer, TrainedTokenizer, tokenizer
from poscli.model.initialise import fresh_model, load_weights
from poscli.model.language_model import LanguageModel
from poscli.model.transformer import Model
from poscli.runs import checkpoint
from poscli.runs.lock import locked
from poscli.runs.run import Run, create, open_run, run_exists
from poscli.system.errors import UsageError
from poscli.system.registry import plugged_in


def load_model(run: Run, device: torch.device) -> LanguageModel:
    """The model of a complete run, or of one that poscli did not train, ready for evaluation.

    UsageError if no satellite can load the latter.
    """
    if run.config.checkpoint is None:
        return load_trained(run, device)
    for satellite in plugged_in("models"):
        return importlib.import_module(satellite).load_checkpoint(run.config, device)
    raise UsageError(f"{run.id} is a checkpoint of transformers, and this poscli has no folder poscli/checkpoints")


def load_trained(run: Run, device: torch.device) -> Model:
    """The trained model of a complete run, ready for evaluation.

    CorruptError if its checkpoint is damaged or a plugin's source has changed, UsageError if a plugin cannot be loaded
    or poscli did not train the model.
    """
    return load_for_training(run, device).eval().requires_grad_(False)


def load_for_training(run: Run, device: torch.device) -> Model:
    """The model of `load_trained`, ready to be trained further."""
    if run.config.checkpoint is not None:
        raise UsageError(f"{run.id} is a checkpoint of transformers, and this works with poscli's own models only")
    trained = run.training if run.trained else run
    check_plugins(trained.config, trained.env)
    model = fresh_model(trained.config, trained.env["corpus"]["vocab"], device)
    load_weights(model, checkpoint.load_model_tensors(trained.checkpoints, trained.config.steps))
    return model


def load_recalibrated(run: Run, model: Model) -> None:
    """Give the model of a post-hoc evaluation, under its encoding, the weights of its recalibration."""
    load_weights(model, checkpoint.load_model_tensors(run.checkpoints, run.steps))


def load_tokenizer(run: Run) -> Tokenizer:
    """The tokenizer of a run. One that was trained on the corpus is read from the run's folder, not from the corpus.

    CorruptError if its file is missing or not what training wrote.
    """
    made = tokenizer(run.config.tokenizer)
    if not isinstance(made, TrainedTokenizer):
        return made
    return made.trained((run.training if run.trained else run).files.read(TRAINED))


def keep(run: Run, device: torch.device) -> Run:
    """Write the folder of a run that poscli did not train, unless it is there already.

    The model is loaded first: one that cannot be evaluated raises what `load_model` raises, and leaves no folder.
    """
    if not run_exists(run.folder):
        load_model(run, device)
    with locked(run.folder):
        if run_exists(run.folder):
            return open_run(run.folder)
        kept = create(run.folder, run.config, run.env)
        kept.set_status("complete", run.config.steps)
    return kept
