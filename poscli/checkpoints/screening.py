"""What a model loses under each of many encodings at the ends of long inputs, at a fraction of the cost of reading them
whole.

All but the end of each input is read once, under a window of the trained length that keeps the first tokens in view,
which models can read. Then its end is read under each encoding, with all keys at the positions that the encoding gives
them. What the keys were made of are not the states of the encoding, so that the losses are not those of a model that
reads the whole input under it: they decide what is worth measuring, and nothing else.

Shapes: B windows (one), T tokens at the end of an input, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from poscli.checkpoints.checkpoint_model import CheckpointModel
from poscli.evaluation.evaluate import OF_CHECKPOINTS
from poscli.evaluation.losses import LN2
from poscli.evaluation.measure import EvaluationSetup
from poscli.evaluation.posthoc import with_joined
from poscli.model.cache import Cache
from poscli.model.load import load_model


@dataclass(frozen=True)
class InputEnd:
    """The end of an input: its tokens `[B, T]`, the tokens that follow each, and what was read before them."""

    past: Cache
    tokens_BT: Tensor
    targets_BT: Tensor
    bytes: int  # of the text of the targets

    @torch.inference_mode()
    def loss(self, model: CheckpointModel) -> float:
        """Bits per byte; Unsupported if the model's encodings cannot be computed at this length."""
        logits_BTV = model(self.tokens_BT, cache=self.past.for_others())
        return float(F.cross_entropy(logits_BTV[0].float(), self.targets_BT[0], reduction="sum")) / LN2 / self.bytes


def loaded_checkpoint(setup: EvaluationSetup) -> CheckpointModel:
    """The model of a checkpoint's own run."""
    model = load_model(setup.run, setup.device)
    assert isinstance(model, CheckpointModel)
    return model


@torch.inference_mode()
def ends(setup: EvaluationSetup) -> Iterator[InputEnd]:
    """The ends of the longest inputs of an evaluation of one protocol, each read when it is asked for.

    `setup` is that of a checkpoint as it is. A stride of tokens is the end, and inputs come in the order in which
    evaluations take them.
    """
    reader = with_joined(loaded_checkpoint(setup), OF_CHECKPOINTS)
    length, scored = setup.settings.lengths[-1], setup.settings.stride
    text = setup.task.text(length)
    for span in setup.plan.drawn(setup.settings.only, length):
        tokens_BT = torch.from_numpy(text.windows(span[None], length)).to(setup.device)
        size = int(setup.task.token_bytes(text.targets(span[None], scored)).sum())
        before = length - scored
        past = Cache()
        reader.states(tokens_BT[:, :before], past)
        past = past.for_others()  # without the keys as only the reader turns them
        yield InputEnd(past, tokens_BT[:, before:-1], tokens_BT[:, before + 1 :], size)
