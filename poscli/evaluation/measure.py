"""Measuring one trained model: the loss of every token of every window that the plan asks for.

Losses are written to the folder `nll/` of the run as each measurement ends, with the settings they were made under: an
interrupted evaluation goes on where it stopped.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poscli.config.run import SCHEMA
from poscli.equation import Unsupported
from poscli.evaluation.losses import NLL, Losses, Measured
from poscli.evaluation.plan import Measurement, Plan
from poscli.evaluation.protocol import EvaluationSettings
from poscli.evaluation.scores import Scores
from poscli.evaluation.sources import record_of
from poscli.model.language_model import LanguageModel
from poscli.runs.run import Run
from poscli.runs.schema import FULL
from poscli.system.console import note
from poscli.system.device import device_name
from poscli.system.errors import CorruptError
from poscli.system.memory import is_out_of_memory, peak_memory_mb
from poscli.system.progress import Meter
from poscli.system.provenance import measured_on
from poscli.system.signals import Abandoned, Interrupted, Stop, stoppable
from poscli.tasks import Spans, Task

FOLDER = "nll"  # of the losses, inside the run's folder
PASS_TOKENS = 8192  # tokens in one forward pass; more are no faster on CPU and take more memory

Measurements = dict[Measurement, Measured]


@dataclass(frozen=True, eq=False)
class EvaluationSetup:
    """The run to evaluate, the task, the settings and the device."""

    run: Run
    task: Task
    settings: EvaluationSettings
    device: torch.device
    _scores: dict[tuple[str, int], Scores] = field(default_factory=dict)

    @cached_property
    def plan(self) -> Plan:
        """The windows of every protocol, baseline and length."""
        return Plan(self.task, self.settings)

    def scores(self, protocol: str, length: int) -> Scores:
        """The tokens that a protocol scores at a length."""
        if (protocol, length) not in self._scores:
            plan = self.plan
            piece = partial(plan.protocols[protocol].piece, self.settings)
            spans, scored = plan.spans(protocol, length), plan.scored(protocol, length)
            self._scores[protocol, length] = Scores(self.task, length, spans, scored, piece)
        return self._scores[protocol, length]


class Evaluation:
    """Measures one trained model and the baselines made from it."""

    def __init__(self, setup: EvaluationSetup, model: LanguageModel) -> None:
        self.setup = setup
        self.models = {FULL: model}
        for name, baseline in setup.plan.baselines.items():
            self.models[name] = baseline.model(model)

    def measure(self) -> Measurements:
        """Make every measurement of the plan. A signal raises Interrupted, with the finished measurements saved."""
        planned = self.setup.plan.measurements()
        work = sum(cost(each, spans) for each, spans in planned.items())
        run = self.setup.run
        with stoppable() as stop, Meter(f"extrapolate {run.label}", work, file=run.progress) as progress:
            return {each: self._measure(each, spans, progress, stop) for each, spans in planned.items()}

    def _measure(self, measurement: Measurement, spans: Spans, progress: Meter, stop: Stop) -> Measured:
        """Make one measurement, or read it from its file if it was made before."""
        if (known := self._known(measurement, spans)) is not None:
            progress.advance(cost(measurement, spans))
            return known
        measured = self._run(measurement, spans, progress, stop)
        if measured.losses is not None:
            self.setup.run.files.write(f"{FOLDER}/{measurement.file}", measured.content(self._key))
        return measured

    @cached_property
    def _key(self) -> str:
        """What decides the losses of this evaluation, beside the windows."""
        setup = self.setup
        return json.dumps([SCHEMA, setup.run.id, record_of(setup.run, setup.settings), device_name(setup.device)])

    def _known(self, measurement: Measurement, spans: Spans) -> Measured | None:
        """A measurement that was made before; None if there is none, or its file is damaged."""
        files, name = self.setup.run.files, f"{FOLDER}/{measurement.file}"
        if not files.has(name):
            return None
        try:
            content = files.read(name)
        except CorruptError as error:
            note(f"{str(error).partition(';')[0]}: measuring it again")
            return None
        return Measured.of_content(content, self._key, spans, measurement.window)

    def _run(self, measurement: Measurement, spans: Spans, progress: Meter, stop: Stop) -> Measured:
        model, length = self.models[measurement.model], measurement.window
        values: dict[str, NDArray[np.float32]] = {}
        seconds, step = 0.0, max(1, PASS_TOKENS // length)
        for first in range(0, len(spans), step):
            some, start = spans[first : first + step], time.perf_counter()
            try:
                with stop.abandonable():
                    found = self._forward(model, measurement, some)
            except Abandoned:
                raise Interrupted(_stopped_at(length), stop.signum) from None
            except Unsupported as error:
                return Measured(None, "unsupported", str(error), engine=model.engine)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = f"{length} tokens do not fit the memory of {device_name(self.setup.device)}"
                return Measured(None, "oom", reason, engine=model.engine)
            for name, value in found.items():
                values.setdefault(name, np.empty((len(spans), length), np.float32))[first : first + step] = value
            seconds += time.perf_counter() - start
            progress.advance(cost(measurement, some), f"{length} tokens")
            if stop:
                raise Interrupted(_stopped_at(length), stop.signum)
        peak = peak_memory_mb(self.setup.device)
        measured = Measured(
            Losses(spans, values), "ok", "", seconds, peak, model.engine, measured_on(self.setup.device)
        )
        if not np.isfinite(values[NLL]).all():
            return replace(measured, losses=None, status="nonfinite", reason=f"a loss at {length} is not finite")
        return measured

    @torch.inference_mode()
    def _forward(self, model: LanguageModel, measurement: Measurement, spans: Spans) -> dict[str, NDArray[np.float32]]:
        """The task's measurements of each token, `[spans, window]` by name."""
        task, plan = self.setup.task, self.setup.plan
        windows = plan.text(measurement).windows(spans, measurement.window)
        tokens = torch.from_numpy(windows).to(self.setup.device)
        found = score(model, task, tokens[:, :-1], tokens[:, 1:])
        return {name: value.cpu().numpy() for name, value in found.items()}


def score(model: LanguageModel, task: Task, inputs_BT: Tensor, targets_BT: Tensor) -> dict[str, Tensor]:
    """The task's measurements of every target, `[B, T]` by name; logits are held for one slice of tokens at a time."""
    parts: dict[str, list[Tensor]] = {}
    for part, logits_BTV in model.logits_in_slices(inputs_BT):
        for name, value in task.score(logits_BTV.float(), targets_BT[:, part]).items():
            parts.setdefault(name, []).append(value)
    return {name: torch.cat(values, dim=1) for name, values in parts.items()}


def _stopped_at(length: int) -> str:
    return f"stopped at {length} tokens; the same command goes on from there"


def cost(measurement: Measurement, spans: Spans) -> float:
    """The work of a measurement, in tokens; full attention to 2048 tokens counts as much as the rest of the model."""
    reach = measurement.window if measurement.model == FULL else 0
    return len(spans) * measurement.window * (1 + reach / 2048)
