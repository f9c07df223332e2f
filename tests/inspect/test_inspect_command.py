"""`poscli inspect`: its files, its document, its words, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from cli_runner import LENGTH, assert_plain, assert_refused, cli, document, run_of, trained
from matplotlib.image import imread

from poscli.inspect import gallery
from poscli.inspect.probe import WeightCurves
from poscli.inspect.session import fresh_group, inspect_groups, trained_group
from poscli.inspect.settings import InspectSettings
from poscli.inspect.terms import four_terms

SMALL = ("--preset", "nano", "--length", 32, "--max-len", 128, "--no-properties")
FILE = """
import torch
from poscli.encodings import Encoding, Shape

class Root(Encoding):
    "s_ij -= r sqrt(i - j)"
    def __init__(self, shape: Shape, *, r: float = 1.0) -> None:
        super().__init__(shape)
        self.r = r

    def distance_bias(self, d):
        return -self.r * d.sqrt()[None]

class Nan(Encoding):
    def distance_bias(self, d):
        return torch.where(d > 40, torch.nan, -d.double())[None]

class Hidden(Encoding):
    def distance_bias(self, d):
        return torch.where(d > 40, -torch.inf, -d.double())[None]

class Zero(Encoding):
    def embed(self, x, pos, ids):
        return x * 0

    def query(self, q, pos):
        return q * 0

class Fails(Encoding):
    def distance_bias(self, d):
        if len(d) > 64:
            raise RuntimeError("no luck")
        return -d[None]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A results folder with trained runs that tests may not change."""
    return trained(tmp_path_factory.getbasetemp())


def assert_picture(path: Path) -> None:
    """A file must be a picture with something drawn on it, or its SVG with words in it."""
    if path.suffix == ".svg":
        assert path.read_text().rstrip().endswith("</svg>")
        return
    pixels = imread(path)
    assert np.ptp(pixels[..., :3]) > 0.9


def test_one_encoding_is_drawn_described_and_documented(folder):
    result = cli("inspect", "rope", *SMALL)
    assert result.code == 0, result.err
    assert_plain(result)
    assert "pairs meet new angles beyond 32 tokens" in result.out
    files = [folder / line.removeprefix("wrote ") for line in result.err.splitlines()]
    assert [path.name for path in files] == ["sheet.png", "sheet.svg"]
    assert {path.parent for path in files} == {folder / "results" / "inspect" / "rope"}
    for path in files:
        assert_picture(path)


def test_the_document_has_numbers_findings_and_files():
    found = document("inspect", "alibi", "rope|none", *SMALL, "--to", "here")
    assert found["files"] == ["here/sheet.png", "here/sheet.svg"]
    specs = [(each["spec"], each["layers"]) for each in found["inspected"]]
    assert specs == [("alibi", [1, 2]), ("rope|none", [1]), ("rope|none", [2])]
    alibi = found["inspected"][0]
    assert set(alibi["views"]) == {"bias", "bias alone", "weights"}
    assert alibi["views"]["bias"]["values"]["head 1"][:3] == [0, -0.25, -0.5]
    assert alibi["properties"] is None


def test_the_property_sheet_stands_below_the_pictures():
    found = document("inspect", "none", "--preset", "nano", "--length", 16, "--max-len", 16)
    names = [row["name"] for row in found["inspected"][0]["properties"]["properties"]]
    assert "order seen by one layer" in names
    words = cli("inspect", "none", "--preset", "nano", "--length", 16, "--max-len", 16).out
    assert all(name in words for name in names)


def test_any_number_of_encodings_is_drawn_six_to_a_sheet(folder):
    """Seven columns are two sheets; a spec with two kinds of layers stays on one."""
    specs = ("alibi", "none", "logn", "rope", "fox", "none|alibi")
    drawn = []

    def draw(inspected):
        drawn.append([each.subject.title for each in inspected])
        return mock.Mock(png=lambda: bytes([len(drawn)]), svg=lambda: b"")

    small = ("--preset", "nano", "--length", 16, "--max-len", 16, "--no-properties")
    with mock.patch("poscli.inspect.session.draw_sheet", draw):
        found = document("inspect", *specs, *small, "--to", "here")
    assert found["files"] == [f"here/sheet-{n}.{suffix}" for n in (1, 2) for suffix in ("png", "svg")]
    assert drawn == [list(specs[:5]), ["none|alibi on layer 1", "none|alibi on layer 2"]]
    assert [(folder / path).read_bytes() for path in found["files"]] == [b"\1", b"", b"\2", b""]
    assert [each["spec"] for each in found["inspected"]] == [*specs, specs[-1]]


def test_equal_commands_write_equal_files(folder):
    for to in ("first", "second"):
        assert cli("inspect", "kerple-log", *SMALL, "--to", to).code == 0
    assert (folder / "first/sheet.svg").read_bytes() == (folder / "second/sheet.svg").read_bytes()


def test_ones_own_encoding_is_drawn_with_its_options():
    found = document("inspect", "mine.py:Root(r=2)", *SMALL)["inspected"][0]
    assert found["views"]["bias"]["values"]["all heads"][1] == -2.0


def test_a_trained_run_shows_its_weights_and_its_attention(runs):
    run = run_of(runs, "sinusoidal")
    found = document("inspect", "--run", run.id, "--out", runs, "--to", "there", "--max-len", 64, "--no-properties")
    (each,) = found["inspected"]
    assert each["run"] == run.id
    assert each["length"] == LENGTH
    shares = each["views"]["four terms"]["shares_of_variance"]
    assert sum(shares.values()) == pytest.approx(1)
    assert each["views"]["four terms"]["remainder"] < 1e-4  # the model computes in float32
    assert each["views"]["weights of the run"]["lines"] == ["layer 1", "layer 2"]


def test_attention_of_a_run_is_that_of_its_model(runs):
    """Against a softmax written out here, of queries and keys that the model's own matrices make."""
    import torch
    from torch.nn.functional import embedding

    group = trained_group(run_of(runs, "alibi").id, runs / "runs", InspectSettings(max_len=LENGTH))
    (subject,), model = group.subjects, group.trained.model
    from poscli.inspect.probe import QUERIES, weights_of_run

    found = weights_of_run(subject)
    assert isinstance(found, WeightCurves)
    x = model.layers[0].norm_attention(embedding(group.trained.windows(LENGTH), model.embedding)).double()
    attention = model.attention[0]
    q, k = ((x @ p.weight.double().T).unflatten(2, (4, 16)).transpose(1, 2) for p in (attention.q, attention.k))
    total = torch.zeros(LENGTH - QUERIES + 1, dtype=torch.float64)
    for i in range(LENGTH - QUERIES, LENGTH):
        for d in range(len(total)):
            slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8], dtype=torch.float64)[:, None]
            s = (q[:, :, i, None] * k[:, :, : i + 1]).sum(-1) / 4 - slopes * (i - torch.arange(i + 1))
            total[d] += s.softmax(-1)[:, :, i - d].mean() / QUERIES
    np.testing.assert_allclose(found.near.values[0], total.numpy(), atol=1e-5)


