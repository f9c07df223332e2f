"""One answer: report.html, report.md and the terminal say one and the same sentence, for every kind of results."""

from __future__ import annotations

import html
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fake_pages import against, fake_runs, task_tables
from fake_results import LN2, results, units_of
from rich.console import Console
from torture.reports import undrawn

from poscli.report import Report, build_report, terminal
from poscli.report.answer import reads
from poscli.report.data import AnswerData
from poscli.runs.schema import POSITION_COLUMNS, frame
from poscli.statistics.comparison import LossTable

NOTHING = frame([], POSITION_COLUMNS)
FLAT = {"alibi": 1.36, "rope": 1.40, "t5": 1.44}  # nats per token, at every length
DOCUMENTS = 9


def tables(
    losses: Mapping[str, float] = FLAT, seeds: Sequence[int] = (0, 1, 2), noise: float = 0.0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and units of encodings with these losses; `noise` in nats differs between runs and documents."""
    rows, _ = results({name: (loss, lambda _: 0.0) for name, loss in losses.items()}, seeds=seeds, lengths=(256, 1024))
    rows = rows[rows["protocol"] != "nonoverlapping"]
    units = units_of(rows, DOCUMENTS)
    draw = np.random.default_rng(3)
    apart = {key: draw.normal(0, noise) for key in sorted(set(zip(units["run_id"], units["unit"], strict=True)))}
    units["nll"] += [apart[key] for key in zip(units["run_id"], units["unit"], strict=True)]
    keys = ["run_id", "length", "protocol", "variant"]
    means = units.groupby(keys)["nll"].mean().rename("mean").reset_index()
    nll = rows.merge(means, how="left", on=keys)["mean"].to_numpy()
    return rows.assign(nll=nll, bpb=nll / LN2, ppl=np.exp(nll)), units


def built(folder: Path, rows: pd.DataFrame, units: pd.DataFrame | None = None, **more: Any) -> Report:
    with undrawn():
        return build_report(rows, NOTHING, folder, details={} if units is None else {"units": units}, **more)


def plain(text: str) -> str:
    return " ".join(text.split())


def said(report: Report, folder: Path) -> list[list[str]]:
    """The answer of every section, as the page without scripts, the page's data, report.md and the terminal say it."""
    page, text = ((folder / name).read_text(encoding="utf-8") for name in ("report.html", "report.md"))
    data = json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[0])
    shown = re.findall(r'<p class="sentence" id="sentence">(.*?)</p>', page, re.DOTALL)[0]
    console = Console(width=4000, file=io.StringIO(), no_color=True)
    terminal.print_report(report, console)
    printed = plain(console.file.getvalue())  # type: ignore[attr-defined]
    markdown = plain(re.sub(r"\\(.)", r"\1", text))
    found = []
    for number, (section, told) in enumerate(zip(report.sections, data["sections"], strict=True)):
        sentence = "".join(part for part, _ in told["answers"][told["main"]]["sentence"])
        if number == 0:
            assert plain(html.unescape(re.sub(r"<[^>]*>", "", shown))) == plain(sentence)
        title = section.title
        starts = [
            printed.split(title, 1)[1].strip()[: len(sentence)],
            markdown.split(f"## {title}", 1)[1].strip()[: len(sentence)],
        ]
        found.append([sentence, *starts])
    return found


def agreed(report: Report, folder: Path) -> list[AnswerData]:
    """The answers of all sections, after a check that the page, report.md and the terminal say them alike."""
    for section, sentences in zip(report.sections, said(report, folder), strict=True):
        assert set(sentences) == {section.answer.text}
    return [section.answer for section in report.sections]


def test_a_clear_winner_is_best_beyond_noise(tmp_path: Path) -> None:
    rows, units = tables()
    (answer,) = agreed(built(tmp_path, rows, units), tmp_path)
    assert answer.best == ("alibi",)
    assert answer.text.startswith(
        f"Reading 1,024 tokens (4x the training length), alibi predicts best: {1.36 / LN2:.3f} bits per byte ["
    )
    assert answer.text.endswith("], better than all 2 others, beyond noise.")
    assert "the intervals of the two overlap" in answer.sure
    assert "differences are taken between runs of equal seeds on the same documents" in answer.sure


