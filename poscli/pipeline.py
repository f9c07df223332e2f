"""What the commands and the suites do: turn a request into a run, train it, evaluate it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from poscli import compiled, spec
from poscli.config import RunConfig
from poscli.console import note, warn_once
from poscli.data import Corpus, check_trainable, load_corpus
from poscli.environment import describe
from poscli.errors import CorruptError, DataError, UsageError, near
from poscli.evaluate import Evaluation, Subject
from poscli.files import write_atomic
from poscli.model import Model, model_of
from poscli.protocols import Plan, Settings
from poscli.requests import ExtrapolateRequest
from poscli.results import EVAL_COLUMNS, POSITION_COLUMNS, SCHEMA, TRAIN_COLUMNS, frame, read_table, write_table
from poscli.runs import OVER, Run, create, evaluated_as, list_runs
from poscli.scoring import eval_rows, failed_rows, position_rows
from poscli.search import search
from poscli.train import Trainer, load_trained

SMOKE_SPANS = 4  # scored spans per length in a smoke evaluation


def corpus_of(config: RunConfig) -> Corpus:
    """The corpus of a run, long enough for its windows."""
    corpus = load_corpus(config.corpus)
    check_trainable(corpus, config.length)
    return corpus


def train(config: RunConfig, corpus: Corpus, runs: Path, device: torch.device) -> Run:
    """Train a run, from where it stands; nothing is done if it is over."""
    model = model_of(config, corpus.vocab, device)
    _announce(model)
    made_of = {
        "parameters": model.size,
        "engine": model.engine,
        "engine_reason": model.engine_reason,
        "compiled": compiled.wanted(device),
    }
    env = {"schema": SCHEMA, "corpus": corpus.describe(), **describe(device), **made_of}
    run = create(runs, config, env)
    with run.locked():
        state = run.status()["state"]
        if state in OVER:
            note(f"{run.id} is {state} already: nothing to train")
            return run
        trainer = Trainer(run, model, corpus)
        if trainer.step:
            note(f"{run.id}: going on from step {trainer.step} of {config.steps}")
        if trainer.train() == "diverged":
            note(f"{run.id} diverged: {run.status()['message']}")
    return run


def _announce(model: Model) -> None:
    """Say once per encoding why it does not run on the fastest engine."""
    for encoding, choice in zip(model.encodings, model.choices, strict=True):
        if choice.reason:
            warn_once(f"{encoding.name} runs on the engine {choice.name} ({choice.reason})")


def training_summary(run: Run) -> dict[str, Any]:
    """How a run's training ended."""
    last, status = read_table(run.train_csv, TRAIN_COLUMNS).iloc[-1], run.status()
    return {
        "run_id": run.id,
        "encoding": run.config.encoding,
        "seed": run.config.seed,
        "status": status["state"],
        "message": status["message"],
        "steps": status["step"],
        "tokens": int(last["tokens"]),
        "bpb": _training_bpb(run),
        "seconds": float(last["seconds"]),
        "tokens_per_s": float(last["tokens"] / max(last["seconds"], 1e-9)),
        "parameters": run.env["parameters"],
        "engine": run.env["engine"],
        "folder": str(run.folder),
    }


