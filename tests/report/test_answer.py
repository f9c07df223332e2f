"""One answer: report.html, report.md and the terminal say one and the same sentence, for every kind of results."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fake_pages import fake_runs, task_tables
from fake_results import LN2, results, units_of
from lines import printed

from poscli.report import Report, build_report, terminal
from poscli.report.answer import reads
from poscli.report.data import AnswerData
from poscli.runs.schema import POSITION_COLUMNS, frame

NOTHING = frame([], POSITION_COLUMNS)
FLAT = {"alibi": 1.36, "rope": 1.40, "t5": 1.44}  # nats per token, at every length
Tables = tuple[pd.DataFrame, pd.DataFrame]


def tables(losses: Mapping[str, float] = FLAT, seeds: Sequence[int] = (0, 1, 2), noise: float = 0.0) -> Tables:
    """Rows and units of encodings with these losses; `noise` in nats differs between runs and documents."""
    shapes = {name: (loss, lambda _: 0.0) for name, loss in losses.items()}
    rows, _ = results(shapes, seeds=seeds, lengths=(256, 1024), protocols=("sliding",))
    units = units_of(rows, documents=9)
    draw = np.random.default_rng(3)
    apart = {key: draw.normal(0, noise) for key in sorted(set(zip(units["run_id"], units["unit"], strict=True)))}
    units["nll"] += [apart[key] for key in zip(units["run_id"], units["unit"], strict=True)]
    keys = ["run_id", "length", "protocol", "variant"]
    means = units.groupby(keys)["nll"].mean().rename("mean").reset_index()
    return with_nll(rows, rows.merge(means, how="left", on=keys)["mean"].to_numpy()), units


def with_nll(rows: pd.DataFrame, nll: Any) -> pd.DataFrame:
    return rows.assign(nll=nll, bpb=nll / LN2, ppl=np.exp(nll))


def built(folder: Path, rows: pd.DataFrame, units: pd.DataFrame | None = None, **more: Any) -> Report:
    return build_report(rows, NOTHING, folder, details={} if units is None else {"units": units}, **more)


def everywhere(report: Report, folder: Path) -> list[str]:
    """All that the terminal, report.md and report.html say."""
    texts = [(folder / name).read_text(encoding="utf-8") for name in ("report.md", "report.html")]
    return [printed(lambda console: terminal.print_report(report, console), 4000), *texts]


def plain(text: str) -> str:
    return " ".join(text.split())


def agreed(report: Report, folder: Path) -> AnswerData:
    """The answer of a section, after a check that the page, its data, report.md and the terminal say it alike."""
    (section,) = report.sections
    on_terminal, text, page = everywhere(report, folder)
    (data,) = json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[0])[
        "sections"
    ]
    shown = re.findall(r'<p class="sentence" id="sentence">(.*?)</p>', page, re.DOTALL)[0]
    sentence = "".join(part for part, _ in data["answers"][data["main"]]["sentence"])
    assert sentence == section.answer.text
    assert plain(html.unescape(re.sub(r"<[^>]*>", "", shown))) == plain(sentence)
    assert plain(on_terminal).split(section.title, 1)[1].strip().startswith(sentence)
    assert plain(re.sub(r"\\(.)", r"\1", text)).split(f"## {section.title}", 1)[1].strip().startswith(sentence)
    return section.answer


def only_first_seed(name: str, parts: Tables) -> Tables:
    rows, units = (table[(table["encoding"] != name) | (table["seed"] == 0)] for table in parts)
    return rows, units


def seeds_of_their_own() -> Tables:
    """Two seeds of each encoding, which no other one has."""
    rows, units = tables({name: 1.36 + n / 100 for n, name in enumerate("abcde")}, range(10))
    rows, units = (each[each["seed"] // 2 == each["encoding"].map("abcde".index)] for each in (rows, units))
    return rows, units


def few_documents(losses: Mapping[str, float] = FLAT) -> Tables:
    rows, units = tables(losses, seeds=(0,))
    return rows, units[units["unit"].astype(int) < 4]


def failed() -> Tables:
    """Alibi has no memory for the longest input."""
    rows, units = tables()
    lost = (rows["encoding"] == "alibi") & (rows["length"] == 1024)
    rows = rows.assign(status=rows["status"].mask(lost, "oom"), nll=rows["nll"].mask(lost), bpb=rows["bpb"].mask(lost))
    return rows, units[(units["encoding"] != "alibi") | (units["length"] != 1024)]


def guessing(*names: str) -> Tables:
    """Encodings that predict no better than a guess."""
    rows, units = tables()
    return rows.assign(guess_gain_low=rows["guess_gain_low"].mask(rows["encoding"].isin(names), -0.1)), units


def only(name: str, parts: Tables) -> Tables:
    rows, units = (table[table["encoding"] == name] for table in parts)
    return rows, units


def missing_the_hard_seed() -> Tables:
    """Alibi lacks the seed that is hard for all, so that its mean is the best one, and rope is better seed by seed."""
    shapes = {"alibi": (1.385, lambda _: 0.0), "rope": (1.37, lambda _: 0.0), "none": (1.45, lambda _: 0.0)}
    rows, _ = results(shapes, seeds=(0, 1, 2), protocols=("sliding",))
    rows = with_nll(rows, rows["nll"] + 0.3 * (rows["seed"] == 2))
    rows, units = (table[(table["encoding"] != "alibi") | (table["seed"] != 2)] for table in (rows, units_of(rows)))
    return rows, units


NEAR = {"alibi": 1.3600, "rope": 1.3600 + 0.004 * LN2}  # always in the same direction
ALIKE = {"alibi": 1.360, "rope": 1.361, "t5": 1.5}
ONE_SEED = "beyond the noise of documents (one seed says nothing about other seeds)."
NONE_RANKED = "Reading 1,024 tokens (4x the training length), no encoding can be ranked: 3 are not trained."
# Tables, the encodings that may be best, and the end of the answer.
CASES: dict[str, tuple[Callable[[], Tables], str, str]] = {
    "a clear winner": (tables, "alibi", "], better than all 2 others, beyond noise."),
    "two alike": (
        lambda: tables(ALIKE, noise=0.02),
        "alibi rope",
        "1 of 2 others, beyond noise, within noise of rope.",
    ),
    "one seed": (lambda: tables(NEAR, (0,)), "alibi", f"], better than rope, {ONE_SEED}"),
    "two seeds": (lambda: tables(NEAR, (0, 1)), "alibi", "of documents (2 seeds say little about other seeds)."),
    "the fewest seeds": (
        lambda: only_first_seed("rope", tables()),
        "alibi",
        f"], better than all 2 others, {ONE_SEED}",
    ),
    "one seed within noise does not weaken three": (
        lambda: only_first_seed("t5", tables({"alibi": 1.36, "rope": 1.55, "t5": 1.372}, noise=0.02)),
        "alibi t5",
        "], better than 1 of 2 others, beyond noise, within noise of t5.",
    ),
    "few documents": (few_documents, "alibi rope t5", "], with too few documents to tell it from rope and t5."),
    "many alike": (
        lambda: tables(dict.fromkeys("abcde", 1.36), seeds=(0,), noise=0.02),
        "a b c d e",
        ", within noise of a, b, d and 1 more.",
    ),
    "many and few documents": (
        lambda: few_documents(dict.fromkeys("abcde", 1.36)),
        "a b c d e",
        "], with too few documents to tell it from b, c, d and 1 more.",
    ),
    "seeds of their own": (
        seeds_of_their_own,
        "a b c d e",
        "], not compared with b, c, d and 1 more, for want of a seed or text in common.",
    ),
    "no documents": (
        lambda: (tables()[0], NOTHING[:0]),
        "alibi rope t5",
        "] (not compared: the results of single documents are missing).",
    ),
    "a failure": (failed, "rope", "], better than t5, beyond noise, 1 had no result there."),
    "two only guess": (lambda: guessing("alibi", "rope"), "", "; of 3 encodings no other can be ranked."),
    "the only one guesses": (
        lambda: only("alibi", guessing("alibi")),
        "",
        "no encoding can be ranked: 1 is not trained.",
    ),
    "all only guess": (lambda: guessing(*FLAT), "", NONE_RANKED),
    "the seeds in common say otherwise": (
        missing_the_hard_seed,
        "alibi rope",
        "(2 seeds say little about other seeds), but worse than rope on the seeds in common.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_who_is_best_and_beyond_what_noise(case: str, tmp_path: Path) -> None:
    make, best, end = CASES[case]
    rows, units = make()
    answer = agreed(built(tmp_path, rows, units if len(units) else None), tmp_path)
    assert answer.text.endswith(end)
    assert set(answer.best) == set(best.split())
    few = rows.groupby("encoding")["seed"].nunique().max() < 3
    assert ("another seed may rank otherwise" in answer.sure) == few
    assert ("predicts best" in answer.text) == (len(answer.best) == 1)
    if case == "a clear winner":
        start = f"Reading 1,024 tokens (4x the training length), alibi predicts best: {1.36 / LN2:.3f} bits per byte ["
        assert answer.text.startswith(start)
        assert "the intervals of the two overlap" in answer.sure
        assert "differences are taken between runs of equal seeds on the same documents" in answer.sure


def test_failures_under_one_protocol_are_told_by_their_cause(tmp_path: Path) -> None:
    """One of three seeds of each encoding has no memory for one protocol, under which they are not evaluated alike."""
    shapes = {name: (loss, lambda _: 0.0) for name, loss in FLAT.items()}
    rows, _ = results(shapes, seeds=(0, 1, 2), lengths=(256, 1024), protocols=("sliding", "nonoverlapping"))
    there = (rows["protocol"] == "nonoverlapping") & (rows["length"] == 1024)
    lost = there & (rows["seed"] == 0)
    rows = with_nll(rows, rows["nll"].mask(lost)).assign(status=rows["status"].mask(lost, "oom"))
    rows = rows[~there | (rows["encoding"] != "t5")]
    (section,) = built(tmp_path, rows).sections
    (answer,) = [each.answer for each in section.protocols if each.name == "nonoverlapping"]
    assert answer.text.endswith("no encoding can be ranked: 2 failed (oom) and 1 is not tested.")


def test_all_numbers_of_a_gain_have_the_same_digits(tmp_path: Path) -> None:
    """The page shows numbers of five decimals with three: 0.012496 is 0.0125 on it."""
    rows, _ = tables({"alibi": 1.36}, seeds=(0,))
    later = (rows["variant"] == "full") & (rows["length"] == 1024)
    ends = {"gain": 0.012496, "gain_low": 0.01, "gain_high": 0.02}
    report = built(tmp_path, rows.assign(**{name: rows[name].mask(later, end * LN2) for name, end in ends.items()}))
    assert "+0.013 bits per byte" in dict(report.sections[0].answer.facts)["Does it use the longer context?"]
    on_terminal, text, _ = everywhere(report, tmp_path)
    for each in (on_terminal, text):
        assert "+0.013" in re.sub(r"\\(.)", r"\1", each)
        assert "+0.012" not in re.sub(r"\\(.)", r"\1", each)


@pytest.mark.parametrize(
    ("right", "best", "words"),
    [
        (
            {"alibi": 4, "none": 4, "rope": 2},
            ("alibi", "none"),
            'better than 1 of 2 others, beyond noise, within noise of "none"',
        ),
        ({"alibi": 0, "rope": 0}, (), "(16x the training length), no encoding answers better than by chance."),
    ],
)
def test_right_answers_decide_in_a_task(right: dict[str, int], best: tuple, words: str, tmp_path: Path) -> None:
    """`right` are the tokens, of 4, that an encoding answers right in each episode."""
    rows, positions, details = task_tables()
    answers = details["answers"][details["answers"]["encoding"].isin(right)]
    answers = answers.assign(right=answers["encoding"].map(right))
    rows = rows[rows["encoding"].isin(right)]
    rows = rows.assign(accuracy=(rows["encoding"].map(right) / 4).where(rows["status"] == "ok"))
    report = build_report(rows, positions, tmp_path, details=details | {"answers": answers})
    answer = agreed(report, tmp_path)
    assert answer.best == best
    assert words in answer.text


def test_a_task_that_does_not_know_what_a_guess_gets_right_gives_no_number_for_it(tmp_path: Path) -> None:
    """Those of checkpoints do not: how many tokens a number has is the tokenizer's affair."""
    rows, positions, details = task_tables()
    answers = details["answers"].assign(chance=np.nan)
    report = build_report(rows, positions, tmp_path, details=details | {"answers": answers})
    on_terminal, text, _ = everywhere(report, tmp_path)
    for written in (on_terminal, text):
        assert "What a guess gets right is not known." in plain(written)
        assert not re.search(r"\bnan\b", written)


