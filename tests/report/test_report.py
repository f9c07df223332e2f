"""The numbers of a report recomputed by hand, verdicts at their edges, failures that stay failures, whole folders."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from fake_pages import failed_once, fake_tables, summarized
from fake_results import BEHAVIOUR, LN2, of_two_tokenizers, results
from lines import printed
from torture.reports import undrawn

from poscli.config.run import Recipe, RunConfig
from poscli.report import Report, build, build_report, folder, terminal
from poscli.report.collect import Trained
from poscli.report.folder import write_folder
from poscli.report.groups import split
from poscli.report.pooling import headline, points_of, pool, untrained
from poscli.report.table import solved_up_to, summary_columns, verdict_sentences
from poscli.report.verdicts import (
    BREAKS,
    DEGRADES,
    HOLDS,
    MAY_USE_CONTEXT,
    NOT_TESTED,
    NOT_TRAINED,
    UNCLEAR,
    USES_CONTEXT,
    verdict,
)
from poscli.runs.schema import EVAL_COLUMNS, POSITION_COLUMNS, frame
from poscli.system.errors import PoscliError, UsageError

NOTHING = frame([], POSITION_COLUMNS)
NUMBERS = ("nll", "nll_low", "nll_high", "ppl", "bpb", "gain", "gain_low", "gain_high")


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return results()[0]


def text_of(report: Report) -> str:
    return report.files[0].read_text(encoding="utf-8")


def change(rows: pd.DataFrame, where: pd.Series, **values: object) -> pd.DataFrame:
    rows = rows.copy()
    for name, value in values.items():
        rows.loc[where, name] = value
    return rows


def by_name(summary: pd.DataFrame) -> pd.DataFrame:
    return summary.set_index("encoding")


# ---- the summary


def test_numbers_of_one_seed_are_those_of_its_rows(rows: pd.DataFrame) -> None:
    line = by_name(summarized(rows)).loc["alibi"]
    base, octaves = 1.385, 4
    gain = 0.004 * octaves * 0.94  # what the fake gives to seed 0
    assert line["ppl_1x"] == pytest.approx(math.exp(base))
    assert line["ppl_16x"] == pytest.approx(math.exp(base - gain))
    assert line["bpb_16x"] == pytest.approx((base - gain) / LN2)
    assert line["growth"] == pytest.approx(math.exp(-gain))
    assert line["gain_bpb"] == pytest.approx(gain / LN2)
    assert line["gain_bpb_low"] == pytest.approx((gain - 0.002 - 0.08 * gain) / LN2)


@pytest.mark.parametrize(
    ("gains", "halves", "over_seeds", "expected"),
    [
        ([0.1, 0.2, 0.6], [0.03] * 3, (-0.3, 0.9), (0.3, -0.3, 0.9)),
        ([0.1, 0.2, 0.6], [0.03, 0.05, 0.04], (math.nan, math.nan), (0.3, 0.26, 0.38)),  # as wide as one seed's
        ([0.3], [0.04], (math.nan, math.nan), (0.3, 0.26, 0.38)),
        ([0.1, 0.2, 0.6], [math.nan, 0.05, 0.04], (math.nan, math.nan), (0.3, math.nan, math.nan)),
        ([0.1, math.nan, 0.6], [0.03, math.nan, 0.05], (math.nan, math.nan), (0.35, 0.31, 0.43)),
    ],
)
def test_the_interval_of_a_gain_is_over_seeds_where_there_is_one(gains, halves, over_seeds, expected) -> None:
    """In nats per token of two bytes; intervals reach twice as far above as below."""
    rows = results({"e": (1.0, lambda _: 0.0)}, seeds=range(len(gains)), lengths=(512,))[0]
    rows = rows[(rows["protocol"] == "fixed") & (rows["variant"] == "full")]
    lows = [gain - half for gain, half in zip(gains, halves, strict=True)]
    highs = [gain + 2 * half for gain, half in zip(gains, halves, strict=True)]
    rows = rows.assign(gain=gains, gain_low=lows, gain_high=highs, bytes=2 * rows["tokens"])
    point = pool(rows, "fixed", ends={("gain", "fixed", "e", 512): over_seeds}).iloc[0]
    numbers = [point[name] * 2 * LN2 for name in ("gain", "gain_low", "gain_high")]
    assert numbers == pytest.approx(list(expected), nan_ok=True)


@pytest.mark.parametrize(
    ("gain", "low", "high", "word"),
    [
        (0.05, 1e-9, 0.1, USES_CONTEXT),
        (0.05, 0.0, 0.1, HOLDS),
        (0.004, 0.003, 0.1, HOLDS),  # significant but of no consequence
        (-0.0008, -0.0012, -0.0003, HOLDS),
        (0.0, -0.0099, 0.1, HOLDS),
        (0.0, -0.01, 0.1, UNCLEAR),  # both a harm of consequence and none are possible
        (-0.05, -0.1, 0.0, UNCLEAR),
        (-0.1, -0.2, -0.0099, UNCLEAR),
        (-0.5, -1.0, -0.0099, UNCLEAR),
        (-0.1, -0.2, -0.01, DEGRADES),
        (-0.299, -0.5, -0.2, DEGRADES),
        (-0.3, -0.5, -0.2, BREAKS),
        (0.0, math.nan, math.nan, UNCLEAR),
        (0.1, 0.1, math.nan, UNCLEAR),
    ],
)
def test_verdict_at_the_edges_of_the_interval(gain: float, low: float, high: float, word: str) -> None:
    assert verdict(gain, low, high) == word
    few = MAY_USE_CONTEXT if word == USES_CONTEXT else word
    assert [verdict(gain, low, high, seeds=seeds) for seeds in (1, 2, 3, 9)] == [few, few, word, word]


def test_a_task_is_solved_up_to_the_last_length_before_the_first_failure() -> None:
    """Nine in ten are enough, also as a mean of seeds that floats round down; a later success does not count."""
    shares = {"a": (0.9, 0.95, 0.89, 1.0, 1.0), "b": (0.9, 0.5, 1.0, 1.0, 1.0), "c": (0.89, 1.0, 1.0, 1.0, 1.0)}
    rows, _ = results({name: (1.4, lambda _: 0.0) for name in shares}, seeds=(0, 1, 2))
    keys = zip(rows["encoding"], rows["ratio"], rows["seed"], strict=True)
    accuracy = [shares[name][int(math.log2(ratio))] + 0.05 * (seed - 1) * (ratio < 4) for name, ratio, seed in keys]
    summary = summarized(rows.assign(accuracy=accuracy))
    assert by_name(summary)["effective"].to_dict() == {"a": 2.0, "b": 1.0, "c": 0.0}
    assert solved_up_to(summary) == (
        "At least 90 % of the answers are right with a up to 2x, b at 1x only; c at no length."
    )
    many = pd.DataFrame({"encoding": list("abcdefghijklmn"), "effective": [4.0] * 7 + [0.0] * 7})
    assert solved_up_to(many) == (
        "At least 90 % of the answers are right with a, b, c, d, e, f and 1 more up to 4x; h, i, j, k, l, m and 1 more "
        "at no length."
    )
    assert verdict_sentences(summary[summary["encoding"] == "c"]).startswith(
        "No encoding answers 90 % right, not even at its training length."
    )


def test_an_evaluation_that_stops_early_gets_no_verdict(rows: pd.DataFrame) -> None:
    short = rows[(rows["encoding"] != "alibi") | (rows["length"] <= 1024)]
    line = by_name(summarized(short)).loc["alibi"]
    assert (line["verdict"], line["max_length"]) == (NOT_TESTED, 4096)
    assert line["ppl_4x"] > 0
    assert math.isnan(line["ppl_16x"])
    assert set(summarized(rows[rows["length"] == 256])["verdict"]) == {NOT_TESTED}


def test_models_that_learned_nothing_get_no_verdict_on_extrapolation() -> None:
    three = results(seeds=(0, 1, 2))[0]
    assert untrained(three) == {}

    def guessing(nll: float, *seeds: int) -> pd.DataFrame:
        """Alibi with a loss in these seeds that is no better than a guess, whatever the length."""
        bad = (three["encoding"] == "alibi") & three["seed"].isin(seeds) & (three["status"] == "ok")
        ends = {"nll": nll, "ppl": math.exp(nll), "guess_gain_low": 3.3 - nll - 0.01, "gain": 0.0}
        return summarized(change(three, bad, **ends, gain_low=-1e-4, gain_high=1e-4))

    summary = guessing(5.55, 0, 1, 2)
    assert list(summary["encoding"])[-2:] == ["alibi", "learned"]  # after all that learned something, before failures
    line = by_name(summary).loc["alibi"]
    assert line["verdict"] == NOT_TRAINED
    assert line["reason"] == "its loss at its training length is 5.55 nats per token, and guessing costs 3.30"
    line = by_name(guessing(3.295, 0, 1, 2)).loc["alibi"]
    assert (line["verdict"], "difference begins at -0.0" in line["reason"]) == (NOT_TRAINED, True)
    line = by_name(guessing(5.55, 2)).loc["alibi"]
    assert line["verdict"] == NOT_TRAINED
    assert line["reason"].startswith("1 of 3 seeds: its loss")


# ---- what is refused


def test_what_cannot_be_reported_is_refused_in_a_line_and_nothing_is_written(tmp_path: Path) -> None:
    cases = [
        (lambda: build_report(frame([], EVAL_COLUMNS), NOTHING, tmp_path), ("poscli train --enc alibi",)),
        (
            lambda: build_report(*of_two_tokenizers(), tmp_path),
            ("tokenizers bpe:300 (6 runs) and bytes (6 runs)", "--mix compares them in bits per byte"),
        ),
    ]
    for call, words in cases:
        with pytest.raises(PoscliError) as refused:
            call()
        assert all(word in str(refused.value) for word in words)
        assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="--baseline ropes: no run has this encoding"):
        build_report(results()[0], NOTHING, tmp_path, baseline="ropes")


# ---- the folder


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with the report of earlier files, and files of the user's beside them."""
    pictures = {f"{name}-old-L256.png": name.encode() for name in ("perplexity", "gain", "position")}
    write_folder(tmp_path, {"report.md": b"old", "summary.csv": b"old", **pictures})
    (tmp_path / "perplexity-mine.png").write_bytes(b"perplexity")
    (tmp_path / "notes.md").write_text("mine")
    return tmp_path


