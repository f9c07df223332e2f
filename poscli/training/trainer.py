"""Training one model. A run that is resumed after an interruption ends with the same bits, on the same machine.

The batch of a step is a pure function of (seed, step), so that a checkpoint need not hold the state of the data.
"""

from __future__ import annotations

import math
import time
from typing import NoReturn

import torch
from torch import Tensor

from poscli.model.cache import Memory
from poscli.model.compiled import compile_layers, wanted
from poscli.model.transformer import Model
from poscli.model.weights import load_weights, weights_of
from poscli.runs import checkpoint
from poscli.runs.checkpoint import Checkpoint
from poscli.runs.results import write_training_log
from poscli.runs.run import Run
from poscli.system.device import device_name
from poscli.system.errors import PoscliError
from poscli.system.memory import is_out_of_memory
from poscli.system.progress import Meter
from poscli.system.seeds import generator
from poscli.system.signals import Abandoned, Interrupted, Stop, stoppable
from poscli.tasks import Task
from poscli.training.log import Log
from poscli.training.optimizer import Optimizer

CHECKPOINT_SECONDS = 30.0
SEGMENTS = 8  # consecutive windows that a model with a memory reads before new places in the text are drawn
LOG_ROWS = 200  # rows of train.csv, spread evenly over the run


class Trainer:
    """A run, its model and its optimizer, at some step of the training."""

    def __init__(self, run: Run, model: Model, task: Task) -> None:
        self.run, self.model, self.task, self.config = run, model, task, run.config
        self.device = model.embedding.device
        if wanted(self.device):
            compile_layers(model, torch.zeros(self.config.batch, self.config.length, model.config.width))
        self.optimizer = Optimizer(self.model, self.config.recipe, self.config.steps)
        self.tokens_per_step = self.config.batch * self.config.length
        self.memory = Memory(self.config.model.memory)
        self.segments = min(SEGMENTS, task.segments(self.config.length)) if self.memory.tokens else 1
        self.stop = Stop()  # `train` replaces it by one that listens to signals
        self.step, self.log = 0, Log(self.tokens_per_step, task.bytes_per_token)
        self._resume()

    def train(self) -> str:
        """Train to the end; returns `complete`, `diverged` or `oom`. A signal raises Interrupted, with all saved."""
        if self.step:  # the files are made to agree with the checkpoint that training goes on from
            write_training_log(self.run, self.log.rows)
        self.run.set_status("training", self.step)
        try:
            return self._train()
        except PoscliError:  # a signal or a full disk: the last checkpoint is whole, and the same command goes on
            raise
        except (Exception, SystemExit) as error:  # SystemExit: a plugin has called sys.exit
            write_training_log(self.run, self.log.rows)
            if is_out_of_memory(error):
                return self._out_of_memory()
            self.run.set_status("failed", self.step, f"{type(error).__name__}: {error}")
            raise

    def _train(self) -> str:
        saved = time.monotonic()
        meter = Meter(f"train {self.config.encoding}", self.config.steps, self.step, file=self.run.progress)
        with stoppable() as self.stop, meter as progress:
            while self.step < self.config.steps:
                if not self._step():
                    return self._diverged()
                progress.advance(1, self._words())
                if self.stop:
                    self._interrupted()
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    self.save()
                    saved = time.monotonic()
            self.save()
            self.run.set_status("complete", self.step)
        return "complete"

    def save(self) -> None:
        """Write a checkpoint and the training log."""
        tensors = self.optimizer.tensors() | self.memory.tensors()
        state = {"step": self.step, "log": self.log.state()}
        checkpoint.save(self.run.checkpoints, self.step, Checkpoint(weights_of(self.model), tensors, state))
        write_training_log(self.run, self.log.rows)

    def _step(self) -> bool:
        """Take one step. Returns false, and leaves the model as it is, if the loss or the gradient is not finite."""
        remembered = dict(self.memory.states)
        try:
            with self.stop.abandonable():
                nats, norm = self._gradient()
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
        loss = self._loss()
        self.optimizer.zero_grad()
        loss.backward()
        # The only point of a step that waits for the device: whether the step is applied depends on these numbers.
        nats, norm = torch.stack([loss.detach(), self.optimizer.clip()]).tolist()
        return nats, norm

    def _loss(self) -> Tensor:
        """The mean loss over the batch of this step, in nats per token."""
        order = {"seed": self.config.seed, "step": self.step, "segments": self.segments}
        batch = self.task.batch(size=self.config.batch, length=self.config.length, **order)
        inputs, targets = batch.tensors(self.device)
        if self.step % self.segments == 0:
            self.memory.states.clear()
        return self.model.loss(inputs, targets, self.memory if self.memory.tokens else None)

    def _words(self) -> str:
        if not self.log.rows:
            return ""
        row = self.log.rows[-1]
        return f"loss {row['nll']:.3f}  {row['bpb']:.3f} bits/byte  {row['tokens_per_s'] / 1000:.1f}k tokens/s"

    def _diverged(self) -> str:
        write_training_log(self.run, self.log.rows)
        self.run.set_status("diverged", self.step, f"the loss or its gradient was not finite at step {self.step}")
        return "diverged"

    def _out_of_memory(self) -> str:
        fix = "give a smaller --batch, --length or --preset"
        message = f"step {self.step} does not fit the memory of {device_name(self.device)}; {fix}"
        self.run.set_status("oom", self.step, message)
        return "oom"

    def _interrupted(self) -> NoReturn:
        self.save()
        self.run.set_status("interrupted", self.step)
        raise Interrupted(
            f"stopped at step {self.step} of {self.config.steps}; the same command goes on from there", self.stop.signum
        )

    def _resume(self) -> None:
        last = checkpoint.load_last(self.run.checkpoints)
        if last is None:
            return
        load_weights(self.model, last.model)
        self.memory.load(last.optim, self.device)
        self.optimizer.load(last.optim)
        self.step = last.state["step"]
        self.log.load(last.state["log"])
