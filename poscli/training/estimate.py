"""How long a training takes, and whether it fits the memory, before it starts.

Most trainings of this program take minutes: for these, a count of operations is enough. Longer ones take a step or two
of a throw-away copy of the model, on the data of the first step. Nothing of it reaches the run: weights and data come
from the run's seed, not from a global stream of random numbers.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from poscli.config.run import RunConfig
from poscli.config.size import encoding_share, training_bytes
from poscli.model.cache import Memory
from poscli.model.flops import rough_seconds, training_flops
from poscli.model.initialise import fresh_model
from poscli.system.errors import UsageError
from poscli.system.memory import USABLE, available, in_words, is_out_of_memory, unaffordable
from poscli.system.ranks import ranks
from poscli.system.seeds import generator
from poscli.tasks import Task
from poscli.training.optimizer import Optimizer

MEASURED_FROM = 60.0  # seconds of training by the count of operations; encodings take up to 10 times as long as counted
PROBE_TOKENS = 16384  # of a measured step at most; the time of a step is proportional to its windows
PROBE_SECONDS = 30.0  # of a measured forward pass at most
STEPS_SECONDS, MOST_STEPS = 0.5, 12  # of measured steps, until either is reached
BACKWARD = 2  # times as long as the forward pass


@dataclass(frozen=True)
class TrainingEstimate:
    """The seconds that the steps still to be taken last, and the peak memory in bytes."""

    seconds: float
    bytes: float


def estimate_training(config: RunConfig, task: Task, device: torch.device, done: int = 0) -> TrainingEstimate:
    """The time and memory of a run of which `done` steps are taken. UsageError if a step does not fit the memory."""
    size, left = training_bytes(config, device, task.vocab), max(0, config.steps - done)
    seconds = rough_step(config, task, device)
    if left and (is_unusual(config, task, device) or left * seconds > MEASURED_FROM):
        seconds = max(measured_step(config, task, device), seconds / 10)
    return TrainingEstimate(left * seconds, size)


def is_unusual(config: RunConfig, task: Task, device: torch.device) -> bool:
    """Whether a step must be tried: a count of operations says little about it, or it may not fit the memory."""
    size = training_bytes(config, device, task.vocab)
    return encoding_share(config, task.vocab) > 0.5 or bool(unaffordable(size, device))


def rough_step(config: RunConfig, task: Task, device: torch.device) -> float:
    """Seconds of a training step by the count of operations, right within a factor of ten."""
    flops = training_flops(config.model, task.vocab, config.length) * config.batch * config.length / ranks().count
    return rough_seconds(flops, 3 * config.model.layers, device)  # forward, and twice as many kernels backward


def measured_step(config: RunConfig, task: Task, device: torch.device) -> float:
    """Seconds of a training step of a throw-away copy of a run's model; UsageError if it does not fit the memory."""
    batch = config.batch // ranks().count  # windows of this rank
    windows = max(1, min(batch // config.accumulate, PROBE_TOKENS // config.length))
    try:
        seconds = _steps(config, task, device, windows)
    except _TooSlow:
        seconds = (1 + BACKWARD) * PROBE_SECONDS
    except _TooLarge as error:
        raise _unaffordable(config, str(error)) from error
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise _unaffordable(config, f"needs more than {in_words(available(device))}") from error
    return seconds * batch / windows


def _steps(config: RunConfig, task: Task, device: torch.device, windows: int) -> float:
    """Seconds of a step: the median of some, without the first, which also loads kernels, unless it is long."""
    model = fresh_model(config, task.vocab, device)
    optimizer, memory = Optimizer(model, config.recipe, config.steps), Memory(config.model.memory)
    batch = task.batch(size=windows, length=config.length, seed=config.seed, step=0)
    seconds: list[float] = []
    while len(seconds) < 2 or (sum(seconds) < STEPS_SECONDS and len(seconds) < MOST_STEPS):
        start, guard = time.monotonic(), _Guard(device)
        model.begin_step(0.0, generator(config.seed, "step", "0"))
        inputs, targets = batch.tensors(device)
        with torch.autograd.graph.saved_tensors_hooks(guard.keep, lambda kept: kept):
            loss = model.loss(inputs, targets, memory if memory.tokens else None)
        loss.backward()
        optimizer.clip().item()  # waits for the device
        optimizer.step(0)
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.monotonic() - start)
        if seconds[0] > 1:
            return seconds[0]
    return statistics.median(seconds[1:])


class _TooLarge(Exception):
    """A forward pass keeps more than the free memory."""


class _TooSlow(Exception):
    """A forward pass takes longer than PROBE_SECONDS."""


class _Guard:
    """Sees every tensor that autograd keeps, and stops the forward pass before memory is full or the time is over.

    Without it the system would kill the process, because it promises more memory than it has.
    """

    def __init__(self, device: torch.device) -> None:
        self.limit, self.end = USABLE * available(device), time.monotonic() + PROBE_SECONDS
        self.free, self.bytes, self.seen = available(device), 0, set[int]()

    def keep(self, kept: Tensor) -> Tensor:
        """Count a tensor that autograd keeps; a storage that several tensors share counts once."""
        storage = kept.untyped_storage()
        if storage.data_ptr() not in self.seen:
            self.seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        if self.bytes > self.limit:
            raise _TooLarge(f"needs more than {in_words(self.bytes)}, {in_words(self.free)} are free")
        if time.monotonic() > self.end:
            raise _TooSlow
        return kept


def _unaffordable(config: RunConfig, why: str) -> UsageError:
    return UsageError(f"training {config.encoding} {why}; lower --batch, --length or the encoding's options")
