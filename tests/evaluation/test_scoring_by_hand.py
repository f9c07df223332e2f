"""Rows of eval.csv and position.csv from losses that are written down: every number again by hand.

Documents, protocols and windows are those of test_windows_by_hand.py; tokens stand for several bytes. The loss of
target t in document d is d + a t, where a depends on the measurement: so every gain is known.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from pieces_task import PIECES, Pieces
from test_windows_by_hand import DOCUMENTS, settings
from toys import model, perturbed

from poscli.config.run import RunConfig
from poscli.evaluation import losses as losses_module
from poscli.evaluation import measure, tables
from poscli.evaluation.evaluate import eval_records
from poscli.evaluation.losses import Losses, Measured, position_curve, tail_slope
from poscli.evaluation.measure import EvaluationSetup
from poscli.evaluation.plan import Measurement, record_of
from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings
from poscli.runs.run import Run
from poscli.runs.schema import perplexity

SLOPES = {Measurement(4, 0, "full"): 0.1, Measurement(8, 0, "full"): 0.08, Measurement(8, 0, "window"): 0.09}
LN2 = 0.6931471805599453


class Marked(Pieces):
    """With a column of its own: 1 for even targets."""

    columns: ClassVar = {"even": ("float64", "share of the targets with an even number")}


def scored_rows(tmp_path, task: Pieces | None = None, failed: Measurement | None = None) -> list[dict]:
    """The rows of an evaluation in which every loss is d + a t."""
    task = task or Pieces(DOCUMENTS)
    run = Run(tmp_path / "rope-1", RunConfig(encoding="rope", length=8), {"parameters": 5})
    setup = EvaluationSetup(run, task, settings(), torch.device("cpu"))
    measured = {}
    for one, spans in setup.plan.measurements().items():
        target = spans[:, 1:] + np.arange(1 - one.window, 1)
        values = {"nll": (spans[:, :1] + SLOPES[one] * target).astype(np.float32)}
        values |= {name: (target % 2 == 0).astype(np.float32) for name in task.columns}
        measured[one] = Measured(Losses(spans, values), seconds=2.0, peak_mb=3.0, engine="sdpa")
        if one == failed:
            measured[one] = Measured(None, "oom", "does not fit")
    return list(tables.eval_rows(setup, measured)) + list(tables.position_rows(setup, measured))


def row_of(rows: list[dict], length: int, protocol: str, variant: str) -> dict:
    wanted = {"length": length, "protocol": protocol, "variant": variant}
    (row,) = [row for row in rows if wanted.items() <= row.items()]
    return row


# The scored targets of each document, and the bytes that they stand for. Token n stands for 2n - 1 bytes.
TARGETS = {
    ("nonoverlapping", 4): ({0: range(1, 9), 2: range(1, 9)}, 50 + 62),
    ("nonoverlapping", 8): ({0: range(1, 9), 2: range(1, 9)}, 50 + 62),
    ("sliding", 4): ({0: range(7, 11), 2: range(7, 9)}, 22 + 14),
    ("sliding", 8): ({0: range(7, 11), 2: range(7, 9)}, 22 + 14),
    ("fixed", 4): ({0: range(9, 11)}, 8),
    ("fixed", 8): ({0: range(9, 11)}, 8),
}
MODELS = {"full": {4: 0.1, 8: 0.08}, "crop": {4: 0.1, 8: 0.1}, "window": {4: 0.1, 8: 0.09}}
CASES = [(p, n, v) for p, n in TARGETS for v in (["full"] if p == "nonoverlapping" else MODELS)]


@pytest.mark.parametrize(("protocol", "length", "variant"), CASES)
def test_the_numbers_of_a_row(protocol: str, length: int, variant: str, tmp_path) -> None:
    row = row_of(scored_rows(tmp_path), length, protocol, variant)
    targets, size = TARGETS[protocol, length]
    slope = MODELS[variant][length]
    nats = [d + slope * t for d, numbers in targets.items() for t in numbers]
    assert row["tokens"] == len(nats)
    assert row["bytes"] == size
    assert row["documents"] == len(targets)
    assert row["nll"] == pytest.approx(sum(nats) / len(nats), rel=1e-6)
    assert row["bpb"] == pytest.approx(sum(nats) / LN2 / size, rel=1e-6)
    assert row["ppl"] == pytest.approx(math.exp(sum(nats) / len(nats)), rel=1e-5)
    if len(nats) > 2:
        assert row["nll_low"] <= row["nll"] <= row["nll_high"]
    assert row["resampled"] == "spans"  # there are fewer than five documents
    if protocol == "nonoverlapping":
        assert "gain" not in row
    else:
        gains = [(0.1 - slope) * t for numbers in targets.values() for t in numbers]
        assert row["gain"] == pytest.approx(sum(gains) / len(gains), rel=1e-5, abs=1e-6)
    assert (row["stride"], row["ratio"]) == (length if protocol == "nonoverlapping" else 1, length / 8)


def test_the_cost_of_a_row_is_that_of_its_measurement(tmp_path) -> None:
    rows = scored_rows(tmp_path)
    windows = {("full", 4): 8 * 4, ("crop", 8): 8 * 4, ("full", 8): 6 * 8, ("window", 8): 6 * 8}
    for (variant, length), read in windows.items():
        row = row_of(rows, length, "sliding", variant)
        assert (row["seconds"], row["peak_mb"], row["engine"]) == (2.0, 3.0, "sdpa")
        assert row["tokens_per_s"] == read / 2.0
        assert (row["parameters"], row["run_id"], row["fingerprint"]) == (5, "rope-1", "5ca1ab1e")


def test_a_length_that_failed_leaves_the_positions_of_longer_ones(tmp_path) -> None:
    rows = scored_rows(tmp_path, failed=Measurement(4, 0, "full"))
    assert {row["length"] for row in rows if "from" in row} == {8}
    assert row_of(rows, 4, "sliding", "full")["tokens"] == 0


def test_targets_that_do_not_count_are_left_out_of_every_number(tmp_path) -> None:
    """Of sliding at 8, (0, 7), (0, 8), (0, 9), (0, 10), (2, 7), (2, 8), the third and the last do not count."""
    rows = scored_rows(tmp_path, Marked(DOCUMENTS, uncounted=[(0, 9), (2, 8)]))
    row = row_of(rows, 8, "sliding", "full")
    nats = [0.08 * 7, 0.08 * 8, 0.08 * 10, 2 + 0.08 * 7]
    assert row["tokens"] == 4
    assert row["bytes"] == 13 + 1 + 5 + 1
    assert row["nll"] == pytest.approx(sum(nats) / 4, rel=1e-6)
    assert row["bpb"] == pytest.approx(sum(nats) / LN2 / 20, rel=1e-6)
    assert row["gain"] == pytest.approx(0.02 * (7 + 8 + 10 + 7) / 4, rel=1e-5)
    assert row["even"] == 0.5


def test_a_tasks_own_column_is_a_mean_over_the_same_tokens(tmp_path) -> None:
    rows = scored_rows(tmp_path, Marked(DOCUMENTS))
    assert row_of(rows, 4, "sliding", "full")["even"] == 0.5
    assert row_of(rows, 8, "fixed", "window")["even"] == 0.5
    assert row_of(rows, 8, "nonoverlapping", "full")["even"] == 0.5


def test_a_failed_measurement_has_no_numbers_and_without_crop_there_is_no_gain(tmp_path) -> None:
    rows = scored_rows(tmp_path, failed=Measurement(4, 0, "full"))
    failed, whole = row_of(rows, 8, "sliding", "crop"), row_of(rows, 8, "sliding", "full")
    assert (failed["status"], failed["reason"], failed["tokens"]) == ("oom", "does not fit", 0)
    assert "nll" not in failed
    assert "gain" not in whole
    assert whole["nll"] == pytest.approx((0.08 * (7 + 8 + 9 + 10 + 7 + 8) + 2 * 2) / 6, rel=1e-6)


def test_what_the_intervals_resample(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows where documents are few, and whole documents from five on: their nats, and how many tokens count."""
    asked: list[tuple[list[float], list[float]]] = []

    def spied(totals: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
        asked.append((totals.tolist(), counts.tolist()))
        return 0.0, 1.0

    monkeypatch.setattr(losses_module, "ratio_interval", spied)
    scored_rows(tmp_path)
    sliding = ([0.08 * 15, 0.08 * 19, 4 + 0.08 * 15], [2, 2, 2])  # windows (0, 8), (0, 10), (2, 8)
    gain = ([0.02 * 15, 0.02 * 19, 0.02 * 15], [2, 2, 2])
    for totals, counts in (sliding, gain):
        assert any(t == pytest.approx(totals, rel=1e-5) and c == counts for t, c in asked)
    asked.clear()
    scored_rows(tmp_path, Pieces(DOCUMENTS, uncounted=[(0, 9), (2, 8)]))  # sliding at 8 counts 7, 8; 10; 7
    counted = [0.08 * 15, 0.08 * 10, 2 + 0.08 * 7]
    assert any(t == pytest.approx(counted, rel=1e-5) and c == [2, 1, 1] for t, c in asked)
    asked.clear()
    five = Pieces([*DOCUMENTS, [1] * 8, [1] * 8, [1] * 10])
    row = row_of(scored_rows(tmp_path, five), 8, "sliding", "full")
    assert row["resampled"] == "documents"
    assert row["documents"] == 5
    documents = [0.08 * 34, 4 + 0.08 * 15, 6 + 0.08 * 15, 8 + 0.08 * 15, 20 + 0.08 * 34]
    assert any(t == pytest.approx(documents, rel=1e-5) and c == [4, 2, 2, 2, 4] for t, c in asked)


def test_rows_of_position_csv(tmp_path) -> None:
    """Half octaves of the position: at 8 tokens 1, 2 to 3, 4, 5 to 8, over windows that end at 7, 8, 9, 10; 7, 8."""
    rows = [row for row in scored_rows(tmp_path) if "from" in row and row["length"] == 8]
    assert [(row["from"], row["to"], row["tokens"]) for row in rows] == [(1, 1, 6), (2, 3, 12), (4, 4, 6), (5, 8, 24)]
    # position p is target p - 1 to p + 2, and p - 1 and p: 2/3 nats for documents and 0.08 (p + 1/6) for targets
    for row, position in zip(rows, (1, 2.5, 4, 6.5), strict=True):
        assert row["nll"] == pytest.approx(2 / 3 + 0.08 * (position + 1 / 6), rel=1e-5)
    assert [row["tail_slope"] for row in rows] == pytest.approx([0.08 * slope_of_the_identity()] * 4, rel=1e-4)


def slope_of_the_identity() -> float:
    """The least-squares slope of p over log2 p, p = 3, ..., 8."""
    x = [math.log2(p) for p in range(3, 9)]
    mean = sum(x) / 6
    return sum((a - mean) * (p - 5.5) for a, p in zip(x, range(3, 9), strict=True)) / sum((a - mean) ** 2 for a in x)


def test_the_curve_and_the_slope_of_two_windows() -> None:
    """Positions count from 1. The slope takes the last two octaves, 3 to 8 of 8; what lies before has no effect."""
    nll = np.array([[9.0, 9, 9, 2, 3, 4, 5, 6], [1.0, 3, 5, 4, 5, 6, 7, 8]], dtype=np.float32)
    spans = np.array([[0, 8], [1, 8]])
    bins = position_curve(Losses(spans, {"nll": nll}))
    assert [(b.start, b.stop, b.tokens, b.nll) for b in bins] == [
        (1, 1, 2, 5),
        (2, 3, 4, 6.5),
        (4, 4, 2, 3),
        (5, 8, 8, 5.5),
    ]
    falling = 7 - 0.5 * np.log2(np.arange(1, 9))
    for first in ([0.0, 0.0], [50.0, -3.0]):
        steep, flat = np.array([*first, *falling[2:]]), np.array([*first, *falling[2:] + 1])
        found = tail_slope(Losses(spans, {"nll": np.stack([steep, flat]).astype(np.float32)}))
        assert found == pytest.approx(-0.5, abs=1e-6)


def test_losses_are_the_last_tokens_of_the_windows_asked_for() -> None:
    spans = np.array([[0, 4], [0, 6], [2, 3]])
    nll = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], dtype=np.float32)
    losses = Losses(spans, {"nll": nll, "other": -nll})
    assert losses.at(spans[[2, 0]], 2).tolist() == [[8, 9], [2, 3]]
    assert losses.at(spans[1:2], 3).tolist() == [[4, 5, 6]]
    assert losses.at(spans[1:2], 1, "other").tolist() == [[-6]]


