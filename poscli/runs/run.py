"""A run's folder: its configuration, its environment and its status. Every file is written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import tomllib
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from poscli.config.run import LONGEST_SLUG, SCHEMA, OtherCorpus, Recalibration, RunConfig, slug, write_run_config
from poscli.config.validate import refusal_of
from poscli.runs.lock import LOCK, is_locked, locked, unused
from poscli.runs.sealed import MANIFEST, Sealed
from poscli.system.console import note, warn_once
from poscli.system.errors import CorruptError, ForeignError, PoscliError, UsageError
from poscli.system.notebook import html_table
from poscli.system.text import utc_stamp

AGAIN = "repeat the command that made this run, which writes it again and keeps the model"  # the cure of its files
UNFINISHED = ("planned", "training", "interrupted")  # states in which a run has nothing to evaluate yet
FAILED_STATES = ("diverged", "oom", "failed")  # of a training: every row of its evaluation has this status
STATES = (*UNFINISHED, *FAILED_STATES, "complete")
ENDED = ("complete", "diverged")  # states in which nothing is left to train; from the others training goes on
CONFIG, ENV, STATUS = "config.toml", "env.json", "status.json"
TRAIN, EVAL, POSITION = "train.csv", "eval.csv", "position.csv"
EVALUATED, EXPLAINED = "eval.json", "why.json"
AS = " as "  # in labels, between what was trained and the encoding that it is evaluated under
PROGRESS = "progress.json"  # of the work that goes on, for display; gone when it ends
TRASH = ".deleted"  # beside the runs; one level deeper than the folders that are listed as runs
INTERRUPTED_SECONDS = 60  # what lies there for longer, no process is deleting any more
CHECKPOINTS, LOSSES, POSTHOC = "checkpoints", "nll", "as"  # folders: weights, losses of tokens, other encodings
# What a run has only once it works.
RESULTS = (STATUS, TRAIN, EVAL, POSITION, EVALUATED, EXPLAINED, CHECKPOINTS, LOSSES, POSTHOC)


@dataclass(frozen=True, repr=False)
class Run:
    """One folder under results/runs."""

    folder: Path
    config: RunConfig
    env: dict[str, Any]
    # In a post-hoc evaluation: the encoding that the model was trained with, which may be the same one; the training
    # that comes before it; and the corpus that it reads if the model was trained on another one.
    trained: str = ""
    recalibration: Recalibration | None = None
    other_corpus: OtherCorpus | None = None

    def __repr__(self) -> str:
        return f"{self.id}: {self.label}, seed {self.config.seed}, {self._said}, in {self.folder}"

    def _repr_html_(self) -> str:
        config = self.config
        budget = f"{config.corpus} ({config.task}), {config.steps * config.batch * config.length:,} tokens"
        origin = {"trained on": budget} if config.checkpoint is None else {"checkpoint": config.checkpoint.source}
        rows = {
            "encoding": self.label,
            **origin,
            "training length": config.length,
            "seed": config.seed,
            "parameters": f"{self.env.get('parameters', 0):,}",
            "state": self._said,
            "folder": self.folder,
        }
        return html_table(self.id, rows.items())

    @property
    def _said(self) -> str:
        """The state in words, for people; whatever is wrong with the run's files is part of it."""
        try:
            status = self.status()
        except PoscliError as error:
            return f"damaged: {error}"
        done = f"{status['state']} at step {status['step']} of {status['steps']}"
        return f"{done}: {status['message']}" if status["message"] else done

    @property
    def id(self) -> str:
        """The name of the training's folder, followed in a post-hoc evaluation by that of its own folder."""
        return f"{self.home.name}.as.{self.folder.name}" if self.trained else self.folder.name

    @property
    def home(self) -> Path:
        """The folder of the training; a post-hoc evaluation has a folder of its own inside."""
        return self.folder.parent.parent if self.trained else self.folder

    @property
    def label(self) -> str:
        """The run's name in tables: its encoding, memory and recipe, and in a post-hoc evaluation what came before."""
        memory = f" (memory {self.config.model.memory})" if self.config.model.memory else ""
        memory += self.config.recipe_mark
        if (checkpoint := self.config.checkpoint) is not None:
            return f"{checkpoint.name}{AS}{self.config.encoding}" if self.under_another else checkpoint.name
        if not self.under_another:
            return self.config.encoding + memory
        how, longer = self.recalibration, ""
        if how and how.length != self.config.length:
            longer = f" at length {how.length}"
        return f"{self.trained}{AS}{self.config.encoding}{memory}" + (f" ({how}{longer})" if how else "")

    @property
    def under_another(self) -> bool:
        """Whether the model is evaluated under another encoding than it was trained with, or is recalibrated first."""
        return bool(self.trained) and (self.trained != self.config.encoding or self.recalibration is not None)

    @property
    def corpus(self) -> str:
        """The corpus that the run is evaluated on."""
        return self.other_corpus.spec if self.other_corpus else self.config.corpus

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the corpus that the run is evaluated on."""
        return self.other_corpus.fingerprint if self.other_corpus else self.env["corpus"]["fingerprint"]

    @property
    def tokenizer(self) -> str:
        """The spec of its tokenizer with the tokenizer's fingerprint in brackets, which `bytes` does not have."""
        mark = self.env.get("corpus", {}).get("tokenizer_fingerprint", "")
        return f"{self.config.tokenizer} ({mark})" if mark else self.config.tokenizer

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints; those of a recalibration are in the folder of its evaluation."""
        return (self.folder if self.recalibration else self.home) / CHECKPOINTS

    @property
    def progress(self) -> Path:
        """The file in which whoever works on the run shows how far it is."""
        return self.folder / PROGRESS

    @cached_property
    def files(self) -> Sealed:
        """The files of its folder, with their checksums."""
        return Sealed(self.folder, AGAIN)

    @property
    def steps(self) -> int:
        """The steps of its training; in a recalibrated evaluation, those of the recalibration."""
        how = self.recalibration
        return (how.config(self.config, self.config.encoding, seed=0) if how else self.config).steps

    def status(self) -> dict[str, Any]:
        """The last status written: state, step, steps, message, updated. Every command takes the state from here.

        A run that no process works on is not `training` but `interrupted`: its process was killed. If the file is
        damaged, or was deleted, the checkpoints say how far the training is.
        """
        if self.trained:
            training = self.training.status()
            if self.recalibration is None or training["state"] != "complete":
                return training
        if not (self.files.has(STATUS) or self.files.was_written(STATUS)):
            return {"state": "planned", "step": 0, "steps": self.config.steps, "message": ""}
        try:
            status = self._written_status()
        except CorruptError as error:
            status = self._status_of_checkpoints(str(error))
        if status["state"] == "training" and not is_locked(self.folder):
            status["state"] = "interrupted"
        return status

    def _written_status(self) -> dict[str, Any]:
        """What status.json says; CorruptError if it is missing or damaged."""
        status = self.files.read_object(STATUS)
        if status.get("state") not in STATES or not isinstance(status.get("step"), int):
            raise CorruptError(f"{self.folder / STATUS} has no known state; {self.files.cure}")
        return {"steps": self.steps, "message": ""} | status

    def status_fault(self) -> str:
        """What is wrong with status.json, so that `status` has to ask the checkpoints; "" if nothing is."""
        try:
            if self.files.has(STATUS) or self.files.was_written(STATUS):
                self._written_status()
        except CorruptError as error:
            return str(error)
        return ""

    def _status_of_checkpoints(self, fault: str) -> dict[str, Any]:
        """The status that the last checkpoint with a whole model stands for; a note says that the file is damaged."""
        from poscli.runs.checkpoint import last_with_model  # which imports torch

        step = self.steps if self.config.checkpoint is not None else last_with_model(self.checkpoints)
        state = "complete" if step >= self.steps else "interrupted"
        warn_once(f"{fault}; until then its checkpoints say that it is {state}")
        return {"state": state, "step": step, "steps": self.steps, "message": ""}

    @property
    def training(self) -> Run:
        """In a post-hoc evaluation, the trained run that it belongs to."""
        return Run(self.home, self.config.model_copy(update={"encoding": self.trained}), self.env)

    def set_status(self, state: str, step: int, message: str = "") -> None:
        """Write the status."""
        assert state in STATES
        status = {"state": state, "step": step, "steps": self.config.steps, "message": message, "updated": utc_stamp()}
        self.files.write(STATUS, json.dumps(status, indent=2) + "\n")

    def locked(self) -> AbstractContextManager[None]:
        """Lock the run against other processes in a block; LockedError if another one works on it."""
        return locked(self.folder)


def evaluated_as(
    run: Run, encoding: str, recalibration: Recalibration | None = None, other_corpus: OtherCorpus | None = None
) -> Run:
    """The post-hoc evaluation of a trained run under an encoding, recalibrated or with its weights as trained.

    `other_corpus` is the one that it reads if that is not the corpus of the training.
    """
    config = run.config.model_copy(update={"encoding": encoding})
    parts = [encoding, *(each.model_dump_json() for each in (recalibration, other_corpus) if each)]
    mark = hashlib.sha256("".join(parts).encode()).hexdigest()[:6]  # the slugs of start=5 and start=-5 are equal
    name = slug(encoding) + (f"-on-{slug(other_corpus.spec)}" if other_corpus else "")
    folder = run.folder / POSTHOC / f"{name[-LONGEST_SLUG:].lstrip('-.')}-{mark}"
    return Run(
        folder, config, run.env, trained=run.config.encoding, recalibration=recalibration, other_corpus=other_corpus
    )


def create(
    folder: Path, config: RunConfig, env: dict[str, Any], files: Mapping[str, bytes] = MappingProxyType({})
) -> Run:
    """A new run in a folder whose lock this process holds, with further files by name."""
    run = Run(folder, config, env)
    for name, content in files.items():
        run.files.write(name, content)
    run.files.write(ENV, json.dumps(env, indent=2) + "\n")
    run.files.write(CONFIG, write_run_config(config))  # the last one: a folder without it is not a run yet
    return run


def run_exists(folder: Path) -> bool:
    """Whether a folder holds a run. CorruptError if it holds results, but no configuration to which they belong."""
    if os.path.lexists(folder / CONFIG):
        return True
    if left := [name for name in RESULTS if os.path.lexists(folder / name)]:
        raise CorruptError(
            f"{folder / CONFIG} is missing, and the folder holds {left[0]}: what it belongs to is unknown; {AGAIN}"
        )
    return False


def open_run(folder: Path) -> Run:
    """An existing run; CorruptError if its files do not belong to its name."""
    files = Sealed(folder, AGAIN)
    _refuse_other_versions(files)
    env = files.read_object(ENV)
    try:
        config = RunConfig.model_validate(tomllib.loads(files.read(CONFIG).decode()))
        expected = config.run_id(env["corpus"]["fingerprint"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # pydantic's and tomllib's are ValueErrors
        cause = refusal_of(RunConfig, error) if isinstance(error, ValidationError) else str(error).splitlines()[0]
        raise CorruptError(f"{folder} is not what poscli wrote ({cause}); {files.cure}") from error
    if expected != folder.name:
        raise ForeignError(
            f"{folder} was edited or renamed: its configuration belongs to {expected}; give it that name again, or "
            f"restore {CONFIG} and {ENV} from a copy"
        )
    return Run(folder, config, env)


def list_runs(runs: Path) -> list[Run]:
    """Every run in a folder, oldest first. A note names each that is damaged; CorruptError if no other is left."""
    opened, damaged = opened_runs(runs)
    if damaged and not opened:
        raise next(iter(damaged.values()))
    for error in damaged.values():
        note(f"left out: {error}")
    return opened


def opened_runs(runs: Path) -> tuple[list[Run], dict[str, CorruptError]]:
    """Every run in a folder that can be opened, oldest first; and by the names of the other folders, why not."""
    opened: list[tuple[float, Run]] = []
    damaged: dict[str, CorruptError] = {}
    for folder in sorted(path for path in runs.glob("*") if path.is_dir()):
        try:
            if run_exists(folder):
                opened.append(((folder / CONFIG).lstat().st_mtime, open_run(folder)))
        except CorruptError as error:
            damaged[folder.name] = error
    return [run for _, run in sorted(opened, key=lambda pair: pair[0])], damaged


def _refuse_other_versions(files: Sealed) -> None:
    """ForeignError if a folder was written by another version of poscli; versions below 3 had no manifest."""
    folder = files.folder
    try:
        schema = json.loads((folder / ENV).read_bytes()).get("schema", 1)
    except (OSError, ValueError, AttributeError, RecursionError):
        return  # damaged: reading it through the manifest says so
    if not isinstance(schema, int) or schema == SCHEMA:
        return
    if schema < SCHEMA and files.has(MANIFEST):
        files.read(ENV)  # CorruptError if it is this number that is damaged
    raise ForeignError(
        f"{folder} was made by another version of poscli (results of schema {schema}, this one has {SCHEMA}); "
        "move it elsewhere, or train again"
    )


def delete_run(folder: Path) -> None:
    """Delete a run's folder, damaged or not, with its checkpoints and evaluations.

    The folder is first moved away under another name, so that a deletion that is interrupted leaves no half of a run
    behind. Links inside the folder are removed, never followed. UsageError if the folder is itself a link or does not
    exist, LockedError if another process works on the run or evaluates it, PoscliError if the system refuses.
    """
    if folder.is_symlink():
        raise UsageError(f"{folder} is a symbolic link, whose target may be used elsewhere; remove the link by hand")
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; `poscli ls runs` shows the runs there are")
    trash = folder.parent / TRASH
    if trash.is_symlink():
        raise UsageError(f"{trash} is a symbolic link, where poscli moves what it deletes; remove the link by hand")
    aside = None
    try:
        trash.mkdir(exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=trash))
        with ExitStack() as held:
            for lock in (folder / LOCK, *folder.glob(f"{POSTHOC}/*/{LOCK}")):  # of the evaluations, too
                held.enter_context(unused(lock.parent))
            folder.rename(aside / folder.name)
    except FileNotFoundError as error:
        raise PoscliError(f"cannot delete {folder}: another process deletes runs there, too; try again") from error
    except OSError as error:
        raise PoscliError(f"cannot delete {folder}: {error.strerror or error}; change its permissions") from error
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)  # refuses a link
        with suppress(OSError):  # another process may be emptying it as well
            for left in trash.iterdir():  # of earlier deletions, which were interrupted
                if time.time() - left.lstat().st_mtime > INTERRUPTED_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
            trash.rmdir()
