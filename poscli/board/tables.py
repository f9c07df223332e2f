"""The standings as a table of text, as CSV and as JSON, and the answer for a person who has a minute."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from poscli.board.standings import FAILED, RANKED, Row, Standings, TaskResult
from poscli.drawing.text import listed, named
from poscli.report.catalogue import spec_in_label
from poscli.report.pooling import ratio_name
from poscli.report.summary import as_json
from poscli.report.table import Column, words
from poscli.report.verdicts import HARM_BPB
from poscli.specs import names_in, with_layouts
from poscli.statistics import UNKNOWN
from poscli.system.text import counted

PLACES = 5  # decimals of numbers in JSON, so that every machine writes the same
NAMED = 6  # encodings that a sentence names
KEPT = "rope"  # what most models that exist were trained with


def name_on_board(row: Row) -> str:
    """The name of an encoding on the board, with the names of layouts in place of their specs."""
    return with_layouts(row.encoding) + (" (tuned)" if row.tuned else "")


def board_columns(table: Standings) -> list[Column]:
    """The standings as columns of text."""
    rows, last = table.rows, table.ratios[-1]
    columns = [
        words("rank", (row.ranks or row.status for row in rows)),
        words("encoding", map(name_on_board, rows)),
        Column(f"regret {last} [95 %]", tuple(with_interval(row.regret, "z.2f") for row in rows)),
        Column("bits at L", tuple(number_text(row.loss[0], "z.3f") for row in rows)),
        Column(
            f"gain {last} [95 %]",
            tuple(with_interval(row.gains[-1] if row.gains else row.loss, "+.3f") for row in rows),
        ),
        Column("used", tuple(number_text(100 * row.used[0], "z.0f", " %") for row in rows)),
        Column("safe", tuple(multiple_text(row.safe) for row in rows)),
        Column("harmful", tuple(multiple_text(row.harmful) for row in rows)),
        Column("control", tuple(number_text(row.control[0], "+.3f") for row in rows)),
        Column("seeds", tuple(str(row.seeds) for row in rows)),
    ]
    for task, far in tasks_of(table).items():
        columns.append(Column(f"{task} 1x, {far}", tuple(_answers(row.tasks.get(task)) for row in rows)))
    if any(row.training[0] == row.training[0] for row in rows):
        columns.append(Column("training", tuple(number_text(row.training[0], "z.2f", "x") for row in rows)))
        columns.append(Column("reading", tuple(number_text(row.reading[0], "z.2f", "x") for row in rows)))
    return columns


def tasks_of(table: Standings) -> dict[str, str]:
    """The tasks that any encoding of a table was asked, each with its longest multiple of the task's own L."""
    lengths = {task: result.lengths for row in table.rows for task, result in row.tasks.items()}
    return {task: ratio_name(of_task[-1] / of_task[0]) for task, of_task in sorted(lengths.items())}


def legend_of(table: Standings) -> list[str]:
    """A line for each column that needs an explanation."""
    last, long = table.ratios[-1], table.lengths[-1]
    texts = listed(list(table.texts), len(table.texts))
    return [
        "rank: the ranks that an encoding may have; all of these intervals hold together with a probability of 95 %",
        f"regret {last}: 0 is as good as the best that was trained on {long:,} tokens, 1 as good as the best cut to "
        f"L = {table.length}, above 1 reading far hurts; mean over {texts}",
        "bits at L: bits per byte with windows of L, mean over the texts",
        f"gain {last}: bits per byte won by reading {last} instead of L, on the same tokens",
        "used: that gain as a share of what training on the longest windows would win",
        f"safe, harmful: shown not to cost {HARM_BPB} bits up to there, shown to cost that from there on",
        f"control: the gain on {table.control}, where nothing is to be won: below 0 for those that are misled",
        *(
            f"{task}: right answers at the training length and the longest, mean over seeds; how many seeds learned it"
            for task in tasks_of(table)
        ),
        "training, reading: seconds of a training step, and of reading the longest windows, over those of none",
    ]


