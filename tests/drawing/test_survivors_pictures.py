"""The pictures of a bench: bars, texts, findings and bands by hand from a few rows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from poscli.bench import pictures
from poscli.drawing.bars import BarPage
from poscli.drawing.page import Page
from poscli.drawing.style import FAINT, PALETTE

LOOKS_AT_PICTURES = True

MADE = {
    "device": "cpu", "machine": "Abacus", "threads": 2, "torch": "9.9", "layers": 2, "width": 64, "heads": 4,
    "dtype": "float32", "repeats": 3, "train_length": 256, "batch": 8, "status": "ok", "asked": "auto",
}  # fmt: skip


@pytest.fixture
def pages(monkeypatch) -> list[Page]:
    """The pages that are saved, instead of their files."""
    saved: list[Page] = []
    monkeypatch.setattr(Page, "save", lambda page, path: saved.append(page))
    return saved


def texts(page: Page) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in page.figure.texts)


def costs(ratios: dict[str, float], what: str = "train", lengths: tuple[int, ...] = (256,)) -> pd.DataFrame:
    """Rows whose ratio to `none` grows with the length: the one given belongs to the last length."""
    return pd.DataFrame(
        MADE
        | {"what": what, "encoding": name, "length": length, "ratio": 1 + (ratio - 1) * length / lengths[-1]}
        | {"ratio_low": ratio - 0.02, "ratio_high": ratio + 0.03, "tokens_per_s": 20_000 / ratio}
        | {"peak_mb": 100 * ratio, "none_peak_mb": 100.0}
        for name, ratio in ratios.items()
        for length in lengths
    )


def test_bars_of_training_are_sorted_and_coloured_by_cost(pages) -> None:
    rows = costs({"rope": 1.25, "none": 1.0, "cope": 2.0})
    assert [path.name for path in pictures.draw(rows, pd.DataFrame({"speedup": [], "peer": []}), Path())] == [
        "training.png"
    ]
    (page,) = pages
    assert isinstance(page, BarPage)
    assert [(bar.name, bar.value, bar.color) for bar in page.bars] == [
        ("none", 1.0, FAINT), ("rope", 1.25, PALETTE[0]), ("cope", 2.0, PALETTE[1]),
    ]  # fmt: skip
    assert [bar.text for bar in page.bars] == [
        "1.00x   20k tokens/s", "1.25x   16k tokens/s", "2.00x   10k tokens/s",
    ]  # fmt: skip
    assert (page.bars[2].low, page.bars[2].high) == (1.98, 2.03)
    told = texts(page)
    assert "At 256 tokens 0 of 2 encodings take at most 1.1 times as long as none; the most: cope, 2.00x." in told
    assert "Abacus, 2 threads; torch 9.9; 2 layers of width 64, 4 heads, float32; 3 turns." in told
    assert "A whole step on 8 windows of 256 tokens" in told
    assert "none against itself: 0.98 to 1.03, the noise of this machine." in told


def test_few_encodings_are_lines_and_of_many_only_the_costly_ones(pages) -> None:
    nothing = pd.DataFrame({"speedup": [], "peer": []})
    few = {"none": 1.0, "rope": 1.1, "cope": 3.0}
    pictures.draw(costs(few, "eval", (256, 1024)), nothing, Path())
    many = {"none": 1.0, "cope": 3.0} | {f"cheap{n}": 1.06 + n / 50 for n in range(9)}
    pictures.draw(costs(many, "eval", (256, 1024)), nothing, Path())
    time, memory, banded, _ = pages
    assert len(time.axes.lines) == len(memory.axes.lines) == 3
    assert "Band:" not in texts(time)
    assert "at 1024 tokens" in texts(time)
    assert list(time.axes.lines[0].get_xdata()) == [256, 1024]
    assert list(time.axes.lines[0].get_ydata()) == [1.5, 3.0]  # the most costly first
    assert list(memory.axes.lines[0].get_ydata()) == [300.0, 300.0]
    assert "the most: cope, 300 MiB." in texts(memory)
    assert len(banded.axes.lines) == 2  # cope and none
    assert "Band: all others" in texts(banded)
    labels = {text.get_text() for text in banded.axes.texts}
    assert {"cope 3.00x", "none 1.00x", "9 others, half below 1.14x"} <= labels
    assert "At 1024 tokens 5 of 10 encodings take at most 1.15 times as long as none; the most: cope, 3.00x." in texts(
        banded
    )


def test_one_length_makes_no_figure_over_lengths(pages) -> None:
    assert (
        pictures.draw(costs({"none": 1.0, "rope": 1.1}, "eval"), pd.DataFrame({"speedup": [], "peer": []}), Path())
        == []
    )
    assert pages == []


def test_a_comparison_shows_training_and_the_longest_evaluation_the_fastest_first(pages) -> None:
    def row(encoding: str, what: str, length: int, speedup: float, attention: str = "fused") -> dict[str, object]:
        speeds = {"tokens_per_s": 30_000.0, "peer_tokens_per_s": 12_000.0, "peak_mb": 11.0, "peer_peak_mb": 22.0}
        spread = {"speedup": speedup, "speedup_low": speedup - 0.1, "speedup_high": speedup + 0.1}
        where = {"what": what, "encoding": encoding, "length": length, "peer": "others 1.0"}
        return MADE | where | speeds | spread | {"peer_attention": attention}

    against = pd.DataFrame(
        [
            row("rope", "train", 256, 0.9), row("rope", "eval", 512, 1.4), row("rope", "eval", 256, 7.0),
            row("alibi", "eval", 512, 8.0, "eager"),
        ]
    )  # fmt: skip
    pictures.speed_beside_peer(against, Path("x.png"))
    (page,) = pages
    assert isinstance(page, BarPage)
    assert [(bar.name, bar.text) for bar in page.bars] == [
        ("alibi", "8.00x reading 512, 30k : 12k tokens/s, 11 : 22 MiB, eager"),
        ("rope", "0.90x training, 30k : 12k tokens/s"),
        ("", "1.40x reading 512, 30k : 12k tokens/s, 11 : 22 MiB"),
    ]
    assert [bar.color for bar in page.bars] == [PALETTE[1], PALETTE[0], PALETTE[1]]
    assert "poscli is the faster one in 2 of 3 comparisons, others in the rest." in texts(page)


def test_the_band_is_halved_at_the_median_and_memory_is_ranked_by_memory(pages) -> None:
    """Nine cheap encodings, of which one takes nearly all that the band reaches; memory is the other way round."""
    cheap = {f"cheap{n}": 1.01 + n / 100 for n in range(8)} | {"cheap8": 1.24}
    rows = costs({"none": 1.0, "cope": 3.0, "rope": 1.3} | cheap, "eval", (256, 1024))
    rows.loc[rows["encoding"] == "cope", "peak_mb"] = 110.0
    rows.loc[rows["encoding"] == "rope", "peak_mb"] = 500.0
    pictures.draw(rows, pd.DataFrame({"speedup": [], "peer": []}), Path())
    time, memory = pages
    assert "9 others, half below 1.05x" in {text.get_text() for text in time.axes.texts}  # the mean is 1.07
    labels = [text.get_text() for text in memory.axes.texts]
    assert "rope 500 MiB" in labels
    assert not any(label.startswith("cope") for label in labels)
    assert "the most: rope, 500 MiB." in texts(memory)


def test_an_encoding_at_the_bound_counts_as_cheap_and_the_noise_is_that_of_none(pages) -> None:
    pictures.draw(
        costs({"rope": 0.9, "none": 1.0, "alibi": 1.1, "cope": 1.2}), pd.DataFrame({"speedup": [], "peer": []}), Path()
    )
    told = texts(pages[0])
    assert "At 256 tokens 2 of 3 encodings take at most 1.1 times as long as none; the most: cope, 1.20x." in told
    assert "none against itself: 0.98 to 1.03" in told


def test_a_length_at_which_all_have_failed_is_none_to_draw_a_line_to(pages) -> None:
    rows = costs({"none": 1.0, "rope": 1.1}, "eval", (256, 1024))
    rows.loc[rows["length"] == 1024, "status"] = "oom"
    assert pictures.draw(rows, pd.DataFrame({"speedup": [], "peer": []}), Path()) == []
    rows = costs({"none": 1.0, "rope": 1.1, "cope": 1.5}, "eval", (256, 1024))
    rows.loc[(rows["length"] == 1024) & (rows["encoding"] == "cope"), ["status", "ratio"]] = ["oom", float("nan")]
    pictures.draw(rows, pd.DataFrame({"speedup": [], "peer": []}), Path())
    assert "At 1024 tokens 1 of 1 encodings take at most 1.15 times as long as none." in texts(pages[0])
