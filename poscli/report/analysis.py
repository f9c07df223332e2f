"""An analysis: a question about the results of a section, its answer in sentences, and a table."""

from __future__ import annotations

from dataclasses import dataclass

from poscli.report.table import Column


@dataclass(frozen=True)
class Analysis:
    """A part of a section, below its summary. `legend` explains the columns, one line each."""

    title: str
    answer: str
    columns: tuple[Column, ...] = ()
    legend: tuple[str, ...] = ()
