"""One encoding in poscli and in a peer, timed in turns."""

from __future__ import annotations

from dataclasses import replace

from poscli.bench.cases import BenchCase
from poscli.bench.conditions import Conditions, Row
from poscli.bench.needs import needs_of_model
from poscli.bench.peers import PeerModel
from poscli.bench.peers.step import PeerStep, batch_of, forward_backward
from poscli.bench.refusals import Refused, TimeEstimate, outcome, refuse_unaffordable
from poscli.bench.result_file import ResultFile
from poscli.bench.rows import against_values, case_values, model_values, once_message
from poscli.bench.settings import AUTO
from poscli.bench.timing import Work
from poscli.bench.workloads import forward, untrained_model, work_of
from poscli.config.run import RunConfig

FORWARD_BACKWARD = "forward+backward"  # workload: a training step without its optimizer


class Comparison:
    """poscli's model of a run, and a peer's."""

    def __init__(self, conditions: Conditions, config: RunConfig, peer: PeerModel) -> None:
        self.conditions, self.config, self.peer = conditions, config, peer
        self.model = untrained_model(config, AUTO, conditions.device)
        self.own_time, self.peer_time = (TimeEstimate(conditions.settings.limit) for _ in range(2))

    def run(self, cases: list[BenchCase], file: ResultFile) -> None:
        """Add a row for every case that is not in the file yet.

        Decoding is left out. A training step is timed a second time without its optimizer.
        """
        passes = [replace(case, what=FORWARD_BACKWARD) for case in cases if case.what == "train"]
        for case in [*passes, *(case for case in cases if case.what != "decode")]:
            values = self.conditions.where | self.peer.columns(case.training) | model_values(self.model, case)
            row = case_values(self.config, case) | file.known_columns(values)
            if not file.has(row):
                file.add(row | outcome(lambda: self._measure(case)))  # noqa: B023 - called at once

    def _measure(self, case: BenchCase) -> Row:
        device, refused = self.conditions.device, {}
        self.own_time.check(case)
        refuse_unaffordable(self.config, needs_of_model(self.model, case.training), case, device)
        works = [self._own_work(case)]
        try:
            self.peer_time.check(case)
            refuse_unaffordable(self.config, self.peer.needs, case, device, f"{self.peer.title}: ")
            works.append(self._peer_work(case))
        except Refused as reason:  # poscli is timed alone
            refused = {"status": reason.status, "message": str(reason)}
        timings = self.conditions.time(works)
        for estimate, timing in zip((self.own_time, self.peer_time), timings, strict=False):
            estimate.note(case, timing.median)
        values = against_values(case, timings[0], timings[1] if len(timings) > 1 else None)
        return values | {"message": once_message(timings, self.conditions.settings.seconds)} | refused

    def _own_work(self, case: BenchCase) -> Work:
        if case.what == FORWARD_BACKWARD:
            batch = batch_of(self.config, self.conditions.device)
            return forward_backward(self.model, list(self.model.parameters()), batch)
        return work_of(self.model, self.config, case, self.conditions.device)

    def _peer_work(self, case: BenchCase) -> Work:
        model, device = self.peer.model, self.conditions.device
        if case.what == FORWARD_BACKWARD:
            return forward_backward(model, list(model.parameters()), batch_of(self.config, device))
        if case.what == "train":
            return PeerStep(model, self.config, device)
        return forward(model, case.batch, case.length, device)
