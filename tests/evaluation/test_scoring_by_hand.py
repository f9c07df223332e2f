"""The windows of every protocol on three small documents, written out by hand, and every number of their rows.

L = 4 and the stride is 2. The documents have 11, 5 and 8 targets; a window is (document, number of its last target).
Tokens stand for several bytes.
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
from toys import model, perturbed

from poscli.config.run import RunConfig
from poscli.evaluation import losses as losses_module
from poscli.evaluation import measure, tables
from poscli.evaluation.losses import Losses, MeasuredLosses
from poscli.evaluation.measure import EvaluationSetup
from poscli.evaluation.plan import Measurement, Plan, record_of
from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings
from poscli.report.summary import as_json
from poscli.runs.run import Run
from poscli.runs.schema import perplexity
from poscli.tasks.copy import Copy

DOCUMENTS = ([1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6], [3, 3, 5, 3, 3], [7, 6, 5, 4, 3, 2, 1, 7, 6, 5])

SPANS = {
    ("nonoverlapping", 4): [(0, 4), (0, 8), (2, 4), (2, 8)],  # document 1 has no segment of the longest length, 8
    ("nonoverlapping", 8): [(0, 8), (2, 8)],
    ("sliding", 4): [(0, 10), (0, 12), (2, 10)],  # target 7 has no 8 tokens before it, so none ends with target 8
    ("sliding", 8): [(0, 10), (0, 12), (2, 10)],
    ("fixed", 4): [(0, 10), (0, 12), (2, 10)],  # targets from 9 on lie beyond the longest length, 8
    ("fixed", 8): [(0, 10), (0, 12), (2, 10)],
}
SCORED = {("nonoverlapping", 4): 4, ("nonoverlapping", 8): 8} | {
    (p, n): 2 for p in ("sliding", "fixed") for n in (4, 8)
}


def settings(**changes) -> EvaluationSettings:
    return EvaluationSettings(**{"train_length": 4, "max_len": 8, "tokens": 1000, "stride": 2} | changes)


def plan(**changes) -> Plan:
    return Plan(Pieces(DOCUMENTS), settings(**changes))


def pairs(spans: np.ndarray) -> list[tuple[int, int]]:
    return [(int(document), int(end)) for document, end in spans]


@pytest.mark.parametrize(("protocol", "length"), SPANS)
def test_the_windows_of_a_protocol(protocol: str, length: int) -> None:
    assert pairs(plan().spans(protocol, length)) == SPANS[protocol, length]
    assert PROTOCOLS.get(protocol)().scored(settings(), length) == SCORED[protocol, length]


def test_the_tokens_of_a_window_and_those_that_are_scored() -> None:
    """A window holds the l tokens before its last target and that target; a document opens with token 0."""
    text, spans = Pieces(DOCUMENTS).text(4), np.array([[0, 4], [0, 10], [2, 8]])
    assert text.sizes.tolist() == [13, 5, 10]
    assert text.windows(spans, 4).tolist() == [[0, 1, 2, 3, 4], [6, 7, 1, 2, 3], [4, 3, 2, 1, 7]]
    assert text.targets(spans, 2).tolist() == [[3, 4], [2, 3], [1, 7]]
    assert text.targets(spans, 4).tolist() == [[1, 2, 3, 4], [7, 1, 2, 3], [3, 2, 1, 7]]
    assert text.windows(np.array([[1, 5]]), 5).tolist() == [[0, 3, 3, 5, 3, 3]]
    assert text.counts(spans, 2).all()


def test_fixed_leaves_out_what_has_less_than_the_longest_window_before_it() -> None:
    """Windows of 16 score both of their last two tokens: the first ends with target 16, which has 16 tokens before it.

    For the target before it that is not so.
    """
    made = Plan(Pieces([[1] * 21]), settings(max_len=16))
    assert pairs(made.spans("sliding", 16)) == [(0, 16), (0, 18), (0, 20)]
    assert pairs(made.spans("fixed", 16)) == [(0, 18), (0, 20)]


@pytest.mark.parametrize(("lengths", "stride"), [((1,), 8), ((1, 2), 64), ((1, 1.25, 16), 48), ((1, 4), 1)])
def test_no_window_begins_before_its_document(lengths: tuple[float, ...], stride: int) -> None:
    task = Pieces([[1] * size for size in (63, 64, 71, 72, 80, 127, 128, 200, 1104)])
    made = Plan(task, settings(train_length=64, max_len=1024, ratios=lengths, stride=stride, tokens=10**6))
    text = task.text(64)
    for measurement, spans in made.measurements().items():
        assert text.inside(spans, measurement.window, 0).all()


@pytest.mark.parametrize(
    ("tokens", "protocol", "length", "count"),
    [
        (2, "sliding", 4, 1),
        (5, "sliding", 4, 2),  # whole windows of 2 scored tokens that fit 5
        (16, "sliding", 4, 3),  # all there are
        (2, "fixed", 8, 1),
        (8, "nonoverlapping", 4, 4),  # up to five segments whatever the budget
        (2, "nonoverlapping", 8, 2),
    ],
)
def test_the_budget(tokens: int, protocol: str, length: int, count: int) -> None:
    chosen = pairs(plan(tokens=tokens).spans(protocol, length))
    assert len(set(chosen)) == len(chosen) == count
    assert set(chosen) <= set(SPANS[protocol, length])


@pytest.mark.parametrize(("tokens", "segments"), [(2, 5), (40, 5), (48, 6), (79, 9), (1000, 9)])
def test_the_budget_of_nonoverlapping(tokens: int, segments: int) -> None:
    """A document of 76 targets has nine segments of 8; each is cut into the windows of every length."""
    made = Plan(Pieces([[1] * 76]), settings(tokens=tokens))
    long, short = pairs(made.spans("nonoverlapping", 8)), pairs(made.spans("nonoverlapping", 4))
    assert len(long) == segments
    assert short == sorted((0, end - back) for _, end in long for back in (0, 4))


def test_the_measurements_of_a_plan() -> None:
    """Rows share measurements: crop at 8 is the model at 4, and a window of L hides nothing at 4.

    The 2 tokens that sliding scores at the end of a window are read one by one, because a piece is at most 1/8 of it.
    """
    made = plan()
    found = {one: pairs(spans) for one, spans in made.measurements().items()}
    assert found == {
        Measurement(4, 0, "full"): [(0, 4), *((0, n) for n in range(8, 13)), (2, 4), (2, 8), (2, 9), (2, 10)],
        Measurement(8, 0, "full"): [*((0, n) for n in range(8, 13)), (2, 8), (2, 9), (2, 10)],
        Measurement(8, 0, "window"): [*((0, n) for n in range(9, 13)), (2, 9), (2, 10)],
    }
    assert [one.file for one in found] == ["4.parquet", "8.parquet", "8-window.parquet"]
    assert made.measurement(8, "crop") == made.measurement(4, "crop") == made.measurement(4, "full")
    assert made.measurement(4, "window") == Measurement(4, 0, "full")
    assert made.variants("nonoverlapping") == ["full"]
    assert made.variants("sliding") == made.variants("fixed") == ["full", "crop", "window"]


def test_the_answer_protocol_reads_one_whole_episode_and_scores_half_of_L() -> None:
    """Episodes of l + 1 tokens have one window each, which ends with the episode."""
    answer, at = PROTOCOLS.get("answer")(), EvaluationSettings(train_length=8, max_len=16, tokens=12, stride=4)
    documents = Documents(Pieces([[1] * 16] * 5).text(16), at, 16)
    assert answer.scored(at, 16) == answer.scored(at, 8) == 4
    assert pairs(answer.spans(documents, 16)) == [(0, 16), (1, 16), (2, 16)]  # 3 windows of 4 tokens make 12
    made = Plan(Copy(), at)
    assert pairs(made.spans("answer", 16)) == [(0, 16), (1, 16), (2, 16)]
    assert pairs(made.spans("answer", 8)) == [(0, 8), (1, 8), (2, 8)]
    assert made.measurement(16, "crop") == Measurement(8, 16, "full")  # the last 8 tokens of the text of 16
    assert made.measurement(16, "full") == Measurement(16, 16, "full")


# Rows of eval.csv and position.csv from losses that are written down

# The loss of target t in document d is d + a t, where a depends on the measurement: so every gain is known.
SLOPES = {Measurement(4, 0, "full"): 0.1, Measurement(8, 0, "full"): 0.08, Measurement(8, 0, "window"): 0.09}
LN2 = 0.6931471805599453


class Marked(Pieces):
    """With a column of its own: 1 for even targets."""

    columns: ClassVar = {"even": ("float64", "share of the targets with an even number")}


def test_windows_are_measured_where_they_are_scored_and_some_of_the_model_itself_whole() -> None:
    """Every window is measured at least where a row scores it; no curve is made of the losses of a baseline."""
    made = Plan(Pieces([[1] * 60, [2] * 60]), settings(max_len=16, tokens=24))
    for measurement, spans in made.measurements().items():
        counts = made.measured_tokens(measurement)
        assert len(counts) == len(spans)
        at = dict(zip(pairs(spans), counts.tolist(), strict=True))
        for protocol in made.protocols:
            for length in made.settings.lengths:
                for variant in made.variants(protocol):
                    if made.measurement(length, variant) == measurement:
                        piece = made.protocols[protocol].piece(made.settings, measurement.window)
                        windows = pairs(made.windows(protocol, length, measurement.window))
                        assert all(at[window] >= piece for window in windows)
        whole = int((counts == measurement.window).sum())
        if measurement.model == "full":
            assert whole >= min(len(spans), 16)
            assert whole < len(spans) or len(spans) <= 8 * 24 // measurement.window
        else:
            assert set(counts.tolist()) == {made.protocols["sliding"].piece(made.settings, measurement.window)}


def scored_rows(tmp_path, task: Pieces | None = None) -> list[dict]:
    """The rows of an evaluation in which every loss is d + a t."""
    task = task or Pieces(DOCUMENTS)
    run = Run(tmp_path / "rope-1", RunConfig(encoding="rope", length=8), {"parameters": 5})
    setup = EvaluationSetup(run, task, settings(), torch.device("cpu"))
    measured = {}
    for one, spans in setup.plan.measurements().items():
        target = spans[:, 1:] + np.arange(1 - one.window, 1)
        values = {"nll": (spans[:, :1] + SLOPES[one] * target).astype(np.float32)}
        values |= {name: (target % 2 == 0).astype(np.float32) for name in task.columns}
        measured[one] = MeasuredLosses(Losses(spans, values), seconds=2.0, peak_mb=3.0, engine="sdpa")
    return list(tables.eval_rows(setup, measured)) + list(tables.position_rows(setup, measured))


def row_of(rows: list[dict], length: int, protocol: str, variant: str) -> dict:
    wanted = {"length": length, "protocol": protocol, "variant": variant}
    (row,) = [row for row in rows if wanted.items() <= row.items()]
    return row


# The scored targets of each document, and the bytes that they stand for. Token n stands for 2n - 1 bytes.
TARGETS = {
    ("nonoverlapping", 4): ({0: range(1, 9), 2: range(1, 9)}, 50 + 62),
    ("nonoverlapping", 8): ({0: range(1, 9), 2: range(1, 9)}, 50 + 62),
} | {(p, n): ({0: range(9, 13), 2: range(9, 11)}, 24 + 20) for p in ("sliding", "fixed") for n in (4, 8)}
MODELS = {"full": {4: 0.1, 8: 0.08}, "crop": {4: 0.1, 8: 0.1}, "window": {4: 0.1, 8: 0.09}}
COST = ("seconds", "tokens_per_s", "peak_mb", "engine", "parameters", "run_id", "fingerprint")
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
    read = {0.1: 10 * 4, 0.08: 8 * 8, 0.09: 6 * 8}[slope]  # tokens of all windows of the measurement
    cost = (2.0, read / 2.0, 3.0, "sdpa", 5, "rope-1", "5ca1ab1e")
    assert tuple(row[name] for name in COST) == cost


def test_targets_that_do_not_count_are_left_out_of_every_number(tmp_path) -> None:
    """Of sliding at 8, (0, 9), (0, 10), (0, 11), (0, 12), (2, 9), (2, 10), the third and the last do not count."""
    rows = scored_rows(tmp_path, Marked(DOCUMENTS, uncounted=[(0, 11), (2, 10)]))
    row = row_of(rows, 8, "sliding", "full")
    nats = [0.08 * 9, 0.08 * 10, 0.08 * 12, 2 + 0.08 * 9]
    assert row["tokens"] == 4
    assert row["bytes"] == 3 + 5 + 9 + 11
    assert row["nll"] == pytest.approx(sum(nats) / 4, rel=1e-6)
    assert row["bpb"] == pytest.approx(sum(nats) / LN2 / 28, rel=1e-6)
    assert row["gain"] == pytest.approx(0.02 * (9 + 10 + 12 + 9) / 4, rel=1e-5)
    assert row["even"] == 0.5


def test_what_the_intervals_resample(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows where documents are few, and whole documents from five on: their nats, and how many tokens count."""
    asked: list[tuple[list[float], list[float]]] = []

    def spied(totals: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
        asked.append((totals.tolist(), counts.tolist()))
        return 0.0, 1.0

    monkeypatch.setattr(losses_module, "ratio_interval", spied)
    scored_rows(tmp_path)
    sliding = ([0.08 * 19, 0.08 * 23, 4 + 0.08 * 19], [2, 2, 2])  # windows (0, 10), (0, 12), (2, 10)
    gain = ([0.02 * 19, 0.02 * 23, 0.02 * 19], [2, 2, 2])
    for totals, counts in (sliding, gain):
        assert any(t == pytest.approx(totals, rel=1e-5) and c == counts for t, c in asked)
    asked.clear()
    scored_rows(tmp_path, Pieces(DOCUMENTS, uncounted=[(0, 11), (2, 10)]))  # sliding at 8 counts 9, 10; 12; 9
    counted = [0.08 * 19, 0.08 * 12, 2 + 0.08 * 9]
    assert any(t == pytest.approx(counted, rel=1e-5) and c == [2, 1, 1] for t, c in asked)
    asked.clear()
    five = Pieces([*DOCUMENTS, [1] * 10, [1] * 10, [1] * 12])
    row = row_of(scored_rows(tmp_path, five), 8, "sliding", "full")
    assert row["resampled"] == "documents"
    assert row["documents"] == 5
    documents = [0.08 * 42, 4 + 0.08 * 19, 6 + 0.08 * 19, 8 + 0.08 * 19, 20 + 0.08 * 42]
    assert any(t == pytest.approx(documents, rel=1e-5) and c == [4, 2, 2, 2, 4] for t, c in asked)


def test_rows_of_position_csv(tmp_path) -> None:
    """Half octaves of the position: at 8 tokens 1, 2 to 3, 4, 5 to 8, over windows that end at 8 to 12, and 8 to 10."""
    rows = [row for row in scored_rows(tmp_path) if "from" in row and row["length"] == 8]
    assert [(row["from"], row["to"], row["tokens"]) for row in rows] == [(1, 1, 8), (2, 3, 16), (4, 4, 8), (5, 8, 32)]
    # position p is target p to p + 4, and p to p + 2: 3/4 nats for documents, and 0.08 (p + 13/8) for targets
    for row, position in zip(rows, (1, 2.5, 4, 6.5), strict=True):
        assert row["nll"] == pytest.approx(3 / 4 + 0.08 * (position + 13 / 8), rel=1e-5)
    assert [row["tail_slope"] for row in rows] == pytest.approx([0.08 * slope_of_the_identity()] * 4, rel=1e-4)


def slope_of_the_identity() -> float:
    """The least-squares slope of p over log2 p, p = 3, ..., 8."""
    x = [math.log2(p) for p in range(3, 9)]
    mean = sum(x) / 6
    return sum((a - mean) * (p - 5.5) for a, p in zip(x, range(3, 9), strict=True)) / sum((a - mean) ** 2 for a in x)


SETTINGS = EvaluationSettings(train_length=8, max_len=16, tokens=32, stride=4)


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
    assert as_json(table) == [
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
