"""From settings to cases: which models are timed, on which workloads, at which lengths, and which get no number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from poscli.attention import Place, choose
from poscli.bench.settings import AUTO, BenchSettings
from poscli.bench.timing import Row
from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import RunConfig
from poscli.config.size import Needs, activation_bytes, largest_needs
from poscli.data.tokenizers.bytes import VOCAB
from poscli.encodings import names
from poscli.encodings.registry import missing
from poscli.equation import Unsupported
from poscli.model.transformer import Model, precision_of
from poscli.specs import build, parse
from poscli.system.errors import Interrupted, PluginError, PoscliError, UsageError
from poscli.system.memory import is_out_of_memory, unaffordable

SCHEDULE_STEPS = 1_000_000  # length of the learning-rate schedule: longer than any bench trains


@dataclass(frozen=True)
class BenchCase:
    """One row of a result file to be measured: a workload, a length in tokens and a batch size."""

    what: str
    length: int
    batch: int

    @property
    def training(self) -> bool:
        """Whether the case needs gradients."""
        return self.what not in ("eval", "decode")

    @property
    def tokens(self) -> int:
        """Tokens that one run processes."""
        return self.batch if self.what == "decode" else self.batch * self.length

    @property
    def scores(self) -> int:
        """Attention scores per head: the time of dense attention grows at most in proportion to them."""
        return self.batch * self.length**2


def cases_of(settings: BenchSettings, train_batch: int, pass_tokens: int) -> list[BenchCase]:
    """The cases of every encoding, in order. Lengths ascend, so that each evaluation predicts the time of the next."""
    lengths = sorted(set(settings.lengths))
    cases = [
        BenchCase("train", settings.train_length, train_batch),
        *(BenchCase("eval", length, eval_batch(length, pass_tokens)) for length in lengths),
        *(BenchCase("decode", past, 1) for past in sorted(set(settings.past))),
    ]
    return [case for case in cases if case.what in settings.what]


def eval_batch(length: int, pass_tokens: int) -> int:
    """Windows in one forward pass of about `pass_tokens` tokens."""
    return max(1, pass_tokens // length)


def run_config(settings: BenchSettings, encoding: str, device: torch.device) -> RunConfig:
    """The configuration of the run whose model is timed; UsageError for a spec that cannot be trained."""
    request = TrainRequest(
        preset=settings.preset,
        model={"layers": settings.layers} if settings.layers else {},
        length=settings.train_length,
        batch=settings.batch,
        precision=settings.precision,
        tokens=2**62,  # replaced below, once the batch size is known
    )
    config = resolve(request, encoding, 0, device, axes=2)  # its random tokens may as well be those of a grid
    return config.model_copy(update={"tokens": SCHEDULE_STEPS * config.batch * config.length})


def run_configs(settings: BenchSettings, device: torch.device) -> dict[str, RunConfig | str]:
    """The configuration of every encoding by canonical spec.

    Without named encodings these are all registered ones; one that cannot run here has the reason as its value.
    """
    if settings.encodings:
        configs = [run_config(settings, encoding, device) for encoding in settings.encodings]
        return {config.encoding: config for config in configs}
    configs_or_reasons: dict[str, RunConfig | str] = {}
    for name in names():
        try:
            configs_or_reasons[name] = missing(name) or run_config(settings, name, device)
        except (UsageError, PluginError) as error:  # such as an encoding with fewer positions than a window has tokens
            configs_or_reasons[name] = str(error)
    return configs_or_reasons


def needs_of_model(model: Model, training: bool) -> Needs:
    """The largest needs of any layer, on the engines that the model runs on."""
    with torch.set_grad_enabled(training):
        engines = [choice.name for choice in model.choices]
    return largest_needs(zip(engines, model.encodings, strict=True), model.config.width // model.config.heads)


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
        """Remember the time of a case, if it is an evaluation that was made."""
        if case.what == "eval" and seconds == seconds:
            self.last_seconds, self.last_case = seconds, case

    def check(self, case: BenchCase) -> None:
        """Refuse a case that would take too long; training is always tried."""
        expected = self.last_seconds * case.scores / self.last_case.scores
        if case.what != "train" and expected > self.limit:
            bound = f"a run may take {expected:.0f} s ({self.last_seconds:.1f} s at {self.last_case.length})"
            raise Refused("skipped", f"{bound}: longer than --limit {self.limit:g}")


def refuse_large_case(config: RunConfig, needs: Needs, case: BenchCase, device: torch.device, who: str = "") -> None:
    """Raise Refused for a case that does not fit the memory; the message begins with `who`."""
    size = activation_bytes(config.model, VOCAB, needs, batch=case.batch, length=case.length, training=case.training)
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
            choose(encoding.to(device), engine, place)
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