def _training_bpb(run: Run) -> float | None:
    """Bits per byte at the end of the training log; None if nothing finite is logged, or nothing yet."""
    if not run.train_csv.exists():
        return None
    nll = read_table(run.train_csv, TRAIN_COLUMNS)["nll"]
    mean = nll.tail(max(1, len(nll) // 20)).mean()  # one row is a handful of batches: too noisy
    return float(mean / math.log(2)) if math.isfinite(mean) else None


def run_summary(run: Run) -> dict[str, Any]:
    """One line on a run, for `poscli ls runs`."""
    status, config = run.status(), run.config
    return {
        "run_id": run.id,
        "encoding": config.encoding,
        "seed": config.seed,
        "corpus": config.corpus,
        "fingerprint": run.fingerprint,
        "length": config.length,
        "state": status["state"],
        "step": status["step"],
        "steps": status["steps"],
        "bpb": _training_bpb(run),
        "evaluated": run.eval_csv.exists(),
        "folder": str(run.folder),
    }


def select(runs: Path, names: list[str], specs: list[str]) -> list[Run]:
    """Trained runs by id (or its beginning) and by encoding; all of them if neither is given."""
    known = list_runs(runs)
    if not known:
        raise UsageError(f"there are no runs in {runs}; train one first: poscli train --enc alibi")
    for name in names:
        if not any(run.id.startswith(name) for run in known):
            raise UsageError(f"there is no run {name!r} in {runs}: {near(name, [run.id for run in known])}")
    canonical = [str(spec.parse(text)) for text in specs]
    for wanted in canonical:
        if all(run.config.encoding != wanted for run in known):
            raise UsageError(
                f"no run in {runs} has the encoding {wanted}: {near(wanted, {run.config.encoding for run in known})}"
            )
    return [
        run
        for run in known
        if (not names or any(run.id.startswith(name) for name in names))
        and (not canonical or run.config.encoding in canonical)
    ]


def trained(runs: list[Run]) -> list[Run]:
    """Those whose training is over; the others are named."""
    waiting = [run for run in runs if run.status()["state"] in ("planned", "training", "interrupted")]
    for run in waiting:
        note(f"{run.id} is {run.status()['state']} and left out; repeat the command that began it to finish it")
    if len(waiting) == len(runs):
        raise UsageError("no run is trained to its end; repeat the command that began one to finish it")
    return [run for run in runs if run not in waiting]


def stand_ins(config: RunConfig, targets: list[str], strict: bool) -> list[str]:
    """The specs that a trained model is to be evaluated as; `all` is every one that needs no training.

    What cannot be is a UsageError with the reason if `strict`, else a note.
    """
    shape, memory = config.model.shape(config.length), config.model.memory > 0
    specs: dict[str, None] = {}
    for target in targets:
        try:
            if target == "all":
                specs |= dict.fromkeys(spec.stand_ins(config.encoding, shape, memory))
            else:
                other = spec.stand_in(config.encoding, target, shape)
                specs[str(spec.check(other, shape, memory))] = None
        except UsageError as error:
            if strict:
                raise
            warn_once(str(error))
    return [other for other in specs if other != config.encoding]


def with_stand_ins(runs: list[Run], targets: list[str], strict: bool) -> list[Run]:
    """Trained runs, each followed by its evaluations under other encodings; UsageError if there are none at all."""
    for target in set(targets) - {"all"}:
        spec.parse(target)
    found = [
        each
        for run in runs
        for each in (run, *(evaluated_as(run, other) for other in stand_ins(run.config, targets, strict)))
    ]
    if targets and len(found) == len(runs):
        raise UsageError(f"nothing trained here can be evaluated as {', '.join(targets)}; --as all shows what can")
    return found


def settings_of(config: RunConfig, request: ExtrapolateRequest, smoke: bool = False) -> Settings:
    """Settings for a run; by default 16 times its training length, and a stride of at most half of it."""
    length = config.length
    stride = min(128, length // 2) if request.stride is None else request.stride
    return Settings(
        train_length=length,
        max_len=16 * length if request.max_len is None else request.max_len,
        tokens=SMOKE_SPANS * stride if smoke else request.tokens,
        stride=stride,
    )


def check_evaluable(corpus: Corpus, settings: Settings) -> None:
    """Refuse settings for which the corpus holds out no document that is long enough."""
    Plan(np.diff(corpus.valid.starts) - 1, settings)


def extrapolate(run: Run, corpus: Corpus, settings: Settings, device: torch.device) -> pd.DataFrame:
    """Evaluate a run at every length; nothing is done if it was, under the same settings."""
    if corpus.fingerprint != run.fingerprint:
        raise DataError(
            f"{run.id} was trained on {run.config.corpus} with fingerprint {run.fingerprint}, which now has "
            f"{corpus.fingerprint}: its files or the Python version changed; restore them, or train again"
        )
    with run.locked():
        if (known := _evaluated(run, settings)) is not None:
            note(f"{run.id} is evaluated already: nothing to do")
            return known
        rows, positions = _evaluate(Subject(run, corpus, settings, device))
        write_table(run.position_csv, frame(positions, POSITION_COLUMNS))
        table = frame(rows, EVAL_COLUMNS)
        write_table(run.eval_csv, table)
        write_atomic(run.folder / "eval.json", json.dumps(asdict(settings), indent=2) + "\n")
        return table


def _evaluate(subject: Subject) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of eval.csv and position.csv; a run without a model has rows that say why."""
    run, status = subject.run, subject.run.status()
    if status["state"] in ("diverged", "failed"):
        return list(failed_rows(subject, status["state"], status["message"])), []
    if status["state"] != "complete":
        raise UsageError(f"{run.id} is {status['state']}, not complete; repeat the command that began it to finish it")
    model = load_trained(run, subject.corpus.vocab, subject.device)
    _foretell(model, subject.settings.max_len)
    search(model, subject.corpus, subject.settings.lengths[-1])
    measured = Evaluation(subject, model).measure()
    return list(eval_rows(subject, measured)), list(position_rows(subject, measured))


def _foretell(model: Model, length: int) -> None:
    """Say before the work which lengths a dtype cannot hold."""
    for encoding in dict.fromkeys(model.encodings):
        dtype = model.precision.attention
        if (longest := encoding.longest(dtype)) is not None and longest < length:
            kind = str(dtype).removeprefix("torch.")
            warn_once(
                f"{encoding.name} overflows {kind} beyond {longest:,} tokens: longer inputs will be `unsupported`"
            )


def eval_records(tables: list[pd.DataFrame]) -> list[dict[str, Any]]:
    """Rows of several eval tables for JSON: what is not a number is null."""
    rows = pd.concat(tables, ignore_index=True).astype(object)
    return [{str(k): v for k, v in row.items()} for row in rows.where(rows.notna(), None).to_dict("records")]


def _evaluated(run: Run, settings: Settings) -> pd.DataFrame | None:
    try:
        known = json.loads((run.folder / "eval.json").read_text())
    except FileNotFoundError:
        return None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CorruptError(f"{run.folder / 'eval.json'} is not JSON ({error}); delete it to evaluate again") from error
    if known != asdict(settings) or not run.eval_csv.exists():
        return None
    return read_table(run.eval_csv, EVAL_COLUMNS)


def corpora() -> Callable[[str], Corpus]:
    """Corpora by name, each loaded once."""
    return cache(load_corpus)
