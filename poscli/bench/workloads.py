"""The workloads that are timed: a step of the trainer, the forward pass of an evaluation, the decoding of a token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from poscli.attention.engines import engine_named
from poscli.bench.cases import BenchCase
from poscli.bench.settings import AUTO
from poscli.bench.timing import Work
from poscli.config.run import RunConfig
from poscli.data import Corpus, Split
from poscli.data.tokenizers.bytes import VOCAB, Bytes
from poscli.equation.operands import columns_of
from poscli.model.cache import Cache
from poscli.model.initialise import fresh_model
from poscli.model.transformer import Model
from poscli.runs.run import Run
from poscli.system.errors import PoscliError
from poscli.system.seeds import generator
from poscli.tasks import Task
from poscli.tasks.language import Language
from poscli.training.trainer import Trainer

__all__ = ["VOCAB", "synthetic_task", "synthetic_tokens"]


def synthetic_tokens(batch: int, length: int) -> torch.Tensor:
    """Random token ids `[batch, length]`; the same ones at every call."""
    return torch.randint(VOCAB, (batch, length), generator=generator(0, "bench"))


def synthetic_task(length: int) -> Task:
    """A language task on one document of random bytes, long enough for windows of `length` tokens."""
    tokens = synthetic_tokens(1, 64 * (length + 1))[0].numpy().astype(np.uint16)
    split = Split(tokens, np.array([0, len(tokens)]), len(tokens) - 1)
    return Language(Corpus("synthetic", "", Bytes(), split, split, split))


def untrained_model(config: RunConfig, engine: str, device: torch.device) -> Model:
    """The untrained model of a run on an engine. Whether the engine can run a case is asked for each case."""
    model = fresh_model(config, VOCAB, device)
    if engine != AUTO:
        for attention in model.attention:
            attention.wanted = engine_named(engine)
    return model


def work_of(model: Model, config: RunConfig, case: BenchCase, device: torch.device) -> Work:
    """The function whose calls are timed for a case."""
    if case.what == "train":
        return TrainingStep(model, config)
    if case.what == "decode":
        return Decode(model, case.length, device)
    return forward(model, case.batch, case.length, device)


class TrainingStep(Trainer):
    """Calling it takes the next training step of a run that is not on disk."""

    def __init__(self, model: Model, config: RunConfig) -> None:
        super().__init__(Run(Path("unsaved"), config, {}), model, synthetic_task(config.length))

    def __call__(self) -> None:
        if not self.take_step():
            raise PoscliError(f"the loss of {self.config.encoding} was not finite at step {self.step}")


def forward(model: Callable[[torch.Tensor], torch.Tensor], batch: int, length: int, device: torch.device) -> Work:
    """A forward pass without gradients and the loss of every token, as in an evaluation."""
    tokens = synthetic_tokens(batch, length + 1).to(device)

    @torch.inference_mode()
    def work() -> None:
        logits = model(tokens[:, :-1]).float()
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").cpu()

    return work


class Decode:
    """Calling it decodes one more token after a text of `past` cached tokens; every call makes the text longer.

    Encodings of two axes see the tokens on a grid as wide as that of the first `past` tokens.
    """

    @torch.inference_mode()
    def __init__(self, model: Model, past: int, device: torch.device) -> None:
        self.model, self.cache = model, Cache(columns=columns_of(past))
        self.token = synthetic_tokens(1, 1).to(device)
        model(synthetic_tokens(1, past).to(device), cache=self.cache)

    @torch.inference_mode()
    def __call__(self) -> None:
        self.model(self.token, cache=self.cache)[0, -1].argmax().item()