def test_encodings_within_noise_are_not_best_alone(tmp_path: Path) -> None:
    rows, units = tables({"alibi": 1.360, "rope": 1.361, "t5": 1.5}, noise=0.02)
    (answer,) = agreed(built(tmp_path, rows, units), tmp_path)
    first, second = answer.best
    assert {first, second} == {"alibi", "rope"}
    assert f", {first} has the lowest loss: " in answer.text
    assert answer.text.endswith(f"], better than 1 of 2 others, beyond noise, within noise of {second}.")
    assert "best" not in answer.text


@pytest.mark.parametrize(
    ("seeds", "noise"),
    [
        ((0,), "beyond the noise of documents (one seed says nothing about other seeds)"),
        ((0, 1), "beyond the noise of documents (2 seeds say little about other seeds)"),
        ((0, 1, 2), "beyond noise"),
    ],
)
def test_what_noise_a_difference_is_beyond_depends_on_the_seeds(tmp_path: Path, seeds: tuple, noise: str) -> None:
    """Two runs 0.004 bits apart, always in the same direction: only seeds can show that others would say the same."""
    rows, units = tables({"alibi": 1.3600, "rope": 1.3600 + 0.004 * LN2}, seeds=seeds)
    (answer,) = agreed(built(tmp_path, rows, units), tmp_path)
    assert answer.best == ("alibi",)
    assert answer.text.endswith(f"], better than rope, {noise}.")
    assert ("another seed may rank otherwise" in answer.sure) == (len(seeds) < 3)


def test_the_fewest_seeds_of_a_pair_decide_what_noise_is_meant(tmp_path: Path) -> None:
    rows, units = tables()
    kept = [table[(table["encoding"] != "rope") | (table["seed"] == 0)] for table in (rows, units)]
    (answer,) = agreed(built(tmp_path, *kept), tmp_path)
    assert "better than all 2 others, beyond the noise of documents (one seed says nothing" in answer.text


def test_too_few_documents_are_not_noise(tmp_path: Path) -> None:
    rows, units = tables(seeds=(0,))
    (answer,) = agreed(built(tmp_path, rows, units[units["unit"].astype(int) < 4]), tmp_path)
    assert answer.best == ("alibi", "rope", "t5")
    assert answer.text.endswith("], with too few documents to tell it from rope and t5.")


def test_without_losses_of_documents_nothing_is_compared(tmp_path: Path) -> None:
    rows, _ = tables()
    (answer,) = agreed(built(tmp_path, rows), tmp_path)
    assert ", alibi has the lowest loss: " in answer.text
    assert answer.text.endswith("] (not compared: the results of single documents are missing).")
    assert answer.best == ("alibi", "rope", "t5")


@pytest.mark.parametrize("status", ["oom", "unsupported"])
def test_an_encoding_that_failed_has_no_rank(tmp_path: Path, status: str) -> None:
    rows, units = tables()
    last = (rows["encoding"] == "alibi") & (rows["length"] == 1024)
    failed = rows.assign(
        status=rows["status"].mask(last, status), nll=rows["nll"].mask(last), bpb=rows["bpb"].mask(last)
    )
    lost = (units["encoding"] == "alibi") & (units["length"] == 1024)
    (answer,) = agreed(built(tmp_path, failed, units[~lost]), tmp_path)
    assert answer.best == ("rope",)
    assert answer.text.endswith("], better than t5, beyond noise, 1 without a result there.")


def test_runs_that_all_failed_have_no_result(tmp_path: Path) -> None:
    rows, units = tables()
    failed = rows.assign(status="oom", reason="no memory", nll=math.nan, bpb=math.nan, ppl=math.nan, gain=math.nan)
    (answer,) = agreed(built(tmp_path, failed, units[:0]), tmp_path)
    assert (answer.best, answer.text) == (
        (), "Reading 1,024 tokens (4x the training length), no encoding has a result.",
    )  # fmt: skip


def guessing(rows: pd.DataFrame, *names: str) -> pd.DataFrame:
    """The rows with encodings that predict no better than a guess."""
    return rows.assign(guess_gain_low=rows["guess_gain_low"].mask(rows["encoding"].isin(names), -0.1))


