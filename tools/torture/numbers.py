"""Numbers that were not measured must not appear: after a resume, a loss that is not finite, or without memory."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from training_faults import Loss, change_losses

from poscli.encodings import get, missing, names
from poscli.training.trainer import Trainer

from .pipeline import SHAPE, differing, results
from .processes import command

MEASURED = ["nll", "bpb", "ppl", "nll_low", "nll_high", "gain", "gain_low", "gain_high"]
TIERS = ("none", "rope", "alibi", "t5", "shaw", "transformer-xl", "fire", "fox", "cope", "dape", "stick-breaking")


def encodings() -> list[str]:
    """Every encoding that trains alone on this machine."""
    return [name for name in names() if not missing(name) and not get(name).inert_alone]


def resumed(folder: Path, encoding: str, seed: int) -> list[str]:
    """Stop a training at a random step and go on: weights and log must be those of a training that was not stopped."""
    at = random.Random(f"{encoding} {seed}").randrange(1, 12)
    whole, parts = folder / "whole", folder / "parts"
    found = command("train", "--enc", encoding, *SHAPE, "--out", whole).faults(0)
    found += command("train", "--enc", encoding, *SHAPE, "--out", parts, prepare=lambda: _stop(at)).faults(130)
    found += command("train", "--enc", encoding, *SHAPE, "--out", parts).faults(0)
    return found + differing(results(parts), results(whole))


def broken(folder: Path, encoding: str, harm: str) -> list[str]:
    """Train and evaluate with a loss that is not finite, or without memory: the status says so, without a number."""
    stage, status, prepare = HARMS[harm]
    quick = ("--max-len", 32, "--tokens", 64, "--stride", 8)
    found = command(
        "train", "--enc", encoding, *SHAPE, "--out", folder, prepare=prepare if stage == "train" else _nothing
    ).faults(3 if stage == "train" else 0)
    ended = command("extrapolate", *quick, "--out", folder, "--json", prepare=prepare if stage == "eval" else _nothing)
    found += ended.faults(0, 3)
    if found:
        return found
    rows = pd.DataFrame(json.loads(ended.out))
    harmed = rows if stage == "train" else rows[rows["length"] == 32]
    harmed = harmed[harmed["variant"] == "full"]
    if set(harmed["status"]) != {status}:
        found.append(f"status {set(harmed['status'])}, not {status}")
    if harmed[MEASURED].notna().any(axis=None):
        found.append("a number that was not measured")
    if (harmed["reason"] == "").any():
        found.append("no reason")
    return found + command("report", "--out", folder).faults(0)


def _nothing() -> None:
    """Prepare nothing."""


def _stop(at: int) -> None:
    """Let Ctrl-C arrive in the middle of a step."""
    step = Trainer.take_step

    def stopping(self: Trainer) -> bool:
        if self.step == at - 1:
            signal.raise_signal(signal.SIGINT)
        return step(self)

    Trainer.take_step = stopping  # type: ignore[method-assign]


def _loss_is(value: float) -> None:
    """Let the loss be `value` from step 4 on."""
    change_losses(lambda trainer, loss: loss() * (value if trainer.step >= 4 else 1.0))


def _gradient_is_infinite() -> None:
    """Let the gradient overflow at step 4, while the loss is finite."""

    def overflowing(trainer: Trainer, loss: Loss) -> torch.Tensor:
        weight = trainer.model.embedding
        return loss() + ((weight - weight.detach()) * 1e38 * 1e38).sum() * float(trainer.step >= 4)

    change_losses(overflowing)


def _no_memory_in_training() -> None:
    change_losses(lambda trainer, loss: torch.empty(2**60) if trainer.step >= 4 else loss())


def _evaluation(make: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Let the forward pass of windows of 32 tokens fail."""
    from poscli.evaluation import measure

    score = measure.score

    def broken_score(model, task, inputs, targets):  # type: ignore[no-untyped-def]
        measured = score(model, task, inputs, targets)
        if inputs.shape[1] == 32:
            make(measured)
        return measured

    measure.score = broken_score


def _nan(found: dict[str, torch.Tensor]) -> None:
    found["nll"][0, -1] = float("nan")


def _allocate(found: dict[str, torch.Tensor]) -> None:
    torch.empty(2**60)


HARMS = {
    "NaN loss": ("train", "diverged", lambda: _loss_is(float("nan"))),
    "infinite loss": ("train", "diverged", lambda: _loss_is(float("inf"))),
    "infinite gradient": ("train", "diverged", _gradient_is_infinite),
    "no memory in training": ("train", "oom", _no_memory_in_training),
    "NaN in evaluation": ("eval", "nonfinite", lambda: _evaluation(_nan)),
    "no memory in evaluation": ("eval", "oom", lambda: _evaluation(_allocate)),
}
