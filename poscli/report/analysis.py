"""An analysis: a question about the results of a section, its answer in sentences, and a table."""

from __future__ import annotations

from dataclasses import dataclass

from poscli.report.table import Column


@dataclass(frozen=True)
class Analysis:
    """A part of a section, below its summary: its answer, single findings as `points`, and a table.

    `legend` explains the columns of the table, one line each.
    """

    title: str
    answer: str
    columns: tuple[Column, ...] = ()
    legend: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
