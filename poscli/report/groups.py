"""Splitting results into sections of one corpus and one training length: only within these can they be compared.

Models that were trained on another corpus than the one they are scored on have sections of their own.

Within a section an encoding is one line over its seeds. Runs of one encoding that differ in more than the seed get
different names, so that they are never averaged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from poscli.drawing.text import amount, listed
from poscli.report.accuracy import by_length, by_place
from poscli.report.collect import Trained
from poscli.report.gate import Behind, behind
from poscli.report.origin import corpus_names, trained_on
from poscli.report.pooling import Ends, intervals_of, is_per_byte, per_byte, positions_per_byte, tokenizer_spec
from poscli.report.recall import recall_points
from poscli.runs.run import AS
from poscli.specs import with_layouts
from poscli.statistics.comparison import LossTable
from poscli.system.text import printable_line

Details = Mapping[str, pd.DataFrame]  # the tables of an evaluation beside rows and positions, by name
OPTION = re.compile(r"(\w+)=([^,()]+)(?:, |(?=\)))")  # of a spec, of which the value is no list
LONGEST_SLUG = 40  # letters of a corpus in the name of a picture; whole words, the last ones


@dataclass(frozen=True)
class Group:
    """Rows that may be compared; each value of `encoding` names runs that differ only in their seed."""

    title: str
    slug: str  # suffix of the names of its pictures; empty where there is one group
    rows: pd.DataFrame
    positions: pd.DataFrame
    details: Details = field(default_factory=dict)
    units: LossTable | None = None  # the table of units among the details, if it is there
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> tuple[tuple[str, ...], str]:
        """What was scored, by its fingerprints, and the corpus of the training if that is another one."""
        return tuple(sorted(set(self.rows["fingerprint"]))), trained_on(self.rows)

    @property
    def train_length(self) -> int:
        """L, which all of its models have in common."""
        return int(self.rows["train_length"].iloc[0])

    @cached_property
    def ends(self) -> Ends:
        """The intervals over seeds and documents of its losses and gains, as far as units are known."""
        return {} if self.units is None else intervals_of(self.rows, self.units)

    @cached_property
    def by_length(self) -> pd.DataFrame:
        """The accuracy of its answers by length; without rows if it has none."""
        answers = self.details.get("answers", ())
        return by_length(answers) if len(answers) else pd.DataFrame(columns=["encoding", "ratio", "low", "high"])

    @cached_property
    def by_place(self) -> pd.DataFrame:
        """The accuracy of its answers by place."""
        return by_place(self.details["answers"])

    @cached_property
    def recall_points(self) -> pd.DataFrame:
        """The gain on its tokens that could be copied."""
        return recall_points(self.details["recall"])

    @cached_property
    def behind(self) -> list[Behind]:
        """The encodings that are behind the best one at L, as the gate sees it."""
        return behind(self.rows, self.units)


def split(
    rows: pd.DataFrame,
    positions: pd.DataFrame,
    details: Details | None = None,
    *,
    mix: bool = False,
    runs: Mapping[str, Trained] | None = None,
) -> list[Group]:
    """Split rows into groups, the one with the most encodings first; `mix` joins corpora, never training lengths.

    Of `runs` (from `trained_runs`), those that differ in the tokens of their training or in their recipe are named
    apart. All texts of the groups are `printable`, whatever the files said.
    """
    rows = rows.assign(trained_on=rows["trained_on"].astype(object).fillna(""))
    rows, positions = _printable(rows.reset_index(drop=True)), _printable(positions)
    key = ["train_length", "trained_on"] if mix else ["fingerprint", "train_length", "trained_on"]
    parts = [part for _, part in rows.groupby(key, sort=True)]
    parts.sort(key=lambda part: (-part["encoding"].nunique(), -len(part), -part["train_length"].iloc[0]))

    def of_runs(labels: pd.Series, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table that belong to these runs, with their labels as encodings."""
        chosen = table[table["run_id"].isin(labels.index)]
        return chosen.assign(encoding=chosen["run_id"].map(labels))

    groups = []
    for part, slug in zip(parts, _slugs(parts), strict=True):
        labels, notes = name_runs(part, runs or {})
        tables = {name: of_runs(labels, table) for name, table in (details or {}).items()}
        units, scored = LossTable(tables["units"]) if "units" in tables else None, of_runs(labels, part)
        group = Group(
            title=f"{corpus_names(part)}, trained{_on(part)} at L = {part['train_length'].iloc[0]}",
            slug=slug,
            rows=per_byte(scored),
            positions=positions_per_byte(of_runs(labels, positions), scored),
            details={name: table for name, table in tables.items() if name != "recall" or not is_per_byte(scored)},
            units=units,
            notes=tuple(notes),
        )
        groups.append(group)
    return groups


