"""The share of right answers while a task is learned, on windows that are neither trained on nor scored."""

from __future__ import annotations

import math

import torch

from poscli.config.run import RunConfig
from poscli.model.transformer import Model
from poscli.tasks import EpisodeTask
from poscli.tasks.task import IGNORED, Batch

WINDOWS = 64  # that are asked each time
# Windows of training for each window that is asked. A pass without gradient takes about a quarter of a step's time, so
# that asking adds less than 3 % to the training.
TRAINED_PER_ASKED = 10


class Questions:
    """A fixed set of windows of the training length, of the stream for tuning, the same for all encodings and seeds."""

    def __init__(self, task: EpisodeTask, config: RunConfig, rows_apart: int, parts: int) -> None:
        """`rows_apart` are the steps between rows of the log; a step reads its windows in that many `parts`."""
        text, length = task.tuning().text(config.length), config.length
        spans = text.tiles(length)[:WINDOWS]
        self.task, self.steps, self.at_once = task, config.steps, max(1, config.batch // parts)
        self.batch = Batch(text.windows(spans, length), text.counts(spans, length))
        self.every = rows_apart * math.ceil(WINDOWS * TRAINED_PER_ASKED / config.batch / rows_apart)

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
