"""Checkpoints: safetensors and JSON, with a manifest of SHA-256 sums that is checked on every load. No pickle.

A flipped bit in a safetensors file loads silently, and a folder may be copied in part: the manifest reveals both.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from poscli.system.errors import CorruptError
from poscli.system.files import make_folder, sha256, sync_folder, write_atomic

MODEL, OPTIM, STATE, MANIFEST = "model.safetensors", "optim.safetensors", "state.json", "MANIFEST.json"
CURE = "restore it from a copy, or delete the run's folder and train again"  # the end of error messages


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training: named tensors of the model, of the optimizer and the memory, and plain values."""

    model: dict[str, Tensor]
    optim: dict[str, Tensor]
    state: dict[str, Any]


def save(folder: Path, step: int, checkpoint: Checkpoint) -> None:
    """Write `folder/step-N` whole or not at all, then remove older checkpoints."""
    target, temporary = folder / f"step-{step}", folder / f".step-{step}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    make_folder(temporary)
    write_atomic(temporary / MODEL, lambda path: save_file(checkpoint.model, path))
    write_atomic(temporary / OPTIM, lambda path: save_file(checkpoint.optim, path))
    write_atomic(temporary / STATE, json.dumps(checkpoint.state, indent=2))
    sums = {name: sha256(temporary / name) for name in (MODEL, OPTIM, STATE)}
    write_atomic(temporary / MANIFEST, json.dumps(sums, indent=2))
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    sync_folder(folder)
    for old in steps(folder)[:-1]:
        shutil.rmtree(folder / f"step-{old}")


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, in ascending order."""
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*") if path.is_dir())


def load(folder: Path, step: int) -> Checkpoint:
    """Read a checkpoint; CorruptError if a file is missing or differs from what was written."""
    path = folder / f"step-{step}"
    _verify(path)
    try:
        state = json.loads((path / STATE).read_text())
        return Checkpoint(load_file(path / MODEL), load_file(path / OPTIM), state)
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise CorruptError(f"{path} cannot be read ({error}); {CURE}") from error


def _verify(path: Path) -> None:
    try:
        sums = json.loads((path / MANIFEST).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise CorruptError(f"{path / MANIFEST} is missing or unreadable; {CURE}") from error
    for name in (MODEL, OPTIM, STATE):
        file = path / name
        if not file.is_file() or sha256(file) != sums.get(name):
            raise CorruptError(f"{file} is not the file that was saved (its SHA-256 differs); {CURE}")
