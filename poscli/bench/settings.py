"""What a bench measures, and how long it may take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field, model_validator

from poscli.attention import ENGINES
from poscli.bench.measure import Pace
from poscli.bench.work import AUTO, eval_batch
from poscli.config import Frozen, RunConfig
from poscli.encodings import names
from poscli.encodings.registry import missing
from poscli.errors import UsageError, near
from poscli.requests import TrainRequest

What = Literal["machine", "train", "eval", "decode"]
WHATS: tuple[What, ...] = ("machine", "train", "eval", "decode")
YARDSTICK = "none"  # what everything is compared with
STEPS = 1_000_000  # of the schedule that training is timed under: no bench reaches its end


@dataclass(frozen=True)
class Case:
    """One row to be: a kind of work at a length."""

    what: str
    length: int
    batch: int

    @property
    def training(self) -> bool:
        """Does it need gradients?"""
        return self.what not in ("eval", "decode")

    @property
    def tokens(self) -> int:
        """Tokens of one run."""
        return self.batch if self.what == "decode" else self.batch * self.length

    @property
    def scores(self) -> int:
        """Entries of a head's score matrices: what the time of attention grows with at worst."""
        return self.batch * self.length**2


class Settings(Frozen):
    """Everything that a person may say about a bench but where its files go."""

    encodings: tuple[str, ...] = ()  # all there are
    engines: tuple[str, ...] = (AUTO,)
    what: tuple[What, ...] = WHATS
    preset: str = "tiny"
    train_length: int = Field(512, ge=8)
    batch: int | None = Field(None, ge=1)
    lengths: tuple[int, ...]
    past: tuple[int, ...]
    repeats: int = Field(5, ge=1)
    seconds: float = Field(10.0, gt=0)
    limit: float = Field(60.0, gt=0)
    precision: str = "auto"

    @model_validator(mode="after")
    def _known(self) -> Settings:
        for engine in self.engines:
            if engine not in (AUTO, *ENGINES):
                raise ValueError(f"there is no engine {engine!r}: {near(engine, [AUTO, *ENGINES])}")
        if bad := [length for length in (*self.lengths, *self.past) if length < 1]:
            raise ValueError(f"a length of {bad[0]} tokens: it must be at least 1")
        return self

    @property
    def pace(self) -> Pace:
        """Of every case."""
        return Pace(self.repeats, self.seconds)

    def config(self, encoding: str, device: torch.device) -> RunConfig:
        """The run whose model is timed; UsageError for a spec that cannot be."""
        request = TrainRequest(
            preset=self.preset, length=self.train_length, batch=self.batch, precision=self.precision, tokens=2**62
        )
        config = request.resolve(encoding, 0, device)
        return config.model_copy(update={"tokens": STEPS * config.batch * config.length})

    def configs(self, device: torch.device) -> dict[str, RunConfig | str]:
        """The run of every encoding by its canonical spec, or why a registered one that was not named has none."""
        if self.encodings:
            configs = [self.config(encoding, device) for encoding in self.encodings]
            return {config.encoding: config for config in configs}
        return {name: self._config_of_all(name, device) for name in names()}

    def cases(self, batch: int) -> Iterator[Case]:
        """What is measured of every encoding, in this order: lengths ascending, so that each foretells the next."""
        if "train" in self.what:
            yield Case("train", self.train_length, batch)
        if "eval" in self.what:
            yield from (Case("eval", length, eval_batch(length)) for length in sorted(set(self.lengths)))
        if "decode" in self.what:
            yield from (Case("decode", past, 1) for past in sorted(set(self.past)))

    def _config_of_all(self, name: str, device: torch.device) -> RunConfig | str:
        if why := missing(name):
            return why
        try:
            return self.config(name, device)
        except UsageError as error:  # such as one that ends before the training length
            return str(error)
