"""A bench from start to end: every encoding beside `none`, every row on disk as soon as it is known.

What cannot run becomes a row that says why, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from poscli.attention import Place, choose
from poscli.bench import machine, peers, rows
from poscli.bench.measure import Work, in_turns
from poscli.bench.memory import Needs, estimate, unaffordable
from poscli.bench.settings import YARDSTICK, Case, Settings
from poscli.bench.table import Row, Table, where
from poscli.bench.work import AUTO, Decode, Step, forward, memory_of, subject, tier
from poscli.config import RunConfig
from poscli.console import note
from poscli.data import VOCAB
from poscli.encodings import Unsupported
from poscli.environment import is_out_of_memory
from poscli.errors import PoscliError, UsageError
from poscli.model import Model, precision_of
from poscli.progress import Meter, meter
from poscli.signals import Interrupted, Stop, stoppable
from poscli.spec import build, parse


class Refused(Exception):
    """A case that is not tried: its status and why."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class Foretold:
    """How long a case will take at most, from the one before: attention grows with the square of the length."""

    def __init__(self, limit: float) -> None:
        self.limit, self.known = limit, (0.0, Case("", 1, 1))

    def note(self, case: Case, seconds: float) -> None:
        """Remember an evaluation."""
        if case.what == "eval":
            self.known = seconds, case

    def check(self, case: Case) -> None:
        """Refuse what will take too long."""
        seconds, before = self.known
        expected = seconds * case.scores / before.scores
        if case.what != "train" and expected > self.limit:
            said = f"a run may take {expected:.0f} s ({seconds:.1f} s at {before.length}): longer than --limit"
            raise Refused("skipped", f"{said} {self.limit:g}")


@dataclass(frozen=True)
class Yardstick:
    """The model that all others are compared with, on its fastest engine, and the fastest matrix product."""

    config: RunConfig
    device: torch.device

    @cached_property
    def model(self) -> Model:
        return subject(self.config, AUTO, self.device)

    @cached_property
    def step(self) -> Step:
        return Step(self.model, self.config)

    @cached_property
    def product(self) -> machine.Limit:
        return machine.fastest_product(precision_of(self.config.precision, self.device).linear, self.device)

    def works(self, case: Case) -> list[Work]:
        """What runs in the same turns as a case."""
        if case.what == "train":
            return [self.step, self.product.work]
        return [work_of(self.model, self.config, case, self.device)]