def test_a_crash_at_any_file_leaves_no_page_beside_files_of_another_report(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """report.md is the old one with all its files, or says that it is not finished, or is the new one with its own."""
    new = {"perplexity.png": b"p", "gain-old-L256.png": b"g2", "summary.csv": b"new", "report.md": b"new"}
    old = {path.name: path.read_bytes() for path in written.iterdir()}
    write, seen = folder.write_atomic, set()
    for stop in range(8):
        for name, content in old.items():
            (written / name).write_bytes(content)
        (written / "perplexity.png").unlink(missing_ok=True)
        calls = iter(range(99))

        def crash(path: Path, content: bytes | str, calls: Iterator[int] = calls, stop: int = stop) -> None:
            if next(calls) == stop:
                raise KeyboardInterrupt
            write(path, content)

        monkeypatch.setattr(folder, "write_atomic", crash)
        with contextlib.suppress(KeyboardInterrupt):
            write_folder(written, new)
        page = (written / "report.md").read_bytes()
        seen.add(page)
        if page in (b"old", b"new"):
            whole = old if page == b"old" else new
            for name in (name for name in whole if name != "files.json"):
                assert (written / name).read_bytes() == whole[name]
        else:
            assert page.startswith(b"# This report is not finished")
        monkeypatch.setattr(folder, "write_atomic", write)
        write_folder(written, new)  # the same command again
        assert {path.name for path in written.iterdir()} == {*new, "files.json", "perplexity-mine.png", "notes.md"}
    assert len(seen) == 3


def test_an_error_while_drawing_leaves_the_earlier_report(
    written: Path, rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in written.iterdir()}
    monkeypatch.setattr(build, "draw_pictures", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_report(rows, NOTHING, written)
    assert {path.name: path.read_bytes() for path in written.iterdir()} == before


# ---- no number where there is none


def test_what_failed_for_one_seed_is_not_the_best_of_the_others() -> None:
    shapes = {"alibi": (1.4, lambda octaves: 0.1 * octaves), "none": (1.4, lambda octaves: 0.02 * octaves)}
    rows, _, _ = fake_tables(shapes | {"rope": (1.4, lambda octaves: 0.01 * octaves)}, (256, 512, 1024))
    for failed, best in (("nobody", "alibi"), ("alibi", "none")):
        summary = summarized(failed_once(rows, failed))
        columns = {column.name.split()[0]: column.best for column in summary_columns(summary)}
        names = list(summary["encoding"])
        assert by_name(summary)["ppl_4x"].idxmin() == "alibi"  # the mean of its two other seeds, if one failed
        assert (names[columns["2x"]], names[columns["4x"]], names[columns["gain"]]) == ("alibi", best, best)


@pytest.mark.parametrize(("status", "hole"), [("oom", 1024), ("diverged", 4096)])
def test_a_status_never_becomes_a_number(tmp_path: Path, rows: pd.DataFrame, status: str, hole: int) -> None:
    bad = (rows["encoding"] == "alibi") & (rows["length"] == hole)
    numbers = dict.fromkeys(NUMBERS, math.nan) | dict.fromkeys(("tokens", "bytes", "documents"), 0)
    rows = change(rows, bad, status=status, reason="it went wrong", **numbers)
    ratio = f"{hole // 256}x"
    report = build_report(rows, NOTHING, tmp_path)
    line = by_name(report.summary).loc["alibi"]
    assert math.isnan(line[f"ppl_{ratio}"])
    assert (line["verdict"] == status) == math.isnan(line["growth"]) == math.isnan(line["gain_bpb"]) == (hole == 4096)
    (cells,) = re.findall(r"^\| alibi \|(.*)", text_of(report).split("### Every protocol")[0], re.MULTILINE)
    assert cells.split("|")[{1024: 3, 4096: 5}[hole]].strip() == "-"
    assert "it went wrong" in text_of(report)
    for figure in report.sections[0].figures:
        (drawn,) = (each for each in figure.lines if each.name == "alibi")
        assert [length for length, y in zip(drawn.x, drawn.y, strict=True) if math.isnan(y)] == [hole]
        assert f"{status} from {ratio}" in {each.cause for each in figure.missing if "alibi" in each.names}


def test_losses_that_are_too_large_or_infinite_are_failures(tmp_path: Path, rows: pd.DataFrame) -> None:
    last = (rows["encoding"] == "rope") & (rows["length"] == 4096)
    report = build_report(change(rows, last, nll=1e6, nll_low=1e6, nll_high=1e6), NOTHING, tmp_path)
    assert by_name(report.summary).loc["rope", "ppl_16x"] == math.inf
    missing = {each.names: each.cause for each in report.sections[0].figures[0].missing}
    assert missing["rope",] == "infinite from 16x"
    points = pool(change(rows, last, nll=math.inf), "sliding").set_index(["encoding", "length"])
    assert points.loc[("rope", 4096), "status"] == "nonfinite"
    bare = points_of(rows.assign(nll_low=math.nan, nll_high=math.nan), "sliding")
    assert [point.is_known for point in bare] == [point.status == "ok" for point in bare]


# ---- protocols, baselines and measures that the report does not know


def test_measures_of_a_task_are_pooled_and_reported(tmp_path: Path) -> None:
    """A task with one protocol of its own, a baseline of its own, a count of hits, and no gain; beside a text."""
    rows = results({name: BEHAVIOUR[name] for name in ("alibi", "rope")}, seeds=(0, 1))[0]
    assert headline(rows) == ("sliding", "fixed")
    assert headline(rows[rows["protocol"] != "fixed"]) == ("sliding", "sliding")
    assert headline(rows[rows["protocol"] == "nonoverlapping"]).perplexity == "nonoverlapping"
    rows = rows[(rows["protocol"] == "sliding") & (rows["variant"] != "crop")]
    rows = rows.assign(
        protocol="answer",
        variant=rows["variant"].replace("window", "sink(4)+window"),
        hits=0.5 / rows["ratio"] + 0.25 * rows["seed"],
        **dict.fromkeys(("gain", "gain_low", "gain_high"), math.nan),
    )
    assert headline(rows) == ("answer", "")
    text = results({"alibi": BEHAVIOUR["alibi"]}, fingerprint="beef00112233")[0]
    report = build_report(pd.concat([rows, text], ignore_index=True), NOTHING, tmp_path)
    line = by_name(report.sections[0].summary).loc["alibi"]
    assert (line["hits_1x"], line["hits_16x"]) == pytest.approx((0.625, 0.5 / 16 + 0.125))
    assert (line["verdict"], line["reason"]) == (NOT_TESTED, "no protocol measured a gain")
    assert report.sections[0].pictures == ("perplexity-stdlib-L256-3f2a9c41.png",)
    assert report.summary["hits_16x"].notna().tolist() == [True, True, False]
    assert text_of(report).count("| hits 16x |") == 1
    assert "| encoding | answer | answer, sink(4)+window |" in text_of(report)


def test_several_tokenizers_are_mixed_in_bits_per_byte_only(tmp_path: Path) -> None:
    report = build_report(*of_two_tokenizers(), tmp_path, mix=True)
    (section,) = report.sections
    table = section.summary.set_index("encoding")
    ours, theirs = table.loc["alibi [bytes]"], table.loc["alibi [bpe:300]"]
    assert theirs["bpb_16x"] == pytest.approx(1.25 * ours["bpb_16x"])  # 5 times the nats on 4 times the bytes
    assert theirs["gain_bpb"] == pytest.approx(1.25 * ours["gain_bpb"])
    assert list(section.summary["bpb_16x"].dropna()) == sorted(section.summary["bpb_16x"].dropna())
    text = text_of(report)
    assert "perplexity" not in text.lower().replace("perplexity.png", "").replace("perplexity scripts", "")  # of papers
    assert "sliding 131k (of 21 documents)" in text  # tokens, not bytes
    assert pd.read_csv(tmp_path / "summary.csv").filter(regex="^ppl_|^growth$").isna().all(axis=None)
    ends = dict(zip((each.name for each in section.encodings), section.positions[-1].values, strict=True))
    assert ends["alibi [bpe:300]"] == pytest.approx([1.25 * value for value in ends["alibi [bytes]"]])


def test_a_narrow_terminal_keeps_the_losses_of_several_tokenizers_and_their_unit(tmp_path: Path) -> None:
    with undrawn():
        report = build_report(*of_two_tokenizers(), tmp_path, mix=True)
    text = printed(lambda console: terminal.print_report(report, console), 80)
    (head,) = [line for line in text.splitlines() if line.split()[:1] == ["encoding"]]
    assert head.split()[1:7] == ["bpb", "1x", "2x", "4x", "8x", "16x"]


@pytest.mark.parametrize("mix", [False, True])
def test_models_of_two_trainings_have_pictures_of_their_own_on_one_text(tmp_path: Path, mix: bool) -> None:
    shapes = {name: BEHAVIOUR[name] for name in ("alibi", "rope")}
    own, positions = results(shapes, lengths=(256, 512))
    others = [own.assign(run_id=own["run_id"] + corpus, trained_on=corpus) for corpus in ("panel", "wikitext")]
    with undrawn():
        report = build_report(pd.concat([own, *others], ignore_index=True), positions, tmp_path, mix=mix)
    names = [name for section in report.sections for name in section.pictures]
    assert len(report.sections) == 3
    assert len(set(names)) == len(names) > 3


def test_runs_that_differ_in_a_rate_are_called_by_it_and_joined_over_seeds() -> None:
    rows, positions = results({"alibi": BEHAVIOUR["alibi"], "rope": BEHAVIOUR["rope"]}, seeds=(0, 1, 2))
    again = rows[rows["encoding"] == "rope"].assign(run_id=lambda table: table["run_id"] + "x")
    rates = dict.fromkeys(rows["run_id"], 0.05) | dict.fromkeys(again["run_id"], 0.003)
    configs = {run: RunConfig(encoding="rope", recipe=Recipe(encoding_lr=rate)) for run, rate in rates.items()}
    runs = {run: Trained(config, {}, tokens=1000) for run, config in configs.items()}
    (group,) = split(pd.concat([rows, again], ignore_index=True), positions, runs=runs)
    seeds = group.rows.groupby("encoding")["seed"].nunique().to_dict()
    assert seeds == {"alibi": 3, "rope [encoding_lr=0.003]": 3, "rope [encoding_lr=0.05]": 3}