def test_terms_of_a_run_add_up_and_are_refused_where_they_are_mixed(runs):
    group = trained_group(run_of(runs, "learned").id, runs / "runs", InspectSettings(max_len=LENGTH))
    found = four_terms(group.subjects[0])
    assert found.remainder < 1e-4
    assert found.by_distance.shape[0] == 4


def test_terms_of_a_run_are_products_of_its_contents_and_positions(runs):
    """The norm divides both parts of a token by the root mean square of their sum."""
    import torch
    from torch.nn.functional import embedding

    group = trained_group(run_of(runs, "learned").id, runs / "runs", InspectSettings(max_len=LENGTH))
    found, model = four_terms(group.subjects[0]), group.trained.model
    ids = group.trained.windows(LENGTH)
    assert len({tuple(window) for window in ids.tolist()}) == len(ids) == 4  # from all over the text
    content, position = embedding(ids, model.embedding).double(), model.encodings[0].table.double()
    norm, attention = model.layers[0].norm_attention, model.attention[0]
    factor = norm.weight.double() / ((content + position).square().mean(-1, keepdim=True) + norm.eps).sqrt()
    q, k = (
        [(x * factor @ p.weight.double().T).unflatten(2, (4, 16)).transpose(1, 2) for x in (content, position)]
        for p in (attention.q, attention.k)
    )
    queries = range(LENGTH - LENGTH // 2, LENGTH)
    for n, (first, second) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        for d in (0, 1, 7):
            each = [(q[first][:, :, i] * k[second][:, :, i - d]).sum(-1).mean() / 4 for i in queries]
            assert found.by_distance[n, d] == pytest.approx(float(torch.stack(each).mean()), abs=1e-6)
    shares = found.record()["shares_of_variance"]
    assert list(shares) == ["content-content", "content-position", "position-content", "position-position"]
    assert list(shares.values()) == found.shares.tolist()


def test_of_many_kinds_of_layers_the_evenly_spaced_ones_are_drawn(capsys):
    settings = InspectSettings(length=32, max_len=32, model={"layers": 9}, preset="nano", properties=False)
    spec = "|".join(["alibi", "none", "rope"] * 2 + ["t5", "cope", "fox"])
    found = inspect_groups([fresh_group(spec, settings)], settings)
    assert [each.subject.layers for each in found] == [(1,), (3,), (4,), (6,), (7,), (9,)]
    assert "9 layers have weights of their own; drawn are layers 1, 3, 4, 6, 7, 9" in capsys.readouterr().err


def test_the_gallery_has_a_picture_of_every_encoding_and_a_page(folder):
    with mock.patch.object(gallery, "names", return_value=["rope", "alibi", "t5-2d"]):
        found = document("inspect", "--all", *SMALL, "--to", "gallery")
    assert [each["name"] for each in found["encodings"]] == ["alibi", "rope", "t5-2d"]
    for each in found["encodings"]:
        assert_picture(folder / "gallery" / each["picture"])
    assert_picture(folder / "gallery/gallery.png")
    page = (folder / "gallery/gallery.html").read_text()
    assert re.findall(r'href="([^"]+)"', page) == ["alibi.png", "rope.png", "t5-2d.png"]
    assert "gallery.svg" in page


def test_an_encoding_that_fails_has_its_reason_in_the_gallery():
    with mock.patch.object(gallery, "names", return_value=["alibi", "mine.py:Fails"]):
        result = cli("inspect", "--all", *SMALL, "--to", "gallery", "--json")
    assert result.code == 3
    assert "wrote gallery/gallery.html and 4 pictures beside it" in result.err  # as PNG and SVG, with the contact sheet
    rows = {each["name"]: each for each in result.json["encodings"]}
    assert "RuntimeError: no luck" in rows["mine.py:Fails"]["unavailable"]
    assert rows["alibi"]["picture"] == "alibi.png"


def test_an_encoding_that_is_not_installed_fails_no_gallery():
    why = "needs a package: pip install 'poscli[more]'"
    absent = mock.patch.object(gallery, "missing", lambda name: why if name == "absent" else "")
    with mock.patch.object(gallery, "names", return_value=["absent", "alibi"]), absent:
        result = cli("inspect", "--all", *SMALL, "--to", "gallery", "--json")
    assert result.code == 0
    assert {each["name"]: each["unavailable"] for each in result.json["encodings"]} == {"absent": why, "alibi": ""}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, ("name an encoding or a --run", "poscli inspect rope")),
        (("rope", "--all"), 2, "name an encoding"),
        (("ropee",), 2, ("'ropee'", "did you mean rope")),
        (("rope(base=0.5)",), 2, ("base must be above 1", "0.5")),
        (("rope", "--length", 8), 2, ("length = 8", "16")),
        (("rope", "--max-len", 100), 2, ("--max-len 100", "training length 512", "give at least 512")),
        (("rope", "--max-len", 10**9), 2, ("max_len = 1000000000", "131072")),
        (("rope", "--heads", 3), 2, ("width 128", "3 heads")),
        (("rope", "--preset", "huge"), 2, ("'huge'", "nano")),
        (("rope-2d", "--heads", 64), 2, "head width"),
        (("rope|none|alibi", "--layers", 2), 2, ("alternates 3", "2 layers")),
        (("sinusoidal|rope",), 2, "cannot alternate"),
        (("mine.py:Fails",), 1, ("mine.py:Fails", "no luck")),
        (("mine.py:Nothing",), 2, "Nothing"),
        (("rope", "--run", "x"), 2, "there are no runs in results/runs"),
        (("alibi", *SMALL, "--to", "mine.py/x"), 1, ("cannot write mine.py/x", "mine.py is not a folder")),
    ],
)
def test_what_cannot_be_inspected_is_refused_in_one_line(arguments, code, words):
    assert_refused(("inspect", *arguments), code, words)


