"""Checkpoints: safetensors and JSON, sealed by a manifest that is checked on every load. No pickle.

A flipped bit in a safetensors file loads silently, and a folder may be copied in part: the manifest reveals both. The
last two checkpoints are kept, so that training can go on from the one before if the last is damaged.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of
from torch import Tensor

from poscli.runs.sealed import Sealed, write_sealed
from poscli.system.console import note
from poscli.system.errors import CorruptError
from poscli.system.files import storing, sync_folder

MODEL, OPTIM, STATE = "model.safetensors", "optim.safetensors", "state.json"
KEPT = 2  # checkpoints
CURE = "repeat the command that trained it, which goes on from before the damage, or restore it from a copy"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training: named tensors of the model, of the optimizer and the memory, and plain values."""

    model: dict[str, Tensor]
    optim: dict[str, Tensor]
    state: dict[str, Any]


def save(folder: Path, step: int, checkpoint: Checkpoint) -> None:
    """Write `folder/step-N` whole or not at all, and keep it and the one before; StorageError if that fails.

    Checkpoints of later steps are damaged, as training has gone on from one before them: they are removed, too.
    """
    target, temporary = folder / f"step-{step}", folder / f".step-{step}.tmp"
    with storing(folder):
        for left in folder.glob(".step-*"):  # by a process that was killed here
            shutil.rmtree(left, ignore_errors=left.suffix == ".old")  # as in _put_aside
    state = json.dumps(checkpoint.state, indent=2).encode()
    write_sealed(temporary, {MODEL: bytes_of(checkpoint.model), OPTIM: bytes_of(checkpoint.optim), STATE: state})
    with storing(target):
        _put_aside(target)  # a damaged checkpoint of this step: training has gone on from the one before
        temporary.rename(target)
        sync_folder(folder)
        known = steps(folder)
        for other in set(known) - set([each for each in known if each <= step][-KEPT:]):
            _put_aside(folder / f"step-{other}")


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, damaged or not, in ascending order."""
    names = [path.name.removeprefix("step-") for path in folder.glob("step-*") if path.is_dir()]
    return sorted(int(name) for name in names if name.isdecimal())


def read_checkpoint(folder: Path, step: int) -> Checkpoint:
    """Read a checkpoint; CorruptError if a file is missing or differs from what was written."""
    state = Sealed(folder / f"step-{step}", CURE).read_object(STATE)
    return Checkpoint(load_model_tensors(folder, step), _tensors(folder, step, OPTIM), state)


def load_model_tensors(folder: Path, step: int) -> dict[str, Tensor]:
    """Read the model of a checkpoint alone, for whatever does not train; CorruptError if its file is damaged."""
    return _tensors(folder, step, MODEL)


def load_last(folder: Path) -> Checkpoint | None:
    """Read the last checkpoint that is not damaged; a note names each damaged one. None if there is none."""
    for step in reversed(steps(folder)):
        try:
            return read_checkpoint(folder, step)
        except CorruptError as error:
            note(f"{folder / f'step-{step}'} is damaged ({str(error).partition(';')[0]}): going back to the one before")
    return None


def is_whole(folder: Path, step: int) -> bool:
    """Whether there is a checkpoint of a step, and it is not damaged."""
    try:
        read_checkpoint(folder, step)
    except CorruptError:
        return False
    return True


def last_with_model(folder: Path) -> int:
    """The step of the last checkpoint whose model is whole; 0 if there is none."""
    for step in reversed(steps(folder)):
        try:
            load_model_tensors(folder, step)
        except CorruptError:
            continue
        return step
    return 0


def _tensors(folder: Path, step: int, name: str) -> dict[str, Tensor]:
    """The tensors in a file of a checkpoint. What is checked is what is used: the file is read once."""
    path = folder / f"step-{step}"
    try:
        return tensors_from(Sealed(path, CURE).read(name))
    except SafetensorError as error:
        raise CorruptError(f"{path / name} cannot be read ({error}); {CURE}") from error


def _put_aside(path: Path) -> None:
    """Remove a checkpoint, if there is one. It loses its name first, so that half of it is never taken for a whole."""
    if path.exists():
        aside = path.with_name(f".{path.name}.old")
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)  # on NFS a file that is still open elsewhere stays for a while
