"""Synthetic input: random bytes from a fixed seed, so that every model and library reads identical tokens."""

from __future__ import annotations

import numpy as np
import torch

from poscli.data import Corpus, Split
from poscli.data.tokenizers.bytes import VOCAB, Bytes
from poscli.system.seeds import generator
from poscli.tasks import Task
from poscli.tasks.language import Language

__all__ = ["VOCAB", "synthetic_task", "synthetic_tokens"]


def synthetic_tokens(batch: int, length: int) -> torch.Tensor:
    """Random token ids `[batch, length]`; the same ones at every call."""
    return torch.randint(VOCAB, (batch, length), generator=generator(0, "bench"))


def synthetic_task(length: int) -> Task:
    """A language task on one document of random bytes, long enough for windows of `length` tokens."""
    tokens = synthetic_tokens(1, 64 * (length + 1))[0].numpy().astype(np.uint16)
    split = Split(tokens, np.array([0, len(tokens)]), len(tokens) - 1)
    return Language(Corpus("synthetic", "", Bytes(), split, split))
