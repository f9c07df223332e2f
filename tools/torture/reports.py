"""Reports of results whose every text is hostile: nothing may be injected into a page, a table, a terminal or a file.

A few examples are part of tests/report/test_report_texts.py; `torture(2000)` checks more.
"""

from __future__ import annotations

import contextlib
import csv
import io
import tempfile
import unicodedata
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
from fake_results import BEHAVIOUR, results
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console

from poscli.report import About, Report, Section, build, build_report, records, terminal
from poscli.report.build import FORMULA_SIGNS
from poscli.report.documents import explanations
from poscli.runs.results import Tables
from poscli.runs.schema import POSITION_COLUMNS, frame
from poscli.system.text import printable_line

HOSTILE = (
    "<script>alert(1)</script>", "<!-- ", "-->", "&lt;b&gt;", "[x](http://evil.example)", "![x](file:///etc/passwd)",
    "http://evil.example", "www.evil.example", "<http://evil.example>", "[a]: http://evil.example", "a@evil.example",
    "`code`", "```", "~~~", "**bold**", "_it_", "a|b", "\\", "\\|", "| --- |", "# head", " ## ", "===", "---", "- - -",
    "1. one", "2)", "+ plus", "> quote", "    indented", "* * *", "[ ] task", ":smile:", "[bold red]x[/]", "[/]",
    "[link=x]y", "$\\frac{1}{0}$", "$", "\\(", "^{", "%", "{{ title }}", "{% for x in y %}", "=cmd|' /C calc'!A0",
    "+1+1", "-1+1", "@SUM(A1)", "\uff1d1", '"', "'", ",", ";", "\t", "\n", "\r\n", "\x00", "\x07", "\x1b[31m", "\x1b]8;;http://x\x07",
    "\x7f", "\x85", "\x9b31m", "\u2028", "\u202e", "\u200d", "\ufeff", "\U0001f9f5", "\u4e2d\u6587", "e\u0301",
    "", " ", "nan",
)  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=6)), min_size=1, max_size=4).map("".join)
COLUMNS = (
    "encoding",
    "corpus",
    "fingerprint",
    "device",
    "dtype",
    "engine",
    "poscli",
    "commit",
    "reason",
    "resampled",
    "cpu",
    "torch",
)
STATUSES = ("ok", "oom", "diverged", "unsupported", "nonfinite", "failed")
HARMLESS = {  # every kind of token that a page of a report may hold
    "heading", "paragraph", "inline", "text", "strong", "bullet_list", "list_item", "table", "thead", "tbody", "tr",
    "th", "td", "image", "text_special",
}  # fmt: skip


@st.composite
def hostile_results(draw: st.DrawFn) -> tuple[pd.DataFrame, pd.DataFrame, About]:
    """Rows of two encodings at two lengths, positions and a title, in which every text is hostile."""
    rows, positions = results({name: BEHAVIOUR[name] for name in ("alibi", "rope")}, lengths=(256, 512))
    names = dict(
        zip(("alibi", "rope"), draw(st.lists(TEXTS, min_size=2, max_size=2, unique_by=printable_line)), strict=True)
    )
    rows = rows.assign(**{column: draw(TEXTS) for column in COLUMNS[1:]}, encoding=rows["encoding"].map(names))
    machines = draw(st.lists(TEXTS, min_size=2, max_size=2))
    rows["machine"] = rows["encoding"].map(dict(zip(names.values(), machines, strict=True)))
    rows["variant"] = rows["variant"].replace("window", draw(TEXTS.filter(lambda text: text not in ("full", "crop"))))
    rows["protocol"] = rows["protocol"].replace("nonoverlapping", draw(TEXTS))
    bad = (rows["encoding"] == names["rope"]) & (rows["length"] == 512)
    rows.loc[bad, "status"] = draw(st.sampled_from(STATUSES))
    failed = bad & (rows["status"] != "ok")
    rows.loc[failed, ["nll", "ppl", "bpb", "gain", "gain_low", "gain_high"]] = float("nan")
    positions = positions.assign(encoding=positions["encoding"].map(names), fingerprint=rows["fingerprint"].iloc[0])
    left_out = draw(st.lists(TEXTS.map("\udc80".__add__), max_size=2))  # of a file name that is not UTF-8
    about = About(title=draw(TEXTS), description=draw(TEXTS), left_out=left_out, explained=explanations(rows))
    return rows, positions, about


