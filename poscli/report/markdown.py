"""report.md: a template (report.md.jinja) filled with the sections of a report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from poscli.drawing.text import number
from poscli.report.findings import verdicts_told
from poscli.report.origin import bits_per, facts
from poscli.report.per_byte import is_summed_per_byte
from poscli.report.pooling import ACCURACY, headline, pool
from poscli.report.sections import Report, Section
from poscli.report.summary import is_answered, ratio_name
from poscli.report.table import Column, failures, gain_text, gains_of, legend, summary_columns
from poscli.runs.schema import FULL
from poscli.system.text import printable_line


class Markdown(str):
    """Text that is Markdown already; `escape` returns it unchanged."""

    __slots__ = ()


def escape(value: object) -> Markdown:
    r"""Escape a value so that Markdown shows it as plain text on one line, inside a table cell too.

    Dollars are escaped because GitHub reads mathematics between two of them, addresses because it makes them links.

    >>> print(escape("rope|none <b>"), escape(Markdown("**3.94**")))
    rope\|none \<b\> **3.94**
    """
    if isinstance(value, Markdown):
        return value
    return Markdown(re.sub(r"[\\|*_\[\]<>`~#&$]|:(?=//)|(?<=www)\.", r"\\\g<0>", printable_line(value)))


def _escape_line(value: object) -> Markdown:
    """Escape a value that may stand at the start of a line, where it must not begin a list or a rule."""
    text = escape(value)
    if isinstance(value, Markdown):
        return text
    return Markdown(re.sub(r"^(\d*)([-+=]|[.)](?=\s|$))", r"\1\\\2", text))


def markdown_table(columns: Sequence[Column]) -> Markdown:
    """A table in GitHub's Markdown; the best number of a column is bold."""
    head = [escape(column.name) for column in columns]
    rule = ["---:" if column.right else "---" for column in columns]
    rows = [[_cell(column, row) for column in columns] for row in range(len(columns[0].cells))]
    lines: list[Sequence[str]] = [head, rule, *rows]
    return Markdown("\n".join(f"| {' | '.join(cells)} |" for cells in lines))


def report_markdown(report: Report, trained: Mapping[str, int]) -> str:
    """The text of report.md, which links to pictures in its own folder."""
    text = _TEMPLATES.get_template("report.md.jinja").render(
        sections=[_section(section, trained) for section in report.sections],
        title=report.about.title or "Position encodings beyond their training length",
        description=report.about.description,
        left_out=report.about.left_out,
        explained=[Markdown(printable_line(line)) for line in report.about.explained],
    )
    return text.rstrip() + "\n"


# `finalize` sees every value that the template prints, so that nothing reaches the page without being escaped.
_TEMPLATES = Environment(
    loader=PackageLoader("poscli.report", ""),
    finalize=_escape_line,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def _section(section: Section, trained: Mapping[str, int]) -> dict[str, Any]:
    """What the template prints of one section."""
    rows, summary = section.group.rows, section.summary
    last = int(summary["max_length"].iloc[0])
    return {
        "title": section.group.title,
        "answer": f"{section.answer.text} {section.answer.basis}",
        "verdicts": verdicts_told(summary),
        "summary": markdown_table(summary_columns(summary)),
        "legend": legend(summary, headline(rows)),
        "pictures": section.pictures,
        "score": _score(summary),
        "again": "" if is_answered(summary) else ", and again the gain",
        "longest": f"{last} ({ratio_name(last / int(summary['train_length'].iloc[0]))})",
        "protocols": markdown_table(_protocols(rows, summary)),
        "analyses": [
            {
                "title": analysis.title,
                "answer": analysis.answer,
                "points": analysis.points,
                "table": markdown_table(analysis.columns) if analysis.columns else "",
                "legend": analysis.legend,
            }
            for analysis in section.analyses
        ],
        "failures": failures(summary),
        "facts": facts(rows, trained),
        "notes": section.notes,
    }


def _score(summary: pd.DataFrame) -> str:
    """By what the table of protocols compares."""
    if is_answered(summary):
        return "Accuracy"
    return bits_per(summary).capitalize() if is_summed_per_byte(summary) else "Perplexity"


def _protocols(rows: pd.DataFrame, summary: pd.DataFrame) -> list[Column]:
    """Perplexity, or accuracy, at the longest length under every protocol and variant in the rows, and the gain."""
    last = int(summary["max_length"].iloc[0])
    columns = [Column("encoding", tuple(summary["encoding"]), right=False)]
    for protocol, variant in dict.fromkeys(zip(rows["protocol"], rows["variant"], strict=True)):
        points = pool(rows, protocol, variant)
        score = ACCURACY if is_answered(summary) else "ppl"
        values = points[points["length"] == last].set_index("encoding")[score].reindex(summary["encoding"])
        name = protocol if variant == FULL else f"{protocol}, {variant}"
        columns.append(Column(name, tuple(map(number, values))))
    if is_answered(summary):  # the context cut to L often lacks what was asked for, so that a gain is no surprise
        return columns
    columns.append(Column(f"gain, {bits_per(summary)} [95 %]", tuple(gain_text(*gain) for gain in gains_of(summary))))
    return columns


def _cell(column: Column, row: int) -> str:
    text = escape(column.cells[row])
    return f"**{text}**" if row == column.best else text
