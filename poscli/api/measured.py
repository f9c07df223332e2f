"""What an evaluation found, as tables; it shows itself in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from poscli.drawing.text import number
from poscli.report.pooling import headline, pool, task_measures
from poscli.report.sections import split
from poscli.report.summary import join, ratio_name, summarize
from poscli.report.table import gain_text
from poscli.runs.schema import POSITION_COLUMNS, frame
from poscli.system.notebook import html_table


@dataclass(frozen=True, eq=False, repr=False)
class Measured:
    """One evaluation, or several: `rows` has everything, `by_length` and `summary` what one looks at first.

    `rows` is a pandas table with one row per run, length, protocol and variant, as in eval.csv. Losses are in nats per
    token; columns that end in `bpb` are in bits per byte.
    """

    rows: pd.DataFrame

    @classmethod
    def of(cls, tables: Sequence[pd.DataFrame]) -> Measured:
        """All rows of several tables."""
        return cls(pd.concat(tables, ignore_index=True))

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per encoding: perplexities at every length, the context gain at the longest, and the verdict."""
        groups = split(self.rows, frame([], POSITION_COLUMNS))
        return join([summarize(group.rows, mix=True) for group in groups])

    @cached_property
    def by_length(self) -> pd.DataFrame:
        """One row per encoding and length: perplexity, bits per byte, and the context gain with its 95 % interval.

        The gain, in bits per byte, is the loss with the context cut to the training length minus that with the whole
        window: above 0, the model uses what lies farther back.
        """
        chosen, measures = headline(self.rows), task_measures(self.rows)
        scores = pool(self.rows, chosen.perplexity)[["encoding", "length", "ratio", "status", "ppl", "bpb", *measures]]
        gains = pool(self.rows, chosen.gain).set_index(["encoding", "length"])[["gain", "gain_low", "gain_high"]]
        return scores.join(gains, on=["encoding", "length"])

    def __repr__(self) -> str:
        cells = [self._head, *self._lines()]
        widths = [max(len(row[n]) for row in cells) for n in range(len(self._head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([*(line.rstrip() for line in lines), *self._verdicts()])

    def _repr_html_(self) -> str:
        return html_table("", self._lines(), self._head, notes=self._verdicts())

    @property
    def _head(self) -> list[str]:
        return ["encoding", "length", "perplexity", "bits/byte", *task_measures(self.rows), "gain, bits/byte [95 %]"]

    def _lines(self) -> Iterator[list[str]]:
        for row in self.by_length.to_dict("records"):
            failed = row["status"] != "ok"
            numbers = [row["status"], "-"] if failed else [number(row["ppl"]), number(row["bpb"])]
            measures = [number(row[name]) for name in task_measures(self.rows)]
            gain = gain_text(row["gain"], row["gain_low"], row["gain_high"]) if row["ratio"] > 1 else "-"
            yield [row["encoding"], f"{row['length']} ({ratio_name(row['ratio'])})", *numbers, *measures, gain]

    def _verdicts(self) -> list[str]:
        rows = self.summary.to_dict("records")
        return [
            f"{row['encoding']}: {row['verdict']}" + (f" ({row['reason']})" if row["reason"] else "") for row in rows
        ]
