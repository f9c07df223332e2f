"""Baselines: crop, attention windows, and attention windows with sinks."""

from __future__ import annotations

import pytest
import torch
from cli_runner import LENGTH, NANO, SHORT, cli
from toys import VOCAB, model, perturbed, rounding, tokens

from poscli.bench.workloads import synthetic_task
from poscli.evaluation.baseline import BASELINES, baseline
from poscli.evaluation.baselines.crop import Crop
from poscli.evaluation.plan import Plan
from poscli.evaluation.protocol import EvaluationSettings
from poscli.runs.schema import FULL
from poscli.system.errors import UsageError
from poscli.tasks.copy import Copy

SINKS = "sink(2)+window(3)"
TRAINED = 6  # tokens of a training window


def test_crop_reads_the_training_length_and_masks_nothing() -> None:
    crop = baseline("crop")
    assert [crop.window(length, 64) for length in (64, 256)] == [64, 64]
    assert not crop.changes_model(256, 64)


def test_a_mask_changes_the_model_only_where_it_hides_tokens() -> None:
    """A window without a width hides nothing up to the training length, 64; wrappers other than windows always act."""
    window = baseline("window")
    assert window.window(256, 64) == 256
    assert [window.changes_model(length, 64) for length in (64, 65)] == [False, True]
    assert [baseline("sink(4)+window").changes_model(length, 64) for length in (64, 65)] == [False, True]
    assert [baseline("window(8)").changes_model(length, 64) for length in (8, 64)] == [False, True]
    assert [baseline("window(128)").changes_model(length, 64) for length in (128, 256)] == [False, True]
    assert baseline("ssmax").changes_model(64, 64)


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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rope", "would have to be trained with rope"),
        ("windw", "did you mean"),
        ("sink(4)", r"hides nothing by itself; join a window: 'sink\(4\)\+window'"),
    ],
)
def test_an_unknown_baseline_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        baseline(name)


def test_an_evaluation_may_name_further_baselines(tmp_path) -> None:
    assert cli("train", "--enc", "rope", *NANO, "--out", tmp_path).code == 0
    rows = cli("extrapolate", *SHORT, "--baseline", "sink(4)+window", "--out", tmp_path, "--json").json
    variants = {row["variant"]: row for row in rows if row["length"] == 4 * LENGTH and row["protocol"] == "fixed"}
    assert list(variants) == [FULL, "crop", "window", "sink(4)+window"]
    assert len({row["nll"] for row in variants.values()}) == 4
    assert all(row["status"] == "ok" for row in variants.values())
    again = cli("extrapolate", *SHORT, "--baseline", "sink(4)+window", "--out", tmp_path)
    assert "is evaluated already" in again.err
    refused = cli("extrapolate", *SHORT, "--baseline", "alibi", "--out", tmp_path)
    assert refused.code == 2
    assert "--baseline alibi: a model would have to be trained with alibi" in refused.err


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
