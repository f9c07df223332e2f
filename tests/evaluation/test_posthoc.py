"""Post-hoc encodings: which are compatible with a trained model, its weights under them, and the result tables."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from cli_runner import LENGTH, NANO, cli, snapshot
from toys import model, perturbed, shape, tokens

from poscli.encodings import get, names
from poscli.evaluation.posthoc import compatible_specs, posthoc_spec, with_encoding


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
            assert with_encoding(perturbed(model(trained)), spec, trained)(tokens(1, 16)).isfinite().all()


def test_every_spec_has_a_folder_of_its_own(tmp_path) -> None:
    from poscli.config.run import RunConfig
    from poscli.runs.run import Run, evaluated_as

    run = Run(tmp_path, RunConfig(encoding="cable"), {})
    specs = ["cable(start=5.0)", "cable(start=-5.0)", "cable", "cable+window", "cable|window"]
    assert len({evaluated_as(run, spec).folder for spec in specs}) == len(specs)


@torch.no_grad()
def test_weights_are_taken_over() -> None:
    text = tokens(2, 16)
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


def test_what_an_option_fixes_is_not_taken_over() -> None:
    before = perturbed(model("fire"))
    after = with_encoding(before, "fire(threshold=16)", "fire")
    own, other = before.encodings[0], after.encodings[0]
    assert own.threshold.requires_grad
    assert float(other.threshold) == 4 * 16  # in units of L/4
    assert torch.equal(own.f[0].weight, other.f[0].weight)


def test_other_encodings_stand_beside_the_trained_one_and_a_refused_one_writes_nothing(tmp_path) -> None:
    assert cli("train", "--enc", "rope", *NANO, "--out", tmp_path).code == 0
    short = ("extrapolate", "--max-len", LENGTH, "--tokens", 64, "--stride", 16, "--out", tmp_path)
    result = cli(*short, "--as", "none", "--as", "window", "--json")
    assert result.code == 0, result.err
    rows = pd.DataFrame(result.json)
    assert set(rows["encoding"]) == {"rope", "rope as none", "rope as rope+window"}
    full = rows[(rows["protocol"] == "sliding") & (rows["variant"] == "full")].set_index("encoding")["nll"]
    assert full["rope as rope+window"] == pytest.approx(full["rope"], rel=1e-6)  # the window is as long as the text
    for anew in ((), ("--force",)):
        for part in tmp_path.glob("runs/*/as/*/MANIFEST.json"):  # no training writes it anew
            part.write_text(part.read_text()[:20])
        again = cli(*short, "--as", "none", "--as", "window", *anew, "--json")
        assert again.code == 0, again.err
        assert [row["nll"] for row in again.json] == list(rows["nll"])
    before = snapshot(tmp_path)
    refused = cli(*short, "--as", "t5")
    assert (refused.code, snapshot(tmp_path)) == (2, before)
    assert "--as t5 changes no model here" in refused.err


def test_baselines_whose_names_differ_in_a_sign_have_losses_of_their_own(tmp_path) -> None:
    assert cli("train", "--enc", "rope", *NANO, "--out", tmp_path).code == 0
    baselines = ("--baseline", "sink-logit(start=2)", "--baseline", "sink-logit(start=-2)")
    result = cli(
        "extrapolate", "--max-len", LENGTH, "--tokens", 64, "--stride", 16, *baselines, "--out", tmp_path, "--json"
    )
    assert result.code == 0, result.err
    of = {row["variant"]: row["nll"] for row in result.json if row["protocol"] == "sliding" and row["length"] == LENGTH}
    assert of["sink-logit(start=2)"] != of["sink-logit(start=-2)"]


def test_a_search_that_cannot_be_made_is_one_line(tmp_path) -> None:
    assert cli("train", "--enc", "rope", "--enc", "learned", *NANO, "--out", tmp_path).code == 0
    short = ("extrapolate", "--max-len", 2 * LENGTH, "--tokens", 64, "--stride", 16, "--out", tmp_path)
    for enc, spec, said in (
        ("rope", "longrope(factor=1,search=4)", "needs a factor above 1"),
        ("learned", "temper(search=4)", "lower --max-len"),
    ):
        done = cli(*short, "--enc", enc, "--as", spec)
        assert (done.code, said in done.err, "a bug" in done.err) == (2, True, False), done.err
