"""A bench from start to end: every row is on disk as soon as it is measured.

A case that cannot run becomes a row with the reason, and the other cases go on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from poscli.attention import ENGINES
from poscli.bench.cases import (
    BenchCase,
    TimeEstimate,
    cases_of,
    engine_refusal,
    needs_of_model,
    outcome,
    refuse_large_case,
    run_config,
    run_configs,
)
from poscli.bench.limits import MachineLimit, fastest_product, machine_limits
from poscli.bench.settings import AUTO, YARDSTICK, BenchSettings
from poscli.bench.tables import COLUMNS, KEYS, VERSIONS, ResultFile
from poscli.bench.timing import SIZES, Conditions, Row, Sizes, Timing, Work, ratio
from poscli.bench.workloads import TrainingStep, untrained_model, work_of
from poscli.config.run import RunConfig
from poscli.data.tokenizers.bytes import VOCAB
from poscli.equation import TIERS
from poscli.model.flops import evaluation_flops, training_flops
from poscli.model.transformer import Model, precision_of
from poscli.runs.lock import locked
from poscli.system.errors import Interrupted, UsageError, near
from poscli.system.progress import Meter
from poscli.system.signals import Stop, stoppable


def case_values(config: RunConfig, case: BenchCase) -> Row:
    """The columns that identify a case of a model."""
    return {
        "what": case.what,
        "encoding": config.encoding,
        "length": case.length,
        "batch": case.batch,
        "tokens": case.tokens,
        "train_length": config.length,
        "dtype": config.precision,
        **config.model.model_dump(include={"layers", "width", "heads", "mlp"}),
    }


def model_values(model: Model, case: BenchCase) -> Row:
    """The columns that say how the model computes attention in a case."""
    with torch.set_grad_enabled(case.training):
        return {
            "tier": max((encoding.tier for encoding in model.encodings), key=TIERS.index),
            "engine": model.engine,
            "engine_reason": model.engine_reason,
            "parameters": model.size,
        }


def measured_values(case: BenchCase, timing: Timing) -> Row:
    """The columns of a case that follow from its timing alone."""
    memory = {"peak_mb": timing.peak_mb, "memory_of": timing.memory_of}
    return _times(timing) | memory | {"tokens_per_s": case.tokens / timing.median}


def once_message(timings: Sequence[Timing], seconds: float) -> str:
    """The message of a row whose first run took longer than `seconds` and was not repeated; else empty."""
    once = len(timings[0].seconds) == 1 and timings[0].median > seconds
    return f"one run, not repeated: it took longer than --seconds {seconds:g}" if once else ""


def _times(timing: Timing) -> Row:
    return {
        "status": "ok",
        "repeats": len(timing.seconds),
        "seconds": timing.median,
        "seconds_min": min(timing.seconds),
        "seconds_max": max(timing.seconds),
    }


@dataclass(frozen=True)
class Yardstick:
    """What is timed in turns with every case: the model without a position encoding, on its fastest engine.

    Beside a training step the fastest matrix product is timed too. Everything is built at its first use.
    """

    config: RunConfig
    conditions: Conditions

    @cached_property
    def model(self) -> Model:
        return untrained_model(self.config, AUTO, self.conditions.device)

    @cached_property
    def step(self) -> TrainingStep:
        return TrainingStep(self.model, self.config)

    @cached_property
    def product(self) -> MachineLimit:
        device = self.conditions.device
        return fastest_product(precision_of(self.config.precision, device).linear, device, self.conditions.sizes)

    def works(self, case: BenchCase) -> list[Work]:
        """The functions to time in turns with a case."""
        if case.what == "train":
            return [self.step, self.product.work]
        return [work_of(self.model, self.config, case, self.conditions.device)]


class Session:
    """What is measured under which conditions, and the files of the results in a folder."""

    files: list[ResultFile]

    def __init__(
        self,
        settings: BenchSettings,
        device: torch.device,
        folder: Path,
        *,
        resume: bool = False,
        sizes: Sizes | None = None,
    ) -> None:
        for engine in settings.engines:
            if engine not in (AUTO, *ENGINES):
                raise UsageError(f"there is no engine {engine!r}: {near(engine, [AUTO, *ENGINES])}")
        self.settings, self.folder, self.resume = settings, folder, resume
        self.conditions = Conditions(settings, device, sizes or SIZES[device.type], self._check)
        self.stop = Stop()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """In the block, only this session writes its files, which begin with the rows on disk, and signals stop it.

        LockedError if another one works in the folder; UsageError if its files have rows, unless they are resumed.
        """
        with locked(self.folder), stoppable() as self.stop:
            for file in self.files:
                file.open(resume=self.resume)
            yield

    def _check(self) -> None:
        """Raise Interrupted if a signal asked the session to stop."""
        if self.stop:
            file = self.files[0]
            done = f"stopped after {len(file.rows)} rows, all in {file.path}"
            raise Interrupted(done + ("; --resume goes on from there" if file.key else ""), self.stop.signum)


class Bench(Session):
    """A bench in a folder: its settings, its models and its result files."""

    def __init__(
        self,
        settings: BenchSettings,
        device: torch.device,
        folder: Path,
        *,
        resume: bool = False,
        sizes: Sizes | None = None,
    ) -> None:
        super().__init__(settings, device, folder, resume=resume, sizes=sizes)
        self.configs = run_configs(settings, device)
        self.yardstick = Yardstick(run_config(settings, YARDSTICK, device), self.conditions)
        self.cases = cases_of(settings, self.yardstick.config.batch, self.conditions.sizes.pass_tokens)
        self._refuse_useless()
        self.files = [ResultFile(folder / name, columns, KEYS[name]) for name, columns in COLUMNS.items()]

    @property
    def costs(self) -> ResultFile:
        """The file with the rows of encodings, bench.csv."""
        return self.files[0]

    @property
    def limits(self) -> ResultFile:
        """The file with the limits of the machine, machine.csv."""
        return self.files[1]

    def own(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table with this machine, model shape and batch of this bench; --resume may keep others, too."""
        config = self.yardstick.config
        shape = {"dtype": config.precision, "train_length": config.length, **config.model.model_dump()}
        return self.here(_with(table[(table["batch"] == config.batch) | table["what"].isin(("eval", "decode"))], shape))

    def here(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table that this machine measured: times of other machines cannot be compared with them.

        Of a case that was measured by several versions of poscli or torch, the last row.
        """
        case = [name for name in table.columns if name not in VERSIONS and any(name in key for key in KEYS.values())]
        last = table.drop_duplicates(case, keep="last")
        return _with(last, {name: self.conditions.where[name] for name in ("device", "machine", "cores", "threads")})

    def run(self) -> None:
        """Measure everything. Raises Interrupted on a signal, with every row so far on disk.

        LockedError if another bench works in the folder; UsageError if its files have rows, unless they are resumed.
        """
        total = len(self.configs) * len(self.settings.engines) * len(self.cases) + 1
        with self.writing(), Meter("bench", total) as progress:
            if "machine" in self.settings.what:
                self._measure_machine()
            progress.advance(1, "machine")
            for name, config in self.configs.items():
                for engine in self.settings.engines:
                    self._measure_encoding(name, config, engine, progress)

    def _refuse_useless(self) -> None:
        """UsageError for an engine that can run no encoding."""
        kinds, device = {what == "train" for what in self.settings.what}, self.conditions.device
        for engine in self.settings.engines:
            each = ((config, training) for config in self.configs.values() for training in kinds)
            reasons = [engine_refusal(config, engine, device, training) for config, training in each]
            if reasons and all(reasons):
                raise UsageError(f"--engine {engine}: {reasons[0]}")

    def _measure_machine(self) -> None:
        """Add the rows of the machine's limits of which the file has no number yet."""

        def measured(limit: MachineLimit) -> Row:
            limit.refuse_large(self.conditions.device)
            (timing,) = timings = self.conditions.time([limit.work])
            message = once_message(timings, self.settings.seconds)
            return _times(timing) | {"rate": limit.amount / timing.median / 1e9, "message": message}

        for limit in machine_limits(self.yardstick.config, self.conditions):
            row = limit.columns | self.conditions.where
            if not self.limits.find(row):
                self.limits.add(row | outcome(partial(measured, limit)))

    def _measure_encoding(self, name: str, config: RunConfig | str, engine: str, progress: Meter) -> None:
        """Add the rows of one encoding on one engine for the cases of which the file has no number yet."""
        device = self.conditions.device
        reasons = {training: engine_refusal(config, engine, device, training) for training in (True, False)}
        if isinstance(config, str):
            config = self.yardstick.config.model_copy(update={"encoding": name})
        common = self.conditions.where | {"asked": engine}
        known = {case: self.costs.find(case_values(config, case) | common) for case in self.cases}
        model = None if all(reasons.values()) or all(known.values()) else untrained_model(config, engine, device)
        estimate = TimeEstimate(self.settings.limit)
        for case in self.cases:
            row = case_values(config, case) | common
            if before := known[case]:
                estimate.note(case, before.get("seconds", math.nan))
            elif model is None or reasons[case.training]:
                self.costs.add(row | {"status": "unsupported", "message": reasons[case.training]})
            else:
                row |= model_values(model, case)
                self.costs.add(row | outcome(partial(self._measured, model, config, case, estimate)))
            progress.advance(1, f"{name} {case.what} {case.length}")

    def _measured(self, model: Model, config: RunConfig, case: BenchCase, estimate: TimeEstimate) -> Row:
        """The measured columns of a case, which is timed in turns with the same case of the yardstick."""
        estimate.check(case)
        refuse_large_case(config, needs_of_model(model, case.training), case, self.conditions.device)
        works = [work_of(model, config, case, self.conditions.device), *self.yardstick.works(case)]
        timings = self.conditions.time(works)
        timing, none = timings[:2]
        estimate.note(case, timing.median)
        values = measured_values(case, timing) | {
            "none_seconds": none.median,
            **dict(zip(("ratio", "ratio_low", "ratio_high"), ratio(timing, none), strict=True)),
            "none_peak_mb": none.peak_mb,
            "message": once_message(timings, self.settings.seconds),
        }
        if case.what == "decode":
            return values
        flops = training_flops if case.what == "train" else evaluation_flops
        values["flops"] = flops(config.model, VOCAB, case.length)
        if case.what == "train":  # model FLOP/s over those of a matrix product, timed in turns with the step
            rate = self.yardstick.product.amount / timings[2].median
            values |= {"product_gflops": rate / 1e9, "mfu": values["tokens_per_s"] * values["flops"] / rate}
        return values


def _with(table: pd.DataFrame, values: Row) -> pd.DataFrame:
    """The rows of a table that have these values; columns that it lacks are ignored."""
    kept = [table[name] == value for name, value in values.items() if name in table.columns]
    return table[np.logical_and.reduce(kept)] if kept else table
