"""The task grid on the command line: training, evaluation, reports and continued images, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from cli_runner import assert_refused, cli, run_of
from grid_images import stripes, write
from PIL import Image
from toys import model, perturbed, rounding

from poscli.grids.continuation import ImageChoice, continue_image
from poscli.grids.tasks import Grid
from poscli.runs.results import evaluation_tables, open_evaluated

LOOKS_AT_PICTURES = True

LENGTH = 64  # a grid of 8 x 8
GRID = ("--task", "grid", "--preset", "nano", "--length", LENGTH, "--batch", 4)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, evaluated up to 16 x 16 cells."""
    out = tmp_path_factory.mktemp("grids")
    evaluated = ("--max-len", 4 * LENGTH, "--tokens", 64, "--why")
    for command in (
        ("train", "--enc", "alibi", "--enc", "learned-2d", *GRID, "--tokens", "4k"),
        ("extrapolate", *evaluated),
    ):
        result = cli(*command, "--out", out)
        assert result.code in (0, 3), result.err  # 3: learned-2d ends at 8 x 8
    assert "has nothing to explain: --why needs" in result.err
    return out


def test_an_evaluation_of_images_and_a_report_of_it(results: Path, tmp_path: Path) -> None:
    run = run_of(results, "alibi")
    tables = evaluation_tables([open_evaluated(run.folder)], {})
    rows = tables.rows.set_index(["protocol", "variant", "length"]).sort_index()
    assert set(rows.index.get_level_values("length")) == {64, 128, 256}
    assert (rows["status"] == "ok").all()
    assert (rows["bytes"] == rows["tokens"]).all()
    strides = rows.loc["sliding", "stride"].unstack("length")
    assert (strides[64] == 2).all()  # L/32, and so for the context cut to L
    assert (strides.loc["full", [128, 256]] == 4).all()  # half a side
    assert rows.loc["fixed", "tokens"].eq(64).all()
    assert rows.loc["fixed", "documents"].eq(11).all()
    # Cropped to 8 x 8, every length is the same measurement; and no n-grams run through images.
    assert rows.loc[("fixed", "crop"), "nll"].nunique() == 1
    assert tables.details["recall"].empty
    assert not (run.folder / "why").exists()
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
    chosen = ("generate", "--enc", "alibi", "--out", results, "--side", 12, "--rows", 9, "--image", 2, "--json")
    made = cli(*chosen, "--to", tmp_path / "a.png").json
    assert (made["rows"], made["columns"], made["kept"], made["cells"]) == (12, 12, 9, 36)
    assert (made["image"], made["images"], made["file"]) == (2, 11, str(tmp_path / "a.png"))
    cli(*chosen, "--to", tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    cli(*chosen, "--to", tmp_path / "c.png", "--seed", 1)
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "c.png").read_bytes()


@pytest.mark.parametrize("spec", ["rope", "rope-2d", "t5-2d", "sinusoidal-2d", "alibi-2d+window(9)"])
@torch.no_grad()
def test_cells_are_drawn_from_the_logits_of_the_whole_grid(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cell at a time with a cache gives the logits of one pass over the grid of 8 x 8, trained on 4 x 4."""
    trained, seen = perturbed(model(spec)).eval().requires_grad_(False), []
    real = trained.logits_in_slices

    def watched(tokens_BT, last=None, *, cache=None):
        for part, logits in real(tokens_BT, last, cache=cache):
            if cache is not None:
                seen.append(logits[0, -1].clone())
            yield part, logits

    monkeypatch.setattr(trained, "logits_in_slices", watched)
    task = stripes()
    made = continue_image(trained, task, ImageChoice(rows=3), temperature=1.0, seed=0)
    assert made.made.shape == (8, 8)
    levels = made.made // 25
    assert (levels[:3] == task.data.valid.images[0][:3, :8]).all()
    grid = torch.tensor([[task.data.start, *levels.ravel().tolist()]])
    full = trained(grid[:, :-1])[0, 3 * 8 :]
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


# ---- what is refused: what a task, a corpus and a choice of images refuse are whole texts of tasks, images, evaluation

TRAIN = ("train", "--enc", "none", *GRID, "--tokens", "4k")


def test_trainings_that_are_refused(here: Path) -> None:
    write(here / "small", 6, rows=12, columns=20)
    fits = ("no training image of 8 x 8", "6 x 10", "--length 36")
    assert_refused((*TRAIN, "--corpus", "images:small?patch=2"), 4, fits)
    assert_refused((*TRAIN, "--task", "language", "--corpus", "images:small"), 2, ("images, not text", "--task grid"))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("extrapolate", "--max-len", 128 * LENGTH), 4, ("64 x 128", "65 x 132", "96 x 96", "--max-len 8464")),
        (("extrapolate", "--stride", 9), 2, ("--stride 9", "between 1 and 8", "leave it out for 4")),
        (("generate", "--prompt", "x"), 2, ("was trained on images", "--prompt")),
        (("generate", "--rows", 16), 2, ("--rows 16 must be between 1 and 15",)),
        (("generate", "--enc", "learned-2d", "--side", 9), 2, ("cannot continue so large an image", "--side")),
    ],
)
def test_evaluations_that_are_refused(
    results: Path, arguments: tuple[object, ...], code: int, words: tuple[str, ...]
) -> None:
    enc = () if "--enc" in arguments else ("--enc", "alibi")
    result = cli(*arguments, *enc, "--out", results)
    (line,) = result.err.splitlines()
    assert result.code == code
    assert line.startswith("error: ")
    assert all(word in line for word in words)


def test_a_prompt_that_does_not_fit_the_memory(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poscli.system.memory.free_memory", lambda device: 1000.0)
    result = cli("generate", "--enc", "alibi", "--out", results)
    assert result.code == 2
    assert "reading 256 tokens with alibi needs about" in result.err
    assert "give a smaller --side" in result.err


def test_images_that_have_changed(here: Path) -> None:
    write(here / "small", 6, rows=12, columns=20)
    assert cli(*TRAIN, "--corpus", "images:small").code == 0
    (here / "small/0.png").unlink()
    for command in (("generate", "--side", 8), ("extrapolate", "--max-len", LENGTH)):
        result = cli(*command)
        assert result.code == 4
        assert "its files or the Python version changed" in result.err
