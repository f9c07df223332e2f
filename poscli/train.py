"""Training one model. Resumed after any interruption it ends with the same bits, on the same machine.

The batch of a step is a pure function of (seed, step), so a checkpoint is weights, optimizer state and one integer.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from poscli import checkpoint
from poscli.cache import Memory
from poscli.checkpoint import Checkpoint
from poscli.compiled import compile_layers, wanted
from poscli.data import Corpus
from poscli.data.sampler import batch
from poscli.environment import device_name, is_out_of_memory
from poscli.errors import PoscliError
from poscli.model import Model, model_of
from poscli.optim import Optimizer
from poscli.progress import meter
from poscli.results import TRAIN_COLUMNS, frame, write_table
from poscli.runs import Run
from poscli.seeds import generator
from poscli.signals import Interrupted, Stop, stoppable

CHECKPOINT_SECONDS = 30.0
SEGMENTS = 8  # that a model with a memory reads in a row before new places are drawn
MEMORY = "memory/"  # begins the names of its tensors in a checkpoint
ROWS = 200  # of train.csv, evenly over the run


@dataclass
class Log:
    """What happened since the last row of train.csv, and the rows before."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)

    def add_row(self, trainer: Trainer, grad_norm: float, status: str = "ok") -> dict[str, Any]:
        """Close a row at the trainer's step."""
        now, tokens = time.monotonic(), len(self.losses) * trainer.tokens_per_step
        spent = now - self.since
        self.seconds += spent
        nll = sum(self.losses) / max(1, len(self.losses))
        row = {
            "step": trainer.step,
            "tokens": trainer.step * trainer.tokens_per_step,
            "nll": nll,
            "bpb": nll / math.log(2),
            "grad_norm": grad_norm,
            "lr_scale": trainer.optimizer.scale(trainer.step),
            "tokens_per_s": tokens / max(spent, 1e-9),
            "seconds": self.seconds,
            "status": status,
        }
        self.rows.append(row)
        self.losses, self.since = [], now
        return row


class Trainer:
    """A run, its model and its optimizer, at some step."""

    def __init__(self, run: Run, model: Model, corpus: Corpus) -> None:
        self.run, self.model, self.corpus, self.config = run, model, corpus, run.config
        self.device = model.embedding.device
        if wanted(self.device):
            compile_layers(model, torch.zeros(self.config.batch, self.config.length, model.config.width))
        self.optimizer = Optimizer(self.model, self.config.recipe, self.config.steps)
        self.tokens_per_step = self.config.batch * self.config.length
        self.memory = Memory(self.config.model.memory)
        fit = (len(corpus.train.tokens) - 1) // self.config.length
        self.segments = min(SEGMENTS, fit) if self.memory.tokens else 1
        self.step, self.log = 0, Log()
        self._resume()

    def train(self) -> str:
        """Train to the end: `complete` or `diverged`. Raises Interrupted, with everything saved, on a signal."""
        self.run.set_status("training", self.step)
        try:
            return self._train()
        except Interrupted:
            raise
        except BaseException as error:
            self.run.set_status("failed", self.step, f"{type(error).__name__}: {error}")
            if is_out_of_memory(error):
                fix = "give a smaller --batch, --length or --preset"
                raise PoscliError(
                    f"{self.run.id} does not fit the memory of {device_name(self.device)}; {fix}"
                ) from error
            raise

    def _train(self) -> str:
        saved = time.monotonic()
        with stoppable() as stop, meter(f"train {self.config.encoding}", self.config.steps, self.step) as progress:
            while self.step < self.config.steps:
                if not self._step():
                    return self._diverged()
                progress.advance(1, self._words())
                if stop:
                    self._interrupted(stop)
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    self.save()
                    saved = time.monotonic()
        self.save()
        self.run.set_status("complete", self.step)
        return "complete"

    def save(self) -> None:
        """Write a checkpoint and the training log."""
        log = {"rows": self.log.rows, "seconds": self.log.seconds, "losses": self.log.losses}
        state = {"step": self.step, "log": log}
        tensors = self.optimizer.tensors() | {f"{MEMORY}{n}": x for n, x in self.memory.states.items()}
        checkpoint.save(self.run.checkpoints, self.step, Checkpoint(self.model.weights(), tensors, state))
        write_table(self.run.train_csv, frame(self.log.rows, TRAIN_COLUMNS))

    def _step(self) -> bool:
        """One step; false, with nothing changed, if the loss or the gradient is not finite."""
        draw = generator(self.config.seed, "step", str(self.step))
        self.model.begin_step(self.step / self.config.steps, draw)
        loss = self._loss()
        self.optimizer.zero_grad()
        loss.backward()
        # The device is waited for once a step, here: whether there is a step decides this.
        nats, norm = torch.stack([loss.detach(), self.optimizer.clip()]).tolist()
        self.log.losses.append(nats)
        if not (math.isfinite(nats) and math.isfinite(norm)):
            self.log.add_row(self, norm, status="diverged")
            return False
        self.optimizer.step(self.step)
        self.step += 1
        if self.step % max(1, self.config.steps // ROWS) == 0 or self.step == self.config.steps:
            self.log.add_row(self, norm)
        return True

    def _loss(self) -> Tensor:
        """Mean nats per token of the step's batch."""
        config = self.config
        order = {"seed": config.seed, "step": self.step, "segments": self.segments}
        tokens = torch.from_numpy(batch(self.corpus.train, length=config.length, size=config.batch, **order))
        if self.device.type == "cuda":
            tokens = tokens.pin_memory()  # or the copy would wait for the device
        tokens = tokens.to(self.device, non_blocking=True)
        if self.step % self.segments == 0:
            self.memory.states.clear()
        return self.model.loss(tokens[:, :-1], tokens[:, 1:], self.memory if self.memory.tokens else None)

    def _words(self) -> str:
        if not self.log.rows:
            return ""
        row = self.log.rows[-1]
        return f"loss {row['nll']:.3f}  {row['bpb']:.3f} bits/byte  {row['tokens_per_s'] / 1000:.1f}k tokens/s"

    def _diverged(self) -> str:
        write_table(self.run.train_csv, frame(self.log.rows, TRAIN_COLUMNS))
        self.run.set_status("diverged", self.step, f"the loss or its gradient was not finite at step {self.step}")
        return "diverged"

    def _interrupted(self, stop: Stop) -> None:
        self.save()
        self.run.set_status("interrupted", self.step)
        raise Interrupted(
            f"stopped at step {self.step} of {self.config.steps}; the same command goes on from there", stop.signum
        )

    def _resume(self) -> None:
        saved = checkpoint.steps(self.run.checkpoints)
        if not saved:
            return
        last = checkpoint.load(self.run.checkpoints, saved[-1])
        self.model.load_weights(last.model)
        remembered = {name: last.optim.pop(name) for name in [*last.optim] if name.startswith(MEMORY)}
        self.memory.states = {int(name.removeprefix(MEMORY)): x.to(self.device) for name, x in remembered.items()}
        self.optimizer.load(last.optim)
        self.step, self.log = last.state["step"], Log(**last.state["log"])


def load_trained(run: Run, vocab: int, device: torch.device) -> Model:
    """The trained model of a complete run, ready for evaluation."""
    config = run.config.model_copy(update={"encoding": run.trained or run.config.encoding})
    model = model_of(config, vocab, device)
    model.load_weights(checkpoint.load(run.checkpoints, config.steps).model)
    if run.trained:
        model = model.stand_in(run.config.encoding, run.trained)
    return model.eval().requires_grad_(False)
