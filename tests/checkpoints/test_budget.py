"""Advice within a given time: what is measured of whom, by a clock that measuring moves on, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from checkpoints import LENGTH, make, write_corpus
from cli_runner import assert_refused, document

from poscli.checkpoints import budget, matrix
from poscli.checkpoints.request import AdviceRequest
from poscli.evaluation.measure import EvaluationSetup
from poscli.runs.results import Tables
from poscli.system.errors import UsageError

STRIDE = LENGTH // 8
# The loss of each encoding at the target. The first three differ by less than others.
LOSSES = {
    "yarn": 1.0,
    "llama3": 1.01,
    "rope-ntk": 1.02,
    "rope-linear": 1.2,
    "self-extend": 1.3,
    "rerope": 1.4,
    "longrope": 2.0,
    "string": 3.0,
}


def asked(place: Path, names: Sequence[str], **options: Any) -> matrix.Matrix:
    values = {"corpus": f"jsonl:{place / 'text.jsonl'}", "tokens": 32 * STRIDE, "minutes": 1.0, "as": list(names)}
    request = AdviceRequest.model_validate(values | options)
    return matrix.opened(str(place / "llama"), "4x", request, device_name="cpu", runs=Path("runs"))


class World:
    """Measuring takes `seconds` of a clock for each input and encoding, and finds LOSSES; so does the screening."""

    def __init__(self, patch: pytest.MonkeyPatch, seconds: float, failing: str = "") -> None:
        self.now, self.seconds, self.failing = 0.0, seconds, failing
        self.read: dict[str, int] = {}  # inputs, by run
        self.screenings, self.unknown = 0, ""
        patch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(budget, "evaluations", self.evaluations)
        patch.setattr(budget, "measured", self.measured)
        patch.setattr(budget, "screened", self.screened)

    def evaluations(self, setups: Sequence[EvaluationSetup], **_: Any) -> list[Any]:
        return [SimpleNamespace(seconds=self.seconds * each.settings.tokens / each.settings.stride) for each in setups]

    def loss(self, setup: EvaluationSetup) -> float:
        name = setup.run.config.encoding.partition("(")[0]
        return math.nan if name == self.failing else LOSSES.get(name, 5.0)

    def measured(self, asked: matrix.Matrix) -> Tables:
        rows = []
        for each in asked.work:
            inputs = each.settings.tokens // each.settings.stride
            self.now += self.seconds * (inputs - self.read.get(each.run.id, 0))
            self.read[each.run.id] = inputs
            for length in (LENGTH, 4 * LENGTH):
                row = {"run_id": each.run.id, "encoding": each.run.label, "length": length, "variant": "full"}
                failed = "it overflows" if math.isnan(self.loss(each)) else ""
                rows.append(row | {"bpb": self.loss(each), "reason": failed, "seconds": self.seconds * inputs / 2})
        return Tables(pd.DataFrame(rows), pd.DataFrame(), {})

    def screened(
        self, own: EvaluationSetup, entrants: Sequence[EvaluationSetup], seconds: float
    ) -> tuple[dict[str, float], dict[str, str]]:
        self.screenings += 1
        self.now += 1.0
        unknown = [each for each in entrants if each.run.config.encoding.partition("(")[0] == self.unknown]
        return {each.run.id: math.inf if each in unknown else self.loss(each) for each in entrants}, {}


def names(encodings: Sequence[str]) -> list[str]:
    return [each.partition("(")[0] for each in encodings]


def followed(spent: budget.Spent) -> set[str]:
    """The encodings that are in the last tables, without the model as it is."""
    return {label.partition(" as ")[2].partition("(")[0] for label in spent.tables.rows["encoding"]} - {""}


def test_with_enough_time_every_encoding_reads_everything(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    World(monkeypatch, seconds=0.01)
    spent = budget.within(asked(place, list(LOSSES)), 1, begun=0.0)
    assert (spent.inputs, spent.left_out) == (32, ())
    assert followed(spent) == set(LOSSES)


def test_the_better_half_goes_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight encodings, then four, then three; each look goes on from the last, and the time is kept."""
    world = World(monkeypatch, seconds=1.0)
    spent = budget.within(asked(place, list(LOSSES)), 1, begun=0.0)
    assert world.screenings == 0
    assert followed(spent) == {"yarn", "llama3", "rope-ntk"}
    assert names([each.spec for each in spent.left_out]) == [
        "rope-linear",
        "self-extend",
        "rerope",
        "longrope",
        "string",
    ]
    inputs = [each.inputs for each in spent.left_out]
    assert inputs[0] > inputs[1] == inputs[4] > 0
    assert spent.inputs > inputs[0]
    assert [each.behind for each in spent.left_out] == pytest.approx([LOSSES[name] - 1 for name in list(LOSSES)[3:]])
    assert 40 < world.now <= 60


