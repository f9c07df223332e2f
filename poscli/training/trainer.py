"""Training one model. A run that is resumed after an interruption ends with the same bits, on the same machine.

The batch of a step is a pure function of (seed, step), so that a checkpoint need not hold the state of the data. With
several ranks, each computes the gradient of its windows of that batch. All of them decide alike what happens after a
step, and the first one writes the files.
"""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from typing import NoReturn

import torch
from torch import Tensor

from poscli.attention import TUNING
from poscli.model.cache import Memory
from poscli.model.compiled import compile_layers, wanted
from poscli.model.transformer import Model
from poscli.model.weights import load_weights, weights_of
from poscli.runs import checkpoint
from poscli.runs.checkpoint import Checkpoint
from poscli.runs.results import write_training_log
from poscli.runs.run import Run
from poscli.system.device import device_name
from poscli.system.errors import PARTIAL, PoscliError
from poscli.system.memory import is_out_of_memory
from poscli.system.progress import Meter
from poscli.system.ranks import SharedError, is_lost, lost, numbers_of_all, ranks, shared, together
from poscli.system.seeds import generator
from poscli.system.signals import Abandoned, Interrupted, Stop, stoppable
from poscli.tasks import Batch, Task
from poscli.training.handover import from_first, gathered_memory, own_memory
from poscli.training.log import Log
from poscli.training.optimizer import Optimizer
from poscli.training.parts import Part, parts_of
from poscli.training.replicas import replicas
from poscli.training.sharding import whole

CHECKPOINT_SECONDS = 30.0
SEGMENTS = 8  # consecutive windows that a model with a memory reads before new places in the text are drawn
LOG_ROWS = 200  # rows of train.csv, spread evenly over the run


