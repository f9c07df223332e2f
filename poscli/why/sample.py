"""The windows of held-out text on which an analysis is made, and the losses of a model on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poscli.evaluation.losses import NLL
from poscli.evaluation.measure import PASS_TOKENS, score
from poscli.evaluation.protocol import largest_divisor, pieces
from poscli.model.language_model import LanguageModel
from poscli.tasks import HeldOut, Spans, Task


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Windows whose last tokens are scored. Every analysis reads the same tokens in windows of several lengths.

    `spans` are the windows' documents and last targets `[n, 2]`; each has at least `length` tokens before its end. The
    last `scored` targets of every window count.
    """

    task: Task
    text: HeldOut
    spans: Spans
    scored: int
    train_length: int
    length: int  # of the long window, in tokens
    device: torch.device
    stride: int | None = None  # the most tokens to score at the end of a window shorter than `length`; None: `scored`

    def tokens(self, window: int) -> Tensor:
        """The tokens `[n, window + 1]` of every window, cut to its last `window` targets."""
        return torch.from_numpy(self.text.windows(self.spans, window)).to(self.device)

    @torch.inference_mode()
    def losses(self, model: LanguageModel, window: int, *, whole: bool = False) -> NDArray[np.float64]:
        """Nats of each scored token, `[n, scored]`, none of which sees more than `window` tokens.

        The long windows are read as they are. A shorter one is read several times, each time ending some scored tokens
        later (at most `stride`), so that each scored token sees more than half of `window` tokens; with a stride of 1,
        all of them. With `whole`, the last layer computes every token of a window, and not only those that are scored.
        """
        piece = self._piece(window)
        spans, losses = pieces(self.spans, self.scored, piece), []
        for some in np.array_split(spans, min(len(spans), -(-len(spans) * window // PASS_TOKENS))):
            tokens = torch.from_numpy(self.text.windows(some, window)).to(self.device)
            nll = score(model, self.task, tokens[:, :-1], tokens[:, -(window if whole else piece) :])[NLL]
            losses.append(nll[:, -piece:].double().cpu().numpy())
        return np.concatenate(losses).reshape(len(self.spans), self.scored)

    def _piece(self, window: int) -> int:
        """The tokens read off one window; all where a window that ends earlier may begin before its document."""
        if window + self.scored > self.length:
            return self.scored
        return largest_divisor(self.scored, min(self.stride or self.scored, window // 2))


def few(sample: Sample, windows: int) -> tuple[Sample, NDArray[np.int64]]:
    """A sample of at most `windows` windows, spread evenly over the whole one, and their indices in the whole one."""
    count = min(windows, len(sample.spans))
    chosen = np.linspace(0, len(sample.spans) - 1, count).round().astype(np.int64)
    return replace(sample, spans=sample.spans[chosen]), chosen
