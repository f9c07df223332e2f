"""Advice within a given time: sequential halving and, where inputs are long, a screening before it.

In each look every encoding that is left reads equally many inputs, and the better half, by the loss at the target, goes
on to the next look, which goes on from the inputs that are read already. The time that is left is divided evenly among
the looks that are left (Karnin, Koren and Somekh 2013, "Almost optimal exploration in multi-armed bandits"). The model
as it is reads every input. The last look is at few enough encodings to compare them with intervals.

If the time does not allow for one input under every encoding, they are screened first (screening.py).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from poscli.checkpoints.matrix import Matrix, measured
from poscli.checkpoints.screening import ends, loaded_checkpoint
from poscli.equation import Unsupported
from poscli.estimate import evaluations
from poscli.evaluation.measure import EvaluationSetup
from poscli.evaluation.posthoc import with_encoding
from poscli.evaluation.protocols.sliding import PIECES_PER_SHORTEST
from poscli.model.held import held
from poscli.runs.results import Tables
from poscli.runs.schema import FULL
from poscli.system.errors import UsageError
from poscli.system.memory import is_out_of_memory
from poscli.system.progress import Meter, duration

FINALISTS = 3  # encodings that the last look compares
SCREENING_SHARE = 1 / 4  # of the time, if that is enough for more than one input


@dataclass(frozen=True)
class Dropped:
    """An encoding that was not followed to the end."""

    spec: str
    inputs: int  # that were read under it; 0: it was screened only
    behind: float | None  # bits per byte by which its loss at the target was above that of the best; None: see `reason`
    reason: str = ""  # why there is no loss


@dataclass(frozen=True)
class Spent:
    """What the time was spent on."""

    tables: Tables  # of the model as it is and of the encodings that were followed to the end
    inputs: int  # that were read under each of these
    left_out: tuple[Dropped, ...]  # best first


def within(matrix: Matrix, minutes: float, *, begun: float) -> Spent:
    """Measure what the advice needs, and at most the tokens that were asked for, in `minutes` since `begun`.

    That is a time of `time.monotonic`. UsageError, before anything is measured, if too little of it is left to compare
    two encodings.
    """
    race = _Race(matrix, minutes, begun)
    with held():
        return race.run()


def fitting(setups: Sequence[EvaluationSetup], minutes: float) -> list[EvaluationSetup]:
    """Evaluations of as many tokens as `minutes` allow for, and at most as many as they have.

    UsageError if that is less than one stride.
    """
    least = [_of_inputs(setup, 1) for setup in setups]
    seconds = sum(job.seconds for job in evaluations(least, why=False, anew=True))
    inputs = int(60 * minutes / seconds)
    if inputs < 1:
        raise UsageError(
            f"--minutes {minutes:g} is too short: one stride of tokens at every length takes about {duration(seconds)}"
            "; give more, or a lower --max-len"
        )
    return [_of_inputs(each, min(inputs, each.settings.tokens // each.settings.stride)) for each in setups]


class _Race:
    """The looks of `within`: which encodings are left, what an input takes under each, and when the time ends."""

    def __init__(self, matrix: Matrix, minutes: float, begun: float) -> None:
        self.matrix, self.minutes, self.end = matrix, minutes, begun + 60 * minutes
        self.own, *self.left = matrix.work
        self.most = self.own.settings.tokens // self.own.settings.stride
        self.left_out: tuple[Dropped, ...] = ()
        self.pace: dict[str, float] = {}  # by run: the seconds that one input takes

    def run(self) -> Spent:
        if not self._estimate():
            self._screen()
        inputs = 0
        while True:
            inputs += max(1, self._affordable(inputs))
            tables = self._look(inputs)
            if inputs == self.most or _looks(len(self.left)) == 1 or self._time_left() < self._seconds(self.left):
                return Spent(tables, inputs, self.left_out)
            self._halve(tables, inputs)

    def _time_left(self) -> float:
        return self.end - time.monotonic()

    def _seconds(self, entrants: Sequence[EvaluationSetup]) -> float:
        """The time for one more input, in seconds: under each of some encodings, and by the model as it is."""
        return sum(self.pace[each.run.id] for each in (self.own, *entrants))

    def _affordable(self, inputs: int) -> int:
        """For how many inputs, after those that are read already, the next look has time."""
        share = self._time_left() / _looks(len(self.left))
        return min(self.most - inputs, int(share / self._seconds(self.left)))

    def _estimate(self) -> bool:
        """Time one input under each encoding; returns whether the first look has time for one under all of them.

        If it has not, fewer tokens are scored at the end of each input, as many as one window of L tokens scores. With
        more, what they are compared with would take longer than the inputs themselves.
        """
        least = max(1, self.own.settings.train_length // PIECES_PER_SHORTEST)
        work = [_of_inputs(each, 1) for each in (self.own, *self.left)]
        less = [_of_inputs(each, 1, min(least, each.settings.stride)) for each in work]
        seconds = [job.seconds for job in evaluations([*work, *less], why=False, anew=True)]
        self.pace = {each.run.id: taken for each, taken in zip(work, seconds, strict=False)}
        if self._affordable(0) >= 1:
            return True
        self.pace = {each.run.id: taken for each, taken in zip(less, seconds[len(work) :], strict=True)}
        self.own, *self.left = less
        self.most = self.matrix.work[0].settings.tokens // self.own.settings.stride
        if self._affordable(0) >= 1:
            return True
        fastest = min(self._seconds([each]) for each in self.left) if self.left else self._seconds([])
        if fastest > self._time_left():
            raise UsageError(
                f"--minutes {self.minutes:g} is too short: one input of {self.matrix.target} tokens takes about "
                f"{duration(fastest)}, read as the model is and under one encoding; give more, or a lower --target"
            )
        return False

    def _look(self, inputs: int) -> Tables:
        """Read inputs until `inputs` have been read under each encoding, and measure again how long one takes."""
        work = tuple(_of_inputs(each, inputs) for each in (self.own, *self.left))
        tables = measured(replace(self.matrix, work=work))
        took = tables.rows[tables.rows["variant"] == FULL].groupby("run_id")["seconds"].sum()
        self.pace |= {run: seconds / inputs for run, seconds in took.items() if seconds}
        return tables

    def _halve(self, tables: Tables, inputs: int) -> None:
        rows = tables.rows
        at_target = rows[(rows["length"] == self.matrix.target) & (rows["variant"] == FULL)].set_index("run_id")
        losses = at_target["bpb"].to_dict()
        self._keep(losses, at_target["reason"].to_dict(), inputs, max(FINALISTS, math.ceil(len(self.left) / 2)))

    def _screen(self) -> None:
        """Screen the encodings, and go on with as many of the best as there is time to halve, look by look."""
        seconds = min(SCREENING_SHARE * 60 * self.minutes, self._time_left())
        losses, reasons = screened(self.own, self.left, seconds)
        order = _best_first(self.left, losses)
        fits = [n for n in range(1, len(order)) if _looks(n) * self._seconds(order[:n]) <= self._time_left()]
        self._keep(losses, reasons, 0, max(fits, default=1))

    def _keep(self, losses: dict[str, float], reasons: dict[str, str], inputs: int, count: int) -> None:
        """Go on with the best `count`, and record the others as left out.

        A loss of NaN says that an encoding failed, and an infinite one that its loss is not known.
        """
        order = _best_first(self.left, losses)
        least = losses[order[0].run.id]
        kept = [each for each in order[:count] if not math.isnan(losses[each.run.id])]
        out = []
        for each in order:
            if each not in kept:
                loss = losses[each.run.id]
                behind = loss - least if math.isfinite(loss) else None
                out.append(Dropped(each.run.config.encoding, inputs, behind, reasons.get(each.run.id, "")))
        self.left, self.left_out = kept, (*out, *self.left_out)


def _looks(encodings: int) -> int:
    """The number of looks at this many encodings, of which each look leaves half, until FINALISTS are left."""
    return 1 + max(0, math.ceil(math.log2(max(1, encodings) / FINALISTS)))


def _of_inputs(setup: EvaluationSetup, inputs: int, stride: int = 0) -> EvaluationSetup:
    """The same evaluation on this many inputs, at the end of each of which `stride` tokens are scored; 0: as before."""
    stride = stride or setup.settings.stride
    settings = replace(setup.settings, tokens=inputs * stride, stride=stride)
    return replace(setup, settings=settings)


def _best_first(entrants: Sequence[EvaluationSetup], losses: dict[str, float]) -> list[EvaluationSetup]:
    return sorted(entrants, key=lambda each: (math.isnan(losses[each.run.id]), losses[each.run.id]))


def screened(
    own: EvaluationSetup, entrants: Sequence[EvaluationSetup], seconds: float
) -> tuple[dict[str, float], dict[str, str]]:
    """The mean of the losses at the ends of inputs, in bits per byte, by run; and where there is none, the reason.

    At least one input is read, and a further one if it is expected to be done within `seconds`. An encoding that cannot
    be computed has a loss of NaN. One whose windows are not the model's own has an infinite loss: what comes before the
    ends is read under a window, so that such encodings cannot be compared with the others.
    """
    model, begun = loaded_checkpoint(own), time.monotonic()
    models = {each.run.id: with_encoding(model, each.run.config.encoding, each.run.trained) for each in entrants}
    reaches = [encoding.reach for encoding in model.encodings]
    hiding = [run for run, each in models.items() if [encoding.reach for encoding in each.encodings] != reaches]
    means: dict[str, float] = dict.fromkeys(hiding, math.inf)
    reasons = dict.fromkeys(hiding, "its windows are not the model's own, of which a screening says nothing")
    losses: dict[str, list[float]] = {run: [] for run in models if run not in hiding}
    for number, end in enumerate(ends(own) if losses else (), 1):
        with Meter(f"screen {own.run.label}", len(losses)) as progress:
            for run in [run for run in losses if run not in reasons]:
                try:
                    losses[run].append(end.loss(models[run]))
                except Unsupported as error:
                    means[run], reasons[run] = math.nan, str(error)
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    means[run], reasons[run] = math.nan, "reading the end of an input under it does not fit the memory"
                progress.advance(1, f"input {number}")
        end.past.layers.clear()  # the next input needs the memory
        if (time.monotonic() - begun) * (number + 1) / number > seconds:
            break
    return {run: statistics.fmean(each) for run, each in losses.items() if run not in reasons} | means, reasons