def _on(rows: pd.DataFrame) -> str:
    """Words for the corpus that the models of a group were trained on; "" if it is the one that was scored."""
    return f" on {corpus}" if (corpus := trained_on(rows)) else ""


def _printable(table: pd.DataFrame) -> pd.DataFrame:
    """The table with all texts printable; `run_id`, which joins tables, is kept."""
    texts = [name for name in table.select_dtypes(["object", "string"]).columns if name != "run_id"]
    return table.assign(**{name: table[name].map(printable_line) for name in texts})


def name_runs(rows: pd.DataFrame, trained: Mapping[str, Trained]) -> tuple[pd.Series, list[str]]:
    """(label of every run, notes); the label is the encoding and, where its runs differ, in brackets how.

    An encoding that is a layout is called by the layout's name, and a note gives its spec. `trained` is what is known
    of the trainings, by run id.
    """
    kept = {"encoding": "first", "seed": "first", "fingerprint": "first", "parameters": "max"}
    runs = rows.groupby("run_id").agg(kept | ({"tokenizer": "first"} if is_per_byte(rows) else {}))
    written, runs["encoding"] = runs["encoding"], runs["encoding"].map(with_layouts)
    labels, encoding = runs["encoding"].copy(), runs["encoding"]
    if is_per_byte(rows):
        labels = labels + " [" + runs["tokenizer"].map(tokenizer_spec) + "]"
        runs["encoding"] = labels
    runs["trained"] = [trained[run].tokens if run in trained else 0 for run in runs.index]
    for column, tell in (
        ("fingerprint", lambda mark: str(mark)[:6]),
        ("parameters", lambda count: amount(count)),
        ("trained", lambda count: f"{amount(count)} tokens"),
    ):
        several = runs.groupby("encoding")[column].transform("nunique") > 1
        labels = labels.where(~several, labels + " [" + runs[column].map(tell) + "]")
    recipes = {run: each.config.recipe.model_dump() for run, each in trained.items() if each.tokens}
    shapes = {run: each.config.model.model_dump() for run, each in trained.items()}
    others = {run: each.config.model_dump(include={"batch", "precision"}) for run, each in trained.items()}
    for names, values in ((runs["encoding"], recipes), (labels, shapes), (labels, others)):
        told_apart = _differing(names, values)
        labels = labels.where(told_apart == "", labels + " [" + told_apart + "]")
    again = pd.DataFrame({"label": labels, "seed": runs["seed"]}).duplicated(keep=False)
    made = pd.Series([trained[run].decisive if run in trained else "" for run in runs.index], runs.index)
    again = again.groupby(labels).transform("any") | (made.groupby(labels).transform("nunique") > 1)
    homes = [str(run).split(".as.")[0] for run in runs.index]
    hashes = pd.Series([printable_line(home.rsplit("-", 1)[-1]) for home in homes], index=runs.index)
    labels = labels.where(~again, labels + " [" + hashes + "]")
    changed = sorted(set(encoding[labels != encoding]))
    note = f"{listed(changed)}: several runs that differ in more than the seed; the text in brackets tells them apart."
    notes = [note] if changed else []
    notes += [f"{name} is {spec}." for name, spec in sorted({*zip(encoding, written, strict=True)}) if name != spec]
    budgets = runs.loc[runs["trained"] > 0, "trained"]
    if budgets.nunique() > 1:
        fewest, most = amount(budgets.min()), amount(budgets.max())
        notes.append(f"Models were trained on {fewest} to {most} tokens: how long explains part of a difference.")
    return labels, notes


