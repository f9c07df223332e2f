"""report.md: the answer, the table, the pictures, what failed, and how all of it was made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from poscli.report.findings import answer
from poscli.report.sections import Report, Section
from poscli.report.series import pool
from poscli.report.summary import ratio_name
from poscli.report.table import Column, failures, gain_text, gains_of, legend, summary_columns
from poscli.report.words import number, span

APART = (
    "Results on different text, or of models trained at different lengths, cannot be compared: "
    "each combination has its own section."
)
TINY = "Tiny models: a ranking here is a hint about larger ones, not a measurement of them."
HOW_TO_READ = (
    "**nonoverlapping**: windows of l tokens side by side, every token scored. Most papers print it; it flatters "
    "long windows, because half of the tokens of a short one have little context.",
    "**sliding**: windows of l tokens, moved by the stride, only the last stride of each scored: perplexity with "
    "nearly full context at every token.",
    "**fixed**: as sliding, on the same tokens at every length, those at least the longest length into their "
    "document. The only view in which lengths are comparable token by token; the gain comes from it.",
    "**crop** is the same model with its window cut to L; **window** the same model with attention masked to the "
    "last L tokens. The gain is the loss of crop minus the loss with the whole window: above zero, the model reads "
    "context it never saw in training and profits; a flat perplexity with zero gain is a sliding window in disguise.",
)


def report_markdown(report: Report, trained: Mapping[str, int] | None = None) -> str:
    """The text of report.md, which lies beside its pictures."""
    several = len(report.sections) > 1
    lines = ["# Position encodings beyond their training length", ""]
    lines += [APART, ""] if several else []
    for section in report.sections:
        lines += [f"## {_escape(section.group.title)}", "", *_section(section, trained or {})]
    lines += ["## How to read this", "", *(f"- {line}" for line in HOW_TO_READ), ""]
    return "\n".join(lines).rstrip() + "\n"


def markdown_table(columns: Sequence[Column]) -> list[str]:
    """A table in GitHub's Markdown; the best number of a column in bold."""
    rows = [[_cell(column, row) for column in columns] for row in range(len(columns[0].cells))]
    head = [column.name for column in columns]
    rule = ["---:" if column.right else "---" for column in columns]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)] + [""]


def _cell(column: Column, row: int) -> str:
    text = _escape(column.cells[row])
    return f"**{text}**" if row == column.best else text


def _section(section: Section, trained: Mapping[str, int]) -> list[str]:
    rows, summary = section.group.rows, section.summary
    return [
        _escape(answer(summary)),
        "",
        *markdown_table(summary_columns(summary)),
        *(f"- {line}" for line in legend(summary)),
        "",
        *_pictures(section),
        *_protocols(rows, summary),
        *_failures(summary),
        *_made(rows, trained),
        "### Caveats",
        "",
        *(f"- {_escape(note)}" for note in (*section.notes, TINY)),
        "",
    ]


def _pictures(section: Section) -> list[str]:
    return [line for picture in section.pictures for line in (f"![{_alt(picture.alt)}]({picture.path.name})", "")]


def _protocols(rows: pd.DataFrame, summary: pd.DataFrame) -> list[str]:
    """The three protocols and both baselines at the longest length."""
    last, length = int(summary["max_length"].iloc[0]), int(summary["train_length"].iloc[0])
    columns = [Column("encoding", tuple(summary["encoding"]), right=False)]
    for protocol, variant in (
        ("nonoverlapping", "full"), ("sliding", "full"), ("fixed", "full"), ("fixed", "crop"), ("fixed", "window"),
    ):  # fmt: skip
        points = pool(rows, protocol, variant)
        values = points[points["length"] == last].set_index("encoding")["ppl"].reindex(summary["encoding"])
        name = protocol if variant == "full" else f"{protocol}, {variant}"
        columns.append(Column(name, tuple(map(number, values))))
    columns.append(Column("gain, bits per byte [95 %]", tuple(gain_text(*gain) for gain in gains_of(summary))))
    title = f"### The three protocols at {last} ({ratio_name(last / length)})"
    return [title, "", "Perplexity, and the gain under `fixed` once more.", "", *markdown_table(columns)]


def _failures(summary: pd.DataFrame) -> list[str]:
    """Every encoding without a verdict, and why."""
    lines = [f"- {_escape(name)}: {verdict}. {_escape(reason)}" for name, verdict, reason in failures(summary)]
    return ["### Failed or not tested", "", *lines, ""] if lines else []


def _made(rows: pd.DataFrame, trained: Mapping[str, int]) -> list[str]:
    """How the numbers were made, one fact a line."""
    scored = rows[rows["status"] == "ok"]
    per_protocol = "; ".join(
        f"{protocol} {span(part['tokens'])} (of {span(part['documents'])} documents)"
        for protocol, part in scored.groupby("protocol")
    )
    budget = {trained[run] for run in set(rows["run_id"]) if run in trained}
    facts = {
        "Corpus": _list(rows["corpus"]),
        "Fingerprint": _list(rows["fingerprint"]),
        "Training length L": _list(rows["train_length"]),
        "Trained on": f"{span(budget)} tokens" if budget else "",
        "Lengths evaluated": ", ".join(map(str, sorted(set(rows["length"])))),
        "Tokens scored per length": per_protocol,
        "Tokens scored per window (sliding, fixed)": _list(rows.loc[rows["protocol"] != "nonoverlapping", "stride"]),
        "Seeds": _list(rows["seed"]),
        "Runs": f"{rows['run_id'].nunique()}, models of {span(set(rows['parameters']))} parameters",
        "Device": _list(scored["device"]),
        "Numbers": _list(scored["dtype"]),
        "Attention engine": _list(scored["engine"]),
        "poscli": _list(rows["poscli"]),
        "Commit": _list(rows["commit"]),
    }
    return ["### How this was made", "", *(f"- {key}: {_escape(value)}" for key, value in facts.items() if value), ""]


def _list(values: Iterable[object]) -> str:
    return ", ".join(map(str, sorted({value for value in values if value == value and value != ""}, key=_by_number)))


def _by_number(value: object) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, int | float) else (0.0, str(value))


def _escape(text: str) -> str:
    """Specs hold characters that Markdown reads as markup; a bar would even end the cell."""
    for mark in "\\|*_[]<>`":
        text = text.replace(mark, f"\\{mark}")
    return text


def _alt(text: str) -> str:
    return text.replace("[", "(").replace("]", ")")