def reasons_of(rows: Sequence[Row]) -> list[str]:
    """Why rows have no rank, a line for each reason with the names of all that it is said of."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.status != RANKED:
            reasons.setdefault(f"{row.status}, {row.why}", []).append(name_on_board(row))
    return [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]


def answers_of(table: Standings) -> list[str]:
    """What the table says, in a few sentences."""
    ranked, last = table.ranked, table.ratios[-1]
    if not ranked:
        failed = sum(row.status == FAILED for row in table.rows)
        counts = {"fewer than three seeds on all texts": len(table.rows) - failed, "no losses at some length": failed}
        why = [f"{counted(n, 'encoding')} {'has' if n == 1 else 'have'} {what}" for what, n in counts.items() if n]
        return [f"Nobody is ranked yet: {listed(why)}."]
    trained, top = [row for row in ranked if not row.is_reading], table.top
    best = trained[0] if trained else ranked[0]
    name, others = named(name_on_board(best)), [named(name_on_board(row)) for row in top if row is not best]
    if len(ranked) == 1:
        said = [f"Only {name} has a rank yet, so that nothing is said of who is better."]
    elif best.first > 1:
        said = [f"Train with {name}, which may have rank {best.ranks}; above it {listed(others, NAMED)} may be first."]
    elif not others:
        said = [f"Train with {name}: read at {last} it is shown to be better than all others."]
    else:
        said = [
            f"Train with {name}: nobody is shown to be better at {last}. That is also true of {listed(others, NAMED)}."
        ]
    of_rope = [row for row in ranked if row.trained_as == KEPT]
    if len(of_rope) > 1 and of_rope[0].is_reading:
        plain = next((f", where {KEPT} itself has {row.regret[0]:.2f}" for row in of_rope if row.encoding == KEPT), "")
        how, regret = named(spec_in_label(of_rope[0].encoding)), of_rope[0].regret[0]
        said.append(f"If you must keep a model of {KEPT}, read it as {how}: regret {regret:.2f}{plain}.")
    bare = next((row for row in trained if row.parameters == table.bare), best)
    if bare is not best:
        name = named(name_on_board(bare))
        said.append(f"Of those without parameters of their own, the best is {name}, rank {bare.ranks}.")
    gaining = [row for row in ranked if row.gains[-1][1] > 0]
    most = 100 * max(row.used[0] for row in ranked)
    said.append(
        f"Of {counted(len(ranked), 'encoding')} with a rank, {len(gaining)} gain from context beyond L at {last}, each "
        f"by its own 95 % interval, at most {most:.0f} % of what training there would win."
    )
    if table.without:
        changes = max(len(set(names) ^ {row.label for row in top}) for names in table.without.values())
        moved = counted(changes, "encoding")
        said.append(f"Without any one of the texts, the top group of {len(top)} changes by at most {moved}.")
    return said


def record_of_table(table: Standings) -> dict[str, Any]:
    """The standings as plain JSON; unknown numbers are null."""
    record = asdict(replace(table, profiles={}))
    record["profiles"] = {text: profile.model_dump(mode="json") for text, profile in table.profiles.items()}
    record["better"] = [list(pair) for pair in table.better]
    del record["pairs"], record["bare"]  # as many as the square of the rows, and what the row of `none` has
    for row, line in zip(table.rows, record["rows"], strict=True):
        line |= {
            "label": row.label,
            "shown": name_on_board(row),
            "ranks": row.ranks,
            "names": names_in(spec_in_label(row.encoding)),
        }
    record["answers"], record["legend"] = answers_of(table), legend_of(table)
    plain: dict[str, Any] = as_json(record, PLACES)
    return plain


def csv_of(tables: Sequence[Standings]) -> str:
    """One line for each encoding of every table, in the order of the standings."""
    lines: list[dict[str, Any]] = []
    for table in tables:
        for row in table.rows:
            line: dict[str, Any] = {
                "season": table.season, "table": table.table, "encoding": row.encoding, "tuned": row.tuned,
                "status": row.status, "why": row.why, "seeds": row.seeds,
                "rank_first": row.first or "", "rank_last": row.last or "",
            }  # fmt: skip
            line |= _ends("regret", row.regret) | _ends("bits_at_L", row.loss)
            for place, ratio in enumerate(table.ratios[1:]):
                line |= _ends(f"gain_{ratio}", row.gains[place] if row.gains else UNKNOWN)
            line |= _ends("used", row.used) | _ends("control", row.control)
            line |= {"safe": row.safe, "harmful": row.harmful, "price": row.price, "parameters": row.parameters}
            line |= {"training": row.training[0], "reading": row.reading[0]}
            for text in table.texts:
                result = row.texts.get(text)
                line[f"regret_{text}"] = result.regret[0] if result else math.nan
            for task in tasks_of(table):
                told = row.tasks.get(task)
                line[f"{task}_1x"] = told.accuracy[0] if told else math.nan
                line[f"{task}_last"] = told.accuracy[-1] if told else math.nan
                line[f"{task}_learned"] = told.learned if told else ""
            line |= {"source": row.source, "commits": " ".join(row.commits), "date": row.date}
            lines.append({name: _cell(value) for name, value in line.items()})
    # A table may have columns that the one before has not: a task of its own.
    writer = csv.DictWriter(
        buffer := io.StringIO(), [*dict.fromkeys(name for line in lines for name in line)], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _ends(name: str, triple: Sequence[float]) -> dict[str, float]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), triple, strict=True))


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.5f}"
    return str(value).lower() if isinstance(value, bool) else value


def _answers(result: TaskResult | None) -> str:
    """Right answers at the first and the last length, and the seeds that have learned the task: `0.98, 0.41 (2/3)`."""
    if result is None:
        return "-"
    ends = ", ".join(number_text(result.accuracy[at], "z.2f") for at in (0, -1))
    return f"{ends} ({result.learned}/{result.seeds})"


def number_text(value: float, how: str, unit: str = "") -> str:
    """A number with its unit; a dash for one that is not known."""
    return "-" if math.isnan(value) else f"{value:{how}}{unit}"


def with_interval(values: Sequence[float], how: str) -> str:
    """A number with its interval, if it has one, each written in this way; a dash for one that is not known."""
    value, low, high = values
    interval = "" if math.isnan(low) else f" [{low:{how}}, {high:{how}}]"
    return number_text(value, how) + interval


def multiple_text(value: float) -> str:
    """A multiple of L; a dash for one that is not known."""
    return "-" if math.isnan(value) else ratio_name(value)