class Trainer:
    """A run, its model and its optimizer, at some step of the training."""

    def __init__(self, run: Run, model: Model, task: Task, *, sharded: bool = False) -> None:
        self.run, self.model, self.task, self.config = run, model, task, run.config
        self.device = model.embedding.device
        if wanted(self.device):
            compile_layers(model, torch.zeros(self.config.batch, self.config.length, model.config.width))
        self.tokens_per_step = self.config.batch * self.config.length
        self.memory = Memory(self.config.model.memory)
        self.segments = min(SEGMENTS, task.segments(self.config.length)) if self.memory.tokens else 1
        self.stop = Stop()  # `train` replaces it by one that listens to signals
        self.ranks, self.asked = ranks(), 0  # `asked`: the signal that all ranks know of
        self.step, self.log = 0, Log(self.tokens_per_step, task.bytes_per_token)
        self._resume(sharded)

    def train(self) -> str:
        """Train to the end; returns `complete`, `diverged` or `oom`. A signal raises Interrupted, with all saved."""
        if self.step:  # the files are made to agree with the checkpoint that training goes on from
            self._write_log()
        self._set_status("training")
        try:
            return self._train()
        except PoscliError:  # a signal or a full disk: the last checkpoint is whole, and the same command goes on
            raise
        except (Exception, SystemExit) as error:  # SystemExit: a plugin has called sys.exit
            if is_lost(error):
                raise lost() from error
            self._write_log()
            if is_out_of_memory(error):
                return self._out_of_memory()
            self._set_status("failed", f"{type(error).__name__}: {error}")
            raise

    def _train(self) -> str:
        self.saved = time.monotonic()
        file = self.run.progress if self.ranks.first else None
        meter = Meter(f"train {self.config.encoding}", self.config.steps, self.step, file=file)
        with stoppable() as self.stop, TUNING.remembered(self.run.tuning), meter as progress:
            while self.step < self.config.steps:
                if not self._step():
                    return self._diverged()
                progress.advance(1, self._words())
                if self._ends_here():
                    self._interrupted()
                if self._checkpoint_is_due():
                    self.save()
                    self.saved = time.monotonic()
            self.save()
            self._set_status("complete")
        return "complete"

    def save(self) -> None:
        """Write a checkpoint and the training log. All ranks must call it at the same step."""
        tensors = self.optimizer.tensors() | gathered_memory(self.memory)
        weights = {name: whole(tensor) for name, tensor in weights_of(self.model).items()}
        state = {"step": self.step, "log": self.log.state()}
        with together():
            if self.ranks.first:
                checkpoint.save(self.run.checkpoints, self.step, Checkpoint(weights, tensors, state))
            self._write_log()

    def _step(self) -> bool:
        """Take one step. Returns false, and leaves the model as it is, if the loss or the gradient is not finite."""
        remembered = dict(self.memory.states)
        try:
            with self.stop.abandonable() if self.ranks.count == 1 else nullcontext():
                nats, norm = self._agreed(*self._gradient())
        except Abandoned:
            self.memory.states = remembered
            self._interrupted()
        self.log.losses.append(nats)
        if not (math.isfinite(nats) and math.isfinite(norm)):
            self.log.add_row(self.step, norm, self.optimizer.scale(self.step), status="diverged")
            return False
        self.optimizer.step(self.step)
        self.step += 1
        if self.step % max(1, self.config.steps // LOG_ROWS) == 0 or self.step == self.config.steps:
            self.log.add_row(self.step, norm, self.optimizer.scale(self.step))
        return True

    def _gradient(self) -> tuple[float, float]:
        """Compute the clipped gradient of a step; returns the loss in nats per token and the norm before clipping."""
        draw = generator(self.config.seed, "step", str(self.step))
        self.model.begin_step(self.step / self.config.steps, draw)
        self.optimizer.zero_grad()
        parts = parts_of(self._batch(), self.ranks.rank, self.ranks.count, self.config.accumulate)
        memories, losses = self.memory.parts(len(parts)), []
        for part, memory in zip(parts, memories, strict=True):
            with self.replicas.part(last=part is parts[-1]):
                loss = self._loss(part, memory)
                loss.backward()
            losses.append(loss.detach())
        self.memory.join(memories)
        # The only point of a step that waits for the device: whether the step is applied depends on these numbers.
        nats, norm = torch.stack([torch.stack(losses).sum(), self.optimizer.clip()]).tolist()
        return nats, norm

    def _batch(self) -> Batch:
        """The whole batch of this step. A memory forgets what it holds where new places in the text are drawn."""
        if self.step % self.segments == 0:
            self.memory.states.clear()
        order = {"seed": self.config.seed, "step": self.step, "segments": self.segments}
        return self.task.batch(size=self.config.batch, length=self.config.length, **order)

    def _loss(self, part: Part, memory: Memory) -> Tensor:
        """What a part contributes to the mean loss over the batch, in nats per token."""
        inputs, targets = part.tensors(self.device)
        return self.replicas.loss(inputs, targets, memory if memory.tokens else None) * part.share

    def _agreed(self, nats: float, norm: float) -> tuple[float, float]:
        """The loss of the whole batch and the norm; the ranks also agree whether to stop or to save after this step."""
        if self.ranks.count == 1:
            return nats, norm
        due = time.monotonic() - self.saved > CHECKPOINT_SECONDS
        stated = numbers_of_all([nats, norm, self.stop.signum, due])
        self.asked, self.due = int(max(row[2] for row in stated)), bool(stated[0][3])
        return sum(row[0] for row in stated), stated[0][1]

    def _ends_here(self) -> bool:
        """Whether a signal has asked the training to stop, in time for all ranks to know."""
        if self.ranks.count == 1:
            self.asked = self.stop.signum
        return self.asked != 0

    def _checkpoint_is_due(self) -> bool:
        return self.due if self.ranks.count > 1 else time.monotonic() - self.saved > CHECKPOINT_SECONDS

    def _words(self) -> str:
        if not self.log.rows:
            return ""
        row = self.log.rows[-1]
        return f"loss {row['nll']:.3f}  {row['bpb']:.3f} bits/byte  {row['tokens_per_s'] / 1000:.1f}k tokens/s"

    def _set_status(self, state: str, message: str = "") -> None:
        if self.ranks.first:
            self.run.set_status(state, self.step, message)

    def _write_log(self) -> None:
        if self.ranks.first:
            write_training_log(self.run, self.log.rows)

    def _diverged(self) -> str:
        self._write_log()
        self._set_status("diverged", f"the loss or its gradient was not finite at step {self.step}")
        return "diverged"

    def _out_of_memory(self) -> str:
        fix = "give a smaller --batch, --length or --preset, or a larger --accumulate"
        message = f"step {self.step} does not fit the memory of {device_name(self.device)}; {fix}"
        self._set_status("oom", message)
        if self.ranks.count > 1:  # the others may wait for this rank in the middle of the step
            raise SharedError(message, PARTIAL)
        return "oom"

    def _interrupted(self) -> NoReturn:
        self.asked = self.asked or self.stop.signum
        self.save()
        self._set_status("interrupted")
        words = f"stopped at step {self.step} of {self.config.steps}; the same command goes on from there"
        raise shared(Interrupted(words, self.asked))

    def _resume(self, sharded: bool) -> None:
        """Go on from the last checkpoint, which the first rank reads. Ranks share the weights once they are loaded."""
        with together():
            found = checkpoint.load_last(self.run.checkpoints) if self.ranks.first else None
        last = from_first(found)
        if last is not None:
            load_weights(self.model, last.model)
        self.replicas = replicas(self.model, sharded=sharded)
        self.optimizer = Optimizer(self.model, self.config.recipe, self.config.steps)
        if last is None:
            return
        self.memory.load(own_memory(last.optim), self.device)
        self.optimizer.load(last.optim)
        self.step = last.state["step"]
        self.log.load(last.state["log"])
