"""What reports say of results that are rarer than those of test_snapshots_report.py, and of what lies on the disk.

These are explanations (--why), key tokens, sources with a known limit, tasks, several tokenizers, one model under many
encodings, failures, advice, training logs, and everything that is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fake_explained import HARMS, explained, recall_of, with_optimum
from fake_pages import fake_runs, fake_tables, tables_with_holes, task_tables
from fake_results import BEHAVIOUR, LN2, units_of
from lines import bare_table, outcome, printed, sections
from test_advice import advice_for, gains, measured
from test_report import of_two_tokenizers
from test_snapshots_report import outline

from poscli.report import terminal
from poscli.report.advice import Advice, advise
from poscli.report.advice_text import answer, notes, show_advice
from poscli.report.analyses import analyses
from poscli.report.analysis import Analysis
from poscli.report.answer import answers
from poscli.report.caveats import caveats
from poscli.report.sections import Group, split
from poscli.report.summary import summarize
from poscli.statistics.comparison import Comparison, LossTable

Tables = tuple[pd.DataFrame, pd.DataFrame, dict[str, pd.DataFrame]]
Say = Callable[..., None]


def told(analysis: Analysis, *, legend: bool) -> Iterator[str]:
    """The lines of an analysis: title, answer, points, the table column by column, and perhaps the legend."""
    yield f"{analysis.title} {analysis.answer}"
    yield from (f"* {point}" for point in analysis.points)
    yield from (f"{column.name}: {' | '.join(column.cells)}" for column in analysis.columns)
    yield from (f"  {line}" for line in analysis.legend if legend)


def grouped(tables: Tables, **options: Any) -> tuple[Group, pd.DataFrame]:
    """The first section of some tables, and its summary."""
    group = split(*tables, **options)[0]
    return group, summarize(group.rows, mix=True)


def everything() -> Tables:
    """Seven encodings with every table of --why, text that recurs, and a known limit."""
    shapes = BEHAVIOUR | {"fire": (1.37, lambda octaves: -0.07 * octaves)}
    rows, positions, details = fake_tables({name: shapes[name] for name in HARMS}, (256, 512, 1024))
    recall = recall_of(rows, {64: 0.0, 128: 0.05, 256: 0.2, 512: 0.157})
    return with_optimum(rows, 0.1), positions, details | explained(rows) | {"recall": recall}


def unharmed() -> Tables:
    """One seed of two encodings that no window harms; the judge finds few tokens, and nothing recurs far back."""
    rows, positions, details = everything()
    names = ["alibi", "t5(buckets=32)"]
    tables = {name: each[each["encoding"].isin(names) & (each["seed"] == 0)] for name, each in details.items()}
    rows = rows[rows["encoding"].isin(names) & (rows["seed"] == 0)]
    few = tables["why/key_tokens"].assign(gain=math.nan, gain_low=math.nan, gain_high=math.nan)
    tables |= {"recall": recall_of(rows, {32: 0.5, 128: 0.3}), "why/key_tokens": few}
    return with_optimum(rows, 1e-4), positions, tables


def undecided() -> Tables:
    """Two seeds whose rankings differ between protocols; text recurs beyond L, and nobody copies it."""
    shapes = {name: BEHAVIOUR[name] for name in ("alibi", "none", "t5(buckets=32)")}
    rows, positions, _ = fake_tables(shapes, (256, 512, 4096))
    rows = rows[rows["seed"] < 2]
    swapped = (rows["protocol"] == "nonoverlapping") & (rows["encoding"] == "alibi")
    rows = rows.assign(bpb=rows["bpb"] + 0.2 * swapped, nll=rows["nll"] + 0.2 * LN2 * swapped)
    return rows, positions, {"units": units_of(rows), "recall": recall_of(rows, {128: 0.5, 256: 0.02})}


def by_gap() -> Tables:
    """A task that nobody solves, asked for by how far back the answer lies; some bins are small."""
    rows, positions, details = task_tables()
    answered = details["answers"]
    answered = answered.assign(by="gap", right=answered["right"] // 2)
    answered = answered.assign(tokens=np.where(answered["from"] == 80, 1, 4))
    answered = answered.assign(right=np.minimum(answered["right"], answered["tokens"]))
    totals = answered.groupby(["run_id", "length"])[["right", "tokens"]].sum()
    shares = (totals["right"] / totals["tokens"]).rename("accuracy").reset_index()
    rows = rows.drop(columns="accuracy").merge(shares, how="left", on=["run_id", "length"])
    return rows, positions, details | {"answers": answered}


def unequal() -> Tables:
    """The mean of alibi is the lowest, but on the seeds that both have, t5 is better; rope shares no seed with them."""
    rows, positions, _ = fake_tables(
        {name: BEHAVIOUR[name] for name in ("alibi", "rope", "t5(buckets=32)")}, (256, 512)
    )
    seeds = {"alibi": (0, 1, 2), "rope": (0,), "t5(buckets=32)": (1, 2)}
    rows = rows[[seed in seeds[name] for name, seed in zip(rows["encoding"], rows["seed"], strict=True)]]
    nll = rows["nll"] + 0.1 * rows["seed"]
    rows = rows.assign(
        nll=nll, bpb=nll / LN2, ppl=np.exp(nll), parameters=900_000 + 200_000 * (rows["encoding"] == "rope")
    )
    return rows, positions, {"units": units_of(rows)}


def in_one_place() -> Tables:
    """One seed of a task whose answers all lie at the same depth, so that the place is no question."""
    rows, positions, details = task_tables()
    answered = details["answers"].assign(**{"from": 0, "to": 99})
    one = {name: each[each["seed"] == 1] for name, each in (details | {"answers": answered}).items()}
    return rows[rows["seed"] == 1], positions, one


def two_tokenizers() -> Tables:
    """Runs on bytes and on tokens of four bytes, which only bits per byte compare."""
    rows, positions = of_two_tokenizers()
    rows = rows[rows["length"] <= 1024]
    units = units_of(rows)
    units = units.assign(bytes=units["tokens"] * (1 + 3 * (units["fingerprint"] == "77aa88bb99cc")))
    return rows, positions, {"units": units, "recall": recall_of(rows, {256: 0.5})}


SECTIONS: dict[str, tuple[Callable[[], Tables], dict[str, Any], str]] = {
    "everything": (everything, {}, "rope"),
    "unharmed": (unharmed, {}, "alibi"),
    "undecided": (undecided, {}, "none"),
    "unequal": (unequal, {}, "alibi"),
    "holes": (tables_with_holes, {}, "none"),
    "by-gap": (by_gap, {}, "rope"),
    "in-one-place": (in_one_place, {}, "alibi"),
    "two-tokenizers": (two_tokenizers, {"mix": True}, "rope [bytes]"),
}


@pytest.mark.parametrize("kind", SECTIONS)
def test_what_a_section_says(kind: str, snapshot: Say) -> None:
    make, options, baseline = SECTIONS[kind]
    group, summary = grouped(make(), **options)
    found, legend = answers(group, summary, fake_runs(group.rows)), kind in ("everything", "by-gap")
    said = {
        "title": "\n".join([group.title, *group.notes]),
        "answers": "\n".join(f"{name}: {each.text} {list(each.best)}" for name, each in found.items()),
        "facts": bare_table(next(iter(found.values())).facts),
        "caveats": "\n".join(caveats(group.rows, summary)),
        "analyses": "\n".join(
            line for each in analyses(group, summary, baseline) for line in told(each, legend=legend)
        ),
        "the terminal": printed(lambda console: console.print(terminal.summary_table(summary)), 240),
    }
    snapshot(sections(said), f"section-{kind}", rounded=True)


def values(each: Comparison) -> list[float]:
    return [*each.numbers, each.p, each.documents]


def cheaper_of_two_alike() -> Advice:
    """Advice between yarn and rope+logn, within noise of each other, of which the one with more parts costs less."""
    rows, units = measured(own=gains(-0.5), yarn=gains(0.2, 0.03), **{"rope+logn": gains(0.2)})
    ends = units[(units["length"] == 1024) & (units["variant"] == "full")]
    yarn, other = (ends[ends["encoding"] == f"m as {name}"] for name in ("yarn", "rope+logn"))
    units.loc[yarn.index, "nll"] = other["nll"].to_numpy() + 0.01 * (-1.0) ** np.arange(len(yarn)) - 5e-4
    return advise(rows, LossTable(units), "m", 1024)


def test_the_advice_about_a_model(snapshot: Say) -> None:
    """Which of several encodings to use, under every outcome: the page of one, and the sentences of all."""
    rows, units = measured(own=gains(-0.5), yarn=gains(0.2, 0.02), rope=gains(0.1), learned=(1.4, None))
    three = pd.concat([rows.assign(seed=n, run_id=rows["run_id"] + str(n)) for n in range(3)])
    theirs = pd.concat([units.assign(seed=n, run_id=units["run_id"] + str(n)) for n in range(3)])
    found = {
        "one is best": advice_for(own=gains(-0.5), yarn=gains(0.2, 0.02), rope=gains(0.1), none=gains(-0.9)),
        "the model as it is": advice_for(own=gains(0.1), yarn=gains(0.1), **{"rope+logn": gains(0.1)}),
        "nothing gains": advice_for(own=gains(-0.5), yarn=gains(-0.002, 0.001), rope=gains(-0.003), none=gains(-0.9)),
        "the simplest": advice_for(own=gains(-0.5), **{"rope+logn": gains(0.1), "yarn": gains(0.1)}),
        "the cheaper of two alike": cheaper_of_two_alike(),
        "three seeds": advise(three, LossTable(theirs), "m", 1024),
        "at twice the length": advise(rows, LossTable(units), "m", 512),
        "of images": advise(rows.assign(corpus="images"), LossTable(units), "m", 1024),
        "it only guesses": advise(rows.assign(guess_gain_low=-0.1), LossTable(units), "m", 1024),
    }
    texts = {"a page": printed(lambda console: show_advice(found["three seeds"], console), 110)}
    texts["all answers"] = "\n".join(f"{name}: {' / '.join(answer(each))}" for name, each in found.items())
    texts["all notes"] = "\n".join(dict.fromkeys(line for each in found.values() for line in notes(each)))
    texts["all candidates"] = bare_table(
        [
            name,
            each.name,
            each.variant,
            each.verdict,
            each.counts,
            each.word,
            *values(each.gain),
            *values(each.cost),
            each.price,
        ]
        for name, advice in found.items()
        for each in advice.candidates
    )
    texts["the record of one"] = "\n".join(outline(found["at twice the length"].record()))
    again = pd.concat([rows, rows.assign(run_id=rows["run_id"] + "b")])
    texts["refused"] = "\n".join(
        [
            outcome(lambda: advise(rows, LossTable(units), "m", 4096)),
            outcome(lambda: advise(pd.concat([rows, rows.assign(fingerprint="other")]), LossTable(units), "m", 1024)),
            outcome(lambda: advise(again, LossTable(units), "m", 1024)),
            outcome(lambda: advise(rows[:0], LossTable(units), "m", 1024)),
        ]
    )
    snapshot(sections(texts), rounded=True)
