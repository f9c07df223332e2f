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
        ("rope(base=500000)", "rope(base=10000)", "rope"),  # given, though it is the default
        ("rope", "window(width=none)", "rope+window"),
        ("rope", "window", "rope+window"),
        ("rope", "rope+window(9)", "rope+window(width=9)"),
        ("alibi", "window(9)", "alibi+window(width=9)"),
        ("rope+window(9)", "window(5)+rope", "window(width=5)+rope"),
        ("rope|none", "window", "rope+window|none+window"),
        ("rope|none", "none", "none"),
        ("shaw", "window", "shaw+window"),
        ("t5+rope", "t5+none", "t5+none"),
        ("t5+rope", "t5", "t5"),
        ("alibi(most=4)", "alibi(scale=0.25)", "alibi(most=4.0, scale=0.25)"),
        ("learned", "learned(beyond=interpolate)", "learned(beyond=interpolate)"),
        ("sinusoidal", "interpolated(4)", "sinusoidal+interpolated(factor=4.0)"),
    ],
)
def test_compatible_encodings_get_their_full_spec(trained: str, target: str, full: str) -> None:
    assert posthoc_spec(trained, target, shape()) == full


@pytest.mark.parametrize(
    ("trained", "target", "full"),
    [
        ("yarn(factor=4, original=32)", "rope", "rope"),
        ("yarn(factor=4, original=32, base=500)", "rope-ntk", "rope-ntk(factor=4.0, original=32, base=500.0)"),
        ("yarn(factor=4, original=32)", "llama3(factor=none)", "llama3(original=32)"),
        ("llama3(factor=8, low=2)", "yarn", "yarn(factor=8.0)"),
        ("llama3", "rerope(window=5)", "rerope(window=5)"),
        ("p-rope(p=0.5, base=50)", "rope-dynamic", "rope-dynamic(base=50.0)"),
        ("rope-linear(factor=4)", "none", "none"),
        ("rope(base=500000)", "rope-linear(factor=2)", "rope-linear(factor=2.0, base=500000.0)"),
        ("rope(base=500000)", "rope-linear(factor=2, base=10000)", "rope-linear(factor=2.0)"),  # given as the default
    ],
)
def test_scalings_replace_each_other_and_are_replaced_by_what_they_scale(trained: str, target: str, full: str) -> None:
    """The options that both have are taken over, unless the target sets them."""
    assert posthoc_spec(trained, target, shape()) == full


@pytest.mark.parametrize(
    ("trained", "target", "full"),
    [
        ("rope+window(9)", "rope", "rope+window(width=9)"),
        ("rope+window(9)", "yarn", "yarn+window(width=9)"),
        ("rope+window(9)", "none", "none+window(width=9)"),
        ("rope+window(9)", "window(5)", "rope+window(width=5)"),
        ("rope+window(9)+logn", "window(5)", "rope+window(width=5)+logn"),
        ("window(9)+rope+logn", "yarn", "window(width=9)+yarn+logn"),
        ("rope+window(9)+logn", "yarn+logn(5)", "yarn+logn(length=5)+window(width=9)"),
        ("sink(2)+window(9)", "none", "none"),  # there is no encoding that they wrap
    ],
)
def test_wrappers_stay_unless_the_target_names_them(trained: str, target: str, full: str) -> None:
    assert posthoc_spec(trained, target, shape()) == full


LOCAL = (
    "rope+window(width=9)"  # as five of six layers of Gemma 3, whose other layers see all tokens and have another base
)
GEMMA = "|".join([LOCAL] * 5 + ["rope(base=1000000.0)"])


@pytest.mark.parametrize(
    ("trained", "target", "full"),
    [
        ("none|rope", "yarn", "none|yarn"),
        ("rope|none", "rope(base=50)", "rope(base=50.0)|none"),
        ("rope|t5", "none", "none|t5"),
        ("alibi|rope|t5", "rerope", "alibi|rerope|t5"),
        (f"{LOCAL}|rope(base=50)", "yarn(factor=4)", f"{LOCAL}|yarn(factor=4.0, base=50.0)"),
        (f"{LOCAL}|rope(base=50)", "none", f"{LOCAL}|none"),
        (f"{LOCAL}|rope(base=50)", "logn", f"{LOCAL}+logn|rope(base=50.0)+logn"),
        (f"{LOCAL}|rope(base=50)", "window(20)", f"{LOCAL}|rope(base=50.0)+window(width=20)"),
        (f"{LOCAL}|rope(base=50)", "yarn|rope", "yarn+window(width=9)|rope(base=50.0)"),
        ("window(9)|rope", "window(5)", "window(width=9)|rope+window(width=5)"),
        (f"{LOCAL}|rope(base=50)+window(5)", "yarn", "yarn+window(width=9)|yarn(base=50.0)+window(width=5)"),
        (GEMMA, "yarn(factor=8)", GEMMA.replace("rope(base", "yarn(factor=8.0, base")),
        (GEMMA, "|".join(["none"] * 6), "none+window(width=9)|" * 5 + "none"),
        ("|".join(["rope|none"] * 17), "yarn", "yarn|none"),
        ("|".join(["rope"] * 30 + ["none"] * 4), "none", "none"),
    ],
)
def test_one_target_replaces_what_it_can_where_layers_alternate(trained: str, target: str, full: str) -> None:
    """Layers with a window are left out if others have none. 34 layers are no multiple of Gemma's six."""
    assert posthoc_spec(trained, target, shape(layers=34)) == full


