"""Post-hoc encodings: which are compatible with a trained model, its weights under them, and the result tables."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from cli_runner import NANO, SHORT, cli, snapshot
from toys import LENGTH, model, perturbed, shape, tokens

from poscli.encodings import get, names
from poscli.evaluation.posthoc import compatible_specs, posthoc_spec, with_encoding
from poscli.system.errors import UsageError


@pytest.mark.parametrize(
    ("trained", "target", "full"),
    [
        ("rope", "none", "none"),
        ("rope", "rope(base=500000)", "rope(base=500000.0)"),
        ("rope", "window", "rope+window"),
        ("rope", "rope+window(9)", "rope+window(width=9)"),
        ("alibi", "window(9)", "alibi+window(width=9)"),
        ("rope+window(9)", "rope", "rope"),
        ("rope+window(9)", "none", "none"),
        ("rope+window(9)", "window(5)+rope", "window(width=5)+rope"),
        ("rope|none", "window", "rope+window|none+window"),
        ("rope|none", "none", "none|none"),
        ("shaw", "window", "shaw+window"),
        ("t5+rope", "t5+none", "t5+none"),
        ("t5+rope", "t5", "t5"),
    ],
)
def test_compatible_encodings_get_their_full_spec(trained: str, target: str, full: str) -> None:
    assert posthoc_spec(trained, target, shape()) == full


@pytest.mark.parametrize(
    ("trained", "target", "reason"),
    [
        ("rope", "alibi", "a model must be trained with alibi"),
        ("alibi", "rope", "a model must be trained with rope"),
        ("t5", "none", "t5 learned 96 numbers that none has no use for"),
        ("shaw", "shaw(clip=4)", "shaw(clip=4) learns other numbers than shaw"),
        ("alibi", "alibi(trainable=true)", "learns other numbers than alibi"),
        ("rope", "rope+t5", "a model must be trained with t5"),
        ("rope|none", "yarn", "its layers alternate, so write 2 encodings with | between"),
        ("rope|none", "rope|none|rope", "one alternates 2 encodings, the other 3"),
        ("rope", "alibbi", "did you mean alibi or alibi-2d?"),
    ],
)
def test_incompatible_encodings_are_refused_with_the_reason(trained: str, target: str, reason: str) -> None:
    with pytest.raises(UsageError) as error:
        posthoc_spec(trained, target, shape())
    assert reason in str(error.value)


def test_every_encoding_can_follow_the_ones_that_its_class_lists() -> None:
    """An encoding whose class names another one in `after` can replace that one, and `--as all` finds it."""
    for name in names():
        for trained in get(name).after:
            if trained != "*":
                assert posthoc_spec(trained, name, shape()).startswith(name)
                assert any(spec.startswith(name) for spec in compatible_specs(trained, shape()))


@pytest.mark.parametrize("trained", ["rope", "alibi", "shaw", "rope|none", "rope+window(9)", "t5"])
def test_compatible_specs_are_distinct_and_give_finite_logits(trained: str) -> None:
    found = compatible_specs(trained, shape())
    assert len(found) == len(set(found))
    assert trained not in found
    assert all(posthoc_spec(trained, spec, shape()) == spec for spec in found)
    for spec in found:
        with torch.no_grad():
            assert with_encoding(perturbed(model(trained)), spec, trained)(tokens(1, LENGTH)).isfinite().all()


def test_a_model_with_a_memory_is_evaluated_only_as_encodings_that_take_one() -> None:
    found, without = compatible_specs("rope", shape(), memory=True), compatible_specs("rope", shape())
    assert set(found) < set(without)
    assert "rope+window" in found
    assert "yarn" in set(without) - set(found)  # it follows the total length


def test_every_spec_has_a_folder_of_its_own(tmp_path) -> None:
    from poscli.config.run import RunConfig
    from poscli.runs.run import Run, evaluated_as

    run = Run(tmp_path, RunConfig(encoding="cable"), {})
    specs = ["cable(start=5.0)", "cable(start=-5.0)", "cable", "cable+window", "cable|window"]
    assert len({evaluated_as(run, spec).folder for spec in specs}) == len(specs)


@torch.no_grad()
def test_weights_are_taken_over() -> None:
    text = tokens(2, LENGTH)
    for trained, target in (
        ("shaw", "shaw+window(5)"), ("t5+rope", "rope+t5"), ("rope|t5", "rope+window(5)|t5"), ("rope", "none")
    ):  # fmt: skip
        before = perturbed(model(trained))
        after = with_encoding(before, target, trained)
        direct = model(target)
        for ours, theirs in zip(before.parameters(), direct.parameters(), strict=True):
            if ours.shape == theirs.shape:
                theirs.copy_(ours)
        weights = {name: p for name, p in before.named_parameters() if ".encoding." not in name}
        assert all(torch.equal(p, dict(after.named_parameters())[name]) for name, p in weights.items())
        if "t5" not in trained:  # whose place among the parameters differs
            assert torch.equal(after(text), direct(text))
        expected = [p.sum() for e in dict.fromkeys(before.encodings) for p in e.parameters()]
        found = [p.sum() for e in dict.fromkeys(after.encodings) for p in e.parameters()]
        assert sorted(map(float, expected)) == sorted(map(float, found))
        assert not torch.equal(before(text), after(text)) or trained == "t5+rope"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("posthoc")
    assert cli("train", "--enc", "rope", "--enc", "alibi", *NANO, "--out", out).code == 0
    assert cli("extrapolate", *SHORT, "--enc", "rope", "--as", "all", "--out", out).code == 0
    return out


def test_as_all_shows_every_compatible_encoding_beside_the_trained(runs) -> None:
    result = cli("extrapolate", *SHORT, "--enc", "rope", "--as", "all", "--out", runs, "--json")
    assert result.code == 0, result.err
    rows = pd.DataFrame(result.json)
    expected = {f"rope as {spec}" for spec in compatible_specs("rope", shape())} | {"rope"}
    assert set(rows["encoding"]) == expected
    at_first = rows[(rows["length"] == 32) & (rows["protocol"] == "sliding") & (rows["variant"] == "full")]
    trained = at_first.set_index("encoding")["nll"]["rope"]
    assert at_first.set_index("encoding")["nll"]["rope as rope+window"] == pytest.approx(trained, rel=1e-6)
    table = cli("extrapolate", *SHORT, "--enc", "rope", "--as", "all", "--out", runs)
    assert "rope as none" in table.out
    assert "verdict" in table.out


def test_constants_are_searched_for_on_training_text(runs) -> None:
    command = ("extrapolate", *SHORT, "--enc", "rope", "--as", "longrope(search=9)", "--as", "longrope", "--out", runs)
    result = cli(*command, "--json")
    assert result.code == 0, result.err
    assert "longrope was fitted to 4 training windows of 128 tokens" in result.err
    rows = pd.DataFrame(result.json)
    full = rows[(rows["protocol"] == "nonoverlapping") & (rows["variant"] == "full")].set_index(["encoding", "length"])
    searched, plain = (full["nll"][f"rope as {spec}"] for spec in ("longrope(search=9)", "longrope"))
    assert searched[32] == pytest.approx(plain[32], rel=1e-6)  # at L both are rope
    assert searched[128] != plain[128]


def test_factors_are_searched_for_only_beyond_the_training_length(runs) -> None:
    from poscli.evaluation.search import search_constants
    from poscli.runs.load import load_trained
    from poscli.runs.run import list_runs
    from poscli.tasks import open_task

    run = next(r for r in list_runs(runs / "runs") if r.config.encoding == "rope")
    task = open_task("language", run.config.corpus, "bytes")
    trained = load_trained(run, torch.device("cpu"))
    for seen in (1, 9):
        model = with_encoding(trained, f"longrope(search={seen})", "rope")
        search_constants(model, task, 128)
        assert model.encodings[0].factors is not None
    untouched = with_encoding(trained, "longrope(search=9)", "rope")
    search_constants(untouched, task, 32)  # no longer than L: nothing to look for
    assert untouched.encodings[0].factors is None


def test_reports_show_compatible_specs(runs) -> None:
    assert cli("extrapolate", *SHORT, "--out", runs).code == 0
    result = cli("report", "--out", runs, "--json")
    assert result.code == 0, result.err
    assert {"rope", "alibi", "rope as none"} <= {row["encoding"] for row in result.json["summary"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--enc", "rope", "--as", "alibi"), "a model trained with rope cannot be evaluated as alibi: a model must be"),
        (("--as", "t5"), "nothing trained here can be evaluated as t5"),
        (("--as", "yarnn"), "there is no encoding 'yarnn'"),
    ],
)
def test_a_refused_encoding_writes_nothing(runs, arguments, message) -> None:
    before = snapshot(runs)
    result = cli("extrapolate", *SHORT, *arguments, "--out", runs)
    assert result.code == 2
    assert message in result.err.strip().splitlines()[-1]
    assert snapshot(runs) == before


def test_a_suite_may_name_compatible_specs(tmp_path) -> None:
    suite = tmp_path / "s.toml"
    text = """
title = "as"
encodings = ["rope"]
[train]
preset = "nano"
length = 32
batch = 4
tokens = 1280
[extrapolate]
max_len = 64
tokens = 256
stride = 16
as = ["none", "window"]
"""
    suite.write_text(text)
    result = cli("run", suite, "--out", tmp_path, "--json")
    assert result.code == 0, result.err
    assert {row["encoding"] for row in result.json["summary"]} == {"rope", "rope as none", "rope as rope+window"}
    suite.write_text(text.replace('"none", "window"', '"t5"'))
    assert cli("run", suite, "--out", tmp_path / "other").code == 2
    assert not (tmp_path / "other").exists()
