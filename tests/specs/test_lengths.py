"""Options that are lengths, in units of the training length L: `t5(far=0.5L)`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from cli_runner import LENGTH, NANO, SHORT, SUITE, cli
from toys import make, model, perturbed, shape, tokens

from poscli.config.suite import load_suite
from poscli.encodings import get, missing, names
from poscli.evaluation.baseline import baseline
from poscli.evaluation.posthoc import posthoc_spec, with_encoding
from poscli.runs.run import list_runs
from poscli.specs import check, parse
from poscli.sweep.job import jobs_of
from poscli.system.errors import UsageError

OPTIONS = [(name, key) for name in names() if not missing(name) for key in get(name).options()]
LENGTHS = [(name, key) for name, key in OPTIONS if get(name).options()[key].is_length]


def outcome(spec: str) -> torch.Tensor | str:
    """The logits of a small model beyond its training length; for a spec that cannot be trained, the rule it breaks."""
    try:
        check(spec, shape())
    except UsageError as error:
        return str(error).partition(": ")[2]
    with torch.no_grad():
        return perturbed(model(spec))(tokens(1, 24))


@pytest.mark.parametrize("times", [0.25, 0.5, 2])
@pytest.mark.parametrize(("name", "key"), LENGTHS, ids="-".join)
def test_every_length_can_be_given_in_units_of_the_training_length(name: str, key: str, times: float) -> None:
    spec = f"{name}({key}={times}L)"
    assert str(parse(spec)) == spec
    assert str(parse(spec).at(16)) == str(parse(f"{name}({key}={int(16 * times)})", defaults=True))
    in_units, in_tokens = outcome(spec), outcome(f"{name}({key}={int(16 * times)})")
    assert in_units == in_tokens if isinstance(in_tokens, str) else torch.equal(in_units, in_tokens)


@pytest.mark.parametrize(("name", "key"), [pair for pair in OPTIONS if pair not in LENGTHS], ids="-".join)
def test_every_other_option_refuses_a_length(name: str, key: str) -> None:
    with pytest.raises(UsageError, match=r"0\.5L"):
        check(f"{name}({key}=0.5L)", shape())


@pytest.mark.parametrize(
    ("times", "length", "width"), [("0.5L", 16, 8), ("0.5L", 5, 3), ("0.3L", 5, 2), ("0.001L", 16, 1), ("L", 7, 7)]
)
def test_whole_numbers_are_rounded_to_the_nearest_and_at_least_1(times: str, length: int, width: int) -> None:
    assert make(f"window({times})", shape(length)).reach == width


def test_other_numbers_are_not_rounded() -> None:
    assert make("xpos(0.3L)", shape(5)).scale_base == 0.3 * 5
    assert make("xpos(0.001L)", shape(5)).scale_base == 0.001 * 5


def test_the_name_of_a_built_encoding_keeps_the_unit_and_layers_share_what_is_written_alike() -> None:
    assert make("rope+window(.50L)").spec == "rope+window(width=0.5L)"
    shared, other = model("t5(far=0.5L)", layers=2).encodings, model("t5(far=0.5L)|t5(far=8)", layers=2).encodings
    assert shared[0] is shared[1]
    assert other[0] is not other[1]
    assert other[0].far == other[1].far == 8


@torch.no_grad()
def test_l_stays_the_training_length_where_a_model_is_evaluated_on_longer_texts() -> None:
    trained, text = perturbed(model("rope")), tokens(1, 64)
    target = posthoc_spec("rope", "window(0.5L)", shape())
    assert target == "rope+window(width=0.5L)"
    expected = with_encoding(trained, "rope+window(8)", "rope")(text)
    assert torch.equal(with_encoding(trained, target, "rope")(text), expected)
    masked = baseline("window(0.5L)")
    assert torch.equal(masked.model(trained)(text), expected)
    assert [masked.changes_model(n, 16) for n in (8, 9)] == [False, True]
    # A replaced encoding hands its options on, with their unit.
    assert posthoc_spec("rope-linear(original=0.5L)", "yarn(factor=4)", shape()) == "yarn(factor=4.0, original=0.5L)"


def test_a_plugin_declares_its_lengths(here: Path) -> None:
    (here / "lengths_of_somebody.py").write_text("""
from __future__ import annotations
from typing import Optional
from poscli.encodings import Encoding, Length, Shape

class Far(Encoding):
    def __init__(self, shape: Shape, *, far: Optional[Length[int]] = None, near: Length[float] = 2.5, gain: float = 1):
        super().__init__(shape)
        self.far, self.near = far, near
