"""What losses are measured per: a byte of text or a cell of an image, in every text, table and picture of a report."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pandas as pd
import pytest
from fake_pages import against, fake_runs, fake_tables
from fake_results import BEHAVIOUR
from matplotlib.figure import Figure
from matplotlib.text import Text
from rich.console import Console
from toys import first

from poscli.checkpoints.advice import Advice, answer, notes
from poscli.report import Report, build_report, terminal
from poscli.report.origin import bits_per
from poscli.report.page.site import site_pages
from poscli.statistics.comparison import LossTable

LOOKS_AT_PICTURES = True

BYTE, CELL = r"(?i)per byte|bits/byte|\bbpb\b", r"(?i)per cell|bits/cell|\bbpc\b"
KINDS = [("images?levels=16", CELL, BYTE), ("stdlib", BYTE, CELL)]


def tables(corpus: str) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, pd.DataFrame]]:
    rows, positions, details = fake_tables({name: BEHAVIOUR[name] for name in ("alibi", "none", "rope")})
    return rows.assign(corpus=corpus), positions, details


def console() -> Console:
    return Console(file=io.StringIO(), width=400)


def printed(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def texts_of(report: Report, folder: Path, rows: pd.DataFrame) -> dict[str, str]:
    """Everything that a reader of a report sees, by where it stands."""
    first = console()
    terminal.print_report(report, first)
    fresh = console()
    fresh.print(terminal.lengths_table([rows[rows["run_id"] == run] for run in sorted(set(rows["run_id"]))[:2]]))
    told = {name: (folder / name).read_text(encoding="utf-8") for name in ("report.md", "tables.tex", "report.html")}
    told |= {"terminal": printed(first), "after an evaluation": printed(fresh)} | site_pages(report)
    return {name: re.sub(r"//.*|/\*\*.*?\*/", "", text) for name, text in told.items()}  # without comments of scripts


@pytest.mark.parametrize(("corpus", "says", "never"), first(1, KINDS))
def test_a_report_says_byte_of_text_and_cell_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: str, says: str, never: str
) -> None:
    drawn: list[str] = []

    def look(figure: Figure, _: str) -> bytes:
        drawn.append(" ".join(text.get_text() for text in figure.findobj(Text)))
        return b""

    monkeypatch.setattr("poscli.drawing.page.written", look)
    rows, positions, details = tables(corpus)
    report = build_report(rows, positions, tmp_path, details=details, runs=fake_runs(rows), baseline="rope")
    told = texts_of(report, tmp_path, rows)
    for place, text in told.items():
        assert re.search(says, text), place
        assert not re.search(never, text), (place, re.search(never, text))
    assert len(drawn) == 4
    assert sum(bool(re.search(says, text)) for text in drawn) >= 2  # of the gain and of the position
    assert not any(re.search(never, text) for text in drawn)


@pytest.mark.parametrize(("corpus", "says", "never"), KINDS)
def test_comparisons_and_advice_name_the_unit(corpus: str, says: str, never: str) -> None:
    rows, _, details = tables(corpus)
    table = against(rows, LossTable(details["units"]), "rope")
    screen = console()
    screen.print(terminal.comparison_table(table, bits=bits_per(rows)))
    advice = Advice(
        model="rope",
        target=4096,
        train_length=256,
        candidates=(),
        chosen=None,
        documents=12,
        seeds=3,
        bits=bits_per(rows),
    )
    for text in (printed(screen), " ".join([*answer(advice), *notes(advice)])):
        assert re.search(says, text)
        assert not re.search(never, text)


def test_images_and_text_in_one_section_are_measured_per_byte() -> None:
    rows = pd.DataFrame({"corpus": ["images", "stdlib"], "fingerprint": ["a", "b"]})
    summary = pd.DataFrame({"corpus": ["images, stdlib"] * 2, "fingerprint": ["a, b"] * 2, "max_length": 4096})
    assert bits_per(rows) == bits_per(summary) == "bits per byte"
    assert bits_per(rows[:1]) == bits_per(summary.replace("images, stdlib", "images, images:a")) == "bits per cell"