def _differing(encodings: pd.Series, recipes: Mapping[str, Mapping[str, Any]]) -> pd.Series:
    """The values of the recipe of each run that differ between the runs of its encoding, such as encoding_lr=0.003."""
    texts = pd.Series("", encodings.index)
    for ids in encodings.groupby(encodings).groups.values():
        known = [recipes.get(str(run), {}) for run in ids]
        keys = [key for key in known[0] if len({each.get(key) for each in known}) > 1] if all(known) else []
        texts[ids] = [", ".join(f"{key}={each[key]}" for key in keys) for each in known]
    return texts


def _slugs(parts: Sequence[pd.DataFrame]) -> list[str]:
    """Suffixes of file names: corpus and length, with marks if these are not unique; empty for one group.

    The marks are of the fingerprint and, where that is not enough, of the other corpus that models were trained on.
    """

    def file_name(text: str) -> str:
        words = re.findall(r"[A-Za-z0-9]+", text)
        while len("-".join(words)) > LONGEST_SLUG and len(words) > 1:
            del words[0]
        return "-".join(words)[-LONGEST_SLUG:] or "corpus"

    if len(parts) == 1:
        return [""]
    plain = [f"-{file_name(part['corpus'].iloc[0])}-L{part['train_length'].iloc[0]}" for part in parts]
    marks = [f"-{file_name(part['fingerprint'].iloc[0])[:8]}" for part in parts]
    slugs = [slug + mark if plain.count(slug) > 1 else slug for slug, mark in zip(plain, marks, strict=True)]
    sources = [trained_on(part) for part in parts]
    marks = [f"-{hashlib.sha256(source.encode()).hexdigest()[:8]}" if source else "" for source in sources]
    return [slug + mark if slugs.count(slug) > 1 else slug for slug, mark in zip(slugs, marks, strict=True)]


def shortened(names: Iterable[str]) -> tuple[str, dict[str, str], str]:
    """The model that all encodings are of, encodings without what they have in common, and words that say what that is.

    In common is the model, if it is in every name, by itself or before an encoding, and then every option that has one
    value wherever it is given. Nothing is left out if encodings could then not be told apart.

    >>> _, names, words = shortened(["my", "my as yarn(factor=2, base=9)", "my as rerope(base=9)"])
    >>> sorted(names.values())
    ['my', 'rerope', 'yarn(factor=2)']
    >>> words
    'all but my are this model under another encoding (not written out: base=9)'
    >>> shortened(["rope", "rope as yarn", "yarn"])[0]
    ''
    """
    every = set(names)
    model = min(every, key=len, default="")
    specs = {name: name.removeprefix(model + AS) for name in every if name.startswith(model + AS)}
    if not specs or len({model, *specs.values()}) < len(every):
        return "", {name: name for name in every}, ""
    words = f"all but {model} are this model under another encoding"
    given = [option for spec in specs.values() for option in OPTION.findall(spec)]
    common = [each for each in sorted(set(given)) if 1 < given.count(each) == [key for key, _ in given].count(each[0])]
    bare = {
        name: OPTION.sub(lambda option: "" if option.groups() in common else option[0], spec)
        .replace(", )", ")")
        .replace("()", "")
        for name, spec in specs.items()
    }
    if common and len({model, *bare.values()}) == len(every):
        specs = bare
        words += f" (not written out: {', '.join(f'{key}={value}' for key, value in common)})"
    return model, {model: model, **specs}, words
