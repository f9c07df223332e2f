"""Baselines: crop, attention windows, and attention windows with sinks."""

from __future__ import annotations

import pytest
import torch
from toys import VOCAB, model, perturbed, rounding, tokens

from poscli.bench.workloads import synthetic_task
from poscli.equation import Encoding, Unsupported
from poscli.equation.composed import Composed
from poscli.evaluation.baseline import BASELINES, baseline
from poscli.evaluation.baselines.crop import Crop
from poscli.evaluation.plan import Plan
from poscli.evaluation.protocol import EvaluationSettings
from poscli.model.cache import Cache
from poscli.model.transformer import Model
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


SERVED = ["rope-dynamic(factor=2.0)", "yarn", "rope-linear+window(20)", "rope-dynamic|rope"]


@pytest.mark.parametrize(("spec", "length"), [*((spec, TRAINED) for spec in SERVED), ("rope-dynamic", 140)])
@torch.no_grad()
def test_a_served_model_reads_step_by_step_with_keys_that_were_rotated_once(spec: str, length: int) -> None:
    """Against the steps themselves, L/64 tokens after the other, through a cache of rotated keys."""
    whole = perturbed(model(spec, layers=2, length=length))
    text, served = tokens(2, min(4 * length, length + 25)), baseline("served").model(whole)
    stale = step_by_step(whole, text, length, max(1, length // 64))
    limit = rounding(whole, text)
    assert float((served(text) - stale).abs().max()) < limit
    assert float((served(text)[:, :length] - whole(text[:, :length])).abs().max()) < limit
    assert float((whole(text) - stale).abs().max()) > 10 * limit  # it differs from reading the whole text at once
    ((_, last),) = served.logits_in_slices(text, 3)
    assert float((last - stale[:, -3:]).abs().max()) < limit


def step_by_step(whole: Model, text: torch.Tensor, length: int, step: int) -> torch.Tensor:
    """Logits of L tokens and then of a few at a time, by a cache that is told that its keys never change."""
    cache, found = Cache(), []
    for n in [length, *[step] * -(-(text.shape[1] - length) // step)]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Encoding, "keys_are_steady", property(lambda _: True))
            patch.setattr(Composed, "keys_are_steady", property(lambda _: True))
            found.append(whole(text[:, cache.tokens : cache.tokens + n], cache=cache))
    return torch.cat(found, dim=1)


@torch.no_grad()
def test_served_leaves_alone_what_is_never_rotated_again_and_refuses_what_is_no_rotation() -> None:
    text = tokens(1, 4 * TRAINED)
    for spec in ("rope", "yarn(factor=4.0)", "alibi"):
        whole = perturbed(model(spec, length=TRAINED))
        assert torch.equal(baseline("served").model(whole)(text), whole(text))
    with pytest.raises(Unsupported, match="served is for rotations, and self-extend has similarity"):
        baseline("served").model(model("self-extend", length=TRAINED))(text)


@pytest.mark.parametrize(("name", "meant"), [("servd", "served"), ("windw", "window"), ("corp", "crop")])
def test_a_misspelt_baseline_is_answered_with_the_one_that_is_meant(name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"there is no baseline '{name}': did you mean {meant}"):
        baseline(name)


def test_a_baseline_that_would_search_constants_is_refused() -> None:
    with pytest.raises(UsageError, match="temper searches constants only with --as; leave out its search"):
        baseline("window+temper(search=4)")


@pytest.mark.parametrize(("spec", "fewer"), [("logn", False), ("window", True), ("window+logn", True)])
def test_only_windows_are_said_to_hide_tokens(spec: str, fewer: bool) -> None:
    assert ("each token attends to fewer tokens" in baseline(spec).explain()) == fewer