# ---- gain and harm


@pytest.mark.parametrize(
    ("interval", "words"),
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
def test_the_side_of_an_interval_is_told_as_it_lies(interval: tuple[float, float, float], words: str) -> None:
    assert reads(*interval, seeds=3) == words


@pytest.mark.parametrize(
    ("low", "high", "words", "fact"),
    [
        (-0.008, -0.001, "harms a little, by less than 0.01 bits per byte", "No, it harms a little"),
        (-0.008, 0.001, "costs less than 0.01 bits per byte, if anything", "Not measurably"),
        (-0.08, -0.001, "harms; whether by 0.01 bits per byte or more is open", "No, it harms (whether"),
    ],
)
def test_a_sure_harm_is_told_as_harm_everywhere(tmp_path: Path, low: float, high: float, words: str, fact: str) -> None:
    rows, _ = tables({"alibi": 1.36}, seeds=(0,))
    ends = {"gain": (low + high) / 2 * LN2, "gain_low": low * LN2, "gain_high": high * LN2}
    later = (rows["variant"] == "full") & (rows["length"] == 1024)
    report = built(tmp_path, rows.assign(**{name: rows[name].mask(later, value) for name, value in ends.items()}))
    assert dict(report.sections[0].answer.facts)["Does it use the longer context?"].startswith(fact)
    on_terminal, text, page = everywhere(report, tmp_path)
    for each in (on_terminal, text):
        assert f"Longer context than 256 {words}: alibi." in each
    assert not re.search("does? no harm", text + page)


# ---- costs


@pytest.mark.parametrize(
    ("starts", "beside"),
    [
        ({"alibi": 0, "rope": 1000, "t5": 2000}, 0),
        ({"alibi": 0, "rope": 20, "t5": 2000}, 6),
        ({"alibi": 0, "rope": 49, "t5": 2000}, 0),  # ends are recorded in whole seconds
    ],
)
def test_times_of_runs_beside_each_other_are_said_not_to_compare(tmp_path: Path, starts: dict, beside: int) -> None:
    """Trainings of 50 seconds, seed after seed, of which the encodings began at these times."""
    rows, units = tables()
    runs, elsewhere = {}, {}
    for run, each in fake_runs(rows).items():
        begin = starts[each.config.encoding] + 100 * each.config.seed
        runs[run] = replace(each, training=run, machine="bench", span=(begin, begin + 50.0))
        elsewhere[run] = replace(runs[run], machine=each.config.encoding)
    report = built(tmp_path, rows, units, runs=runs)
    text = agreed(report, tmp_path).text
    assert "; it trained for " in text
    assert ("the fastest" in text) == (not beside)
    words = f"Training times do not compare: {beside} of 9 runs were trained at the same time as another run"
    for text in everywhere(report, tmp_path):
        assert ("Training times do not compare" in text) == bool(beside)
        assert words in text or not beside
    assert built(tmp_path, rows, units, runs=elsewhere).sections[0].answer.timing == ""


def test_the_fastest_is_the_fastest_of_the_trainings_that_succeeded(tmp_path: Path) -> None:
    """Rope diverged after a moment: alibi is slower than t5. One training is not compared with itself."""
    rows, units = tables()
    failed = rows["encoding"] == "rope"
    rows = with_nll(rows, rows["nll"].mask(failed)).assign(status=rows["status"].mask(failed, "diverged"))
    took = {"alibi": 50.0, "rope": 0.3, "t5": 40.0}
    runs = {run: replace(each, seconds=took[each.config.encoding]) for run, each in fake_runs(rows).items()}
    units = units[units["encoding"] != "rope"]
    assert "; it trained for 50 s [50 s, 50 s], 1.25 times as long as the fastest" in (
        agreed(built(tmp_path, rows, units, runs=runs), tmp_path).text
    )
    runs = {run: replace(each, training=f"of seed {each.config.seed}") for run, each in runs.items()}
    assert agreed(built(tmp_path, rows, units, runs=runs), tmp_path).text.endswith(
        "; it trained for 50 s [50 s, 50 s]."
    )


def test_nothing_is_said_of_longer_windows_where_none_was_read(tmp_path: Path) -> None:
    rows, units = (table[table["length"] == 256] for table in tables())
    report = built(tmp_path, rows.assign(optimum=1.0), units)
    assert [question for question, _ in report.sections[0].answer.facts] == ["How sure is that?"]
    for text in everywhere(report, tmp_path)[:2]:
        assert "Only the training length was evaluated." in text
        for words in ("a perfect model would win", "instead of 1x", "gain 1x", "growth"):
            assert words not in text