""")
    built = make("lengths_of_somebody.py:Far(0.5L, near=0.1L)")
    assert (built.far, built.near) == (8, 0.1 * 16)
    with pytest.raises(UsageError, match=r"gain is not a length .* cannot be '2L'; the lengths among .*: far, near"):
        parse("lengths_of_somebody.py:Far(gain=2L)")


def test_runs_whose_lengths_are_equal_learn_the_same_under_other_names(tmp_path: Path) -> None:
    specs = [f"t5(far={LENGTH // 2})", "t5(far=0.5L)"]
    trained = cli("train", "--enc", specs[0], "--enc", specs[1], *NANO, "--out", tmp_path, "--json")
    first, second = trained.json
    assert [first["encoding"], second["encoding"]] == specs
    assert first["run_id"] != second["run_id"]
    losses = [pd.read_csv(Path(run["folder"], "train.csv"))["nll"].tolist() for run in (first, second)]
    assert losses[0] == losses[1]
    options = ("--baseline", "sink(4)+window(0.5L)", "--as", "window(0.25L)", "--out", tmp_path, "--json")
    rows = cli("extrapolate", "--enc", specs[1], *SHORT, *options).json
    assert {row["encoding"] for row in rows} == {specs[1], "t5(far=0.5L) as t5(far=0.5L)+window(width=0.25L)"}
    assert {row["variant"] for row in rows} == {"full", "crop", "window", "sink(4)+window(0.5L)"}
    assert len(list_runs(tmp_path / "runs")) == 2


# suites


def encodings_of(text: str, folder: Path) -> list[str]:
    """The encodings that a suite trains."""
    path = folder / "suite.toml"
    path.write_text(text)
    return list(dict.fromkeys(job.config.encoding for job in jobs_of(load_suite(path), "cpu", folder / "runs")))


def test_a_suite_has_lengths_as_published_in_proportion_to_l_or_both(tmp_path: Path) -> None:
    named = 'encodings = ["rope", "t5", "t5(buckets=8)|xpos(scale_base=7)", "alibi+window"]'
    text = SUITE.replace('encodings = ["none", "rope"]', named)
    published = ["rope", "t5", "t5(buckets=8)|xpos(scale_base=7.0)", "alibi+window"]
    scaled = ["rope", "t5(far=0.25L)", "t5(buckets=8, far=0.25L)|xpos(scale_base=7.0)", "alibi(far=0.25L)+window"]
    assert encodings_of(text, tmp_path) == published
    assert encodings_of(f'lengths = "published"\n{text}', tmp_path) == published
    assert encodings_of(f'lengths = "scaled"\n{text}', tmp_path) == scaled
    assert encodings_of(f'lengths = "both"\n{text}', tmp_path) == [*published, *scaled[1:]]
    by_hand = text.replace('"t5",', '"t5", "t5(far=0.25L)",')
    assert encodings_of(by_hand, tmp_path) == [*published[:2], scaled[1], *published[2:]]
    assert encodings_of(f'lengths = "both"\n{by_hand}', tmp_path).count("t5(far=0.25L)") == 1
    in_parts = f'lengths = "both"\n{SUITE}\n[[part]]\n[[part]]\nencodings = ["t5"]'
    assert encodings_of(in_parts, tmp_path) == ["none", "rope", "t5", "t5(far=0.25L)"]


def test_a_suite_whose_lengths_cannot_be_scaled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lengths = 'both' changes no encoding of the suite"):
        encodings_of(f'lengths = "both"\n{SUITE}', tmp_path)
    with pytest.raises(UsageError, match="lengths = 'all': must be 'published', 'scaled' or 'both'"):
        encodings_of(f'lengths = "all"\n{SUITE}', tmp_path)


@pytest.mark.parametrize("name", ["alibi", "t5", "xpos"])
def test_in_the_papers_proportion_an_encoding_is_itself_at_the_papers_length(name: str) -> None:
    scaled = parse(name).in_proportion()
    assert "L)" in str(scaled)
    lengths = {"alibi": 1024, "t5": 512, "xpos": 1024}
    d = torch.arange(2000)
    plain, built = (make(str(spec), shape(lengths[name])) for spec in (name, scaled))
    if name == "xpos":
        assert built.scale_base == plain.scale_base
    else:
        assert torch.equal(built.distance_bias(d), plain.distance_bias(d))
