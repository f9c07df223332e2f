"""Training a run: from its configuration to a folder with a trained model."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from poscli.config.code import TRAINING, code_of
from poscli.config.run import SCHEMA, RunConfig
from poscli.model import compiled
from poscli.model.initialise import fresh_model
from poscli.model.load import load_tokenizer
from poscli.runs import checkpoint
from poscli.runs.lock import locked
from poscli.runs.results import training_log
from poscli.runs.run import AGAIN, ENDED, ENV, Run, create, open_run, run_exists
from poscli.system.console import note, warn_once
from poscli.system.errors import CorruptError, ForeignError
from poscli.system.files import read_object
from poscli.system.provenance import describe
from poscli.system.ranks import any_rank, ranks, together
from poscli.tasks import Task
from poscli.training.trainer import Trainer

# What env.json says of the run; the rest is about the process that began it.
OF_THE_RUN = ("schema", "corpus", "parameters", "engine", "engine_reason", "plugins")


def train(config: RunConfig, task: Task, runs: Path, device: torch.device) -> Run:
    """Train a run to its end, going on where it stopped; does nothing if the run has ended.

    A run that diverges or does not fit the memory has that status, and no error is raised. LockedError if another
    process works on the run. Several ranks train it together; the first rank alone holds the lock, and reads and writes
    the folder.
    """
    folder, first = runs / config.run_id(task.fingerprint), ranks().first
    run = Run(folder, config, {})  # without an environment: on ranks other than the first, and where none has begun
    with ExitStack() as lock:
        with together():
            if first:
                lock.enter_context(locked(folder))
                run = _existing(run)
        with together():
            ended = first and run.env != {} and has_ended(run)
        if any_rank(ended):
            note(f"{run.id} is {run.status()['state'] if first else ''} already: nothing to train")
            return run
        with together():
            model = fresh_model(config, task.vocab, device)
            for encoding, choice in zip(model.encodings, model.choices, strict=True):
                if choice.reason:
                    warn_once(choice.said_of(encoding))
            if first and not run.env:
                made_of = {
                    "parameters": model.size,
                    "engine": model.engine,
                    "engine_reason": model.engine_reason,
                    "compiled": compiled.wanted(device),
                    "ranks": ranks().count,
                    "code": code_of(config.encoding, TRAINING),
                }
                env = {"schema": SCHEMA, "corpus": task.describe(), **describe(device), **made_of}
                run = create(folder, config, _as_begun(run, env), task.files)
            elif first:  # files of the task, such as a trained tokenizer, are written again where they are damaged
                for name, content in task.files.items():
                    try:
                        run.files.read(name)
                    except CorruptError:
                        run.files.write(name, content)
        trainer = Trainer(run, model, task)
        if trainer.step:
            note(f"{run.id}: going on from step {trainer.step} of {config.steps}")
            if first and (before := run.env.get("engine", model.engine)) != model.engine:
                why = f" ({model.engine_reason})" if model.engine_reason else ""
                warn_once(
                    f"{run.id} began on the engine {before} and goes on with {model.engine}{why}: its last bits will "
                    "differ"
                )
        if (state := trainer.train()) != "complete":
            note(f"{run.id} ended as {state}: {run.status()['message'] if first else ''}")
    return run


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


def _existing(run: Run) -> Run:
    """The run in a folder; one without an environment if none has begun, or what describes it is damaged.

    The command knows what these files say, but for where and by what a training was begun (`_as_begun`), and the name
    of the folder is a digest of it. So they are written again, and the training goes on from its checkpoints.
    ForeignError if the files are whole and say something else.
    """
    try:
        return open_run(run.folder) if run_exists(run.folder) else run
    except ForeignError:
        raise
    except CorruptError as error:
        note(f"{str(error).removesuffix(f'; {AGAIN}')}: writing what describes {run.id} again")
        run.files.forget_damaged()
        return run


def _as_begun(run: Run, env: dict[str, Any]) -> dict[str, Any]:
    """What env.json is to say of a run without an environment; `env` is that of this process.

    If env.json is whole and of this run, it stays as it is: another file was damaged. If it is lost, nobody knows which
    machine and which code have made the checkpoints that there are.
    """
    try:  # a file whose checksum is lost, too, is taken at its word
        known = run.files.read_object(ENV) if run.files.was_written(ENV) else read_object(run.folder / ENV, AGAIN)
        if known["schema"] == SCHEMA and known["corpus"]["fingerprint"] == env["corpus"]["fingerprint"]:
            return known
    except (CorruptError, KeyError, TypeError):
        pass
    if any(checkpoint.is_whole(run.checkpoints, step) for step in checkpoint.steps(run.checkpoints)):
        return {name: value if name in OF_THE_RUN else "" for name, value in env.items()}
    return env
