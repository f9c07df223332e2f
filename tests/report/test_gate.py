"""The gate at the training length: who is undertrained, who is ranked with a note, and that the gated win nothing."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_pages import summarized
from fake_results import LN2, PROTOCOLS, Shape, results, units_of
from rich.console import Console
from torture.reports import undrawn

from poscli.report import Report, build_report, terminal
from poscli.report.table import summary_columns
from poscli.report.verdicts import NOT_TRAINED, UNDERTRAINED, USES_CONTEXT

BEST = 1.4
LENGTHS = (64, 256, 1024)


def shapes(ratio: float) -> dict[str, Shape]:
    """An encoding whose perplexity at L is `ratio` times the best one's, and which is by far the best beyond L."""
    return {
        "alibi": (BEST, lambda octaves: 0.02 * octaves),
        "rope": (BEST + 0.02, lambda octaves: 0.01 * octaves),
        "none": (BEST + math.log(ratio), lambda octaves: 0.2 * octaves),
    }


def report_of(folder: Path, ratio: float, noise: float = 0.005, long: dict[str, Shape] | None = None) -> Report:
    """Three seeds; in single documents the losses of `none` differ by `noise` nats from what the mean says."""
    common = {"seeds": (0, 1, 2), "protocols": PROTOCOLS if long else ("sliding",)}
    rows, positions = results(shapes(ratio), train_length=64, lengths=LENGTHS, **common)
    if long:
        trained_long, _ = results(long, train_length=1024, lengths=(1024,), **common)
        rows = pd.concat([rows, trained_long], ignore_index=True)
    units = units_of(rows)
    sign = np.where(units["unit"].astype(int) % 2, noise, -noise)
    units["nll"] += sign * (units["encoding"] == "none")
    with undrawn():
        return build_report(rows, positions, folder, details={"units": units})


@pytest.mark.parametrize(
    ("ratio", "noise", "word", "noted"),
    [
        (1.26, 0.005, UNDERTRAINED, False),
        (1.24, 0.005, USES_CONTEXT, False),
        (1.26, 0.2, USES_CONTEXT, True),
        (1.24, 0.2, USES_CONTEXT, True),
        (1.9, 0.2, UNDERTRAINED, False),
    ],
)
def test_only_an_interval_above_the_limit_is_gated(
    ratio: float, noise: float, word: str, noted: bool, tmp_path: Path
) -> None:
    (section,) = report_of(tmp_path, ratio, noise).sections
    assert {each.name: each.verdict for each in section.encodings} == {
        "alibi": USES_CONTEXT, "rope": USES_CONTEXT, "none": word,
    }  # fmt: skip
    notes = [note for note in section.notes if note.startswith("Perhaps undertrained, but ranked")]
    assert len(notes) == noted
    if noted:
        assert re.search(
            rf': "none" with {ratio:.2f} \[1\.\d\d, 1\.\d\d\] times the perplexity .* limit of 1\.25\.$', notes[0]
        )
        assert section.answer.best == ("none",)


def test_a_gated_encoding_wins_nothing(tmp_path: Path) -> None:
    """It has the lowest loss and the largest gain at 16x; the table still shows its numbers, in the last row."""
    report = report_of(tmp_path, 1.3, long={"none": (0.4, lambda _: 0.0), "alibi": (0.3, lambda _: 0.0)})
    section = next(each for each in report.sections if each.train_length == 64)
    *_, gated = section.encodings
    assert (gated.name, gated.verdict, gated.can_win) == ("none", UNDERTRAINED, False)
    assert re.match(
        r"perplexity 5\.27 at its training length, 1\.30 \[1\.\d\d, 1\.\d\d\] times that of alibi \(4\.06\)",
        gated.reason,
    )
    assert math.isnan(gated.safe)
    assert section.summary["ppl_16x"].idxmin() == 2
    assert section.answer.best == ("alibi",)
    assert "better than rope, beyond noise" in section.answer.text
    assert "none" not in section.answer.text
    assert {column.best for column in summary_columns(section.summary)} == {None, 0}
    (ceiling,) = section.ceilings
    assert (ceiling.short, np.isnan(ceiling.used[2]).all(), ceiling.used[0][0] > 0) == ("alibi", True, True)
    ranking = next(each for each in section.analyses if each.title.startswith("Does the ranking"))
    (order,) = (column.cells for column in ranking.columns if column.name == "best to worst")
    assert set(order) == {"alibi and rope"}


def test_every_form_of_a_report_says_so(tmp_path: Path) -> None:
    report = report_of(tmp_path, 1.3)
    console = Console(width=200, file=io.StringIO(), no_color=True)
    terminal.print_report(report, console)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    (shown,) = json.loads(re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)[0])["sections"]
    assert [each["verdict"] for each in shown["encodings"]][-1] == UNDERTRAINED
    (section,) = json.loads(json.dumps(report.json()))["sections"]
    assert section["encodings"][-1]["verdict"] == UNDERTRAINED
    for text in (console.file.getvalue(), (tmp_path / "report.md").read_text(encoding="utf-8")):  # type: ignore[attr-defined]
        assert "none: undertrained" in text
        assert "the limit is 1.25" in text
        assert 'Undertrained, since already at 64 they are too far behind the best for a ranking: "none".' in text


def test_it_stands_between_those_ranked_and_those_that_learned_nothing_or_failed() -> None:
    """Without the losses of single documents there is no interval, and the means decide."""
    more: dict[str, Shape] = {"t5": (BEST, lambda _: 0.0), "learned": (BEST, None)}
    rows, _ = results(shapes(1.26) | more, seeds=(0, 1, 2))
    summary = summarized(rows.assign(guess_gain_low=rows["guess_gain_low"].mask(rows["encoding"] == "t5", -0.1)))
    assert list(summary["encoding"]) == ["alibi", "rope", "none", "t5", "learned"]
    assert list(summary["verdict"])[2:] == [UNDERTRAINED, NOT_TRAINED, "unsupported"]
    assert "1.26 times that of alibi" in summary["reason"][2]


def test_where_no_comparison_was_published_nothing_is_gated() -> None:
    """Right answers, a known limit, images, an encoding of another training, and several tokenizers."""
    rows, _ = results(shapes(2), seeds=(0, 1, 2))
    other = rows["encoding"] != "rope"
    mixed = rows.assign(
        fingerprint=rows["fingerprint"].where(other, "beef"), tokenizer=rows["tokenizer"].where(other, "b")
    )
    cases = [
        rows.assign(accuracy=0.95),
        rows.assign(optimum=0.9 * LN2),
        rows.assign(corpus="images"),
        rows.assign(encoding=rows["encoding"].mask(rows["encoding"] == "none", "rope as none")),
        mixed,
    ]
    assert UNDERTRAINED in set(summarized(rows)["verdict"])
    assert UNDERTRAINED in set(summarized(rows.assign(trained_on="panel"))["verdict"])  # a part of its own text
    for case in cases:
        assert UNDERTRAINED not in set(summarized(case)["verdict"])
