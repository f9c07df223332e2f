"""Where the time of a training step and of an evaluation goes: a breakdown by part, under torch's profiler.

The parts are marked on the model and the trainer themselves: a mark is a scope of the profiler around a method. An
operation of the backward pass belongs to the part of the forward operation that it differentiates, whose sequence
number it carries. Time counts for the innermost mark, and what lies outside of all marks is the rest.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from poscli.bench.cases import (
    BenchCase,
    Refused,
    engine_refusal,
    eval_batch,
    needs_of_model,
    outcome,
    refuse_large_case,
    run_config,
)
from poscli.bench.session import Session, case_values, model_values
from poscli.bench.settings import YARDSTICK, BenchSettings
from poscli.bench.tables import BREAKDOWN_COLUMNS, ResultFile
from poscli.bench.timing import Row, Sizes, TurnPace, time_in_turns
from poscli.bench.workloads import TrainingStep, untrained_model, work_of
from poscli.config.run import RunConfig
from poscli.equation.blanks import FAST
from poscli.model.transformer import Linear, Model, RMSNorm
from poscli.system.errors import UsageError
from poscli.system.progress import Meter

PRODUCTS, NORMS, ENCODING = "projections and MLP", "norms and gates", "encoding"
ATTENTION, BACKWARD = "attention", "attention, backward"
VOCABULARY, MUON, ADAMW, BATCH, REST = "vocabulary", "Muon", "AdamW and clipping", "batch", "the rest"
PARTS = (PRODUCTS, ATTENTION, BACKWARD, ENCODING, NORMS, VOCABULARY, MUON, ADAMW, BATCH, REST)

MARK = "poscli: "  # begins the name of a mark among the events of the profiler
OF_BACKWARD = "autograd::engine::evaluate_function: "


class Breakdown(Session):
    """The breakdown of every encoding asked for, by default of `none`, in the file profile.csv of a folder."""

    def __init__(
        self, settings: BenchSettings, device: torch.device, folder: Path, *, sizes: Sizes | None = None
    ) -> None:
        if device.type != "cpu":
            raise UsageError(f"--profile measures on the CPU, and the device is {device}; give --device cpu")
        super().__init__(settings, device, folder, sizes=sizes)
        names = settings.encodings or (YARDSTICK,)
        self.configs = [run_config(settings, name, device) for name in dict.fromkeys(names)]
        self.files = [ResultFile(folder / "profile.csv", BREAKDOWN_COLUMNS)]

    def run(self) -> None:
        """Measure everything. Raises Interrupted on a signal, with every row so far on disk."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would write lines of its own to stderr
        (file,), engines = self.files, self.settings.engines
        works = [
            (config, engine, case) for config in self.configs for engine in engines for case in self._cases(config)
        ]
        with self.writing(), Meter("profile", len(works)) as progress:
            for config, engine, case in works:
                row = case_values(config, case) | self.conditions.where | {"asked": engine}
                row |= outcome(partial(self._measured, config, engine, case))
                for part in row.pop("parts", [{}]):
                    file.add(file.known_columns(row | part))
                progress.advance(1, f"{config.encoding} {case.what} {case.length}")

    def _cases(self, config: RunConfig) -> list[BenchCase]:
        length = self.settings.profiled_length
        evaluated = BenchCase("eval", length, eval_batch(length, self.conditions.sizes.pass_tokens))
        return [BenchCase("train", config.length, config.batch), evaluated]

    def _measured(self, config: RunConfig, engine: str, case: BenchCase) -> Row:
        """The columns of a case, and the rows of its `parts`, those that take time; they add up to the whole."""
        device, settings = self.conditions.device, self.settings
        if reason := engine_refusal(config, engine, device, case.training):
            raise Refused("unsupported", reason)
        model = untrained_model(config, engine, device)
        values = model_values(model, case)
        refuse_large_case(config, needs_of_model(model, case.training), case, device)
        work = work_of(model, config, case, device)
        (plain,) = time_in_turns([work], TurnPace(settings.repeats, settings.seconds, 0.0), device, self._check)
        with torch.set_grad_enabled(case.training):
            mark_model(model)
        if isinstance(work, TrainingStep):
            mark_step(work)
        turns = []
        for _ in plain.seconds:
            self._check()
            turns.append(seconds_of_parts(work))
        whole = statistics.median(sum(turn.values()) for turn in turns)
        # What slows a whole turn does not change shares. Medians of shares add up to nearly 1, and are made to.
        shares = {name: statistics.median(turn[name] / sum(turn.values()) for turn in turns) for name in PARTS}
        shares = {name: share / sum(shares.values()) for name, share in shares.items() if share > 0}
        return values | {
            "status": "ok",
            "repeats": len(turns),
            "plain_seconds": plain.median,
            "profiled_seconds": whole,
            "parts": [{"part": name, "seconds": share * whole, "share": share} for name, share in shares.items()],
        }


