"""Training one model. A run that is resumed after an interruption ends with the same bits, on the same machine.

The batch of a step is a pure function of (seed, step), so that a checkpoint need not hold the state of the data. With
several ranks, each computes the gradient of its windows of that batch. All of them decide alike what happens after a
step, and the first one writes the files.
"""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from typing import Any, NoReturn

import torch

from poscli.config.run import RunConfig
from poscli.model.cache import Memory
from poscli.model.compiled import compile_layers, wanted
from poscli.model.initialise import load_weights, weights_of
from poscli.model.transformer import Model
from poscli.runs import checkpoint
from poscli.runs.checkpoint import Checkpoint
from poscli.runs.results import write_training_log
from poscli.runs.run import Run
from poscli.specs import with_layouts
from poscli.system.device import device_name
from poscli.system.errors import PARTIAL, Interrupted, PoscliError
from poscli.system.memory import is_out_of_memory, keep_freed_memory
from poscli.system.progress import Meter
from poscli.system.ranks import SharedError, is_lost, lost, numbers_of_all, ranks, shared, together
from poscli.system.seeds import generator
from poscli.system.signals import Abandoned, Stop, stoppable
from poscli.tasks import EpisodeTask, Task
from poscli.tasks.task import IGNORED, Batch
from poscli.training.distributed import from_first, gathered_memory, own_memory, parts_of, replicated_loss
from poscli.training.optimizer import Optimizer

CHECKPOINT_SECONDS = 30.0
SEGMENTS = 8  # consecutive windows that a model with a memory reads before new places in the text are drawn
LOG_ROWS = 200  # rows of train.csv, spread evenly over the run
ASKED_WINDOWS = 64  # of a task with right answers, each time
# Windows of training for each window that is asked. A pass without gradient takes about a quarter of a step's time, so
# that asking adds less than 3 % to the training.
TRAINED_PER_ASKED = 10


