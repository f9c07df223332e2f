"""The commands that are tortured, on a small run, and what they must have written in the end."""

from __future__ import annotations

import hashlib
import io
import shutil
from pathlib import Path

import pandas as pd

from .processes import Ended, command, steady_clock

STEPS = 12
SHAPE = ("--preset", "nano", "--layers", 1, "--length", 16, "--batch", 2, "--tokens", STEPS * 32)
TIMING = ["seconds", "tokens_per_s", "peak_mb"]  # columns that differ between two equal runs
STAGES = ("train", "extrapolate", "report")


def arguments(stage: str, out: Path, encoding: str = "alibi") -> tuple[object, ...]:
    """The command line of a stage."""
    return {
        "train": ("train", "--enc", encoding, *SHAPE, "--out", out),
        "extrapolate": ("extrapolate", "--max-len", 32, "--tokens", 64, "--stride", 8, "--out", out),
        "report": ("report", "--out", out),
    }[stage]


def run(stage: str, out: Path) -> Ended:
    """Run a stage undisturbed, with checkpoints every few steps."""
    return command(*arguments(stage, out), prepare=steady_clock)


class Undisturbed:
    """The folders before each stage of an undisturbed run, and the results after it."""

    def __init__(self, base: Path) -> None:
        now = base / "now"
        now.mkdir(parents=True)
        self.before: dict[str, Path] = {}
        self.after: dict[str, dict[str, str]] = {}
        for stage in STAGES:
            self.before[stage] = Path(shutil.copytree(now, base / f"before-{stage}"))
            ended = run(stage, now)
            assert ended.code == 0, ended.err
            self.after[stage] = results(now)

    def start(self, stage: str, folder: Path) -> Path:
        """A results folder as it is before a stage."""
        folder.mkdir(parents=True)
        return Path(shutil.copytree(self.before[stage], folder / "results"))

    def finish(self, stage: str, out: Path) -> list[str]:
        """Run a stage undisturbed; the faults found, such as results that differ from those expected."""
        if faults := run(stage, out).faults(0):
            return [f"{stage} afterwards: {fault}" for fault in faults]
        return self.differences(stage, out)

    def differences(self, stage: str, out: Path) -> list[str]:
        """How the results differ from those of the undisturbed stage."""
        return differing(results(out), self.after[stage])


def results(out: Path) -> dict[str, str]:
    """What a results folder holds: weights and reports as they are, tables without the columns of timing."""
    found = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if not path.is_file():
            continue  # a folder, or a symlink that leads nowhere
        if path.name == "model.safetensors" and path.parent.name != f"step-{STEPS}":
            continue  # which checkpoint is the one before depends on when the run was stopped
        if path.name in ("model.safetensors", "config.toml", "report.md"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.suffix == ".csv":
            found[name] = _without_timing(path.read_bytes())
        elif path.name.endswith(".tmp"):
            found[name] = "left over"
    return found


def differing(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    """A line for every name of results that only one side has, or that differ."""
    names = sorted(found.keys() | expected.keys())
    return [f"{name} differs" for name in names if found.get(name) != expected.get(name)]


def _without_timing(content: bytes) -> str:
    """A table as text without the columns that differ between two equal runs; anything else as it is."""
    try:
        table = pd.read_csv(io.BytesIO(content), dtype=str)
    except ValueError:
        return repr(content)
    return table.drop(columns=[name for name in TIMING if name in table]).to_csv()