def test_a_run_that_does_not_fit_the_command_is_refused(runs):
    run = run_of(runs, "alibi").id
    for arguments, words in (
        (("rope", "--run", run), ("rope is not what --run was trained with", f"{run} is alibi")),
        (("--run", run, "--length", 64), ("--length is what the run was trained with", f"leave out --run {run}")),
        (("--run", run, "--heads", 2), "is what the run was trained with"),
        (("--run", "alibi-zzz"), "there is no run 'alibi-zzz'"),
    ):
        assert_refused(("inspect", *arguments, "--out", runs), 2, words)


def test_a_diverged_run_has_nothing_to_show(runs, folder):
    run = run_of(runs, "alibi")
    copy = folder / "mine" / "runs" / run.id
    shutil.copytree(run.folder, copy)
    run_of(folder / "mine", "alibi").set_status("diverged", 3, "the loss is not finite")
    words = (f"{run.id} is diverged", "no trained weights")
    assert_refused(("inspect", "--run", run.id, "--out", folder / "mine"), 2, words)


@pytest.mark.parametrize(
    ("name", "view", "words"),
    [
        ("Nan", "bias", "the bias is not a number (NaN) in 87 of 128 places"),
        ("Zero", "products", "the vectors of all positions are zero"),
        ("Zero", "angles", "zero or not finite"),
        ("Zero", "decay", "not a number"),
    ],
)
def test_an_encoding_of_nonsense_has_reasons_in_the_place_of_pictures(name, view, words):
    views = document("inspect", f"mine.py:{name}", *SMALL)["inspected"][0]["views"]
    assert words in views[view]["unsupported"]


def test_a_bias_that_hides_keys_is_drawn():
    views = document("inspect", "mine.py:Hidden", *SMALL)["inspected"][0]["views"]
    assert views["bias"]["values"]["all heads"][-1] is None
    assert views["bias"]["level_from"] == 41


def test_json_holds_no_infinity():
    found = cli("inspect", "window(9)", "sink(2)+window(9)+fox", *SMALL, "--json")
    assert found.code == 0, found.err
    json.loads(found.out, parse_constant=lambda constant: pytest.fail(constant))
