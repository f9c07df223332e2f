"""Named layouts: what their names stand for, where they can be used, and that they are the layers of the models."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from cli_runner import BRIEF, NANO, SUITE, cli
from toys import shape

from poscli import api
from poscli.config.suite import load_suite
from poscli.encodings import Encoding, names
from poscli.encodings.rope import RoPE
from poscli.layouts import LAYOUTS
from poscli.report.catalogue import describe_spec
from poscli.specs import build, check, names_in, parse, with_layouts
from poscli.sweep.job import jobs_of
from poscli.system.errors import UsageError
from poscli.verify import verify

NEEDED = {"gpt-oss": "sink-logit"}  # an encoding that a layout waits for
NAMES = [
    pytest.param(name, marks=[pytest.mark.xfail(strict=True)] if NEEDED.get(name, "none") not in names() else [])
    for name in LAYOUTS.names()
]
FULL = "rope+window(width=0.5L)|rope+window(width=0.5L)|rope+window(width=0.5L)|none"
FOUR = (*NANO, "--layers", 4, "--tokens", "1k")

Kind = tuple[float | None, float | None]  # of a layer: the base of its rope, and its window in units of L


def kinds(spec: str, layers: int) -> list[Kind]:
    """The kinds of a model's layers; None is no rope, or no window."""
    length = 4096

    def kind(layer: Encoding) -> Kind:
        bases = [part.base for part in layer.modules() if isinstance(part, RoPE)]
        return (bases[0] if bases else None), (layer.reach and layer.reach / length)

    return [kind(layer) for layer in build(parse(spec), shape(length, layers=layers), seed=0)]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stands_for_its_spec_alone_joined_and_in_turns(name: str) -> None:
    spec = parse(name)
    assert spec == parse(LAYOUTS.get(name).spec) == parse(str(spec))
    assert names_in(name) == names_in(str(spec))
    assert with_layouts(str(spec)) == name
    joined, turned = parse(f"alibi+{name}+t5+ssmax"), parse(f"{name}|alibi")
    assert str(joined) == "|".join(f"alibi+{'+'.join(map(str, leaves))}+t5+ssmax" for leaves in spec.layers)
    assert turned.layers == (*spec.layers, *parse("alibi").layers)
    for other in (joined, turned):
        assert with_layouts(str(other)) == str(other)
    assert describe_spec(name) == describe_spec(str(spec))


@pytest.mark.parametrize("name", NAMES)
def test_every_layout_is_verified_and_belongs_to_models_of_enough_layers(name: str) -> None:
    period = len(parse(name).layers)
    assert verify(name).status == "passed"
    assert len(api.encodings(name, layers=period + 1, width=32, heads=2, length=64)) == period + 1
    few = f"{name} alternates {period} encodings, and the model has {period - 1} layers?; give it {period} or more"
    with pytest.raises(UsageError, match=rf"{few}, as by --layers {period}"):
        check(str(parse(name)), shape(layers=period - 1))
    with pytest.raises(UsageError, match=rf"alternates by layer; api.encodings\(..., layers={period}\)"):
        api.encoding(name, width=32, heads=2, length=64)


def test_names_of_layouts_are_no_names_of_encodings_and_mean_different_specs() -> None:
    assert not set(LAYOUTS.names()) & set(names())
    specs = [LAYOUTS.get(name).spec for name in LAYOUTS.names()]
    assert len(set(specs)) == len(specs)


# what the models have, by their configurations in transformers


def kinds_of(types: list[str], of_local: Kind, of_global: Kind) -> list[Kind]:
    return [{"sliding_attention": of_local, "full_attention": of_global}[each] for each in types]


def test_gemma_5to1_is_gemma_3() -> None:
    config = transformers.Gemma3TextConfig(num_hidden_layers=14)
    local = config.rope_local_base_freq, config.sliding_window / config.max_position_embeddings
    assert kinds("gemma-5to1", 14) == kinds_of(config.layer_types, local, (config.rope_theta, None))


def test_smollm3_is_smollm3_with_the_base_of_its_first_windows() -> None:
    config = transformers.SmolLM3Config(num_hidden_layers=10)
    assert config.layer_types == ["full_attention"] * 10
    assert kinds("smollm3", 10) == [(50000.0 if rotated else None, None) for rotated in config.no_rope_layers]


def test_rnope_swa_is_command_r7b_with_the_papers_base() -> None:
    config = transformers.Cohere2Config(num_hidden_layers=9, sliding_window=4096, max_position_embeddings=8192)
    local = 10000.0, config.sliding_window / config.max_position_embeddings
    assert kinds("rnope-swa", 9) == kinds_of(config.layer_types, local, (None, None))


def test_swan_begins_with_a_global_layer_whose_scores_are_scaled() -> None:
    assert kinds("swan", 5) == [(None, None), *3 * [(10000.0, 512 / 8192)], (None, None)]
    assert [str(leaves[-1]) for leaves in parse("swan").layers] == ["logn", *3 * ["window(width=0.0625L)"]]


