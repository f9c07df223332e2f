"""Baselines: crop, attention windows, and attention windows with sinks."""

from __future__ import annotations

import pytest
import torch
from toys import VOCAB, model, perturbed, rounding, tokens

from poscli.bench.workloads import synthetic_task
from poscli.evaluation.baseline import BASELINES, baseline
from poscli.evaluation.baselines.crop import Crop
from poscli.evaluation.plan import Plan
from poscli.evaluation.protocol import EvaluationSettings
from poscli.system.errors import UsageError
from poscli.tasks.copy import Copy

SINKS = "sink(2)+window(3)"
TRAINED = 6  # tokens of a training window


@pytest.mark.parametrize(
    ("spec", "sinks", "width"),
    [(SINKS, 2, 3), ("window", 0, TRAINED), ("window(5)", 0, 5), ("sink(4)+window", 4, TRAINED)],
)
@torch.no_grad()
def test_sinks_and_a_window_are_all_that_a_query_sees(spec: str, sinks: int, width: int) -> None:
    """In one layer: other tokens do not move the last logits; each of the visible ones does."""
    whole = perturbed(model("rope", layers=1, length=TRAINED))
    reduced, text, last = baseline(spec).model(whole), tokens(1, 12), 11
    limit = rounding(reduced, text)
    for changed in range(12):
        other = text.clone()
        other[0, changed] = (other[0, changed] + 1) % VOCAB
        moved = float((reduced(text) - reduced(other))[0, last].abs().max())
        assert (moved > limit) == (changed < sinks or changed > last - width), changed
    assert float((whole(text) - reduced(text))[0, last].abs().max()) > limit


@pytest.mark.parametrize(("share", "refused"), [(2, False), (4, True)])
def test_a_baseline_must_read_all_tokens_that_are_scored(
    share: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protocol answer scores L/2 tokens. Sliding reads what it scores in pieces, which fit any baseline."""

    class Part(Crop):
        """The window cut to a part of the training length."""

        def window(self, length: int, train_length: int) -> int:
            return train_length // share

    BASELINES.names()
    monkeypatch.setattr(BASELINES, "_plugins", BASELINES._plugins | {"part": Part})
    asked = EvaluationSettings(train_length=8, max_len=16, tokens=32, stride=4, baselines=("part",))
    assert Plan(synthetic_task(16), asked).variants("sliding") == ["full", "crop", "part"]
    if not refused:
        assert Plan(Copy(), asked).variants("answer") == ["full", "crop", "part"]
        return
    with pytest.raises(UsageError, match="the baseline part reads 2 tokens, and the protocol answer scores 4"):
        Plan(Copy(), asked)
