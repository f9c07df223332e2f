"""A bench from start to end. Every row is on disk as soon as it is measured.

A case that cannot run becomes a row with the reason, and the other cases go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from poscli.bench.cases import BenchCase, cases_of, check_engines, run_config, run_configs
from poscli.bench.columns import COLUMNS
from poscli.bench.comparison import Comparison
from poscli.bench.conditions import SIZES, Conditions, Row, Sizes
from poscli.bench.limits import MachineLimit, fastest_product, machine_limits
from poscli.bench.needs import needs_of_model
from poscli.bench.peers import Peer, find_peer
from poscli.bench.refusals import TimeEstimate, engine_refusal, outcome, refuse_unaffordable
from poscli.bench.result_file import ResultFile
from poscli.bench.rows import bench_values, case_values, limit_values, model_values, once_message, utilisation
from poscli.bench.settings import AUTO, YARDSTICK, BenchSettings
from poscli.bench.timing import Work
from poscli.bench.workloads import TrainingStep, untrained_model, work_of
from poscli.config.run import RunConfig
from poscli.model.transformer import Model, precision_of
from poscli.system.console import note
from poscli.system.errors import UsageError
from poscli.system.progress import Meter
from poscli.system.signals import Interrupted, Stop, stoppable


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


class Bench:
    """A bench in a folder: its settings, its models and its three result files."""

    def __init__(
        self,
        settings: BenchSettings,
        device: torch.device,
        folder: Path,
        *,
        against: str = "",
        resume: bool = False,
        sizes: Sizes | None = None,
    ) -> None:
        check_engines(settings)
        self.peer: Peer | None = find_peer(against) if against else None
        self.settings, self.configs = settings, run_configs(settings, device)
        self.conditions = Conditions(settings, device, sizes or SIZES[device.type], self._check)
        self.yardstick = Yardstick(run_config(settings, YARDSTICK, device), self.conditions)
        self.cases = cases_of(settings, self.yardstick.config.batch, self.conditions.sizes.pass_tokens)
        self._refuse_useless()
        self.files = [ResultFile(folder / name, resume=resume) for name in COLUMNS]
        self.costs, self.limits, self.comparisons = self.files
        self.stop = Stop()

    def own(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table with this machine and the model shape of this bench; --resume may keep others, too."""
        config = self.yardstick.config
        shape = {"dtype": config.precision, "train_length": config.length, **config.model.model_dump()}
        return self.here(_with(table, shape))

    def here(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table that this machine measured: times of other machines cannot be compared with them."""
        return _with(table, {name: self.conditions.where[name] for name in ("device", "machine", "cores", "threads")})

    def run(self) -> None:
        """Measure everything. Raises Interrupted on a signal, with every row so far on disk."""
        self._note_left_out()
        total = len(self.configs) * len(self.settings.engines) * len(self.cases) + len(self._compared) + 1
        with stoppable() as self.stop, Meter("bench", total) as progress:
            if "machine" in self.settings.what:
                self._measure_machine()
            progress.advance(1, "machine")
            for name, config in self.configs.items():
                for engine in self.settings.engines:
                    self._measure_encoding(name, config, engine, progress)
                if self.peer and name in self._compared:
                    model = self.peer.build(self._compared[name], self.conditions.device)
                    Comparison(self.conditions, self._compared[name], model).run(self.cases, self.comparisons)
                    progress.advance(1, f"{name} against {self.peer.title}")

    def _check(self) -> None:
        """Raise Interrupted if a signal asked the bench to stop."""
        if self.stop:
            done = f"stopped after {len(self.costs.rows)} rows, all in {self.costs.path}"
            raise Interrupted(f"{done}; --resume goes on from there", self.stop.signum)

    @cached_property
    def _compared(self) -> dict[str, RunConfig]:
        """The encodings that the peer has too."""
        known = {name: config for name, config in self.configs.items() if isinstance(config, RunConfig)}
        return {name: config for name, config in known.items() if self.peer and name in self.peer.encodings()}

    def _note_left_out(self) -> None:
        """Say which encodings the peer does not have."""
        if self.peer and (left_out := [name for name in self.configs if name not in self.peer.encodings()]):
            note(f"{self.peer.title} has no version of {', '.join(left_out)}: left out of the comparison")

    def _refuse_useless(self) -> None:
        """UsageError for an engine that can run no encoding, and for a peer that has none of the encodings."""
        configs = [config for config in self.configs.values() if isinstance(config, RunConfig)]
        kinds, device = {what == "train" for what in self.settings.what}, self.conditions.device
        for engine in self.settings.engines:
            reasons = [engine_refusal(config, engine, device, training) for config in configs for training in kinds]
            if reasons and all(reasons):
                raise UsageError(f"--engine {engine}: {reasons[0]}")
        if self.peer and not self._compared:
            has = ", ".join(self.peer.encodings())
            raise UsageError(f"{self.peer.title} has none of {', '.join(self.configs)}; it has {has}")

    def _measure_machine(self) -> None:
        for limit in machine_limits(self.yardstick.config, self.conditions):
            row = limit.columns | self.conditions.where
            if not self.limits.has(row):
                self.limits.add(row | outcome(lambda: self._measure_limit(limit)))  # noqa: B023 - called at once

    def _measure_limit(self, limit: MachineLimit) -> Row:
        timings = self.conditions.time([limit.work])
        return limit_values(limit, timings[0]) | {"message": once_message(timings, self.settings.seconds)}

    def _measure_encoding(self, name: str, config: RunConfig | str, engine: str, progress: Meter) -> None:
        """Add the rows of one encoding on one engine that are not in the file yet."""
        device = self.conditions.device
        reasons = {training: engine_refusal(config, engine, device, training) for training in (True, False)}
        if isinstance(config, str):
            config = self.yardstick.config.model_copy(update={"encoding": name})
        common = self.conditions.where | {"asked": engine}
        wanted = [case for case in self.cases if not self.costs.has(case_values(config, case) | common)]
        progress.advance(len(self.cases) - len(wanted))
        model = None if all(reasons.values()) or not wanted else untrained_model(config, engine, device)
        estimate = TimeEstimate(self.settings.limit)
        for case in wanted:
            row = case_values(config, case) | common
            if model is None or reasons[case.training]:
                self.costs.add(row | {"status": "unsupported", "message": reasons[case.training]})
            else:
                row |= model_values(model, case)
                self.costs.add(row | outcome(lambda: self._measure(model, config, case, estimate)))  # noqa: B023
            progress.advance(1, f"{name} {case.what} {case.length}")

    def _measure(self, model: Model, config: RunConfig, case: BenchCase, estimate: TimeEstimate) -> Row:
        estimate.check(case)
        refuse_unaffordable(config, needs_of_model(model, case.training), case, self.conditions.device)
        works = [work_of(model, config, case, self.conditions.device), *self.yardstick.works(case)]
        timings = self.conditions.time(works)
        estimate.note(case, timings[0].median)
        values = bench_values(config, case, *timings[:2])
        if case.what == "train":
            values |= utilisation(values, timings[2], self.yardstick.product)
        return values | {"message": once_message(timings, self.settings.seconds)}


def _with(table: pd.DataFrame, values: Row) -> pd.DataFrame:
    """The rows of a table that have these values; columns that it lacks are ignored."""
    kept = [table[name] == value for name, value in values.items() if name in table.columns]
    return table[np.logical_and.reduce(kept)] if kept else table