def test_a_loss_beyond_every_float_has_no_perplexity_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(SLOPES, Measurement(8, 0, "full"), 400.0)
    row = row_of(scored_rows(tmp_path), 8, "sliding", "full")
    assert row["nll"] > 3000
    assert row["ppl"] == math.inf


SETTINGS = EvaluationSettings(train_length=8, max_len=16, tokens=32, stride=4)


def test_a_budget_takes_the_same_windows_in_every_version() -> None:
    """Five of the permutation [7 0 1 4 2 5 8 6 3] of nine segments: another draw would change published numbers."""
    documents = Documents(Pieces([[1] * 9 * 8]).text(8), SETTINGS, 8)
    spans = PROTOCOLS.get("nonoverlapping")().spans(documents, 8)
    assert spans.tolist() == [[0, 8 * (n + 1)] for n in (7, 0, 1, 4, 2)]  # (document, end)


@pytest.mark.parametrize(("trained", "recorded"), [("", False), ("alibi", True)])
def test_a_record_has_the_source_of_an_encoding_that_the_model_was_not_trained_with(
    tmp_path: Path, trained: str, recorded: bool
) -> None:
    """That of the trained encoding is part of the run's configuration."""
    run = Run(tmp_path, RunConfig(encoding="toys:Squares"), {}, trained=trained)
    record = record_of(run, SETTINGS)
    assert list(record.get("plugins", {})) == (["toys:Squares"] if recorded else [])