class Trainer:
    """A run, its model and its optimizer, at some step of the training: at first, that of the last checkpoint."""

    def __init__(self, run: Run, model: Model, task: Task) -> None:
        self.run, self.model, self.task, self.config = run, model, task, run.config
        keep_freed_memory()
        self.ranks, self.device = ranks(), model.device
        if wanted(self.device):
            windows = self.config.batch // (self.config.accumulate * self.ranks.count)  # that a rank processes at once
            compile_layers(model, torch.zeros(windows, self.config.length, model.config.width))
        self.memory = Memory(self.config.model.memory)
        self.segments = min(SEGMENTS, task.segments(self.config.length)) if self.memory.tokens else 1
        self.step, self.log = 0, Log(self.config.batch * self.config.length, task.bytes_per_token)
        self.rows_apart = max(1, self.config.steps // LOG_ROWS)
        self.questions: Questions | None = None  # of tasks with right answers
        if isinstance(task, EpisodeTask) and self.ranks.first:
            parts = self.config.accumulate * self.ranks.count
            self.questions = Questions(task, self.config, self.rows_apart, parts)
        self.stop = Stop()  # `train` replaces it by one that listens to signals
        self.signum, self.due = 0, False  # what the ranks agree on: a signal to one of them, a checkpoint to be written

        with together():
            last = checkpoint.load_last(run.checkpoints) if self.ranks.first else None
        last = from_first(last)
        if last is not None:
            load_weights(model, last.model)
        self.replicated = replicated_loss(model) if self.ranks.count > 1 else None  # of the weights that were loaded
        self.optimizer = Optimizer(model, self.config.recipe, self.config.steps)
        if last is not None:
            self.memory.load(own_memory(last.optim), self.device)
            self.optimizer.load(last.optim)
            self.step = last.state["step"]
            self.log.load(last.state["log"])
        self.kept = self.step  # the step of the last checkpoint

    def train(self) -> str:
        """Train to the end; returns `complete`, `diverged` or `oom`. A signal raises Interrupted, with all saved."""
        if self.step:  # the files are made to agree with the checkpoint that training goes on from
            self._write_log()
        self._set_status("training")
        self.saved, several = time.monotonic(), self.ranks.count > 1
        file = self.run.progress if self.ranks.first else None
        meter = Meter(f"train {with_layouts(self.config.encoding)}", self.config.steps, self.step, file=file)
        try:
            with stoppable() as self.stop, meter as progress:
                while self.step < self.config.steps:
                    if not self.take_step():
                        self._write_log()
                        self._set_status("diverged", f"the loss or its gradient was not finite at step {self.step}")
                        return "diverged"
                    progress.advance(1, self.log.words())
                    if signum := self.signum if several else self.stop.signum:
                        self._interrupt(signum)
                    if self.due if several else time.monotonic() - self.saved > CHECKPOINT_SECONDS:
                        self.save()
                        self.saved = time.monotonic()
                self.save()
                self._set_status("complete")
                return "complete"
        except PoscliError:  # a signal or a full disk: the last checkpoint is whole, and the same command goes on
            raise
        except (Exception, SystemExit) as error:  # SystemExit: a plugin has called sys.exit
            if is_lost(error):
                raise lost(error) from error
            self._write_log()
            if not is_out_of_memory(error):
                self._set_status("failed", f"{type(error).__name__} at step {self.step}: {error}", self.kept)
                raise
            fix = "give a smaller --batch, --length or --preset, or a larger --accumulate"
            message = f"step {self.step} does not fit the memory of {device_name(self.device)}; {fix}"
            self._set_status("oom", message, self.kept)
            if several:  # the others may wait for this rank in the middle of the step
                raise SharedError(message, PARTIAL) from error
            return "oom"

    def take_step(self) -> bool:
        """Take one step. Returns false, and leaves the model as it is, if the loss or the gradient is not finite."""
        remembered, several = dict(self.memory.states), self.ranks.count > 1
        try:
            with nullcontext() if several else self.stop.abandonable():
                nats, norm = self.gradient()
        except Abandoned:
            self.memory.states = remembered
            self._interrupt(self.stop.signum)
        if several:  # the loss is that of the whole batch; all ranks learn whether to stop or to save after this step
            due = time.monotonic() - self.saved > CHECKPOINT_SECONDS
            stated = numbers_of_all([nats, norm, self.stop.signum, due])
            nats, norm = sum(row[0] for row in stated), stated[0][1]
            self.signum, self.due = int(max(row[2] for row in stated)), bool(stated[0][3])
        self.log.losses.append(nats)
        if not (math.isfinite(nats) and math.isfinite(norm)):
            self.log.add_row(self.step, norm, self.optimizer.scale(self.step), status="diverged")
            return False
        self.optimizer.step(self.step)
        self.step += 1
        if self.step % self.rows_apart == 0 or self.step == self.config.steps:
            asked = self.questions if self.questions and self.questions.due(self.step) else None
            accuracy = asked.share_right(self.model) if asked else None
            self.log.add_row(self.step, norm, self.optimizer.scale(self.step), accuracy=accuracy)
        return True

    def gradient(self) -> tuple[float, float]:
        """Compute the clipped gradient of a step; returns the loss in nats per token and the norm before clipping.

        The loss is the share of this rank in that of the batch, and the gradient that of the whole batch.
        """
        config = self.config
        self.model.begin_step(self.step / config.steps, generator(config.seed, "step", str(self.step)))
        self.optimizer.zero_grad()
        if self.step % self.segments == 0:  # new places in the text are drawn
            self.memory.states.clear()
        batch = self.task.batch(
            size=config.batch, length=config.length, seed=config.seed, step=self.step, segments=self.segments
        )
        parts = parts_of(batch, self.ranks.rank, self.ranks.count, config.accumulate)
        memories, losses = self.memory.parts(len(parts)), []
        loss_of = self.replicated or self.model.loss
        for part, memory in zip(parts, memories, strict=True):
            inputs, targets = part.tensors(self.device)
            with self.replicated.no_sync() if self.replicated and part is not parts[-1] else nullcontext():
                loss = loss_of(inputs, targets, memory if memory.tokens else None) * part.share
                loss.backward()
            losses.append(loss.detach())
        self.memory.join(memories)
        # The only point of a step that waits for the device: whether the step is applied depends on these numbers.
        nats, norm = torch.stack([torch.stack(losses).sum(), self.optimizer.clip()]).tolist()
        return nats, norm

    def save(self) -> None:
        """Write a checkpoint, the training log and the status. All ranks must call it at the same step."""
        tensors = self.optimizer.tensors() | gathered_memory(self.memory)
        state = {"step": self.step, "log": self.log.state()}
        with together():
            if self.ranks.first:
                saved = Checkpoint(weights_of(self.model), tensors, state)
                checkpoint.save(self.run.checkpoints, self.step, saved)
            self.kept = self.step
            self._write_log()
            self._set_status("training")  # a process that is killed says nothing more

    def _interrupt(self, signum: int) -> NoReturn:
        self.save()
        self._set_status("interrupted")
        words = f"stopped at step {self.step} of {self.config.steps}; the same command goes on from there"
        raise shared(Interrupted(words, signum))

    def _set_status(self, state: str, message: str = "", step: int | None = None) -> None:
        """Write the status, with the step from which training goes on if that is not the present one."""
        if self.ranks.first:
            self.run.set_status(state, self.step if step is None else step, message)

    def _write_log(self) -> None:
        if self.ranks.first:
            write_training_log(self.run, self.log.rows)


class Questions:
    """The share of right answers while a task is learned, on windows that are neither trained on nor scored.

    They have the training length, are of the stream for tuning, and are the same for all encodings and seeds.
    """

    def __init__(self, task: EpisodeTask, config: RunConfig, rows_apart: int, parts: int) -> None:
        """`rows_apart` steps lie between rows of the log; accumulation and ranks divide a batch into `parts` parts."""
        text, length = task.tuning().text(config.length), config.length
        spans = text.tiles(length)[:ASKED_WINDOWS]
        self.task, self.steps, self.at_once = task, config.steps, max(1, config.batch // parts)
        self.batch = Batch(text.windows(spans, length), text.counts(spans, length))
        self.every = rows_apart * math.ceil(ASKED_WINDOWS * TRAINED_PER_ASKED / config.batch / rows_apart)

    def due(self, step: int) -> bool:
        """Whether to ask after `step` steps: a pure function of the step, and true after the last one."""
        return step % self.every == 0 or step == self.steps

    def share_right(self, model: Model) -> float:
        """The share of the counted tokens that a model ranks first. Leaves the model as it is."""
        inputs_BT, targets_BT = self.batch.tensors(model.device)
        right, was_training = [], model.training
        model.eval()
        try:
            with torch.no_grad():  # unlike in inference mode, an encoding may keep what it computes here
                for inputs, targets in zip(inputs_BT.split(self.at_once), targets_BT.split(self.at_once), strict=True):
                    counted = targets != IGNORED
                    scored = self.task.score(model(inputs).float(), targets.where(counted, 0))
                    right.append(scored["accuracy"][counted])
        finally:
            model.train(was_training)
        return float(torch.cat(right).mean())


class Log:
    """Collects the losses of steps; every row of train.csv averages the steps since the row before."""

    def __init__(self, tokens_per_step: int, bytes_per_token: float) -> None:
        self.tokens_per_step, self.bytes_per_token = tokens_per_step, bytes_per_token
        self.rows: list[dict[str, Any]] = []
        self.losses: list[float] = []  # nats per token of each step since the last row
        self.seconds = 0.0  # of training, up to the last row
        self.since = time.monotonic()  # the time of the last row

    def add_row(
        self, step: int, grad_norm: float, lr_scale: float, status: str = "ok", accuracy: float | None = None
    ) -> dict[str, Any]:
        """Add a row for the steps since the last row, and return it; `step` steps are done in all.

        `accuracy` is the share of right answers, where it was measured.
        """
        now, tokens = time.monotonic(), len(self.losses) * self.tokens_per_step
        spent = now - self.since
        self.seconds += spent
        nll = sum(self.losses) / max(1, len(self.losses))
        row = {
            "step": step,
            "tokens": step * self.tokens_per_step,
            "nll": nll,
            "bpb": nll / math.log(2) / self.bytes_per_token,
            "grad_norm": grad_norm,
            "lr_scale": lr_scale,
            "tokens_per_s": tokens / max(spent, 1e-9),
            "seconds": self.seconds,
            "status": status,
        }
        if accuracy is not None:
            row["accuracy"] = accuracy
        self.rows.append(row)
        self.losses, self.since = [], now
        return row

    def words(self) -> str:
        """The last row for people: loss and speed; empty before the first row."""
        if not self.rows:
            return ""
        row = self.rows[-1]
        return f"loss {row['nll']:.3f}  {row['bpb']:.3f} bits/byte  {row['tokens_per_s'] / 1000:.1f}k tokens/s"

    def state(self) -> dict[str, Any]:
        """The log as plain values for a checkpoint."""
        spent = time.monotonic() - self.since
        return {"rows": self.rows, "seconds": self.seconds, "losses": self.losses, "spent": spent}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned. The time between the two does not count as training."""
        self.rows, self.seconds, self.losses = state["rows"], state["seconds"], state["losses"]
        self.since = time.monotonic() - state.get("spent", 0.0)  # checkpoints of earlier versions do not have it
