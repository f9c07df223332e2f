"""The report as files of text: report.md, a template (report.md.jinja), and tables.tex, to be included in a paper.

tables.tex is written with every report, because it costs milliseconds and a paper needs it months after the run. It
needs the package booktabs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from poscli.data import kind_of
from poscli.drawing.text import number
from poscli.evaluation.baseline import baseline
from poscli.evaluation.protocol import PROTOCOLS
from poscli.report.data import Report, Section
from poscli.report.pooling import ACCURACY, ratio_name
from poscli.report.table import (
    Column,
    failures,
    gain_intervals,
    gain_text,
    legend,
    summary_columns,
    verdict_sentences,
    words,
)
from poscli.runs.schema import FULL
from poscli.system.errors import UsageError
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
    cells = [[_cell(column, row, escape, "**{}**") for column in columns] for row in range(len(columns[0].cells))]
    lines: list[Sequence[str]] = [head, rule, *cells]
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))


def _cell(column: Column, row: int, write: Callable[[object], str], strong: str) -> str:
    """A cell, written as plain text of a language; the best number of a column is `strong`."""
    text = write(column.cells[row])
    return strong.format(text) if row == column.best else text


def report_markdown(report: Report) -> str:
    """The text of report.md, which links to pictures in its own folder."""
    text = _TEMPLATES.get_template("report.md.jinja").render(
        sections=[(section, _texts(section)) for section in report.sections],
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
_TEMPLATES.globals["markdown_table"] = markdown_table


def _texts(section: Section) -> dict[str, Any]:
    """What the template prints of one section beside its own fields."""
    summary, last = section.summary, section.lengths[-1]
    return {
        "verdicts": verdict_sentences(summary),
        "summary": markdown_table(summary_columns(summary)),
        "legend": legend(summary, section.headline),
        "score": "Accuracy" if section.answered else section.bits.capitalize() if section.per_byte else "Perplexity",
        "longest": f"{last} ({ratio_name(last / section.train_length)})",
        "protocols": markdown_table(_protocols(section)),
        "failures": failures(summary),
    }


def _protocols(section: Section) -> list[Column]:
    """Perplexity, or accuracy, at the longest length under every protocol and variant, and the gain."""
    columns = [words("encoding", section.summary["encoding"])]
    for measured in section.measured:
        ends = {point.encoding: point for point in measured.points if point.length == section.lengths[-1]}
        scores = {name: point.measures[ACCURACY] if section.answered else point.ppl for name, point in ends.items()}
        cells = tuple(number(scores.get(name, float("nan"))) for name in columns[0].cells)
        name = measured.protocol if measured.variant == FULL else f"{measured.protocol}, {measured.variant}"
        columns.append(Column(name, cells))
    if not section.answered:  # the context cut to L often lacks what was asked for, so that a gain is no surprise
        gains = tuple(gain_text(*gain) for gain in gain_intervals(section.summary))
        columns.append(Column(f"gain, {section.bits} [95 %]", gains))
    return columns


def explanations(rows: pd.DataFrame) -> list[str]:
    """Lines of Markdown for rows of eval.csv: corpora that need one, then every protocol, then every baseline."""
    kinds = dict.fromkeys(kind_of(corpus) for corpus in rows["corpus"].unique())
    lines = [kind.explained for kind in kinds if kind and kind.explained]
    unknown = "**{}** is a {} that is not installed here."
    for name in dict.fromkeys(rows["protocol"]):
        known = name in PROTOCOLS.names()
        lines.append(PROTOCOLS.get(name).explained if known else unknown.format(escape(name), "protocol"))
    for name in dict.fromkeys(rows["variant"]):
        if name == FULL:
            continue
        try:
            lines.append(baseline(name).explain())
        except UsageError:  # the rows come from an installation that has more baselines
            lines.append(unknown.format(escape(name), "baseline"))
    return lines


HEAD = r"""% Written by poscli report. In the preamble: \usepackage{booktabs}; in the text: \input{tables}
"""
SIGNS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": r"{[}",  # after \\ an opening bracket would begin an option
    "]": r"{]}",
    "-": r"{-}",  # two hyphens would join into a dash
    "±": r"\ensuremath{\pm}",
} | {sign: f"\\{sign}" for sign in "{}$&#_%"}


def latex(value: object) -> str:
    r"""A value as text of LaTeX on one line. Letters beyond Latin-1, which need packages, are written by their code.

    >>> print(latex("rope|none <50 %>"), latex("a_b\\"), latex("中"))
    rope\textbar{}none \textless{}50 \%\textgreater{} a\_b\textbackslash{} U+4E2D
    """
    text = unicodedata.normalize("NFC", printable_line(value))
    return "".join(SIGNS.get(sign, sign if ord(sign) < 256 else f"U+{ord(sign):04X}") for sign in text)


def latex_tables(report: Report) -> str:
    """The text of tables.tex."""
    tables = []
    for section in report.sections:
        columns = summary_columns(section.summary)
        marks = "".join("r" if column.right else "l" for column in columns)
        explained = "; ".join(legend(section.summary, section.headline))
        rows = [[_cell(each, row, latex, "\\textbf{{{}}}") for each in columns] for row in range(len(section.summary))]
        lines = [
            r"\begin{table}",
            f"\\caption{{{latex(section.title)}. {latex(explained)}.}}",
            r"\centering\small",
            f"\\begin{{tabular}}{{{marks}}}",
            r"\toprule",
            " & ".join(latex(column.name) for column in columns) + r" \\",
            r"\midrule",
            *(" & ".join(cells) + r" \\" for cells in rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        tables.append("\n".join(lines) + "\n")
    return HEAD + "\n".join(tables)
