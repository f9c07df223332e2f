"""Runs of checkpoints: folders like those of trainings, so that everything that reads runs reads them as well."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import torch

from poscli.config.run import SCHEMA, RunConfig
from poscli.runs.load import load_model
from poscli.runs.lock import locked
from poscli.runs.run import Run, create, exists, open_run
from poscli.system.errors import DataError
from poscli.system.provenance import describe
from poscli.tasks import Task, open_task


def adopted(config: RunConfig, rows: int, runs: Path, device: torch.device) -> tuple[Run, Task]:
    """The run of a checkpoint, and the task with its text. Nothing is written but the cache of the text.

    `rows` is the number of tokens that the model knows; DataError if its tokenizer has more.
    """
    task = open_task(config.task, config.corpus, config.tokenizer)
    config = config.model_copy(update={"corpus": task.corpus})
    assert config.checkpoint is not None
    if task.vocab > rows:
        raise DataError(
            f"the tokenizer of {config.checkpoint.source} has {task.vocab} tokens, and the model knows {rows}: they do "
            "not belong together; copy the model's own tokenizer into its folder"
        )
    folder = runs / config.run_id(task.fingerprint)
    if exists(folder):
        return open_run(folder), task
    made_of = {"parameters": config.checkpoint.parameters, "engine": "", "transformers": version("transformers")}
    return Run(folder, config, {"schema": SCHEMA, "corpus": task.describe(), **describe(device), **made_of}), task


def keep(run: Run, device: torch.device) -> Run:
    """Write the folder of a checkpoint's run, unless it is there already.

    The checkpoint is loaded first: one that cannot be evaluated raises what `load_model` raises, and leaves no folder.
    """
    if not exists(run.folder):
        load_model(run, device)
    with locked(run.folder):
        if exists(run.folder):
            return open_run(run.folder)
        kept = create(run.folder, run.config, run.env)
        kept.set_status("complete", run.config.steps)
    return kept