def test_untrained_encodings_win_nothing(tmp_path: Path) -> None:
    rows, units = tables()
    (answer,) = agreed(built(tmp_path / "some", guessing(rows, "alibi"), units), tmp_path / "some")
    assert answer.best == ("rope",)
    assert "rope has the lowest loss" not in answer.text
    (answer,) = agreed(built(tmp_path / "two", guessing(rows, "alibi", "rope"), units), tmp_path / "two")
    assert answer.best == ()
    assert answer.text.endswith(", the only one of 3 encodings that can be ranked.")
    (answer,) = agreed(built(tmp_path / "all", guessing(rows, *FLAT), units), tmp_path / "all")
    assert answer.text == (
        "Reading 1,024 tokens (4x the training length), no encoding can be ranked: 3 are not trained."
    )


def test_the_words_are_those_of_the_comparison_with_the_best(tmp_path: Path) -> None:
    rows, units = tables({name: 1.36 + 0.02 * n for n, name in enumerate("abcdefgh")}, noise=0.008)
    report = built(tmp_path, rows, units)
    (answer,) = agreed(report, tmp_path)
    table = against(rows, LossTable(units), answer.best[0])
    words = table[table["length"] == 1024].set_index("encoding")["word"]
    assert set(answer.best[1:]) == set(words.index[words != "worse"])
    count = (words == "worse").sum()
    assert 0 < count < 7
    assert f"better than {count} of 7 others, beyond noise, within noise of " in answer.text


# ---- tasks with right answers


def task(folder: Path, right: Mapping[str, int] | None = None) -> AnswerData:
    """The answer of a task; `right` are the tokens, of 4, that an encoding answers right in each episode."""
    rows, positions, details = task_tables()
    if right is not None:
        known = details["answers"]["encoding"].isin(right)
        answers = details["answers"][known]
        details = details | {"answers": answers.assign(right=answers["encoding"].map(right))}
        rows = rows[rows["encoding"].isin(right)]
        shares = rows["encoding"].map({name: count / 4 for name, count in right.items()})
        rows = rows.assign(accuracy=shares.where(rows["status"] == "ok"))
    with undrawn():
        report = build_report(rows, positions, folder, details=details)
    (answer,) = agreed(report, folder)
    return answer


def test_encodings_with_the_same_right_answers_share_the_first_place(tmp_path: Path) -> None:
    answer = task(tmp_path, {"alibi": 4, "none": 4, "rope": 2})
    assert answer.best == ("alibi", "none")
    assert "better than 1 of 2 others" in answer.text
    assert 'within noise of "none"' in answer.text


def test_a_task_that_nobody_answers_better_than_by_chance_has_no_best(tmp_path: Path) -> None:
    answer = task(tmp_path, {"alibi": 0, "rope": 0})
    assert answer.best == ()
    assert answer.text == (
        "In windows of 4,096 tokens (16x the training length), no encoding answers better than by chance."
    )


# ---- gain and harm


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        ((-0.005, -0.008, -0.001), "No, it harms a little (by less than 0.01)"),
        ((-0.05, -0.09, -0.001), "No, it harms (whether by 0.01 or more is open)"),
        ((-0.05, -0.09, -0.02), "No, it harms"),
        ((0.002, 0.001, 0.003), "Hardly, it gains a little (less than 0.005)"),
        ((0.0, -0.001, 0.001), "Not measurably"),
        ((0.05, 0.03, 0.07), "Yes"),
        ((-0.05, -0.09, 0.01), "Unclear"),
    ],
)
def test_the_side_of_an_interval_is_told_as_it_lies(interval: tuple[float, float, float], said: str) -> None:
    assert reads(*interval, seeds=3) == said