@pytest.mark.xfail(NEEDED["gpt-oss"] not in names(), reason="its encoding is not there yet", strict=True)
def test_gpt_oss_is_gpt_oss_before_yarn() -> None:
    config = transformers.GptOssConfig(num_hidden_layers=3)
    window = config.sliding_window / config.rope_scaling["original_max_position_embeddings"]
    local, everywhere = (config.rope_theta, window), (config.rope_theta, None)
    assert kinds("gpt-oss", 3) == kinds_of(config.layer_types, local, everywhere)
    assert all(str(leaves[-1]) == "sink-logit" for leaves in parse("gpt-oss").layers)


# errors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rnope-sva", "there is no encoding 'rnope-sva': did you mean rnope-swa.*`poscli ls layouts` show all"),
        ("rope+gema-5to1", "there is no encoding 'gema-5to1': did you mean gemma-5to1"),
        ("rnope-swa(8)", "rnope-swa is a layout, which has no options; write out its spec and change that: rope"),
        ("rnope-swa+swan", "two layouts cannot be joined"),
        ("alibi+swan+smollm3", "two layouts cannot be joined"),
        ("rnope-swa rope", "unexpected 'rope'"),
        ("learned+rnope-swa", "learned acts on the embedding, before any layer, so it cannot alternate by layer"),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(text, shape(layers=8))


# commands


def test_a_run_is_the_same_under_the_name_and_under_the_spec_and_tables_show_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    out = ("--out", tmp_path)
    planned = cli("train", "--enc", "rnope-swa", *FOUR, *out, "--dry-run")
    assert " rnope-swa " in planned.out
    (named,), (written,) = (cli("train", "--enc", text, *FOUR, *out, "--json").json for text in ("rnope-swa", FULL))
    assert (named["run_id"], named["encoding"]) == (written["run_id"], FULL)
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert f'encoding = "{FULL}"' in (tmp_path / "runs" / named["run_id"] / "config.toml").read_text()
    twice = cli("train", "--enc", "rnope-swa", "--enc", FULL, *FOUR, *out)
    assert f"the encoding {FULL} is given twice, as 'rnope-swa' and '{FULL}'" in twice.err

    cli("train", "--enc", "none", *FOUR, *out)
    rows = cli("extrapolate", "--enc", "rnope-swa", *BRIEF, *out, "--json").json
    assert {row["encoding"] for row in rows} == {FULL}
    assert " rnope-swa " in cli("extrapolate", "--enc", "none", "--enc", FULL, *BRIEF, *out, "--force").out
    assert " rnope-swa " in cli("ls", "runs", *out).out
    assert {row["encoding"] for row in cli("ls", "runs", *out, "--json").json} == {FULL, "none"}
    for baseline in ("rnope-swa", FULL):
        report = cli("report", "--baseline", baseline, *out)
        assert report.code == 0
        assert "Compared with rnope-swa" in report.out
        assert f"note: rnope-swa is {FULL}." in report.out
    assert "| rnope-swa | " in (tmp_path / "report" / "report.md").read_text()
    assert "--enc 'rope+window(width=0.5L)|" in (tmp_path / "report" / "report.html").read_text().replace("&#39;", "'")
    compared = cli("compare", "none", "rnope-swa", *out, "--json")
    assert (compared.code, compared.json) == (0, cli("compare", "none", FULL, *out, "--json").json)
    assert cli("generate", "--enc", "rnope-swa", "--tokens", 2, *out).code == 0
    assert cli("rm", "--enc", "rnope-swa", "--yes", *out, "--json").code == 0
    assert {row["encoding"] for row in cli("ls", "runs", *out, "--json").json} == {"none"}


def test_a_suite_names_layouts(tmp_path: Path) -> None:
    path = tmp_path / "suite.toml"
    path.write_text(SUITE.replace('"none", "rope"]', '"rnope-swa", "smollm3+ssmax"]').replace("nano", "tiny"))
    jobs = jobs_of(load_suite(path), "cpu", tmp_path / "runs")
    assert {job.config.encoding for job in jobs} == {FULL, str(parse("smollm3+ssmax"))}
    assert jobs[0].label == "rnope-swa, seed 0"


def test_a_layout_is_inspected(tmp_path: Path) -> None:
    assert cli("inspect", "rnope-swa", "--length", 16, "--out", tmp_path, "--json").code == 0


def test_layouts_are_listed() -> None:
    rows = {row["layout"]: row for row in cli("ls", "layouts", "--json").json}
    assert list(rows) == LAYOUTS.names()
    assert (rows["rnope-swa"]["spec"], rows["rnope-swa"]["layers"]) == (FULL, 4)
    shown = cli("ls", "layouts").out
    assert "rnope-swa 4 layers\n" in shown
    for name, row in rows.items():
        assert row["paper"] in shown
        assert row["note"].endswith(".")
        assert bool(row["unavailable"]) == (NEEDED.get(name, "none") not in names())