def check(case: tuple[pd.DataFrame, pd.DataFrame, About], *, draw_pictures: bool = True) -> None:
    """Write and print the report of hostile results: nothing is raised, and nothing is injected."""
    rows, positions, about = case
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.nullcontext() if draw_pictures else undrawn():
            report = build_report(rows, positions, Path(folder), about=about)
        page = (Path(folder) / "report.md").read_text(encoding="utf-8")
        assert {path.name for path in Path(folder).iterdir()} == {path.name for path in report.files}
        check_page(page, report)
        check_table((Path(folder) / "summary.csv").read_text(encoding="utf-8"), report)
    records(report.summary)
    check_terminal(report, rows)


def check_page(page: str, report: Report) -> None:
    """The Markdown holds headings, paragraphs, lists, tables and the report's own pictures, and nothing else."""
    assert_printable(page)
    tokens = [
        token for top in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(page) for token in _all(top)
    ]
    assert {token.type.removesuffix("_open").removesuffix("_close") for token in tokens} <= HARMLESS
    pictures = [name for section in report.sections for name in section.pictures]
    assert [token.attrs["src"] for token in tokens if token.type == "image"] == pictures
    heads = [token for token in tokens if token.type == "heading_open"]
    failed = sum(bool((section.summary["reason"] != "").any()) for section in report.sections)
    how_to_read = bool(report.about.explained)
    analyses = sum(len(section.analyses) for section in report.sections)
    assert len(heads) == 1 + 4 * len(report.sections) + analyses + failed + how_to_read
    assert {token.level for token in tokens if token.type == "bullet_list_open"} == {0}
    assert sum(token.type == "table_open" for token in tokens) == 2 * len(report.sections) + analyses
    for row in "".join(
        {"tr_open": "\n", "th_open": "c", "td_open": "c"}.get(token.type, "") for token in tokens
    ).split():
        assert len(row) > 3
    name = report.sections[0].summary["encoding"].iloc[0]
    shown = ["".join(child.content for child in token.children or ()) for token in tokens if token.type == "inline"]
    assert name in shown  # as a cell, letter for letter


def check_table(text: str, report: Report) -> None:
    """The CSV has the same cells in every row, none a formula, and gives back the names of the encodings."""
    lines = list(csv.reader(io.StringIO(text)))
    assert {len(line) for line in lines} == {len(report.summary.columns)}
    assert len(text.splitlines()) == len(lines) == 1 + len(report.summary)
    for line in lines[1:]:
        for name, cell in zip(lines[0], line, strict=True):
            assert not cell.startswith(FORMULA_SIGNS) or pd.api.types.is_numeric_dtype(report.summary[name])
    at = lines[0].index("encoding")
    assert [line[at].removeprefix("'") for line in lines[1:]] == [
        n.removeprefix("'") for n in report.summary["encoding"]
    ]


def check_terminal(report: Report, rows: pd.DataFrame) -> None:
    """The terminal gets no control character, and no text is taken for Rich's markup or an emoji code."""
    console = Console(width=10_000, file=io.StringIO(), force_terminal=False)
    terminal.print_report(report, console)
    terminal.show_fresh([part for _, part in rows.groupby("run_id")], console)
    terminal.show_verdicts(Tables(rows, frame([], POSITION_COLUMNS)), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert_printable(text.replace("\n", ""))
    for name in report.summary["encoding"]:
        assert name in text


def assert_printable(text: str) -> None:
    steering = {character for character in text if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert not steering - {"\n"}


def torture(examples: int, *, draw_pictures: bool = True) -> None:
    """Check as many generated results."""

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(hostile_results())
    def generated(case: Any) -> None:
        check(case, draw_pictures=draw_pictures)

    generated()


def _all(token: Token) -> list[Token]:
    return [
        token,
        *(inner for child in token.children or () for inner in (_all(child) if child.type != "image" else [child])),
    ]


def undrawn() -> AbstractContextManager[object]:
    """A report has no pictures within this context: to draw them takes most of its time."""
    return mock.patch.object(build, "draw_pictures", _not_drawn)


def _not_drawn(section: Section, formats: object) -> dict[str, bytes]:
    """Empty files in the place of the pictures of a section."""
    return dict.fromkeys(section.pictures, b"")
