"""The task grid on the command line: training, evaluation, reports and continued images, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_runner import assert_refused, cli, run_of
from grid_images import stripes
from PIL import Image
from toys import model, perturbed, rounding

from poscli.equation.operands import grid_shape
from poscli.grids import continuation
from poscli.grids.continuation import ImageChoice, continue_image
from poscli.grids.tasks import Grid
from poscli.runs.results import evaluation_tables, open_evaluated
from poscli.system.errors import DataError, UsageError

LENGTH = 64  # a grid of 8 x 8
GRID = ("--task", "grid", "--preset", "nano", "--length", LENGTH, "--batch", 4)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, evaluated up to 16 x 16 cells."""
    out = tmp_path_factory.mktemp("grids")
    evaluated = ("--max-len", 4 * LENGTH, "--tokens", 64, "--why")
    for command in (
        ("train", "--enc", "alibi", "--enc", "learned-2d", *GRID, "--tokens", "1k"),
        ("extrapolate", *evaluated),
    ):
        result = cli(*command, "--out", out)
        assert result.code in (0, 3), result.err  # 3: learned-2d ends at 8 x 8
    assert "has nothing to explain: --why needs" in result.err
    return out


def test_an_evaluation_of_images(results: Path) -> None:
    run = run_of(results, "alibi")
    tables = evaluation_tables([open_evaluated(run.folder)], {})
    rows = tables.rows.set_index(["protocol", "variant", "length"]).sort_index()
    assert set(rows.index.get_level_values("length")) == {64, 128, 256}
    assert (rows["status"] == "ok").all()
    assert (rows["bytes"] == rows["tokens"]).all()
    assert rows.loc["sliding", "stride"].eq(4).all()  # half a side
    assert rows.loc["fixed", "tokens"].eq(64).all()
    assert rows.loc["fixed", "documents"].eq(11).all()
    # Cropped to 8 x 8, every length is the same measurement; and no n-grams run through images.
    assert rows.loc[("fixed", "crop"), "nll"].nunique() == 1
    assert tables.details["recall"].empty
    assert not (run.folder / "why").exists()


def test_a_report_says_what_its_numbers_are_of_images(results: Path, tmp_path: Path) -> None:
    result = cli("report", "--out", results, "--to", tmp_path)
    assert result.code == 0, result.err
    text = (tmp_path / "report.md").read_text()
    assert "losses are in bits per cell" in " ".join(text.split())
    assert "Reading 256 cells at once" in text
    assert "recall" not in text.lower()


# ---- continued images


