"""`poscli inspect` as a command: its sheets, attention and terms of trained runs by hand, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from cli_runner import LENGTH, assert_refused, cli, document, run_of
from matplotlib.image import imread
from torch.nn.functional import embedding

from poscli.inspect import gallery
from poscli.inspect.probe import QUERIES, weights_of_run
from poscli.inspect.session import trained_group
from poscli.inspect.settings import InspectSettings
from poscli.inspect.terms import four_terms

LOOKS_AT_PICTURES = True
SMALL = ("--preset", "nano", "--length", 32, "--max-len", 128, "--no-properties")
pytestmark = pytest.mark.usefixtures("here")


def test_equal_commands_draw_equal_sheets() -> None:
    for to in ("first", "second"):
        assert cli("inspect", "kerple-log", *SMALL, "--to", to).code == 0
    first, second = (Path(to, "sheet.svg").read_bytes() for to in ("first", "second"))
    assert first == second
    assert first.rstrip().endswith(b"</svg>")
    assert np.ptp(imread("first/sheet.png")[..., :3]) > 0.9  # something is drawn


def test_any_number_of_encodings_is_drawn_six_to_a_sheet(here: Path) -> None:
    """Eight columns are two sheets; a spec with two kinds of layers stays on one."""
    specs = ("alibi", "none", "logn", "rope", "fox", "kerple-log", "none|alibi")
    drawn: list[list[str]] = []

    def draw(inspected):
        drawn.append([each.subject.title for each in inspected])
        return mock.Mock(figure=len(drawn))

    small = ("--preset", "nano", "--length", 16, "--max-len", 16, "--no-properties")

    def write(figure, suffix):
        return bytes([figure]) if suffix == "png" else b""

    with mock.patch.multiple("poscli.inspect.session", draw_sheet=draw, written=write):
        found = document("inspect", *specs, *small, "--to", "here")
    assert found["files"] == [f"here/sheet-{n}.{suffix}" for n in (1, 2) for suffix in ("png", "svg")]
    assert drawn == [list(specs[:6]), ["none|alibi on layer 1", "none|alibi on layer 2"]]
    assert [(here / path).read_bytes() for path in found["files"]] == [b"\1", b"", b"\2", b""]
    assert [each["spec"] for each in found["inspected"]] == [*specs, specs[-1]]


def test_windows_that_are_no_grid_are_drawn_as_the_next_smaller_grid(here: Path) -> None:
    small = ("--preset", "nano", "--length", 16, "--max-len", 17, "--no-properties")  # no grid has 17 cells
    (drawn,) = document("inspect", "alibi-2d", *small, "--to", "here")["inspected"]
    assert {each["rows"] * each["columns"] for each in drawn["views"].values() if "rows" in each} == {16}


def test_attention_of_a_run_is_that_of_its_model(results: Path) -> None:
    """Against a softmax written out here, of queries and keys that the model's own matrices make."""
    group = trained_group(run_of(results, "alibi").id, results / "runs", InspectSettings(max_len=LENGTH))
    (subject,), model = group.subjects, group.trained.model
    x = model.layers[0].norm_attention(embedding(group.trained.windows(LENGTH), model.embedding)).double()
    attention = model.attention[0]
    q, k = ((x @ p.weight.double().T).unflatten(2, (4, 16)).transpose(1, 2) for p in (attention.q, attention.k))
    total = torch.zeros(LENGTH - QUERIES + 1, dtype=torch.float64)
    for i in range(LENGTH - QUERIES, LENGTH):
        for d in range(len(total)):
            slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8], dtype=torch.float64)[:, None]
            s = (q[:, :, i, None] * k[:, :, : i + 1]).sum(-1) / 4 - slopes * (i - torch.arange(i + 1))
            total[d] += s.softmax(-1)[:, :, i - d].mean() / QUERIES
    np.testing.assert_allclose(weights_of_run(subject).near.values[0], total.numpy(), atol=1e-5)


def test_terms_of_a_run_are_products_of_its_contents_and_positions(results: Path) -> None:
    """The norm divides both parts of a token by the root mean square of their sum."""
    group = trained_group(run_of(results, "learned").id, results / "runs", InspectSettings(max_len=LENGTH))
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
    assert found.remainder < 1e-4  # the model computes in float32
    assert sum(found.shares) == pytest.approx(1)


def test_an_encoding_that_is_not_installed_fails_no_gallery() -> None:
    why = "needs a package: pip install 'poscli[more]'"
    absent = mock.patch.object(gallery, "missing", lambda name: why if name == "absent" else "")
    with mock.patch.object(gallery, "names", return_value=["absent", "none"]), absent:
        result = cli("inspect", "--all", *SMALL, "--to", "gallery", "--json")
    assert result.code == 0
    assert {each["name"]: each["unavailable"] for each in result.json["encodings"]} == {"absent": why, "none": ""}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--preset", "nosuch"), "there is no preset 'nosuch'"),
        (("--length", 64, "--max-len", 32), "--max-len 32 is less than the training length 64"),
    ],
)
def test_what_no_encoding_can_be_drawn_with_is_refused_before_the_gallery(options, why, here: Path) -> None:
    assert_refused(("inspect", "--all", *options, "--to", "gallery"), 2, (why,))
    assert not (here / "gallery").exists()


def test_pictures_that_do_not_fit_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view holds 12 times the numbers of a window at once, 8 bytes each: 1.5 GiB for a width of 128."""
    monkeypatch.setattr("poscli.system.memory.free_memory", lambda device: 2.0**30)
    asked = ("inspect", "rope", "--width", 128, "--max-len", 2**17)
    assert_refused(asked, 2, ("--max-len 131072 needs about 1.5 GiB, 1.0 GiB are free; give a smaller one",))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, ("name an encoding or a --run", "poscli inspect rope")),
        (("rope", "--all"), 2, "name an encoding"),
        (("rope", "--length", 8), 2, ("length = 8", "16")),
        (("rope", "--max-len", 100), 2, ("--max-len 100", "training length 512", "give at least 512")),
        (("rope", "--max-len", 10**9), 2, ("max_len = 1000000000", "131072")),
        (("rope-2d", "--heads", 64), 2, "head width"),
        (("rope|none|alibi", "--layers", 2), 2, ("alternates 3", "2 layers")),
        (("own.py:Fails",), 1, ("own.py:Fails", "no luck")),
        (("rope", "--run", "x"), 2, "there are no runs in results/runs"),
        (("alibi", *SMALL, "--to", "own.py/x"), 1, ("cannot write own.py/x", "own.py is not a folder")),
    ],
)
def test_what_cannot_be_inspected_is_refused_in_one_line(
    arguments: tuple[object, ...], code: int, words: str | tuple[str, ...], here: Path
) -> None:
    fails = "class Fails(Encoding):\n    def distance_bias(self, d):\n        raise RuntimeError('no luck')\n"
    (here / "own.py").write_text(f"from poscli.encodings import Encoding\n{fails}")
    assert_refused(("inspect", *arguments), code, words)
