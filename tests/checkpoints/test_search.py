"""`advise --search`: the numbers that it finds are those of the least loss, on documents that are not scored."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import LENGTH, make
from cli_runner import ask_before_any_work, assert_refused, cli, document

from poscli.checkpoints import matrix, search
from poscli.checkpoints.advice import Advice, Candidate
from poscli.checkpoints.paste import snippets
from poscli.checkpoints.request import AdviceRequest
from poscli.checkpoints.search import searched
from poscli.evaluation.measure import EvaluationSetup
from poscli.report.verdicts import HOLDS
from poscli.specs import parse
from poscli.statistics.comparison import Comparison

OWN = 5000.0  # theta of the model


def asked(place: Path, family: str = "llama", *specs: str, found: Sequence[str] = ()) -> matrix.Matrix:
    request = AdviceRequest.model_validate({"corpus": f"jsonl:{place / 'text.jsonl'}", "as": [*specs] or ["yarn"]})
    return matrix.opened(str(place / family), "2x", request, device_name="cpu", runs=Path("runs"), found=found)


class PlantedEnd:
    """The loss is least at one theta, factor, attention factor and temperature, and least of all under YaRN."""

    def loss(self, spec: str) -> float:
        number = {key: float(value) for key, value in re.findall(r"(\w+)=([\d.]+)", spec)}
        temperature = (number.get("c", 0.0) - 0.2) ** 2
        if "yarn" in spec:
            return (
                1 + (math.log2(number["factor"]) - 1.4) ** 2 + (number.get("attention", 1.0) - 1.3) ** 2 + temperature
            )
        return 2 + (math.log2(number["base"] / OWN) - 2.5) ** 2 + temperature


def test_what_is_found_is_where_the_loss_is_least(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[EvaluationSetup] = []

    def planted(setup: EvaluationSetup) -> list[PlantedEnd]:
        texts.append(setup)
        return [PlantedEnd(), PlantedEnd()]

    loaded: list[Any] = []

    def under(model: Any, spec: str, trained: str) -> str:
        loaded.append(model.stock)
        return spec

    monkeypatch.setattr(search, "ends", planted)
    monkeypatch.setattr(search, "with_encoding", under)
    whole = asked(place)
    theta, factor, attention, temperature = searched(whole)
    assert len({id(each) for each in loaded}) == 1  # from the disk, for all tries
    assert [each.number for each in (theta, factor, attention, temperature)] == [
        "theta", "factor", "attention", "temperature",
    ]  # fmt: skip
    numbers = {key: float(value) for key, value in re.findall(r"(\w+)=([\d.]+)", theta.spec + temperature.spec)}
    base = float(re.findall(r"base=([\d.]+)", theta.spec)[0])
    # Seven tries within bounds of a few octaves leave a hundredth of these.
    assert math.log2(base / OWN) == pytest.approx(2.5, abs=0.1)
    assert math.log2(numbers["factor"]) == pytest.approx(1.4, abs=0.1)
    assert numbers["attention"] == pytest.approx(1.3, abs=0.03)
    assert numbers["c"] == pytest.approx(0.2, abs=0.03)
    assert theta.loss > factor.loss > attention.loss > temperature.loss
    (chooser,) = texts
    scored, chosen = whole.work[0].task.text(LENGTH).sizes, chooser.task.text(LENGTH).sizes
    assert chooser.task.text(LENGTH) is not whole.work[0].task.text(LENGTH)
    assert sorted(chosen) != sorted(scored)


def test_a_temperature_is_that_of_all_layers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 3 has two layers with a window, then one without."""
    make("gemma3", place / "gemma3")
    monkeypatch.setattr(search, "ends", lambda setup: [PlantedEnd()])
    monkeypatch.setattr(search, "with_encoding", lambda model, spec, trained: spec)
    layers = searched(asked(place, "gemma3"))[-1].spec.split("|")
    assert len(layers) == 3
    assert len({temper for layer in layers for temper in re.findall(r"temper\(.*?\)", layer)}) == 1
    assert all("temper" in layer for layer in layers)


