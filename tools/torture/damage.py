"""Files changed behind poscli's back, and files that would run code if they were unpickled."""

from __future__ import annotations

import pickle
import random
import shutil
from pathlib import Path

from .harms import HARMS, digit, flip
from .pipeline import Undisturbed, arguments, results
from .processes import Ended, command

LONGEST_SECONDS = 10.0


def mutation(whole: Undisturbed, folder: Path, seed: int) -> list[str]:
    """Damage one file of a finished run in one way, then run a command on it.

    It must refuse the file or give the undisturbed results: no traceback, no changed number, no changed weight.
    """
    draw = random.Random(seed)
    out = whole.start("report", folder)
    path = draw.choice([path for path in sorted(out.rglob("*")) if path.is_file() and not path.name.endswith(".lock")])
    harm = draw.choice(OF_A_RUN)
    harm(draw, path)
    stage = draw.choice(("train", "extrapolate", "report", "ls", "generate"))
    return [f"{path.relative_to(out)} ({harm.__name__}), {stage}: {fault}" for fault in _use(whole, out, stage, path)]


def _use(whole: Undisturbed, out: Path, stage: str, damaged: Path) -> list[str]:
    before = {path: path.read_bytes() for path in out.rglob("model.safetensors") if path.is_file()}
    ended = command(*_arguments(stage, out))
    found = ended.faults(0, 1, 2, 3, 5)
    if ended.code == 0:
        found += _changed(whole, out, stage, damaged, ended)
    if stage in ("ls", "report", "generate") and any(p.read_bytes() != content for p, content in before.items()):
        found.append("a reading command changed weights")
    return found


def _changed(whole: Undisturbed, out: Path, stage: str, damaged: Path, ended: Ended) -> list[str]:
    """Results that a command accepted or made although they differ from the undisturbed ones."""
    if stage == "generate":
        return [] if ended.out == _text_of(whole) else ["another text is generated"]
    if stage == "ls":
        return []
    expected = whole.after["extrapolate"] | (whole.after["report"] if stage == "report" else {})
    found = results(out)
    return [
        f"{name} differs and was accepted"
        for name in sorted(found.keys() & expected.keys())
        if found[name] != expected[name] and (stage == "report" or str(damaged.relative_to(out)) != name)
        and not (stage == "report" and name.startswith("runs/"))
    ]  # fmt: skip


def _arguments(stage: str, out: Path) -> tuple[object, ...]:
    if stage == "ls":
        return ("ls", "runs", "--out", out)
    if stage == "generate":
        return ("generate", "--tokens", 20, "--temperature", 0, "--out", out)
    return arguments(stage, out)


_texts: dict[int, str] = {}


def _text_of(whole: Undisturbed) -> str:
    """What the undisturbed model generates."""
    if id(whole) not in _texts:
        _texts[id(whole)] = command(*_arguments("generate", whole.before["report"])).out
    return _texts[id(whole)]


def swap(draw: random.Random, path: Path) -> None:
    """Replace the file by another one of the run."""
    others = [other for other in sorted(path.parents[2].rglob("*")) if other.is_file() and other != path]
    path.write_bytes(draw.choice(others).read_bytes())


OF_A_RUN = (*HARMS, flip, digit, swap)


class Payload:
    """An object that creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.marker), "w")


def pickled(whole: Undisturbed, folder: Path, seed: int) -> list[str]:
    """Put a pickle that would create a file in place of a file of a run, and use the run with every command."""
    out, marker = whole.start("report", folder), folder / "executed"
    files = [path for path in sorted(out.rglob("*")) if path.is_file() and not path.name.endswith(".lock")]
    target = files[seed % len(files)]
    target.write_bytes(pickle.dumps(Payload(marker), protocol=seed % 5))
    found = []
    for stage in ("ls", "generate", "extrapolate", "report", "train"):
        found += command(*_arguments(stage, out)).faults(0, 1, 2, 3, 5)
    shutil.copy(target, target.with_name("pytorch_model.bin"))
    return found + ([f"{target.relative_to(out)} was unpickled"] if marker.exists() else [])
