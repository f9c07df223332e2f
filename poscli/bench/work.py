"""What is timed: a training step, the forward pass of an evaluation, the decoding of a token, on synthetic tokens.

A training step is the trainer's own, whatever that has become; nothing of it is rebuilt here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from poscli.bench.measure import Work
from poscli.bench.memory import Needs, needs
from poscli.cache import Cache
from poscli.config import RunConfig
from poscli.data import VOCAB, Corpus, Split
from poscli.encodings import TIERS
from poscli.errors import PoscliError
from poscli.evaluate import BATCH_TOKENS
from poscli.model import Model, model_of
from poscli.runs import Run
from poscli.seeds import generator
from poscli.train import Trainer

AUTO = "auto"  # the engine that the model chooses for itself


def subject(config: RunConfig, engine: str, device: torch.device) -> Model:
    """The untrained model of an encoding on an engine; UsageError if that one cannot run it here."""
    model = model_of(config, VOCAB, device)
    if engine != AUTO:
        with torch.no_grad():  # some engines have no backward pass; whether one is needed, a case knows
            model.use_engine(engine)
    return model


def tier(model: Model) -> str:
    """The highest tier that any of its layers touches."""
    return max((encoding.tier for encoding in model.encodings), key=list(TIERS).index)


def eval_batch(length: int) -> int:
    """Windows in one forward pass, as the evaluation has them."""
    return max(1, BATCH_TOKENS // length)


class Step(Trainer):
    """Training steps of a run that is not on disk."""

    def __init__(self, model: Model, config: RunConfig) -> None:
        super().__init__(Run(Path("unsaved"), config, {}), model, synthetic_corpus(config.length))

    def __call__(self) -> None:
        """Take the next step."""
        if not self._step():
            raise PoscliError(f"the loss of {self.config.encoding} was not finite at step {self.step}")


def forward(model: Callable[[torch.Tensor], torch.Tensor], batch: int, length: int, device: torch.device) -> Work:
    """A forward pass and the loss of every token, as the evaluation runs it."""
    tokens = synthetic_tokens(batch, length + 1).to(device)

    @torch.inference_mode()
    def work() -> None:
        logits = model(tokens[:, :-1]).float()
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").cpu()

    return work


class Decode:
    """One more token for a text of `past` tokens, through the cache; the text grows with every call."""

    @torch.inference_mode()
    def __init__(self, model: Model, past: int, device: torch.device) -> None:
        self.model, self.cache = model, Cache()
        self.token = synthetic_tokens(1, 1).to(device)
        model(synthetic_tokens(1, past).to(device), cache=self.cache)

    @torch.inference_mode()
    def __call__(self) -> None:
        """Decode it, up to the choice of the likeliest."""
        self.model(self.token, cache=self.cache)[0, -1].argmax().item()


def synthetic_tokens(batch: int, length: int) -> torch.Tensor:
    """Random bytes, the same ones for all."""
    return torch.randint(VOCAB, (batch, length), generator=generator(0, "bench"))


def synthetic_corpus(length: int) -> Corpus:
    """Random bytes as a corpus of one document, long enough for windows of `length`."""
    tokens = synthetic_tokens(1, 64 * (length + 1))[0].numpy().astype(np.uint16)
    split = Split(tokens, np.array([0, len(tokens)]))
    return Corpus("synthetic", "", VOCAB, split, split)


def memory_of(model: Model, training: bool) -> Needs:
    """What attention needs of the memory, on the engines that the model runs on: the worst of its layers."""
    width = model.config.width // model.config.heads
    with torch.set_grad_enabled(training):
        pairs = list(zip(model.choices, model.encodings, strict=True))
    each = [needs(choice.name, encoding.blanks, width) for choice, encoding in pairs]
    return Needs(*(max(getattr(n, field) for n in each) for field in ("at_once", "kept", "buffer")))