class Bench:
    """The settings of a bench, its tables, and what all of its cases share."""

    def __init__(self, settings: Settings, device: torch.device, folder: Path, *, against: str, resume: bool) -> None:
        self.settings, self.device = settings, device
        self.peer = peers.check_peer(against) if against else ""
        self.configs = settings.configs(device)
        self.yardstick = Yardstick(settings.config(YARDSTICK, device), device)
        self._refuse_useless()
        self.where = where(device)
        self.rows, self.limits, self.against = (
            Table(folder / name, resume=resume) for name in ("bench.csv", "machine.csv", "against.csv")
        )
        self.stop = Stop()

    def own(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table that are of this bench's model; with --resume those of others may be there too."""
        config = self.yardstick.config
        shape = {"dtype": config.precision, "train_length": config.length, **config.model.model_dump()}
        kept = [table[name] == value for name, value in shape.items() if name in table.columns]
        return table[np.logical_and.reduce(kept)]

    def run(self) -> None:
        """Measure everything. Raises Interrupted, with every row so far on disk, on a signal."""
        if left_out := [name for name in self.configs if self.peer and not peers.has(name)]:
            note(f"{self.peer} has no version of {', '.join(left_out)}: left out of the comparison")
        cases = list(self.settings.cases(self.yardstick.config.batch))
        total = len(self.configs) * len(self.settings.engines) * len(cases) + len(self._compared) + 1
        with stoppable() as self.stop, meter("bench", total) as progress:
            if "machine" in self.settings.what:
                self._measure_machine()
            progress.advance(1, "machine")
            for name, config in self.configs.items():
                for engine in self.settings.engines:
                    self._measure_encoding(name, config, engine, cases, progress)
                if name in self._compared:
                    Comparison(self, self._compared[name], progress).run(cases)

    def check(self) -> None:
        """Stop here if a signal asked for it."""
        if self.stop:
            done = len(self.rows.rows)
            raise Interrupted(
                f"stopped after {done} rows, all in {self.rows.path}; --resume goes on from there", self.stop.signum
            )

    def refuse_unaffordable(self, config: RunConfig, needs: Needs, case: Case, who: str = "") -> None:
        """Refuse what does not fit the memory, before it takes the machine down."""
        size = estimate(config.model, VOCAB, needs, batch=case.batch, length=case.length, training=case.training)
        if why := unaffordable(size, self.device):
            raise Refused("oom", who + why)

    @cached_property
    def _compared(self) -> dict[str, RunConfig]:
        known = {name: config for name, config in self.configs.items() if isinstance(config, RunConfig)}
        return {name: config for name, config in known.items() if self.peer and peers.has(name)}

    def _refuse_useless(self) -> None:
        """Refuse an engine that can run none of the encodings, and a comparison without any."""
        configs = [config for config in self.configs.values() if isinstance(config, RunConfig)]
        for engine in self.settings.engines:
            kinds = {what == "train" for what in self.settings.what}
            reasons = [refusal(config, engine, self.device, training) for config in configs for training in kinds]
            if reasons and all(reasons):
                raise UsageError(f"--engine {engine}: {reasons[0]}")
        if self.peer and not self._compared:
            raise UsageError(
                f"{self.peer} has none of {', '.join(self.configs)}; it has {', '.join(peers.encodings())}"
            )

    def _measure_machine(self) -> None:
        for limit in machine.limits(self.yardstick.config, list(self.settings.lengths), self.device):
            row = limit.row() | self.where
            if not self.limits.has(row):
                self.limits.add(row | outcome(lambda: self._limit(limit)))  # noqa: B023 - called at once

    def _limit(self, limit: machine.Limit) -> Row:
        timings = in_turns([limit.work], self.settings.pace, self.device, self.check)
        return rows.limit_numbers(limit, timings[0]) | {"message": rows.repeated(timings, self.settings.seconds)}

    def _measure_encoding(
        self, name: str, config: RunConfig | str, engine: str, cases: list[Case], progress: Meter
    ) -> None:
        """All cases of one encoding on one engine."""
        reasons = _reasons(config, engine, self.device)
        if isinstance(config, str):
            config = self.yardstick.config.model_copy(update={"encoding": name})
        common = self.where | {"asked": engine}
        wanted = [case for case in cases if not self.rows.has(rows.case_row(config, case) | common)]
        progress.advance(len(cases) - len(wanted))
        model = None if all(reasons.values()) or not wanted else subject(config, engine, self.device)
        foretold = Foretold(self.settings.limit)
        for case in wanted:
            row = rows.case_row(config, case) | common
            if model is None or reasons[case.training]:
                self.rows.add(row | {"status": "unsupported", "message": reasons[case.training]})
            else:
                row |= _of_the_model(model, case)
                self.rows.add(row | outcome(lambda: self._case(model, config, case, foretold)))  # noqa: B023
            progress.advance(1, f"{name} {case.what} {case.length}")

    def _case(self, model: Model, config: RunConfig, case: Case, foretold: Foretold) -> Row:
        foretold.check(case)
        self.refuse_unaffordable(config, memory_of(model, case.training), case)
        works = [work_of(model, config, case, self.device), *self.yardstick.works(case)]
        timings = in_turns(works, self.settings.pace, self.device, self.check)
        foretold.note(case, timings[0].median)
        numbers = rows.bench_numbers(config, case, *timings[:2])
        if case.what == "train":
            numbers |= rows.utilisation(numbers, timings[2], self.yardstick.product)
        return numbers | {"message": rows.repeated(timings, self.settings.seconds)}


class Comparison:
    """One encoding here and in another library."""

    def __init__(self, bench: Bench, config: RunConfig, progress: Meter) -> None:
        self.bench, self.config, self.progress = bench, config, progress
        self.model = subject(config, AUTO, bench.device)
        self.peer = peers.build(config, bench.device)
        self.foretold = {who: Foretold(bench.settings.limit) for who in ("poscli", bench.peer)}

    def run(self, cases: list[Case]) -> None:
        """Every kind of work but decoding; of a training step the passes by themselves too."""
        common = self.bench.where | {
            "peer": self.bench.peer,
            "peer_attention": self.peer.attention,
            "peer_differs": self.peer.differs,
            "peer_parameters": self.peer.size,
        }  # fmt: skip
        common = {name: value for name, value in common.items() if name in self.bench.against.columns}
        passes = [replace(case, what=peers.FORWARD_BACKWARD) for case in cases if case.what == "train"]
        for case in [*passes, *(case for case in cases if case.what != "decode")]:
            row = rows.case_row(self.config, case) | common
            of_the_model = _of_the_model(self.model, case)
            row |= {name: value for name, value in of_the_model.items() if name in self.bench.against.columns}
            if not self.bench.against.has(row):
                self.bench.against.add(row | outcome(lambda: self._case(case)))  # noqa: B023 - called at once
        self.progress.advance(1, f"{self.config.encoding} against {self.bench.peer}")

    def _case(self, case: Case) -> Row:
        bench, others = self.bench, self.bench.peer
        self.foretold["poscli"].check(case)
        bench.refuse_unaffordable(self.config, memory_of(self.model, case.training), case)
        works, refused = [self._own(case)], {}
        try:
            self.foretold[others].check(case)
            bench.refuse_unaffordable(self.config, self.peer.needs, case, f"{others}: ")
            works.append(self._other(case))
        except Refused as reason:  # poscli's own number still counts
            refused = {"status": reason.status, "message": str(reason)}
        timings = in_turns(works, bench.settings.pace, bench.device, bench.check)
        for who, timing in zip(self.foretold, timings, strict=False):
            self.foretold[who].note(case, timing.median)
        numbers = rows.against_numbers(case, timings[0], timings[1] if len(timings) > 1 else None)
        return numbers | {"message": rows.repeated(timings, bench.settings.seconds)} | refused

    def _own(self, case: Case) -> Work:
        if case.what == peers.FORWARD_BACKWARD:
            batch = peers.batch_of(self.config, self.bench.device)
            return peers.forward_backward(self.model, list(self.model.parameters()), batch)
        return work_of(self.model, self.config, case, self.bench.device)

    def _other(self, case: Case) -> Work:
        model, device = self.peer.model, self.bench.device
        if case.what == peers.FORWARD_BACKWARD:
            return peers.forward_backward(model, list(model.parameters()), peers.batch_of(self.config, device))
        if case.what == "train":
            return peers.PeerStep(model, self.config, device)
        return forward(model, case.batch, case.length, device)


def work_of(model: Model, config: RunConfig, case: Case, device: torch.device) -> Work:
    """The work of a case."""
    if case.what == "train":
        return Step(model, config)
    if case.what == "decode":
        return Decode(model, case.length, device)
    return forward(model, case.batch, case.length, device)


def refusal(config: RunConfig, engine: str, device: torch.device, training: bool) -> str:
    """Why an engine cannot run an encoding on this device, and which one can; empty if it can."""
    if engine == AUTO:
        return ""
    model = config.model
    place = Place(device.type, precision_of(config.precision, device).attention, model.width // model.heads, training)
    for encoding in build(parse(config.encoding), model.shape(config.length), seed=0):
        try:
            choose(encoding, engine, place)
        except UsageError as reason:
            return str(reason)
    return ""


def _reasons(config: RunConfig | str, engine: str, device: torch.device) -> dict[bool, str]:
    """Why a model cannot be trained (true) or evaluated (false) on an engine; empty where it can."""
    if isinstance(config, str):
        return dict.fromkeys((True, False), config)
    return {training: refusal(config, engine, device, training) for training in (True, False)}


def outcome(measure: Callable[[], Row]) -> Row:
    """What measuring gives, or the status and the cause for which it gives nothing."""
    try:
        return measure()
    except Refused as reason:
        return {"status": reason.status, "message": str(reason)}
    except Unsupported as reason:
        return {"status": "unsupported", "message": str(reason)}
    except Interrupted:
        raise
    except Exception as error:  # noqa: BLE001 - the others go on; the cause is in the row
        cause = " ".join(str(error).split())
        if is_out_of_memory(error):
            return {"status": "oom", "message": cause}
        kind = "" if isinstance(error, PoscliError) else f"{type(error).__name__}: "
        return {"status": "failed", "message": kind + cause}


def _of_the_model(model: Model, case: Case) -> Row:
    with torch.set_grad_enabled(case.training):
        return {
            "tier": tier(model),
            "engine": model.engine,
            "engine_reason": model.engine_reason,
            "parameters": model.size,
        }
