"""Training a run: from its configuration to a folder with a trained model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from poscli.config.run import SCHEMA, RunConfig
from poscli.model import compiled
from poscli.model.initialise import fresh_model
from poscli.model.transformer import Model
from poscli.runs import checkpoint
from poscli.runs.load import load_tokenizer
from poscli.runs.lock import locked
from poscli.runs.results import training_log
from poscli.runs.run import AGAIN, ENDED, Run, create, exists, open_run
from poscli.system.console import note, warn_once
from poscli.system.errors import CorruptError, ForeignError
from poscli.system.provenance import describe
from poscli.system.ranks import any_rank, ranks, together
from poscli.tasks import Task
from poscli.training.trainer import Trainer


def train(config: RunConfig, task: Task, runs: Path, device: torch.device, *, sharded: bool = False) -> Run:
    """Train a run to its end, going on where it stopped; a run that has ended stays as it is.

    A run that diverges or does not fit the memory has that status, and no error is raised. LockedError if another
    process works on the run. Several ranks train it together, and `sharded` divides its weights among them; the first
    rank alone holds the lock, and reads and writes the folder.
    """
    folder = runs / config.run_id(task.fingerprint)
    with _opened(folder, config) as run:
        with together():
            ended = ranks().first and run.env != {} and has_ended(run)
        if any_rank(ended):
            note(f"{run.id} is {_state(run)['state']} already: nothing to train")
            return run
        with together():
            model = fresh_model(config, task.vocab, device)
            _announce(model)
            if ranks().first and not run.env:
                run = create(folder, config, _environment(model, task, device), task.files)
            elif ranks().first:
                _keep_whole(run, task.files)
        trainer = Trainer(run, model, task, sharded=sharded)
        if trainer.step:
            note(f"{run.id}: going on from step {trainer.step} of {config.steps}")
            _warn_of_another_engine(run, model)
        if (state := trainer.train()) != "complete":
            note(f"{run.id} ended as {state}: {_state(run)['message']}")
    return run


@contextmanager
def _opened(folder: Path, config: RunConfig) -> Iterator[Run]:
    """The run in a folder, locked by the first rank; one without an environment where none has begun."""
    with ExitStack() as stack:
        run = Run(folder, config, {})
        with together():
            if ranks().first:
                stack.enter_context(locked(folder))
                run = _existing(run)
        yield run


def _existing(run: Run) -> Run:
    """The run in a folder; one without an environment if none has begun, or what describes it is damaged.

    The command knows all that these files say, and the name of the folder is a digest of it. So they are written again,
    and the training goes on from its checkpoints. ForeignError if the files are whole and say something else.
    """
    try:
        return open_run(run.folder) if exists(run.folder) else run
    except ForeignError:
        raise
    except CorruptError as error:
        note(f"{str(error).removesuffix(f'; {AGAIN}')}: writing what describes {run.id} again")
        run.files.forget_damaged()
        return run


def _keep_whole(run: Run, files: Mapping[str, bytes]) -> None:
    """Write those files of the corpus, such as a tokenizer, again that are damaged."""
    for name, content in files.items():
        try:
            run.files.read(name)
        except CorruptError:
            run.files.write(name, content)


def _state(run: Run) -> dict[str, Any]:
    """The status of a run, for the notes of the first rank."""
    return run.status() if ranks().first else {"state": "", "message": ""}


def has_ended(run: Run) -> bool:
    """Whether nothing is left to train or to write. A run with a damaged checkpoint or file has that left."""
    state = run.status()["state"]
    if run.status_fault():
        return False
    try:
        training_log(run)
        load_tokenizer(run)
    except CorruptError as error:
        note(f"{str(error).removesuffix(f'; {AGAIN}')}: writing it again")
        return False
    if state == "complete" and not checkpoint.is_whole(run.checkpoints, run.config.steps):
        note(f"{run.id} is complete, but its last checkpoint is damaged")
        return False
    return state in ENDED


def _environment(model: Model, task: Task, device: torch.device) -> dict[str, Any]:
    """The content of env.json."""
    made_of = {
        "parameters": model.size,
        "engine": model.engine,
        "engine_reason": model.engine_reason,
        "compiled": compiled.wanted(device),
        "ranks": ranks().count,
    }
    return {"schema": SCHEMA, "corpus": task.describe(), **describe(device), **made_of}


def _warn_of_another_engine(run: Run, model: Model) -> None:
    """Say if a run goes on with other engines than it began with, as on a machine that lacks what the first one had."""
    before = run.env.get("engine", model.engine)
    if ranks().first and before != model.engine:
        why = f" ({model.engine_reason})" if model.engine_reason else ""
        warn_once(
            f"{run.id} began on the engine {before} and goes on with {model.engine}{why}: its last bits will differ"
        )


def _announce(model: Model) -> None:
    """Announce once per encoding why it does not run on the fastest engine."""
    for encoding, choice in zip(model.encodings, model.choices, strict=True):
        if choice.reason:
            warn_once(choice.said_of(encoding))