def test_numbers_are_looked_for_where_only_layers_with_a_window_rotate(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("cohere2", place / "cohere2")
    monkeypatch.setattr(search, "ends", lambda setup: [PlantedEnd()])
    monkeypatch.setattr(search, "with_encoding", lambda model, spec, trained: spec)
    theta, *_ = searched(asked(place, "cohere2"))
    assert [len(re.findall("base=", layer)) for layer in theta.spec.split("|")] == [1, 1, 1, 0]


@pytest.mark.parametrize("family", ["gpt_oss", "qwen2", "exaone4"])
def test_layers_with_one_rope_in_the_configuration_change_together(place: Path, family: str) -> None:
    """Else no program could serve what was measured. Windows stay what they are."""
    make(family, place / family)
    opened = asked(place, family, "yarn(factor=64)", "rope-linear")
    read = opened.checkpoint
    for setup in opened.work[1:]:
        spec = setup.run.config.encoding
        for snippet in snippets("M", read.architecture, read.config, spec, opened.target):
            cannot = ("llama.cpp", "vLLM") if family == "gpt_oss" else ("llama.cpp",)
            assert not snippet.reason or snippet.runtime in cannot, snippet.reason
        leaves = [leaf for layer in parse(spec).layers for leaf in layer]
        assert len({str(leaf) for leaf in leaves if leaf.name in ("yarn", "rope-linear")}) == 1
        assert {str(leaf) for leaf in leaves if leaf.name == "window"} == {
            str(leaf) for layer in parse(read.run.encoding).layers for leaf in layer if leaf.name == "window"
        }


def test_an_option_that_is_given_stays_where_it_is_the_default(place: Path) -> None:
    """The model has another theta, which is that of whatever names none."""
    plain, scaled = (each.run.config.encoding for each in asked(place, "llama", "rope(base=10000)", "yarn").work[1:])
    assert plain == "rope"
    assert f"base={OWN}" in scaled
    assert asked(place, "llama", "yarn", found=["rope"]).work[-1].run.config.encoding == "rope"


def test_no_number_is_looked_for_when_the_time_is_over(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "ends", lambda setup: [PlantedEnd()])
    assert searched(asked(place), until=-math.inf) == []


def test_what_is_found_is_measured_like_any_other(place: Path) -> None:
    corpus = ("--corpus", f"jsonl:{place / 'text.jsonl'}")
    command = ("advise", place / "llama", "--target", "2x", "--tokens", 64, "--as", "rope-ntk", *corpus, "--search")
    found = document(*command)
    specs = {each["spec"] for each in found["candidates"]}
    assert [each["number"] for each in found["search"]] == ["theta", "factor", "attention", "temperature"]
    assert {each["spec"] for each in found["search"]} < specs
    assert len(specs) == 6  # with the model as it is, and rope-ntk


def test_a_model_without_rope_is_refused(place: Path) -> None:
    corpus = ("--corpus", f"jsonl:{place / 'text.jsonl'}")
    asked = ("advise", place / "bloom", "--target", "2x", "--search", *corpus)
    assert_refused(asked, 2, "--search looks for numbers of rope, and bloom has none", notes=1)


def test_a_commit_of_the_hub_is_pasted_with_the_last_tokens(place: Path) -> None:
    advice = Advice(model="M", target=128, train_length=64, candidates=(), chosen=None, documents=1, seeds=1)
    read = asked(place)
    source = replace(read.checkpoint.source, spec="hf:ORG/M@0123abc", revision="0123abc")
    of_hub = replace(read, checkpoint=replace(read.checkpoint, source=source))
    (pasted,), _, _ = matrix.to_paste(of_hub, advice, ["transformers"])
    assert '"ORG/M", revision="0123abc"' in pasted.text


@pytest.mark.parametrize(("spec", "there"), [("yarn", True), ("rerope", False)])
def test_what_inputs_that_must_be_read_whole_need_is_pasted_too(place: Path, spec: str, there: bool) -> None:
    """`rerope` has a key in no program."""
    zero = Comparison(0.0, -0.001, 0.001, p=1.0, seeds=1, documents=12)
    holding = Candidate(encoding=spec, variant="full", spec=spec, gain=zero, cost=zero, verdict=HOLDS, reason="")
    advice = Advice(model="m", target=128, train_length=64, candidates=(holding,), chosen=None, documents=12, seeds=1)
    (last,), other, others = matrix.to_paste(asked(place), advice, ["transformers"])
    assert "64" in last.text + last.reason
    assert (other == holding, bool(others)) == (there, there)
    assert there == any('"yarn"' in each.text for each in others)


def test_a_plan_says_that_the_search_is_missing_from_it(place: Path) -> None:
    corpus = ("--corpus", f"jsonl:{place / 'text.jsonl'}")
    result = cli("advise", place / "llama", "--target", "2x", "--search", "--dry-run", *corpus)
    assert result.code == 0
    assert "without --search, and without the encodings that it would add" in " ".join(result.err.split())


def test_a_search_of_more_than_an_hour_is_asked_for_before_it_begins(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def began(*_: object, **__: object) -> None:
        raise AssertionError("the search began")

    monkeypatch.setattr(search, "searched", began)
    corpus = ("--corpus", f"jsonl:{place / 'text.jsonl'}")
    asked = ("advise", place / "llama", "--target", "2x", "--search", *corpus)
    assert_refused((*asked, "--minutes", 61), 2, "this takes about", notes=1)
    ask_before_any_work(monkeypatch)
    assert_refused(asked, 2, "this takes about", notes=1)
