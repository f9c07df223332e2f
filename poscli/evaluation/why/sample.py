"""The windows of held-out text on which an analysis is made, and the losses of a model on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poscli.evaluation.losses import NLL
from poscli.model.transformer import Model
from poscli.tasks import Spans, Task, Text

PASS_TOKENS = 8192  # tokens in one forward pass


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Windows whose last tokens are scored. Every analysis reads the same tokens in windows of several lengths.

    `spans` are the windows' documents and last targets `[n, 2]`; each has at least `length` tokens before its end. The
    last `scored` targets of every window count.
    """

    task: Task
    text: Text
    spans: Spans
    scored: int
    train_length: int
    length: int  # of the long window, in tokens
    device: torch.device

    def tokens(self, window: int) -> Tensor:
        """The tokens `[n, window + 1]` of every window, cut to its last `window` targets."""
        return torch.from_numpy(self.text.windows(self.spans, window)).to(self.device)

    @torch.inference_mode()
    def losses(self, model: Model, window: int) -> NDArray[np.float64]:
        """Nats of each scored token, `[n, scored]`, if the model reads the last `window` tokens before the end."""
        found = []
        for tokens in self.tokens(window).split(max(1, PASS_TOKENS // window)):
            nll = self.task.score(model(tokens[:, :-1]).float(), tokens[:, 1:])[NLL]
            found.append(nll[:, window - self.scored :].double().cpu().numpy())
        return np.concatenate(found)
