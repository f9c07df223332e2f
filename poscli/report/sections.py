"""Splitting results into sections of one corpus and one training length: only within these can they be compared.

Within a section an encoding is one line over its seeds. Runs of one encoding that differ in more than the seed get
different names, so that they are never averaged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from poscli.drawing.text import amount, listed, number
from poscli.report.analysis import Analysis
from poscli.report.origin import corpora
from poscli.report.over_seeds import with_intervals
from poscli.report.per_byte import is_per_byte, per_byte, positions_per_byte, spec_of
from poscli.report.pooling import headline
from poscli.statistics.comparison import LossTable
from poscli.system.notebook import html_table
from poscli.system.text import printable_line

if TYPE_CHECKING:  # an answer is made from a group
    from poscli.report.answer import Answer


@dataclass(frozen=True)
class Group:
    """Rows that may be compared; each value of `encoding` names runs that differ only in their seed."""

    title: str
    slug: str  # suffix of the names of its pictures; empty where there is one group
    rows: pd.DataFrame
    positions: pd.DataFrame
    details: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    units: LossTable | None = None  # the table of units among the details, if it is there
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Picture:
    """A figure on disk, with its alternative text."""

    path: Path
    alt: str


@dataclass(frozen=True)
class Section:
    """One group with its summary, pictures, caveats, answers and analyses."""

    group: Group
    summary: pd.DataFrame
    pictures: tuple[Picture, ...]
    notes: tuple[str, ...]
    answers: Mapping[str, Answer]  # by protocol
    analyses: tuple[Analysis, ...] = ()

    @property
    def answer(self) -> Answer:
        """The answer under the protocol that reports quote, which the page, the terminal and report.md print."""
        return self.answers[headline(self.group.rows).perplexity]


@dataclass(frozen=True, kw_only=True)
class About:
    """What the rows of a report cannot tell."""

    title: str = ""
    description: str = ""
    left_out: Sequence[str] = ()  # runs without rows: which, and why
    explained: Sequence[str] = ()  # what the protocols and baselines are, in Markdown


@dataclass(frozen=True, repr=False)
class Report:
    """The sections, the one with the most encodings first, the summary over all of them, and the files on disk."""

    sections: tuple[Section, ...]
    summary: pd.DataFrame
    files: tuple[Path, ...]
    about: About

    def __repr__(self) -> str:
        verdicts = (f"{row['encoding']}: {row['verdict']}" for row in self.summary.to_dict("records"))
        return "\n".join([*verdicts, *map(str, self.files)])

    def _repr_html_(self) -> str:
        scores = [name for name in self.summary.columns if name.startswith("ppl_")]
        rows = [
            (row["encoding"], *(number(row[name]) for name in scores), row["verdict"])
            for row in self.summary.to_dict("records")
        ]
        head = ["encoding", *(name.replace("ppl_", "perplexity ") for name in scores), "verdict"]
        return html_table("", rows, head, notes=[str(path) for path in self.files])

    @property
    def notes(self) -> tuple[str, ...]:
        """The caveats of all sections."""
        return tuple(dict.fromkeys(note for section in self.sections for note in section.notes))


Details = Mapping[str, pd.DataFrame]  # the tables of an evaluation beside rows and positions, by name


def split(
    rows: pd.DataFrame,
    positions: pd.DataFrame,
    details: Details | None = None,
    *,
    mix: bool = False,
    trained: Mapping[str, int] | None = None,
) -> list[Group]:
    """Split rows into groups, the one with the most encodings first; `mix` joins corpora, never training lengths.

    `trained` are the tokens that runs were trained on, by id (`trained_tokens`): those that differ are named apart. All
    texts of the groups are `printable`, whatever the files said.
    """
    rows, positions = _printable(rows.reset_index(drop=True)), _printable(positions)
    key = ["train_length"] if mix else ["fingerprint", "train_length"]
    parts = [part for _, part in rows.groupby(key, sort=True)]
    parts.sort(key=lambda part: (-part["encoding"].nunique(), -len(part), -part["train_length"].iloc[0]))
    slugs = _slugs(parts)
    found = zip(parts, slugs, strict=True)
    return [_group(part, positions, details or {}, slug, trained or {}) for part, slug in found]


def _group(
    part: pd.DataFrame, positions: pd.DataFrame, details: Details, slug: str, trained: Mapping[str, int]
) -> Group:
    labels, notes = name_runs(part, trained)
    tables = {name: _of_runs(table, labels) for name, table in details.items()}
    units = LossTable(tables["units"]) if "units" in tables else None
    rows = part.assign(encoding=part["run_id"].map(labels))
    return Group(
        title=f"{corpora(part)}, trained at L = {part['train_length'].iloc[0]}",
        slug=slug,
        rows=per_byte(rows) if units is None else with_intervals(per_byte(rows), units),
        positions=positions_per_byte(_of_runs(positions, labels), rows),
        details={name: table for name, table in tables.items() if name != "recall" or not is_per_byte(rows)},
        units=units,
        notes=tuple(notes),
    )


def _of_runs(table: pd.DataFrame, labels: pd.Series) -> pd.DataFrame:
    """The rows of a table that belong to these runs, with their labels as encodings."""
    mine = table[table["run_id"].isin(labels.index)]
    return mine.assign(encoding=mine["run_id"].map(labels))


def _printable(table: pd.DataFrame) -> pd.DataFrame:
    """The table with all texts printable; `run_id`, which joins tables, is kept."""
    texts = [name for name in table.select_dtypes(["object", "string"]).columns if name != "run_id"]
    return table.assign(**{name: table[name].map(printable_line) for name in texts})


def name_runs(rows: pd.DataFrame, trained: Mapping[str, int] | None = None) -> tuple[pd.Series, list[str]]:
    """(label of every run, notes); the label is the encoding and, where its runs differ, in brackets how.

    `trained` are the tokens of training by run id.
    """
    kept = {"encoding": "first", "seed": "first", "fingerprint": "first", "parameters": "max"}
    runs = rows.groupby("run_id").agg(kept | ({"tokenizer": "first"} if is_per_byte(rows) else {}))
    labels, encoding = runs["encoding"].copy(), runs["encoding"]
    if is_per_byte(rows):
        labels = labels + " [" + runs["tokenizer"].map(spec_of) + "]"
        runs["encoding"] = labels
    runs["trained"] = runs.index.map(lambda run: (trained or {}).get(run, 0))
    for column, tell in (
        ("fingerprint", lambda mark: str(mark)[:6]),
        ("parameters", lambda count: amount(count)),
        ("trained", lambda count: f"{amount(count)} tokens"),
    ):
        several = runs.groupby("encoding")[column].transform("nunique") > 1
        labels = labels.where(~several, labels + " [" + runs[column].map(tell) + "]")
    again = pd.DataFrame({"label": labels, "seed": runs["seed"]}).duplicated(keep=False)
    again = again.groupby(labels).transform("any")
    homes = [str(run).split(".as.")[0] for run in runs.index]
    hashes = pd.Series([printable_line(home.rsplit("-", 1)[-1]) for home in homes], index=runs.index)
    labels = labels.where(~again, labels + " [" + hashes + "]")
    changed = sorted(set(encoding[labels != encoding]))
    note = f"{listed(changed)}: several runs that differ in more than the seed; the text in brackets tells them apart."
    return labels, [*([note] if changed else []), *_budgets(runs)]


def _budgets(runs: pd.DataFrame) -> list[str]:
    """A note if models were trained on different numbers of tokens."""
    known = runs.loc[runs["trained"] > 0, "trained"]
    if known.nunique() < 2:
        return []
    fewest, most = amount(known.min()), amount(known.max())
    return [f"Models were trained on {fewest} to {most} tokens: how long explains part of a difference."]


def _slugs(parts: Sequence[pd.DataFrame]) -> list[str]:
    """Suffixes of file names: corpus and length, with the fingerprint if these are not unique; empty for one group."""
    if len(parts) == 1:
        return [""]
    plain = [f"-{_file_name(part['corpus'].iloc[0])}-L{part['train_length'].iloc[0]}" for part in parts]
    marks = [f"-{_file_name(part['fingerprint'].iloc[0])[:8]}" for part in parts]
    return [slug + mark if plain.count(slug) > 1 else slug for slug, mark in zip(plain, marks, strict=True)]


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[-40:] or "corpus"