def test_where_not_one_input_fits_the_encodings_are_screened(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, seconds=12.0)
    spent = budget.within(asked(place, list(LOSSES)), 1, begun=0.0)
    assert world.screenings == 1
    assert "yarn" in followed(spent)
    assert len(followed(spent)) == 3
    assert {each.inputs for each in spent.left_out} == {0}
    assert spent.inputs == 1
    assert world.now <= 60


def test_what_a_screening_says_nothing_of_comes_after_what_it_ranks(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is time for two of three; a window, whose loss is not known, is the third."""
    world = World(monkeypatch, seconds=17.0)
    world.unknown = "rope"
    spent = budget.within(asked(place, ["rope+window", "yarn", "llama3"]), 1, begun=0.0)
    assert world.screenings == 1
    assert followed(spent) == {"yarn", "llama3"}
    assert [each.behind for each in spent.left_out] == [None]


def test_an_encoding_that_fails_is_left_out_with_the_reason(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    World(monkeypatch, seconds=1.0, failing="yarn")
    spent = budget.within(asked(place, list(LOSSES)), 1, begun=0.0)
    assert names([spent.left_out[-1].spec]) == ["yarn"]
    assert (spent.left_out[-1].behind, spent.left_out[-1].reason) == (None, "it overflows")


@pytest.mark.parametrize("seconds", [31.0, 1e6])
def test_too_little_time_is_refused_before_anything_is_measured(
    seconds: float, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch, seconds)
    with pytest.raises(UsageError, match="--minutes 1 is too short: one input of 256 tokens"):
        budget.within(asked(place, list(LOSSES)), 1, begun=0.0)
    assert world.now == 0


def test_an_evaluation_reads_what_the_time_allows(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = asked(place, ["yarn", "llama3"]).work
    for seconds, inputs in ((1e-6, 32), (2.0, 10)):
        World(monkeypatch, seconds)
        assert {each.settings.tokens // STRIDE for each in budget.fitting(work, 1)} == {inputs}
    World(monkeypatch, 21.0)
    with pytest.raises(UsageError, match="--minutes 1 is too short"):
        budget.fitting(work, 1)


def test_the_screening_of_a_model_of_one_layer_is_the_loss_at_the_end_of_inputs(tmp_path: Path) -> None:
    """There, keys before their positions do not depend on how what comes before was read."""
    make("llama", tmp_path / "llama", num_hidden_layers=1)
    write_corpus(tmp_path / "text.jsonl")
    specs = ["yarn", "rope-linear", "self-extend"]
    whole = asked(tmp_path, specs, tokens=STRIDE)
    losses, failed = budget.screened(whole.work[0], whole.work[1:], seconds=0)
    rows = matrix.measured(whole).rows
    full = rows[(rows["length"] == 4 * LENGTH) & (rows["variant"] == "full")].set_index("run_id")["bpb"]
    assert failed == {}
    assert len(losses) == len(specs)
    hiding = asked(tmp_path, ["rope+window"], tokens=STRIDE)
    losses_of_windows, failed = budget.screened(hiding.work[0], hiding.work[1:], seconds=0)
    assert list(losses_of_windows.values()) == [math.inf]
    assert list(failed.values()) == ["its windows are not the model's own, of which a screening says nothing"]
    assert losses == pytest.approx({run: full[run] for run in losses}, rel=1e-4)
    assert max(losses.values()) - min(losses.values()) > 1e-3


def test_advice_within_minutes_on_a_real_checkpoint(place: Path) -> None:
    command = ("advise", place / "llama", "--target", "2x", "--tokens", 64, "--corpus", f"jsonl:{place / 'text.jsonl'}")
    found = document(*command, "--as", "yarn", "--as", "rope-ntk", "--minutes", 5)
    assert found["left_out"] == []
    assert {each["spec"].partition("(")[0] for each in found["candidates"]} == {"", "yarn", "rope-ntk"}


def test_extrapolate_scores_what_the_minutes_allow(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stride takes so long that four fit; the losses are those of an evaluation of so many tokens."""
    corpus = ("--corpus", f"jsonl:{place / 'text.jsonl'}")
    command = ("extrapolate", "--model", place / "llama", "--max-len", "2x", "--stride", 8, *corpus)
    with monkeypatch.context() as patch:
        World(patch, seconds=14.0)
        rows = document(*command, "--minutes", 1, "--tokens", 256, "--out", "timed")
    plain = document(*command, "--tokens", 32, "--out", "plain")
    assert [row["nll"] for row in rows] == [row["nll"] for row in plain]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--minutes", 0), "greater than 0"),
        (("--lengths", "3"), "--lengths 3 is above --target 2x"),
        (("--stride", 100), "--stride 100 must be between 1 and"),
        (("--precision", "float8"), "--precision 'float8'"),
        (("--baseline", "yarn"), "--baseline yarn"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused(place: Path, options: tuple[object, ...], words: str) -> None:
    corpus = f"jsonl:{place / 'text.jsonl'}"
    assert_refused(("advise", place / "llama", "--target", "2x", "--corpus", corpus, *options), 2, words)
