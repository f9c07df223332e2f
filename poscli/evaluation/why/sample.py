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
    stride: int | None = None  # tokens scored at the end of a window below `length`, at most; None: as many as there

    def tokens(self, window: int) -> Tensor:
        """The tokens `[n, window + 1]` of every window, cut to its last `window` targets."""
        return torch.from_numpy(self.text.windows(self.spans, window)).to(self.device)

    @torch.inference_mode()
    def losses(self, model: Model, window: int) -> NDArray[np.float64]:
        """Nats of each scored token, `[n, scored]`, none of which sees more than `window` tokens.

        The long windows are read as they are. Shorter ones are moved by the stride or by half of their length,
        whichever is less, so that a scored token sees nearly `window` tokens, and more than half of them in any case.
        """
        step = self._step(window)
        moves = -(-self.scored // step)  # windows that together score all tokens, the last one first
        back = step * np.arange(moves - 1, -1, -1)
        spans = np.stack([np.repeat(self.spans[:, 0], moves), (self.spans[:, 1:] - back).ravel()], axis=1)
        found = []
        for some in np.array_split(spans, min(len(spans), -(-len(spans) * window // PASS_TOKENS))):
            tokens = torch.from_numpy(self.text.windows(some, window)).to(self.device)
            nll = self.task.score(model(tokens[:, :-1]).float(), tokens[:, 1:])[NLL]
            found.append(nll[:, window - step :].double().cpu().numpy())
        return np.concatenate(found).reshape(len(self.spans), moves * step)[:, -self.scored :]

    def _step(self, window: int) -> int:
        """The tokens scored at the end of each window; all where a moved window may begin before its document."""
        if window + self.scored > self.length:
            return self.scored
        return min(self.scored, self.stride or self.scored, max(1, window // 2))
