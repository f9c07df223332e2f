"""Every text in a report is shown as it is: none is Markdown, HTML, LaTeX, markup, a formula or a control code."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_results import BEHAVIOUR, results
from torture.reports import check_page, torture, undrawn
from toys import first

from poscli.drawing.page import Page, written
from poscli.drawing.text import drawable
from poscli.report import About, build_report
from poscli.report.documents import escape
from poscli.runs.schema import POSITION_COLUMNS, frame

LOOKS_AT_PICTURES = True


@pytest.mark.parametrize("examples", first(1, [2, 8]))
def test_hostile_texts_in_pages_tables_and_terminals(examples: int) -> None:
    torture(examples, draw_pictures=False)


def test_hostile_texts_in_pictures() -> None:
    torture(1)  # warnings are errors: one of a missing glyph would fail


def test_addresses_and_mathematics_are_plain_text() -> None:
    assert escape("http://x www.x $y$ &lt; #") == "http\\://x www\\.x \\$y\\$ \\&lt; \\#"


def test_pictures_draw_dollars_as_they_are_and_escape_what_the_font_lacks() -> None:
    page = Page(labels=1)
    page.write("$\\frac{1}{0}$ \U0001f9f5 中", "$^{$", "$_$", "$\\undefined$")
    written(page.figure, "png")
    texts = [text.get_text() for text in page.figure.texts]
    assert texts[0] == "$\\frac{1}{0}$ \\U0001f9f5 \\u4e2d"
    assert not any(text.get_parse_math() for text in page.figure.texts)
    assert drawable("é …\n") == "é …\n"


def test_the_encoding_none_is_not_read_as_a_word(tmp_path: Path) -> None:
    rows, positions = results({"none": (1.2, lambda _: 0.01), "rope": (1.3, lambda _: 0.0)})
    with undrawn():
        (section,) = build_report(rows, positions, tmp_path).sections
    assert ', "none" has the lowest loss: ' in (tmp_path / "report.md").read_text(encoding="utf-8")
    told = " ".join(figure.alt for figure in section.figures)
    assert 'at once, "none" has the lowest perplexity' in told
    assert 'the window "none" needs' in told
    assert 'help "none"' in told


@pytest.mark.parametrize("text", first(1, ["- - -", "---", "+ x", "1. x", "===", "# x", "> x", "    x", "```"]))
def test_no_text_begins_a_block_of_its_own(text: str, tmp_path: Path) -> None:
    rows = results({"alibi": BEHAVIOUR["alibi"]}, lengths=(256, 512))[0].assign(corpus=text, commit=text)
    rows.loc[rows["length"] == 512, ["status", "reason"]] = ["oom", text]
    about = About(title=text, description=text, left_out=[text])
    with undrawn():
        report = build_report(rows, frame([], POSITION_COLUMNS), tmp_path, about=about)
    check_page(report.files[0].read_text(encoding="utf-8"), report)
