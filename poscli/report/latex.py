"""tables.tex: the summary of every section as a table in LaTeX, to be included in a paper.

It is written with every report, because it costs milliseconds and a paper needs it months after the run. It needs the
package booktabs.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from poscli.report.pooling import headline
from poscli.report.sections import Report, Section
from poscli.report.table import Column, legend, summary_columns
from poscli.system.text import printable_line

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
    return HEAD + "\n".join(map(_table, report.sections))


def _table(section: Section) -> str:
    columns = summary_columns(section.summary)
    marks = "".join("r" if column.right else "l" for column in columns)
    explained = "; ".join(legend(section.summary, headline(section.group.rows)))
    lines = [
        r"\begin{table}",
        f"\\caption{{{latex(section.group.title)}. {latex(explained)}.}}",
        r"\centering\small",
        f"\\begin{{tabular}}{{{marks}}}",
        r"\toprule",
        _line([column.name for column in columns]),
        r"\midrule",
        *(_line([_cell(column, row) for column in columns], written=True) for row in range(len(section.summary))),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str], *, written: bool = False) -> str:
    return " & ".join(cells if written else map(latex, cells)) + r" \\"


def _cell(column: Column, row: int) -> str:
    text = latex(column.cells[row])
    return f"\\textbf{{{text}}}" if row == column.best else text
