"""A run's folder: what was asked for, on what it ran, how far it got. Every file is written whole or not at all."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from poscli.config import RunConfig, dump_toml, load_run_config
from poscli.errors import CorruptError, LockedError, PoscliError
from poscli.files import make_folder, write_atomic

STATES = ("planned", "training", "interrupted", "failed", "complete", "diverged")
OVER = ("complete", "diverged")  # nothing is left to train; the others go on when asked again


@dataclass(frozen=True)
class Run:
    """One folder under results/runs."""

    folder: Path
    config: RunConfig
    env: dict[str, Any]

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def fingerprint(self) -> str:
        """Of the corpus that the run was trained on."""
        return self.env["corpus"]["fingerprint"]

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.folder / "checkpoints"

    @property
    def train_csv(self) -> Path:
        """The training log."""
        return self.folder / "train.csv"

    @property
    def eval_csv(self) -> Path:
        """The evaluation's rows."""
        return self.folder / "eval.csv"

    @property
    def position_csv(self) -> Path:
        """Loss by position in the window."""
        return self.folder / "position.csv"

    def status(self) -> dict[str, Any]:
        """The last status written: state, step, steps, message, updated."""
        path = self.folder / "status.json"
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
        """Keep other processes off this run; LockedError if one is on it."""
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


def create(runs: Path, config: RunConfig, env: dict[str, Any]) -> Run:
    """The folder of a run, new or as it is; what makes up its name is written once and checked ever after."""
    folder = runs / config.run_id(env["corpus"]["fingerprint"])
    if (folder / "config.toml").exists():
        return open_run(folder)
    make_folder(folder)
    write_atomic(folder / "env.json", json.dumps(env, indent=2) + "\n")
    write_atomic(folder / "config.toml", dump_toml(config.model_dump()))
    return Run(folder, config, env)


def open_run(folder: Path) -> Run:
    """A run that exists; CorruptError if its files do not belong to its name."""
    config = load_run_config(folder / "config.toml")
    path = folder / "env.json"
    try:
        env = json.loads(path.read_text(encoding="utf-8"))
        expected = config.run_id(env["corpus"]["fingerprint"])
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{path} is missing or not what poscli wrote; delete {folder} to train again") from error
    if expected != folder.name:
        raise CorruptError(
            f"{folder} was edited or renamed: its configuration belongs to {expected}; "
            f"restore it, or delete the folder and train again"
        )
    return Run(folder, config, env)


def list_runs(runs: Path) -> list[Run]:
    """Every run under a folder, oldest first."""
    folders = [path.parent for path in runs.glob("*/config.toml")]
    return [open_run(folder) for folder in sorted(folders, key=lambda folder: (folder / "config.toml").stat().st_mtime)]