@pytest.mark.parametrize(
    ("low", "high", "told", "fact"),
    [
        (-0.008, -0.001, "harms a little, by less than 0.01 bits per byte", "No, it harms a little"),
        (-0.008, 0.001, "costs less than 0.01 bits per byte, if anything", "Not measurably"),
        (-0.08, -0.001, "harms; whether by 0.01 bits per byte or more is open", "No, it harms (whether"),
    ],
)
def test_a_sure_harm_is_told_as_harm_everywhere(tmp_path: Path, low: float, high: float, told: str, fact: str) -> None:
    rows, _ = tables({"alibi": 1.36}, seeds=(0,))
    ends = {"gain": (low + high) / 2 * LN2, "gain_low": low * LN2, "gain_high": high * LN2}
    later = (rows["variant"] == "full") & (rows["length"] == 1024)
    rows = rows.assign(**{name: rows[name].mask(later, value) for name, value in ends.items()})
    report = built(tmp_path, rows)
    assert dict(report.sections[0].answer.facts)["Does it use the longer context?"].startswith(fact)
    console = Console(width=4000, file=io.StringIO(), no_color=True)
    terminal.print_report(report, console)
    for text in (console.file.getvalue(), (tmp_path / "report.md").read_text()):  # type: ignore[attr-defined]
        assert f"Longer context than 256 {told}: alibi." in text
    whole = (tmp_path / "report.md").read_text() + (tmp_path / "report.html").read_text()
    assert not re.search("does? no harm", whole)


# ---- costs


def times(rows: pd.DataFrame, starts: Mapping[str, float], machine: str = "bench") -> dict:
    """Trainings of 40 to 60 seconds, of which the encodings named began at these times, seed after seed."""
    found = {}
    for run, each in fake_runs(rows).items():
        begin = starts[each.config.encoding] + 100 * each.config.seed
        found[run] = replace(each, training=run, machine=machine, span=(begin, begin + 50.0))
    return found


@pytest.mark.parametrize(
    ("starts", "beside"),
    [
        ({"alibi": 0, "rope": 1000, "t5": 2000}, 0),
        ({"alibi": 0, "rope": 20, "t5": 2000}, 6),
        ({"alibi": 0, "rope": 49, "t5": 2000}, 0),  # ends are recorded in whole seconds
        ({"alibi": 0, "rope": 5, "t5": 10}, 9),
    ],
)
def test_times_of_runs_beside_each_other_are_said_not_to_compare(tmp_path: Path, starts: dict, beside: int) -> None:
    rows, units = tables()
    report = built(tmp_path, rows, units, runs=times(rows, starts))
    (answer,) = agreed(report, tmp_path)
    assert "of training [" in answer.text
    told = (
        f"Training times do not compare: {beside} of 9 runs were trained at the same time as another run"
        if beside
        else ""
    )
    console = Console(width=4000, file=io.StringIO(), no_color=True)
    terminal.print_report(report, console)
    page = (tmp_path / "report.html").read_text()
    texts = [console.file.getvalue(), (tmp_path / "report.md").read_text(), page]  # type: ignore[attr-defined]
    for text in texts:
        assert ("Training times do not compare" in text) == bool(beside)
        assert told in text


def test_runs_on_other_machines_do_not_slow_each_other_down(tmp_path: Path) -> None:
    rows, units = tables()
    runs = times(rows, {"alibi": 0, "rope": 0, "t5": 1000})
    apart = {run: replace(each, machine=each.config.encoding) for run, each in runs.items()}
    assert built(tmp_path, rows, units, runs=apart).sections[0].answer.timing == ""


def test_a_pair_of_one_seed_within_noise_does_not_weaken_those_of_three(tmp_path: Path) -> None:
    rows, units = tables({"alibi": 1.36, "rope": 1.80, "t5": 1.372}, noise=0.02)
    kept = [table[(table["encoding"] != "t5") | (table["seed"] == 0)] for table in (rows, units)]
    (answer,) = agreed(built(tmp_path, *kept), tmp_path)
    assert "t5" in answer.text
    assert "better than 1 of 2 others, beyond noise, within noise of " in answer.text


def test_every_protocol_has_its_own_best(tmp_path: Path) -> None:
    rows, units = tables()
    harder = [0.2 * (table["encoding"].eq("alibi") & table["protocol"].eq("fixed")) for table in (rows, units)]
    units, nll = units.assign(nll=units["nll"] + harder[1]), rows["nll"] + harder[0]
    report = built(tmp_path, rows.assign(nll=nll, bpb=nll / LN2, ppl=np.exp(nll)), units)
    (answer,) = agreed(report, tmp_path)
    assert answer.best == ("alibi",)
    (fixed,) = (each.answer for each in report.sections[0].protocols if each.name == "fixed")
    assert fixed.best == ("rope",)
    assert fixed.text.endswith("], better than all 2 others, beyond noise.")
