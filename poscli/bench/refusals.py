"""Cases without a number: reasons not to run a case, and the status of a case that failed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from poscli.attention import Place, choose
from poscli.bench.cases import BenchCase
from poscli.bench.conditions import Row
from poscli.bench.settings import AUTO
from poscli.bench.synthetic import VOCAB
from poscli.config.needs import Needs, estimate
from poscli.config.run import RunConfig
from poscli.equation import Unsupported
from poscli.model.transformer import precision_of
from poscli.specs import build, parse
from poscli.system.errors import PoscliError, UsageError
from poscli.system.memory import is_out_of_memory, unaffordable
from poscli.system.signals import Interrupted


class Refused(Exception):
    """A case is not run; the error carries the status and the message of its row."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class TimeEstimate:
    """An upper bound on the time of a case, from the last evaluation: attention grows with the squared length at most.

    `check` raises Refused where the bound exceeds `limit` seconds.
    """

    def __init__(self, limit: float) -> None:
        self.limit, self.last_seconds, self.last_case = limit, 0.0, BenchCase("", 1, 1)

    def note(self, case: BenchCase, seconds: float) -> None:
        """Remember the time of a case, if it is an evaluation."""
        if case.what == "eval":
            self.last_seconds, self.last_case = seconds, case

    def check(self, case: BenchCase) -> None:
        """Refuse a case that would take too long; training is always tried."""
        expected = self.last_seconds * case.scores / self.last_case.scores
        if case.what != "train" and expected > self.limit:
            bound = f"a run may take {expected:.0f} s ({self.last_seconds:.1f} s at {self.last_case.length})"
            raise Refused("skipped", f"{bound}: longer than --limit {self.limit:g}")


def refuse_unaffordable(config: RunConfig, needs: Needs, case: BenchCase, device: torch.device, who: str = "") -> None:
    """Raise Refused for a case that does not fit the memory; the message begins with `who`."""
    size = estimate(config.model, VOCAB, needs, batch=case.batch, length=case.length, training=case.training)
    if why := unaffordable(size, device):
        raise Refused("oom", who + why)


def engine_refusal(config: RunConfig | str, engine: str, device: torch.device, training: bool) -> str:
    """Why a model cannot run on an engine; empty if it can. A string as `config` is the reason why no model exists."""
    if isinstance(config, str) or engine == AUTO:
        return config if isinstance(config, str) else ""
    model = config.model
    dtype, width = precision_of(config.precision, device).attention, model.width // model.heads
    place = Place(device.type, dtype, width, training, here=device)
    for encoding in build(parse(config.encoding), model.shape(config.length), seed=0):
        try:
            choose(encoding, engine, place)
        except UsageError as reason:
            return str(reason)
    return ""


def outcome(measure: Callable[[], Row]) -> Row:
    """The columns that `measure` returns, or the status and the message of its failure. Signals pass through."""
    try:
        return measure()
    except Refused as reason:
        return {"status": reason.status, "message": str(reason)}
    except Unsupported as reason:
        return {"status": "unsupported", "message": str(reason)}
    except Interrupted:
        raise
    except Exception as error:  # noqa: BLE001 - other cases go on, and the row states the cause
        cause = " ".join(str(error).split())
        if is_out_of_memory(error):
            return {"status": "oom", "message": cause}
        kind = "" if isinstance(error, PoscliError) else f"{type(error).__name__}: "
        return {"status": "failed", "message": kind + cause}