def test_a_picture_of_a_continued_image(results: Path) -> None:
    """The picture has two images of 16 x 16 cells, which agree above the line, where the model was given the cells."""
    result = cli("generate", "--enc", "alibi", "--out", results)
    assert result.code == 0, result.err
    run = run_of(results, "alibi")
    file = results / "generated" / f"{run.id}.png"
    assert result.out.splitlines()[0] == str(file)
    assert f"{run.id}: 128 cells" in result.err
    pixels = np.asarray(Image.open(file).convert("L")).astype(int)
    cell, left, gap, top = 512 // 16, 60, 60, 60
    centres = [[top + cell * r + cell // 2 for r in range(16)], [left + cell * c + cell // 2 for c in range(16)]]
    true = pixels[np.ix_(*centres)]
    made = pixels[np.ix_(centres[0], [c + 16 * cell + gap for c in centres[1]])]
    assert (true[:8] == made[:8]).all()
    assert (true[8:] != made[8:]).any()
    data = Grid.open("images", "bytes").data
    order = data.valid.images[0][:16, :16].astype(int)
    assert np.corrcoef(data.greys[order].ravel(), true.ravel())[0, 1] > 0.999


def test_the_numbers_of_a_continued_image(results: Path, tmp_path: Path) -> None:
    chosen = ("generate", "--enc", "alibi", "--out", results, "--side", 12, "--rows", 9, "--image", 2)
    made = cli(*chosen, "--to", tmp_path / "a.png", "--json").json
    assert (made["rows"], made["columns"], made["kept"], made["cells"]) == (12, 12, 9, 36)
    assert (made["image"], made["images"], made["file"]) == (2, 11, str(tmp_path / "a.png"))
    again = cli(*chosen, "--to", tmp_path / "b.png", "--json").json
    assert again["nll"] == pytest.approx(made["nll"], rel=1e-6)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    other = cli(*chosen, "--to", tmp_path / "c.png", "--json", "--seed", 1)
    assert other.code == 0
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "c.png").read_bytes()


@pytest.mark.parametrize(
    "spec", ["rope", "alibi-2d", "rope-2d", "t5-2d", "swin-2d", "sinusoidal-2d", "alibi-2d+window(9)"]
)
@torch.no_grad()
def test_cells_are_drawn_from_the_logits_of_the_whole_grid(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cell at a time with a cache gives the logits of one pass over the grid of 8 x 8, trained on 4 x 4."""
    trained, seen = perturbed(model(spec)).eval().requires_grad_(False), []
    real = trained.forward

    def watched(tokens_BT, *, cache=None, memory=None):
        logits = real(tokens_BT, cache=cache, memory=memory)
        if cache is not None:
            seen.append(logits[0, -1].clone())
        return logits

    monkeypatch.setattr(trained, "forward", watched)
    task = stripes()
    made = continue_image(trained, task, ImageChoice(rows=3), temperature=1.0, seed=0)
    assert made.made.shape == (8, 8)
    levels = made.made // 25
    assert (levels[:3] == task.data.valid.images[0][:3, :8]).all()
    grid = torch.tensor([[task.data.start, *levels.ravel().tolist()]])
    full = real(grid[:, :-1])[0, 3 * 8 :]
    torch.testing.assert_close(torch.stack(seen), full, rtol=0, atol=rounding(trained, grid[:, :-1]))


def test_the_loss_of_a_continued_image_is_that_of_its_true_cells() -> None:
    """By hand from the logits of one pass: the mean over the rows that were not given."""
    trained, task = perturbed(model("rope")).eval().requires_grad_(False), stripes()
    made = continue_image(trained, task, ImageChoice(rows=5, side=6, image=2), temperature=0.5, seed=0)
    cells = task.data.valid.images[1][:6, :6].ravel().tolist()
    with torch.no_grad():
        p = trained(torch.tensor([[task.data.start, *cells[:-1]]]))[0].double().log_softmax(-1)
    by_hand = [-float(p[t, cells[t]]) for t in range(30, 36)]
    assert made.nll == pytest.approx(np.mean(by_hand), rel=1e-5)
    assert (made.images, made.cells, made.kept) == (2, 6, 5)
    assert made.true.tolist() == (25 * task.data.valid.images[1][:6, :6]).tolist()


def test_the_token_that_opens_a_grid_is_never_drawn() -> None:
    trained, task = model("none").eval().requires_grad_(False), stripes()
    trained.head.weight[task.data.start] = 100 * trained.head.weight.abs().sum(0)
    made = continue_image(trained, task, ImageChoice(rows=1, side=6), temperature=1.0, seed=0)
    assert (made.made // 25 < 10).all()


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (ImageChoice(rows=8), "--rows 8 must be between 1 and 7, for an image of 8 x 8 cells"),
        (
            ImageChoice(side=10),
            "image of stripes has 10 x 10 cells, and the largest has 9 x 12; give --side 9",
        ),
        (ImageChoice(image=3), "--image 3 must be between 1 and 2"),
    ],
)
def test_images_that_cannot_be_continued(wish: ImageChoice, says: str) -> None:
    with pytest.raises((UsageError, DataError)) as caught:
        continue_image(model("none"), stripes(), wish, temperature=1.0, seed=0)
    assert says in str(caught.value)


def test_the_default_image_has_twice_the_side() -> None:
    assert grid_shape(ImageChoice().length(256)) == (32, 32)
    assert ImageChoice(side=5).length(256) == 25
    assert continuation.GROWTH == 4


# ---- what is refused


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with images of 12 x 20 pixels, and folders without images."""
    monkeypatch.chdir(tmp_path)
    for name in ("small", "none"):
        (tmp_path / name).mkdir()
    for n in range(6):
        pixels = np.random.default_rng(n).integers(0, 256, (12, 20), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "small" / f"{n}.png")
    (tmp_path / "none" / "notes.txt").write_text("no image")
    (tmp_path / "indents.py").write_text(
        "from poscli.data.tokenizers import Tokenizer\nclass Indents(Tokenizer): pass\n"
    )
    return tmp_path


TRAIN = ("train", "--enc", "none", *GRID, "--tokens", "4k")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--corpus", "images:nowhere"), 4, ("images:nowhere", "no file, no folder and no pattern")),
        (("--corpus", "images:none"), 4, ("holds no image in 1 file", "notes.txt (no image)")),
        (("--corpus", "images:small", "--length", 256), 4, ("no training image of 16 x 16", "12 x 20", "--length 144")),
        (("--corpus", "images:small?patch=2"), 4, ("no training image of 8 x 8", "6 x 10", "--length 36")),
        (("--corpus", "images:small?patch=0"), 2, ("patch", "1 to 1024", "'0'")),
        (("--corpus", "images:small?levels=1"), 2, ("levels", "2 to 256", "'1'")),
        (("--corpus", "images:small?size=9"), 2, "there is no option 'size'"),
        (("--corpus", "text:none"), 2, ("the corpus text:none is no images", "write images[:FOLDER]")),
        (("--tokenizer", "indents.py:Indents"), 2, "leave out --tokenizer indents.py:Indents"),
        (("--length", 282), 2, ("282 tokens is a grid of 6 x 47", "280 (14 x 20) or 285 (15 x 19)")),
        (("--memory", 64), 2, ("--memory 64", "leave it out")),
        (("--task", "language", "--corpus", "images"), 2, ("images, not text", "--task grid")),
        (("--task", "language", "--corpus", "images:small"), 2, ("images, not text", "--task grid")),
    ],
)
def test_trainings_that_are_refused(arguments: tuple[object, ...], code: int, words: str | tuple[str, ...]) -> None:
    assert_refused((*TRAIN, *arguments), code, words)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("extrapolate", "--max-len", 128 * LENGTH), 4, ("64 x 128", "65 x 132", "96 x 96", "--max-len 8464")),
        (("extrapolate", "--stride", 9), 2, ("--stride 9", "between 1 and 8", "leave it out for 4")),
        (("extrapolate", "--lengths", "1,1.1"), 2, ("length 64 is a grid of 8 x 8 cells", "the longest, 7 x 10")),
        (("generate", "--prompt", "x"), 2, ("was trained on images", "--prompt")),
        (("generate", "--rows", 16), 2, "--rows 16 must be between 1 and 15"),
        (("generate", "--side", 97), 4, "the largest has 96 x 96; give --side 96"),
        (("generate", "--enc", "learned-2d", "--side", 9), 2, ("cannot continue so large an image", "--side")),
    ],
)
def test_evaluations_that_are_refused(
    results: Path, arguments: tuple[object, ...], code: int, words: str | tuple[str, ...]
) -> None:
    enc = () if "--enc" in arguments else ("--enc", "alibi")
    result = cli(*arguments, *enc, "--out", results)
    (line,) = result.err.splitlines()
    assert result.code == code
    assert line.startswith("error: ")
    assert all(word in line for word in (words if isinstance(words, tuple) else (words,)))


def test_a_prompt_that_does_not_fit_the_memory(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poscli.system.memory.free_memory", lambda device: 1000.0)
    result = cli("generate", "--enc", "alibi", "--out", results)
    assert result.code == 2
    (line,) = result.err.splitlines()
    assert "reading 256 tokens with alibi needs about" in line
    assert "give a smaller --side" in line


def test_images_that_have_changed(folder: Path) -> None:
    corpus = ("--corpus", f"images:{folder}/small")
    assert cli(*TRAIN, *corpus).code == 0
    (folder / "small" / "0.png").unlink()
    for command in (("generate", "--side", 8), ("extrapolate", "--max-len", LENGTH)):
        result = cli(*command)
        assert result.code == 4
        assert "its files or the Python version changed" in result.err


def test_ls_shows_images() -> None:
    corpora = {row["corpus"]: row["what"] for row in json.loads(cli("ls", "corpora", "--json").out)}
    assert "--task grid" in corpora["images[:FOLDER][?patch=4&levels=32]"]