def mark_model(model: Model) -> None:
    """Mark the parts of a model for the profiler; the engine is the one that it uses in the current gradient mode."""
    for owner in ("forward", "loss"):
        _mark(model, owner, VOCABULARY)
    for encoding in {id(encoding): encoding for encoding in model.encodings}.values():
        for name in sorted(encoding.blanks | {f"fast_{blank}" for blank in encoding.blanks & FAST}):
            if callable(getattr(encoding, name)):
                _mark(encoding, name, ENCODING)
    for layer, attention in zip(model.layers, model.attention, strict=True):
        _mark(layer, "forward", NORMS)
        _mark(attention, "forward", ENCODING)
        engine = attention.choice.engine
        attention.wanted = replace(engine, run=_marked(engine.run, ATTENTION))
    for module in model.modules():
        if isinstance(module, Linear) and module is not model.head:
            _mark(module, "forward", PRODUCTS)
        elif isinstance(module, RMSNorm):
            _mark(module, "forward", NORMS)


def mark_step(step: TrainingStep) -> None:
    """Mark what a training step does beside the model's own work."""
    _mark(step.task, "batch", BATCH)
    _mark(step.optimizer, "clip", ADAMW)
    for name, optimizer in step.optimizer.optimizers.items():
        _mark(optimizer, "step", MUON if name == "muon" else ADAMW)


def _mark(owner: Any, name: str, part: str) -> None:
    """Replace a method of one object by itself with a mark."""
    setattr(owner, name, _marked(getattr(owner, name), part))


def _marked(function: Callable[..., Any], part: str) -> Callable[..., Any]:
    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        with record_function(MARK + part):
            return function(*arguments, **named)

    return called


def seconds_of_parts(work: Callable[[], object]) -> dict[str, float]:
    """The seconds that each of the PARTS takes in one call of a function whose objects are marked."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler, record_function(MARK + REST):
        work()
    events = profiler.events() or ()
    derived = _parts_by_sequence(events)
    seconds = dict.fromkeys(PARTS, 0.0)
    for event in events:
        seconds[_part_of(event, derived)] += event.self_cpu_time_total / 1e6
    return seconds


def _parts_by_sequence(events: Iterable[FunctionEvent]) -> dict[int, str]:
    """The part of each operation that has a gradient, by its sequence number.

    The number counts gradients, so that operations without one carry that of the next operation that has one.
    """
    forward = [
        event
        for event in events
        if event.sequence_nr >= 0 and not any(OF_BACKWARD in each.name for each in _and_above(event))
    ]
    return {event.sequence_nr: _part_of(event, {}) for event in sorted(forward, key=lambda each: each.time_range.start)}


def _part_of(event: FunctionEvent, derived: dict[int, str]) -> str:
    """The part that an event belongs to: that of the innermost mark, or of the operation that it differentiates."""
    for each in _and_above(event):
        if each.name.startswith(MARK):
            return each.name.removeprefix(MARK)
        if each.name.startswith(OF_BACKWARD):
            part = derived.get(each.sequence_nr, REST)
            return BACKWARD if part == ATTENTION else part
    return REST


def _and_above(event: FunctionEvent) -> Iterator[FunctionEvent]:
    """An event, and those that it is a part of, from the inside out."""
    each: FunctionEvent | None = event
    while each is not None:
        yield each
        each = each.cpu_parent
