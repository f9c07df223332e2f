"""What the folders of runs know that their result tables do not: tokens and seconds of training, and the command.

`reproduce` writes the command that trains and evaluates the runs of one encoding again, over all of its seeds.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from poscli.config.run import PRESETS, ModelConfig, Recalibration, Recipe, RunConfig
from poscli.runs.repair import command_line, evaluation_options
from poscli.runs.results import evaluated_parts, evaluated_under, has_evaluation, training_log
from poscli.runs.run import ENDED, Run, opened_runs
from poscli.system.errors import CorruptError
from poscli.system.text import counted

CLOCK_ROUNDING = 2.0  # seconds; the end of a training is recorded in whole seconds


@dataclass(frozen=True)
class Trained:
    """One evaluated run: its configuration, the settings of its evaluation, and what its training took."""

    config: RunConfig
    settings: Mapping[str, Any]  # of the evaluation, as in eval.json
    trained_as: str = ""  # in a post-hoc evaluation, the encoding that the model was trained with
    recalibration: Recalibration | None = None
    tokens: int = 0  # of training; 0 for a checkpoint
    seconds: float = float("nan")  # of training
    training: str = ""  # the run that was trained: evaluations under other encodings have the same one
    machine: str = ""  # on which it was trained
    span: tuple[float, float] | None = None  # when its training began at the latest, and ended, in seconds
    curve: tuple[tuple[int, float], ...] = ()  # the training log: tokens seen, and nats per token


def trained_runs(runs: Path) -> dict[str, Trained]:
    """Every evaluated run in a folder by its id, post-hoc evaluations included, without those that are damaged."""
    found: dict[str, Trained] = {}
    for home in opened_runs(Path(runs))[0]:
        try:
            log = training_log(home)
        except CorruptError:
            continue
        made: dict[str, Any] = {"training": home.id, "machine": str(home.env.get("machine", ""))}
        if len(log):
            curve = tuple(zip(map(int, log["tokens"]), map(float, log["nll"]), strict=True))
            made |= {"tokens": int(log["tokens"].max()), "seconds": training_seconds(log), "curve": curve}
            made |= {"span": _span(home, float(log["seconds"].iloc[-1]))}
        for run in [*([home] if has_evaluation(home) else []), *evaluated_parts(home)]:
            found[run.id] = Trained(run.config, evaluated_under(run) or {}, run.trained, run.recalibration, **made)
    return found


def _span(run: Run, seconds: float) -> tuple[float, float] | None:
    """When a training of so many seconds began at the latest, and when it ended; None where that is not recorded."""
    status = run.status()
    if status["state"] not in ENDED or "updated" not in status:
        return None
    try:
        end = calendar.timegm(time.strptime(str(status["updated"]), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return None
    return end - seconds, float(end)


def timed_together(runs: Iterable[str], trained: Mapping[str, Trained]) -> tuple[int, int]:
    """How many of these runs were trained at the same time as another run on the same machine, and of how many.

    `trained` is what `trained_runs` found: all runs of the folder, so that those of other sections count. Trainings
    without recorded times are left out.
    """
    every = {each.training: each for each in trained.values() if each.span is not None and each.training}
    own = [every[name] for name in {trained[run].training for run in runs if run in trained} if name in every]
    beside = [each for each in own if any(_overlap(each, other) for other in every.values() if other is not each)]
    return len(beside), len(own)


def _overlap(one: Trained, other: Trained) -> bool:
    """Whether two trainings on one machine went on at the same time for more than the rounding of recorded times."""
    if one.machine != other.machine or one.span is None or other.span is None:
        return False
    return min(one.span[1], other.span[1]) - max(one.span[0], other.span[0]) > CLOCK_ROUNDING


def timing_note(runs: Iterable[str], trained: Mapping[str, Trained]) -> str:
    """Why the training times of these runs do not compare, as a sentence; empty where nothing speaks against it."""
    beside, known = timed_together(runs, trained)
    if not beside:
        return ""
    return (
        f"Training times do not compare: {beside} of {known} runs were trained at the same time as another run on the "
        "same machine, which slows both down."
    )


def training_seconds(log: pd.DataFrame) -> float:
    """The time that training takes after it is warm, of a training log with `step` and `seconds`.

    The first steps also import, allocate and measure engines, most of all in the first run of a process: their time is
    that of as many later ones. A log of one row has only its own.
    """
    first, last = log.iloc[0], log.iloc[-1]
    if last["step"] <= first["step"] or last["seconds"] <= first["seconds"]:
        return float(last["seconds"])
    return float((last["seconds"] - first["seconds"]) * last["step"] / (last["step"] - first["step"]))


def configurations(runs: Sequence[Trained]) -> list[tuple[str, str]]:
    """How models were made, as (fact, value); where runs differ, their values are listed. Checkpoints have no facts."""
    trained = [run.config for run in runs if run.config.checkpoint is None]
    found = {
        "Model": (
            f"{counted(m.layers, 'layer')}, width {m.width}, {counted(m.heads, 'head')}"
            for m in (each.model for each in trained)
        ),
        "Training batch": (f"{counted(each.batch, 'window')} of {each.length} tokens" for each in trained),
        "Optimizer": (
            f"Muon at {r.matrix_lr:g} for matrices, AdamW at {r.embedding_lr:g} for embeddings, {r.head_lr:g} for the "
            f"head and {r.encoding_lr:g} for encodings"
            for r in (each.recipe for each in trained)
        ),
        "Precision": (each.precision for each in trained),
    }
    return [(fact, "; ".join(dict.fromkeys(values))) for fact, values in found.items()] if trained else []


def reproduce(runs: Sequence[Trained]) -> str:
    """The commands that make the results of these runs, which differ in their seeds only; "" without runs."""
    if not runs:
        return ""
    run, seeds = runs[0], sorted({each.config.seed for each in runs})
    if run.config.checkpoint is not None:
        given = ["--corpus", run.config.corpus, "--length", run.config.length, "--precision", run.config.precision]
        return command_line("poscli", "extrapolate", "--model", run.config.checkpoint.source, *given, *_evaluation(run))
    seed = str(seeds[0]) if len(seeds) == 1 else "$seed"
    encoding = run.trained_as or run.config.encoding
    train = f"{command_line('poscli', 'train', '--enc', encoding, *_training(run.config))} --seed {seed}"
    if len(seeds) > 1:
        train = f"for seed in {' '.join(map(str, seeds))}; do {train}; done"
    return f"{train} && {command_line('poscli', 'extrapolate', '--enc', encoding, *_evaluation(run))}"


def _training(config: RunConfig) -> list[object]:
    """The options of `poscli train` but for encoding and seed; those at their default are left out if that is plain."""
    words: list[object] = ["--corpus", config.corpus, "--length", config.length, "--tokens", config.tokens]
    words += ["--batch", config.batch, *_shape(config.model)]
    for name in ("task", "tokenizer", "accumulate"):
        if (value := getattr(config, name)) != RunConfig.model_fields[name].default:
            words += [f"--{name}", value]
    default = Recipe()
    for name in Recipe.model_fields:
        if (value := getattr(config.recipe, name)) != getattr(default, name):
            words += ["--set", f"{name}={value!r}"]
    return [*words, "--precision", config.precision]


def _shape(model: ModelConfig) -> list[object]:
    """The options that give a model this shape: its preset's name, or every field."""
    for name, preset in PRESETS.items():
        if model.model_copy(update={"memory": 0}) == preset:
            return ["--preset", name, *(["--memory", model.memory] if model.memory else [])]
    return [word for name in ModelConfig.model_fields for word in (f"--{name}", getattr(model, name))]


def _evaluation(run: Trained) -> list[object]:
    """The options of `poscli extrapolate` but for the encoding of the training."""
    return evaluation_options(run.settings, run.config.encoding if run.trained_as else "", run.recalibration)
