"""A run's folder: its configuration, its environment and its status. Every file is written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from poscli.config.run import SCHEMA, RunConfig, load_run_config, slug, write_run_config
from poscli.system.errors import CorruptError, LockedError, PoscliError
from poscli.system.files import make_folder, write_atomic

STATES = ("planned", "training", "interrupted", "failed", "complete", "diverged")
ENDED = ("complete", "diverged")  # states in which nothing is left to train; from the others training goes on


@dataclass(frozen=True)
class Run:
    """One folder under results/runs."""

    folder: Path
    config: RunConfig
    env: dict[str, Any]
    trained: str = ""  # in a post-hoc evaluation, the encoding that the model was trained with

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
        """The run's name in tables: its encoding, its memory, and the encoding it was trained with if that differs."""
        memory = f" (memory {self.config.model.memory})" if self.config.model.memory else ""
        return f"{self.trained} as {self.config.encoding}{memory}" if self.trained else self.config.encoding + memory

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the text that the run was trained on."""
        return self.env["corpus"]["fingerprint"]

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        return self.home / "checkpoints"

    @property
    def train_csv(self) -> Path:
        """The file of the training log."""
        return self.folder / "train.csv"

    @property
    def eval_csv(self) -> Path:
        """The file of the evaluation's rows."""
        return self.folder / "eval.csv"

    @property
    def position_csv(self) -> Path:
        """The file of losses by position in the window."""
        return self.folder / "position.csv"

    def status(self) -> dict[str, Any]:
        """The last status written: state, step, steps, message, updated. CorruptError if it is unreadable."""
        path = self.home / "status.json"
        try:
            status = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {"state": "planned", "step": 0, "steps": self.config.steps, "message": ""}
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise CorruptError(f"{path} is not JSON ({error}); delete {self.folder} to train again") from error
        if not isinstance(status, dict) or status.get("state") not in STATES:
            raise CorruptError(f"{path} has no known state; delete {self.folder} to train again")
        return status

    def set_status(self, state: str, step: int, message: str = "") -> None:
        """Write the status."""
        assert state in STATES
        updated = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        status = {"state": state, "step": step, "steps": self.config.steps, "message": message, "updated": updated}
        write_atomic(self.folder / "status.json", json.dumps(status, indent=2) + "\n")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run against other processes in the block; LockedError if another one works on it."""
        make_folder(self.folder)
        lock = FileLock(self.folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise LockedError(f"{self.id} is being worked on by another process; wait for it to end") from error
        except OSError as error:
            raise PoscliError(
                f"cannot write {self.folder}: {error.strerror}; choose another folder with --out"
            ) from error
        try:
            yield
        finally:
            lock.release()


def evaluated_as(run: Run, encoding: str) -> Run:
    """The post-hoc evaluation of a trained run under another encoding."""
    config = run.config.model_copy(update={"encoding": encoding})
    mark = hashlib.sha256(encoding.encode()).hexdigest()[:6]  # the slugs of start=5 and start=-5 are equal
    return Run(run.folder / "as" / f"{slug(encoding)}-{mark}", config, run.env, trained=run.config.encoding)


def create(runs: Path, config: RunConfig, env: dict[str, Any]) -> Run:
    """The run of a configuration, opened if its folder exists, else created."""
    folder = runs / config.run_id(env["corpus"]["fingerprint"])
    if (folder / "config.toml").exists():
        return open_run(folder)
    make_folder(folder)
    write_atomic(folder / "env.json", json.dumps(env, indent=2) + "\n")
    write_atomic(folder / "config.toml", write_run_config(config))
    return Run(folder, config, env)


def open_run(folder: Path) -> Run:
    """An existing run; CorruptError if its files do not belong to its name."""
    config = load_run_config(folder / "config.toml")
    path = folder / "env.json"
    try:
        env = json.loads(path.read_text(encoding="utf-8"))
        expected = config.run_id(env["corpus"]["fingerprint"])
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{path} is missing or not what poscli wrote; delete {folder} to train again") from error
    if expected != folder.name and env.get("schema") != SCHEMA:
        raise CorruptError(
            f"{folder} was made by another version of poscli (results of schema {env.get('schema', 1)}, this one has "
            f"{SCHEMA}); move it elsewhere, or train again"
        )
    if expected != folder.name:
        raise CorruptError(
            f"{folder} was edited or renamed: its configuration belongs to {expected}; "
            f"restore it, or delete the folder and train again"
        )
    return Run(folder, config, env)


def list_runs(runs: Path) -> list[Run]:
    """Every run in a folder, oldest first."""
    folders = [path.parent for path in runs.glob("*/config.toml")]
    return [open_run(folder) for folder in sorted(folders, key=lambda folder: (folder / "config.toml").stat().st_mtime)]