def test_a_perplexity_is_the_exponential_of_the_loss_or_infinite() -> None:
    """No number that was not measured: neither a bound where the exponential is larger, nor one in JSON."""
    assert perplexity(2.0) == pytest.approx(math.e**2)
    assert perplexity(705.0) == math.exp(705.0)
    assert perplexity(1e6) == math.inf
    assert math.isnan(perplexity(math.nan))
    table = pd.DataFrame({"encoding": ["rope", "rope"], "nll": [1e6, math.nan], "ppl": [math.inf, math.nan]})
    assert eval_records([table]) == [
        {"encoding": "rope", "nll": 1e6, "ppl": None},
        {"encoding": "rope", "nll": None, "ppl": None},
    ]


class Sliding(Pieces):
    protocols = ("sliding",)


def test_losses_measured_under_other_settings_are_not_taken_even_for_as_many_windows(tmp_path: Path) -> None:
    """Eight windows each: one ends at every token that counts, which are other tokens for every stride."""
    draw = np.random.default_rng(0)
    task = Sliding([draw.integers(1, PIECES, 60).tolist() for _ in range(4)])

    def losses(folder: str, stride: int) -> Losses:
        run = Run(tmp_path / folder, RunConfig(encoding="rope", length=8), {})
        asked = EvaluationSettings(train_length=8, max_len=8, tokens=8, stride=stride)
        setup = measure.EvaluationSetup(run, task, asked, torch.device("cpu"))
        (found,) = measure.Evaluation(setup, perturbed(model("rope", length=8))).measure().values()
        assert found.losses is not None
        return found.losses

    first, alone = losses("both", stride=4), losses("alone", stride=8)
    assert len(first.spans) == len(alone.spans) == 8
    assert not np.array_equal(first.nll, alone.nll)
    assert np.array_equal(losses("both", stride=8).nll, alone.nll)


def test_a_measurement_takes_the_seconds_of_all_its_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight windows of 8 tokens, three in a pass of 24 tokens, so three passes; each takes two seconds."""
    clock, sizes, score = SimpleNamespace(now=100.0), [], measure.score

    def slow(model: Any, task: Any, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        clock.now += 2.0
        sizes.append(len(inputs))
        return score(model, task, inputs, targets)

    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(measure, "PASS_TOKENS", 24)
    monkeypatch.setattr(measure, "score", slow)
    task = Sliding([np.random.default_rng(0).integers(1, PIECES, 60).tolist() for _ in range(4)])
    asked = EvaluationSettings(train_length=8, max_len=8, tokens=8, stride=4)
    run = Run(tmp_path, RunConfig(encoding="rope", length=8), {})
    setup = measure.EvaluationSetup(run, task, asked, torch.device("cpu"))
    (made,) = measure.Evaluation(setup, model("rope", length=8)).measure().values()
    assert (sizes, made.seconds, made.status) == ([3, 3, 2], 6.0, "ok")