def test_as_all_leaves_local_layers_alone() -> None:
    found = compatible_specs(f"{LOCAL}|rope(base=50)", shape())
    assert f"{LOCAL}|yarn(base=50.0)" in found
    assert f"{LOCAL}|none" in found
    assert all("window(width=9)" in spec for spec in found)
    assert {"rope", "rope-ntk", "rerope", "none"} <= {*compatible_specs("yarn", shape())}


@pytest.mark.parametrize(
    ("trained", "target", "reason"),
    [
        ("rope", "alibi", "a model must be trained with alibi"),
        ("alibi", "rope", "a model must be trained with rope"),
        ("t5", "none", "t5 learned 96 numbers that none has no use for"),
        ("shaw", "shaw(clip=4)", "shaw(clip=4) learns other numbers than shaw"),
        ("alibi", "alibi(trainable=true)", "learns other numbers than alibi"),
        ("rope", "rope+t5", "a model must be trained with t5"),
        ("rope|none", "alibi", "a model must be trained with alibi"),
        (
            "rope+window(9)|none",
            "yarn",
            "yarn; `--as all` shows what needs no training; to change its layers with a window",
        ),
        ("hierarchical", "learned", "hierarchical learned 384 numbers that learned has no use for"),
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


@pytest.mark.parametrize("trained", ["rope", "alibi", "shaw", "rope|none", "rope+window(9)", "t5", "yarn(factor=4)"])
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
        ("shaw", "shaw+window(5)"), ("t5+rope", "rope+t5"), ("rope|t5", "rope+window(5)|t5"), ("rope", "none"),
        ("yarn(factor=4)|rope", "rope"), ("rope+window(5)|t5", "yarn(factor=2)+window(5)|t5"),
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


@pytest.mark.parametrize("trained", [name for name in names() if get(name).axes == 1])
def test_weights_of_any_vocabulary_are_taken_over(trained: str) -> None:
    """The models here have 11 tokens, other than the 257 of bytes; some encodings have numbers of every token."""
    before = perturbed(model(trained))
    after = with_encoding(before, trained, trained)
    for own, other in zip(before.encodings, after.encodings, strict=True):
        assert [p.shape for p in own.parameters()] == [p.shape for p in other.parameters()]
        assert all(torch.equal(p, q) for p, q in zip(own.parameters(), other.parameters(), strict=True))


@pytest.fixture(scope="module")
def as_all(tmp_path_factory):
    """A folder with a model of rope evaluated under all encodings that it can be, and what the evaluation printed."""
    out = tmp_path_factory.mktemp("posthoc")
    assert cli("train", "--enc", "rope", "--enc", "alibi", *NANO, "--out", out).code == 0
    return out, cli("extrapolate", *SHORT, "--enc", "rope", "--as", "all", "--out", out)


@pytest.fixture
def runs(as_all):
    return as_all[0]


def test_as_all_shows_every_compatible_encoding_beside_the_trained(as_all) -> None:
    runs, table = as_all
    result = cli("extrapolate", *SHORT, "--enc", "rope", "--as", "all", "--out", runs, "--json")
    assert result.code == 0, result.err
    rows = pd.DataFrame(result.json)
    expected = {f"rope as {spec}" for spec in compatible_specs("rope", shape())} | {"rope"}
    assert set(rows["encoding"]) == expected
    at_first = rows[(rows["length"] == 32) & (rows["protocol"] == "sliding") & (rows["variant"] == "full")]
    trained = at_first.set_index("encoding")["nll"]["rope"]
    assert at_first.set_index("encoding")["nll"]["rope as rope+window"] == pytest.approx(trained, rel=1e-6)
    assert table.code == 0
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
    from poscli.evaluation.evaluate import search_constants
    from poscli.model.load import load_trained
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
