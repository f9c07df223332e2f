"""Whole reports of every kind of results, file by file: text, tables, pictures, the page's data and the terminal."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from drawn import drawn
from fake_pages import fake_runs, fake_tables, tables_with_holes, task_tables
from fake_results import BEHAVIOUR
from rich.console import Console

from poscli.drawing.page import Page
from poscli.report import About, build_report, terminal

LOOKS_AT_PICTURES = True
Tables = tuple[pd.DataFrame, pd.DataFrame, dict[str, pd.DataFrame]]


def language() -> Tables:
    """Three seeds, an encoding that ends at L, and a length that is no power of two times L."""
    return fake_tables(
        {name: BEHAVIOUR[name] for name in ("alibi", "learned", "rope", "t5(buckets=32)")}, (256, 512, 2304)
    )


def grid() -> Tables:
    """Images, whose unit is the cell."""
    rows, positions, details = fake_tables({name: BEHAVIOUR[name] for name in ("alibi", "rope")}, (256, 1024))
    return rows.assign(corpus="images"), positions, details


def sections() -> Tables:
    """Two corpora with different encodings."""
    rows, positions, details = fake_tables({name: BEHAVIOUR[name] for name in ("alibi", "none", "rope")}, (256, 512))
    other = rows["encoding"] != "none"
    return pd.concat([rows, rows[other].assign(corpus="text:other", nll=rows["nll"] + 0.01)]), positions, details


def alone() -> Tables:
    """One encoding, one seed."""
    rows, positions, details = fake_tables({"kerple-log": (1.4, lambda octaves: 0.01 * octaves)}, (256, 4096))
    one = {name: table[table["seed"] == 1] for name, table in details.items()}
    return rows[rows["seed"] == 1], positions[positions["seed"] == 1], one


KINDS: dict[str, Callable[[], Tables]] = {
    "language": language,
    "task": task_tables,
    "grid": grid,
    "sections": sections,
    "alone": alone,
    "holes": tables_with_holes,
}


@pytest.fixture(autouse=True)
def pictures_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Page, "png", lambda page: drawn(page.figure).encode())


@pytest.mark.parametrize("kind", KINDS)
def test_a_report(kind: str, tmp_path: Path, snapshot: Callable[..., None]) -> None:
    snapshot(written(tmp_path, kind), kind, rounded=True)


@pytest.mark.parametrize("kind", ["language", "task"])
def test_a_report_against_a_baseline(kind: str, tmp_path: Path, snapshot: Callable[..., None]) -> None:
    snapshot(written(tmp_path, kind, "rope"), f"{kind}-against-rope", rounded=True)


def written(folder: Path, kind: str, baseline: str = "") -> str:
    """All that a report of some kind of results says, one part after another."""
    rows, positions, details = KINDS[kind]()
    about = About(title=f"A report of {kind}", description="all that it says")
    runs = fake_runs(rows)
    report = build_report(rows, positions, folder, details=details, runs=runs, about=about, baseline=baseline)
    console = Console(width=160, file=io.StringIO(), no_color=True)
    terminal.show(report, console)
    parts = {"the terminal": console.file.getvalue()}  # type: ignore[attr-defined]
    parts |= {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())}
    parts["files.json"] = "\n".join(json.loads(parts["files.json"]))
    page = parts.pop("report.html")
    for name, text in re.findall(r'<script type="application/json" id="(\w+)">(.*?)</script>', page, re.DOTALL):
        parts[f"{name} of the page"] = "\n".join(outline(json.loads(text)))
    parts["the page without scripts"] = re.sub(r"<script.*?</script>", "", page.partition("<body")[2], flags=re.DOTALL)
    return "".join(f"##### {part}\n{text.rstrip()}\n\n" for part, text in parts.items())


def outline(value: Any, path: str = "") -> Iterator[str]:
    """A line for every list of plain values, and for every value beside it, with the keys that lead there."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from outline(each, f"{path}.{key}")
    elif isinstance(value, list) and any(isinstance(each, (dict, list)) for each in value):
        for number, each in enumerate(value):
            yield from outline(each, f"{path}[{number}]")
    else:
        yield f"{path[1:]}: {json.dumps(value, ensure_ascii=False)}"
