"""The report: numbers recomputed by hand, verdicts at their edges, failures kept, pictures that can be read."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_pages import against, failed_once, fake_tables
from fake_results import BEHAVIOUR, LN2, evaluated_run, many, results, units_of
from matplotlib.text import Annotation
from PIL import Image
from rich.console import Console
from torture.reports import undrawn
from toys import first

from poscli.drawing.page import Page, place_labels
from poscli.drawing.style import MAX_COLORED_LINES, styles_for
from poscli.report import (
    About,
    Report,
    build_report,
    collect,
    folder,
    records,
    summarize,
    terminal,
    trained_tokens,
)
from poscli.report.caveats import caveats
from poscli.report.figures import Drawing, context_gain_by_length, loss_by_position, perplexity_by_length
from poscli.report.folder import write_folder
from poscli.report.guessing import untrained
from poscli.report.markdown import Markdown, escape
from poscli.report.over_seeds import with_intervals
from poscli.report.pooling import NothingToPlot, headline, pool
from poscli.report.sections import split
from poscli.report.table import summary_columns
from poscli.report.verdicts import (
    BREAKS,
    DEGRADES,
    HOLDS,
    MAY_USE_CONTEXT,
    MEANING,
    NOT_TESTED,
    NOT_TRAINED,
    UNCLEAR,
    USES_CONTEXT,
    only_guesses,
    verdict,
)
from poscli.runs.schema import EVAL_COLUMNS, POSITION_COLUMNS, frame
from poscli.statistics.comparison import LossTable
from poscli.system.errors import PoscliError, UsageError

LOOKS_AT_PICTURES = True
REASON = "learned table of 256 positions has no row for position 4096"


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return results()[0]


@pytest.fixture(scope="module")
def positions() -> pd.DataFrame:
    return results()[1]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, rows: pd.DataFrame, positions: pd.DataFrame) -> Report:
    """The report of the six fake encodings, written to disk."""
    folder = tmp_path_factory.mktemp("report")
    return build_report(rows, positions, folder, trained={rows["run_id"].iloc[0]: 2_100_000})


def text_of(report: Report) -> str:
    return report.files[0].read_text(encoding="utf-8")


def printed(width: int) -> Console:
    return Console(width=width, file=io.StringIO(), no_color=True)


def change(rows: pd.DataFrame, where: pd.Series, **values: object) -> pd.DataFrame:
    rows = rows.copy()
    for name, value in values.items():
        rows.loc[where, name] = value
    return rows


def by_name(summary: pd.DataFrame) -> pd.DataFrame:
    return summary.set_index("encoding")


# ---- the summary


def test_numbers_of_one_seed_are_those_of_its_rows(rows: pd.DataFrame) -> None:
    line = by_name(summarize(rows)).loc["alibi"]
    base, octaves = 1.385, 4
    gain = 0.004 * octaves * 0.94  # what the fake gives to seed 0
    assert line["ppl_1x"] == pytest.approx(math.exp(base))
    assert line["ppl_16x"] == pytest.approx(math.exp(base - gain))
    assert line["bpb_16x"] == pytest.approx((base - gain) / LN2)
    assert line["growth"] == pytest.approx(math.exp(-gain))
    assert line["gain_bpb"] == pytest.approx(gain / LN2)
    assert line["gain_bpb_low"] == pytest.approx((gain - 0.002 - 0.08 * gain) / LN2)


def test_seeds_are_pooled_in_nats_and_widen_the_interval() -> None:
    rows = results(seeds=(0, 1, 2))[0]
    summary = by_name(summarize(with_intervals(rows, LossTable(units_of(rows)))))
    line, one = summary.loc["rope"], by_name(summarize(results(seeds=(1,))[0])).loc["rope"]
    gains = [-0.16 * 8 * factor for factor in (0.94, 1.0, 1.06)]
    assert line["seeds"] == 3
    assert line["ppl_16x"] == pytest.approx(math.exp(sum(1.36 - gain for gain in gains) / 3))
    spread_of_seeds = 4.302653 * 0.0768 / math.sqrt(3)  # Student's t of two degrees, standard deviation of the gains
    assert line["gain_bpb"] - line["gain_bpb_low"] > 0.8 * spread_of_seeds / LN2
    assert line["gain_bpb_high"] - line["gain_bpb_low"] > one["gain_bpb_high"] - one["gain_bpb_low"]


def test_bits_are_per_byte_where_tokens_are_longer(rows: pd.DataFrame) -> None:
    halved = rows.assign(bytes=rows["bytes"] * 4)
    assert by_name(summarize(halved)).loc["alibi", "gain_bpb"] == pytest.approx(
        by_name(summarize(rows)).loc["alibi", "gain_bpb"] / 4
    )


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


def test_summary_is_sorted_by_the_longest_length_with_failures_last(rows: pd.DataFrame) -> None:
    summary = summarize(rows)
    assert list(summary["encoding"]) == ["alibi", "t5(buckets=32)", "none", "rope", "sinusoidal", "learned"]
    assert list(summary["verdict"]) == [MAY_USE_CONTEXT, DEGRADES, BREAKS, BREAKS, BREAKS, "unsupported"]
    assert summary["reason"].iloc[-1] == REASON
    assert math.isnan(summary["ppl_16x"].iloc[-1])


def test_one_failed_seed_makes_a_failure_that_keeps_the_numbers_of_the_others() -> None:
    rows, _ = results(seeds=(0, 1, 2))
    bad = (rows["encoding"] == "alibi") & (rows["seed"] == 1) & (rows["length"] == 4096)
    rows = change(rows, bad, status="nonfinite", reason="the loss is not a number", nll=math.nan, gain=math.nan)
    summary = summarize(rows)
    assert set(summary["encoding"].tail(2)) == {"alibi", "learned"}
    line = by_name(summary).loc["alibi"]
    assert line["verdict"] == "nonfinite"
    assert line["reason"] == "1 of 3 seeds: the loss is not a number"
    assert line["ppl_16x"] == pytest.approx(math.exp(1.385 - 0.016))


def test_an_evaluation_that_stops_early_gets_no_verdict(rows: pd.DataFrame) -> None:
    short = rows[(rows["encoding"] != "alibi") | (rows["length"] <= 1024)]
    line = by_name(summarize(short)).loc["alibi"]
    assert (line["verdict"], line["max_length"]) == (NOT_TESTED, 4096)
    assert line["ppl_4x"] > 0
    assert math.isnan(line["ppl_16x"])
    assert set(summarize(rows[rows["length"] == 256])["verdict"]) == {NOT_TESTED}


def test_rows_that_cannot_be_compared_are_refused() -> None:
    here, there = results()[0], results(fingerprint="beef00112233")[0]
    both = pd.concat([here, there], ignore_index=True)
    with pytest.raises(UsageError, match="beef00112233"):
        summarize(both)
    assert len(summarize(both, mix=True)) == len(BEHAVIOUR)
    lengths = pd.concat([here, results(train_length=512)[0]], ignore_index=True)
    with pytest.raises(UsageError, match="256, 512"):
        summarize(lengths, mix=True)


def test_records_are_json(rows: pd.DataFrame) -> None:
    told = json.loads(json.dumps(records(summarize(rows)), allow_nan=False))
    assert told[-1]["ppl_16x"] is None
    assert told[0]["seeds"] == 1
    assert told[0]["verdict"] == MAY_USE_CONTEXT


# ---- models that learned nothing


def guessing(rows: pd.DataFrame, name: str = "alibi", *, seed: int = 0, nll: float = 5.55) -> pd.DataFrame:
    """The rows with a seed of an encoding that predicts everywhere as before training; crop changes nothing then."""
    mine = (rows["encoding"] == name) & (rows["seed"] == seed)
    numbers = {"nll": nll, "ppl": math.exp(nll), "bpb": nll / LN2, "nll_low": nll - 0.01, "nll_high": nll + 0.01}
    gains = {"guess_gain_low": 3.3 - nll - 0.01, "gain": 0.0, "gain_low": -0.0001, "gain_high": 0.0001}
    return change(rows, mine & (rows["status"] == "ok"), **numbers, **gains)


@pytest.mark.parametrize(
    ("nll", "gain_low", "guess", "only"),
    [
        (3.0, 0.1, 3.3, False),
        (3.0, 0.0, 3.3, True),
        (3.29, -0.01, 3.3, True),
        (3.29, math.nan, 3.3, False),
        (3.3, math.nan, 3.3, True),
        (5.55, math.nan, math.nan, False),  # nothing to compare with
    ],
)
def test_a_loss_that_is_not_below_a_guess(nll: float, gain_low: float, guess: float, only: bool) -> None:
    assert only_guesses(nll, gain_low, guess) is only


def test_an_untrained_model_gets_no_verdict_on_extrapolation(rows: pd.DataFrame) -> None:
    assert untrained(rows) == {}
    summary = summarize(guessing(rows))
    line = by_name(summary).loc["alibi"]
    assert line["verdict"] == NOT_TRAINED
    assert line["reason"] == "its loss at its training length is 5.55 nats per token, and guessing costs 3.30"
    assert list(summary["encoding"])[-2:] == ["alibi", "learned"]  # after all that learned something, before failures
    near = by_name(summarize(guessing(rows, nll=3.295))).loc["alibi"]
    assert (near["verdict"], "difference begins at -0.0" in near["reason"]) == (NOT_TRAINED, True)
    only_one_length = guessing(rows)[rows["length"] == 256]
    assert by_name(summarize(only_one_length)).loc["alibi", "verdict"] == NOT_TRAINED


def test_a_guess_that_is_worse_than_chance_is_not_one_to_beat(rows: pd.DataFrame) -> None:
    strange = guessing(rows, nll=6.0).assign(unigram=7.0)  # held-out text unlike the training text
    assert set(untrained(strange)) == {"alibi"}


def test_one_untrained_seed_is_not_hidden_by_the_mean_over_seeds() -> None:
    rows = guessing(results(seeds=(0, 1, 2))[0], seed=2)
    line = by_name(summarize(rows)).loc["alibi"]
    assert line["verdict"] == NOT_TRAINED
    assert line["reason"].startswith("1 of 3 seeds: its loss")


def test_an_untrained_model_wins_nothing_and_is_marked_everywhere(
    tmp_path: Path, rows: pd.DataFrame, positions: pd.DataFrame
) -> None:
    two = [table[table["encoding"].isin(["sinusoidal", "alibi"])] for table in (rows, positions)]
    worse = guessing(two[0], nll=3.9)  # at 16x its perplexity and its gain are better than those of sinusoidal
    assert worse.loc[(worse["encoding"] == "sinusoidal") & (worse["length"] == 4096), "ppl"].max() > math.exp(3.9)
    report = build_report(worse, two[1], tmp_path)
    text = text_of(report)
    assert "sinusoidal has a loss of" in text
    assert "the only one of 2 encodings that can be ranked" in text
    assert "predicts best" not in text
    assert "Not trained, since already at 256 they predict no better than a guess: alibi." in text
    assert text.count(f"- {NOT_TRAINED}: {MEANING[NOT_TRAINED]}") == 1
    assert not re.search(r"\| alibi .*\*\*", text)  # no number of it is the best of a column
    assert text.count("Not trained: alibi.") == 3  # the alternative text of each picture
    assert pd.read_csv(report.files[1]).set_index("encoding").loc["alibi", "verdict"] == NOT_TRAINED
    for drawing in drawings(worse, two[1])[:2]:
        labels = [label.get_text() for label in drawing.page.figure.findobj(Annotation)]
        assert [label for label in labels if label.endswith(NOT_TRAINED)] == [
            label for label in labels if label.startswith("alibi")
        ]
    console = printed(100)
    terminal.show(report, console)
    terminal.show_fresh([part for _, part in worse.groupby("run_id")], console, summed=False)
    assert console.file.getvalue().count("alibi: not trained: its loss") == 2  # type: ignore[attr-defined]


def test_models_that_all_only_guess_have_no_best(tmp_path: Path, rows: pd.DataFrame) -> None:
    one = guessing(rows[rows["encoding"] == "alibi"])
    text = text_of(build_report(one, frame([], POSITION_COLUMNS), tmp_path))
    assert "best" not in text.split("### How this was made")[0].replace("**", "")
    assert HOLDS not in text


# ---- groups


def test_each_corpus_and_length_is_its_own_section(tmp_path: Path) -> None:
    small = {name: BEHAVIOUR[name] for name in ("alibi", "rope")}
    short = {"lengths": (256, 1024)}
    parts = [results(**short), results(small, train_length=512), results(small, fingerprint="beef00112233", **short)]
    rows = pd.concat([evals for evals, _ in parts], ignore_index=True)
    report = build_report(rows, parts[1][1], tmp_path)
    assert [len(section.summary) for section in report.sections] == [6, 2, 2]
    names = {path.name for path in report.files}
    assert {"perplexity-stdlib-L512.png", "gain-stdlib-L256-beef0011.png", "position-stdlib-L512.png"} <= names
    assert all(path.exists() for path in report.files)
    assert report.summary.groupby(["fingerprint", "train_length"]).ngroups == 3
    assert text_of(report).count("### How this was made") == 3
    assert "cannot be compared" in text_of(report)


def test_mix_joins_corpora_and_tells_them_apart() -> None:
    parts = [results(), results(fingerprint="beef00112233", seeds=(7,))]
    rows, positions = (pd.concat(tables, ignore_index=True) for tables in zip(*parts, strict=True))
    (group,) = split(rows, positions, mix=True)
    assert {"alibi [3f2a9c]", "alibi [beef00]"} <= set(group.rows["encoding"])
    assert set(group.positions["encoding"]) == set(group.rows["encoding"])
    assert "alibi" in group.notes[0]


def test_runs_that_differ_in_more_than_the_seed_are_never_averaged(rows: pd.DataFrame, positions: pd.DataFrame) -> None:
    again = rows.assign(run_id=rows["run_id"] + "x", nll=rows["nll"] + 1)
    (group,) = split(pd.concat([rows, again], ignore_index=True), positions)
    assert {"rope [3f22560]", "rope [3f22560x]"} <= set(group.rows["encoding"])
    larger = again.assign(seed=1, parameters=5_000_000)
    (group,) = split(pd.concat([rows, larger], ignore_index=True), positions)
    assert {"rope [842k]", "rope [5M]"} <= set(group.rows["encoding"])
    (group,) = split(*results(seeds=(0, 1)))
    assert set(group.rows["encoding"]) == set(BEHAVIOUR)


# ---- files


def test_runs_on_disk_come_back(tmp_path: Path, rows: pd.DataFrame, positions: pd.DataFrame) -> None:
    for seed, (run, part) in enumerate(rows.groupby("run_id")):
        evaluated_run(tmp_path, seed, part, positions[positions["run_id"] == run])
    evals, curves, *_ = collect(tmp_path)
    pd.testing.assert_frame_equal(summarize(evals), summarize(rows))
    assert curves["run_id"].nunique() == len(BEHAVIOUR)
    assert set(trained_tokens(tmp_path).values()) == {9000}


def test_nothing_to_report_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(PoscliError, match=r"poscli train --enc alibi.*poscli extrapolate --max-len 8192"):
        collect(tmp_path)
    with pytest.raises(PoscliError, match="poscli train --enc alibi"):
        build_report(frame([], EVAL_COLUMNS), frame([], POSITION_COLUMNS), tmp_path)


def test_report_holds_every_encoding_number_picture_and_origin(report: Report) -> None:
    text = text_of(report)
    words = (REASON, "3f2a9c41d0e7", "2.1M tokens", "0123abc", "sdpa", "One seed per encoding")
    for word in (*BEHAVIOUR, *words, "**3.94**", "Tokens scored per window (sliding, fixed): 128"):
        assert word in text
    assert len(report.sections[0].pictures) == 3
    for picture in report.sections[0].pictures:
        assert picture.path.exists()
        assert f"]({picture.path.name})" in text
    back = pd.read_csv(report.files[1])
    assert back["gain_bpb"].to_numpy() == pytest.approx(report.summary["gain_bpb"].to_numpy(), nan_ok=True)


def test_names_and_reasons_are_escaped_in_markdown(tmp_path: Path) -> None:
    rows, _ = results()
    hostile = "a|b\n| c | [x](y) <b> `d` *e* _f_ \\"
    rows = rows.assign(corpus=hostile, encoding=rows["encoding"].replace("none", hostile))
    rows["reason"] = rows["reason"].where(rows["reason"] == "", hostile)
    build_report(rows, frame([], POSITION_COLUMNS), tmp_path, about=About(explained=["**kept** as | Markdown"]))
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "- **kept** as | Markdown" in text
    ours = text.replace("![", "").replace("**kept** as | Markdown", "")
    assert text.count(escape(hostile)) >= 6  # title, answer, both tables, a failure, the corpus
    bare = re.sub(r"\\.", "", ours)  # without what is escaped, only the template's own marks are left
    assert not re.search(r"[<>`]|_f_|\*e\*|\[x\]", bare)
    tables = re.findall(r"(?:^\|.*\n)+", bare, re.MULTILINE)
    assert [len({line.count("|") for line in table.splitlines()}) for table in tables] == [1, 1, 1]


def test_markdown_is_escaped_once() -> None:
    assert escape("a|b_c") == "a\\|b\\_c"
    assert escape(escape("a|b_c")) == escape("a|b_c")
    assert escape(Markdown("**bold**")) == "**bold**"


def test_runs_that_all_failed_are_still_a_report(tmp_path: Path, rows: pd.DataFrame) -> None:
    numbers = dict.fromkeys(("nll", "ppl", "bpb", "gain"), math.nan)
    failed = change(rows, rows["length"] > 0, status="diverged", reason="the loss rose to 9.1", **numbers)
    report = build_report(failed, frame([], POSITION_COLUMNS), tmp_path)
    assert not report.sections[0].pictures
    assert any("No picture of gain" in note for note in report.notes)
    assert "the loss rose to 9.1" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_doubts_about_the_numbers_are_caveats(rows: pd.DataFrame) -> None:
    doubtful = rows.assign(resampled="spans", gain_low=-0.4, gain_high=0.4)
    doubtful.loc[doubtful["encoding"] == "rope", ["parameters", "stride"]] = [9_000_000, 64]
    notes = " ".join(caveats(doubtful, summarize(doubtful)))
    for word in ("spans of text", "842k to 9M parameters", "strides of 64 to 128"):
        assert word in notes


def test_ordinary_results_have_one_caveat(rows: pd.DataFrame) -> None:
    (note,) = caveats(rows, summarize(rows))
    assert "One seed" in note


# ---- the folder


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with the report of earlier files, and files of the user's beside them."""
    pictures = {f"{name}-old-L256.png": name.encode() for name in ("perplexity", "gain", "position")}
    write_folder(tmp_path, {"report.md": b"old", "summary.csv": b"old", **pictures})
    (tmp_path / "perplexity-mine.png").write_bytes(b"perplexity")
    (tmp_path / "notes.md").write_text("mine")
    return tmp_path


def test_files_of_an_earlier_report_are_removed_and_those_of_the_user_are_not(
    written: Path, rows: pd.DataFrame
) -> None:
    (written / "gain-old-L256.png").write_bytes(b"a picture that the user made of it")
    report = build_report(rows, frame([], POSITION_COLUMNS), written)
    mine = {"perplexity-mine.png", "notes.md", "gain-old-L256.png"}
    assert names_in(written) == {path.name for path in report.files} | mine
    one = build_report(rows[rows["protocol"] == "sliding"].assign(gain=math.nan), frame([], POSITION_COLUMNS), written)
    assert {path.name for path in report.files} - {path.name for path in one.files} == {"gain.png"}
    assert names_in(written) == {path.name for path in one.files} | mine
    before = {path: path.read_bytes() for path in written.iterdir()}
    build_report(rows[rows["protocol"] == "sliding"].assign(gain=math.nan), frame([], POSITION_COLUMNS), written)
    assert {path: path.read_bytes() for path in written.iterdir()} == before


@pytest.mark.parametrize(
    "damaged", ["", "[1]", "{", '{"../mine.png": ["x"], "gain.png": 3}', '{"notes.md": ["MINE"], "gain-x.png": ["no"]}']
)
def test_a_damaged_list_of_files_removes_nothing(written: Path, damaged: str) -> None:
    mark = hashlib.sha256(b"mine").hexdigest()
    (written / "files.json").write_text(damaged.replace("MINE", mark))
    before = names_in(written)
    write_folder(written, {"report.md": b"new", "summary.csv": b"new"})
    assert names_in(written) == before
    assert (written / "report.md").read_text() == "new"


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
            own = old if page == b"old" else new
            for name in (name for name in own if name != "files.json"):
                assert (written / name).read_bytes() == own[name]
        else:
            assert page.startswith(b"# This report is not finished")
        monkeypatch.setattr(folder, "write_atomic", write)
        write_folder(written, new)  # the same command again
        assert names_in(written) == {*new, "files.json", "perplexity-mine.png", "notes.md"}
    assert len(seen) == 3


def test_an_error_while_drawing_leaves_the_earlier_report(
    written: Path, rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in written.iterdir()}
    monkeypatch.setattr(Page, "png", lambda page: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_report(rows, frame([], POSITION_COLUMNS), written)
    assert {path.name: path.read_bytes() for path in written.iterdir()} == before


def test_a_suite_gives_its_report_a_title_and_names_what_is_left_out(tmp_path: Path, rows: pd.DataFrame) -> None:
    about = About(title="Quick: <five>", description="On *two* cores.", left_out=["t5, seed 0: no disk"])
    report = build_report(rows, frame([], POSITION_COLUMNS), tmp_path, about=about)
    text = text_of(report)
    assert text.startswith("# Quick: \\<five\\>\n\nOn \\*two\\* cores.\n")
    assert "- t5, seed 0: no disk" in text
    assert "<h1>Quick: &lt;five&gt;</h1>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    console = printed(100)
    terminal.show(report, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.startswith("Quick: <five>\nOn *two* cores.\nleft out: t5, seed 0: no disk\n")


def test_a_long_label_shortens_the_name_and_keeps_its_numbers(rows: pd.DataFrame) -> None:
    """Also where the text behind the name is so long that a cut in the middle of the label would cut a number."""
    rows = guessing(rows, nll=3.9)
    long = rows.assign(encoding=rows["encoding"].replace("alibi", "rope as rope+window(128)+logn(512)"))
    for figure in (perplexity_by_length, context_gain_by_length):
        full = {label.get_text() for label in figure(rows).page.figure.findobj(Annotation)}
        labels = {label.get_text() for label in figure(long).page.figure.findobj(Annotation)}
        (own,), (plain,) = (labels - full), (full - labels)
        assert plain.endswith(f", {NOT_TRAINED}")
        assert own.endswith(plain.removeprefix("alibi"))
        assert own.startswith("rope")
        assert "…" in own


# ---- no number where there is none


@pytest.mark.parametrize(
    ("status", "hole"),
    first(
        3,
        [
            *[("oom", 1024), ("diverged", 4096), ("failed", 4096)],
            *[("oom", 4096), ("unsupported", 4096), ("nonfinite", 1024)],
        ],
    ),
)
def test_a_status_never_becomes_a_number(tmp_path: Path, rows: pd.DataFrame, status: str, hole: int) -> None:
    numbers = dict.fromkeys(("nll", "nll_low", "nll_high", "ppl", "bpb", "gain", "gain_low", "gain_high"), math.nan)
    bad = (rows["encoding"] == "alibi") & (rows["length"] == hole)
    rows = change(rows, bad, status=status, reason="it went wrong", tokens=0, bytes=0, documents=0, **numbers)
    ratio = f"{hole // 256}x"
    with undrawn():  # two of the pictures are looked at below
        report = build_report(rows, frame([], POSITION_COLUMNS), tmp_path)
    line = by_name(report.summary).loc["alibi"]
    assert math.isnan(line[f"ppl_{ratio}"])
    assert math.isnan(line[f"bpb_{ratio}"])
    assert (line["verdict"] == status) == (hole == 4096)
    assert math.isnan(line["growth"]) == math.isnan(line["gain_bpb"]) == (hole == 4096)
    text = text_of(report)
    (cells,) = re.findall(r"^\| alibi \|(.*)", text.split("### Every protocol")[0], re.MULTILINE)
    assert cells.split("|")[{1024: 3, 4096: 5}[hole]].strip() == "-"
    assert "it went wrong" in text
    assert status in text
    for drawing in (perplexity_by_length(rows), context_gain_by_length(rows)):
        lines = [line for line in drawing.page.axes.get_lines() if len(line.get_xdata()) == 5]
        holes = [list(np.isnan(np.asarray(line.get_ydata(), float))) for line in lines]
        assert [length == hole for length in (256, 512, 1024, 2048, 4096)] in holes  # its line is broken there
        strip = drawing.page.strip
        assert strip is not None
        assert any(f"alibi: {status} from {ratio}" in label.get_text() for label in strip.texts)
    assert math.isnan(records(report.summary)[0]["ppl_1x"]) is False
    assert [row[f"ppl_{ratio}"] for row in records(report.summary) if row["encoding"] == "alibi"] == [None]


def test_a_loss_too_large_for_a_perplexity_is_drawn_as_a_failure(tmp_path: Path, rows: pd.DataFrame) -> None:
    huge = change(rows, (rows["encoding"] == "rope") & (rows["length"] == 4096), nll=1e6, nll_low=1e6, nll_high=1e6)
    report = build_report(huge, frame([], POSITION_COLUMNS), tmp_path)
    assert by_name(report.summary).loc["rope", "ppl_16x"] == math.inf
    strip = perplexity_by_length(huge).page.strip
    assert strip is not None
    assert any("rope: infinite from 16x" in label.get_text() for label in strip.texts)


def test_a_failed_seed_is_not_the_best_of_the_others(rows: pd.DataFrame) -> None:
    three = results({name: BEHAVIOUR[name] for name in ("alibi", "rope", "none")}, seeds=(0, 1, 2))[0]
    bad = (three["encoding"] == "alibi") & (three["seed"] == 1) & (three["length"] == 4096)
    summary = summarize(change(three, bad, status="oom", nll=math.nan, gain=math.nan))
    columns = {column.name: column for column in summary_columns(summary)}
    alibi = list(summary["encoding"]).index("alibi")
    assert summary["ppl_16x"].idxmin() == alibi  # the mean of two seeds
    assert columns["16x"].best not in (None, alibi)
    assert columns["8x"].best == alibi


def test_intervals_from_few_documents_are_no_caveat(rows: pd.DataFrame) -> None:
    """They are as wide as they need to be."""
    few = rows.assign(documents=7)
    assert caveats(few, summarize(few)) == caveats(rows, summarize(rows))


# ---- protocols, baselines and tasks that the report does not know


@pytest.fixture(scope="module")
def answers() -> pd.DataFrame:
    """Results of a task with one protocol of its own, a baseline of its own, a count of hits, and no gain."""
    rows = results({name: BEHAVIOUR[name] for name in ("alibi", "rope")}, seeds=(0, 1))[0]
    rows = rows[(rows["protocol"] == "sliding") & (rows["variant"] != "crop")]
    rows = rows.assign(
        protocol="answer",
        variant=rows["variant"].replace("window", "sink(4)+window"),
        hits=0.5 / rows["ratio"] + 0.25 * rows["seed"],
    )
    return rows.assign(gain=math.nan, gain_low=math.nan, gain_high=math.nan)


def test_quoted_protocols_are_those_in_the_rows(rows: pd.DataFrame, answers: pd.DataFrame) -> None:
    assert headline(rows) == ("sliding", "fixed")
    assert headline(rows[rows["protocol"] != "fixed"]) == ("sliding", "sliding")
    assert headline(rows[rows["protocol"] == "nonoverlapping"]).perplexity == "nonoverlapping"
    assert headline(answers) == ("answer", "")


def test_measures_of_a_task_are_pooled_and_reported(tmp_path: Path, answers: pd.DataFrame) -> None:
    report = build_report(answers, frame([], POSITION_COLUMNS), tmp_path)
    line = by_name(report.summary).loc["alibi"]
    assert line["hits_1x"] == pytest.approx(0.625)
    assert line["hits_16x"] == pytest.approx(0.5 / 16 + 0.125)
    assert (line["verdict"], line["reason"]) == (NOT_TESTED, "no protocol measured a gain")
    assert [picture.path.name for picture in report.sections[0].pictures] == ["perplexity.png"]
    text = text_of(report)
    assert "| hits 16x |" in text
    assert "| encoding | answer | answer, sink(4)+window |" in text
    assert "(sliding)" not in text
    console = printed(100)
    terminal.show(report, console)
    terminal.show_fresh([part for _, part in answers.groupby("run_id")], console, summed=False)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "hits 16x" in shown
    assert "gain" not in shown.split("hits")[-1]  # the table of lengths has no column for it


def test_a_measure_that_one_section_lacks_is_empty_there(tmp_path: Path, answers: pd.DataFrame) -> None:
    other = results({"alibi": BEHAVIOUR["alibi"]}, fingerprint="beef00112233")[0]
    report = build_report(pd.concat([answers, other], ignore_index=True), frame([], POSITION_COLUMNS), tmp_path)
    assert report.summary["hits_16x"].notna().tolist() == [True, True, False]
    assert text_of(report).count("| hits 16x |") == 1


def test_declared_measures_are_read_where_a_file_has_them(
    tmp_path: Path, rows: pd.DataFrame, positions: pd.DataFrame
) -> None:
    own, curves = (table[table["encoding"] == "alibi"] for table in (rows, positions))
    evaluated_run(tmp_path, 0, own.assign(run_id="a", accuracy=0.5, unknown=1.0), curves.assign(run_id="a"))
    evaluated_run(tmp_path, 1, own.assign(run_id="b"), curves.assign(run_id="b"))
    table, *_ = collect(tmp_path, {"accuracy": ("float64", "share of correct answers")})
    assert table.groupby("run_id")["accuracy"].mean().to_dict() == pytest.approx({"a": 0.5, "b": math.nan}, nan_ok=True)
    assert "unknown" not in table
    assert "accuracy" not in collect(tmp_path)[0]


def test_a_new_baseline_is_drawn_and_named(rows: pd.DataFrame) -> None:
    sinks = rows[rows["variant"] == "window"].assign(variant="sink(4)+window")
    drawing = context_gain_by_length(pd.concat([rows, sinks], ignore_index=True))
    notes = " ".join(text.get_text() for text in drawing.page.figure.texts).replace("\n", " ")
    assert "dotted lines: the same models under the baseline window." in notes
    assert "dash-dotted lines: the same models under the baseline sink(4)+window." in notes
    assert "crop" not in notes  # its gain is zero by definition


# ---- the terminal


@pytest.mark.parametrize("width", [100, 140])
def test_terminal_table_fits_and_needs_no_colour(report: Report, width: int) -> None:
    console = printed(width)
    terminal.show(report, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    for word in (*BEHAVIOUR, MAY_USE_CONTEXT, BREAKS, "unsupported", REASON, "3.94", "16x"):
        assert word in text


def test_the_table_of_lengths_gives_a_reason_once(rows: pd.DataFrame) -> None:
    console = printed(240)
    terminal.show_fresh([part for _, part in rows.groupby("run_id")], console, summed=False)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("unsupported") == 4
    assert text.count("no row for position") == 1


# ---- the pictures


def drawings(rows: pd.DataFrame, positions: pd.DataFrame) -> list[Drawing]:
    made = [perplexity_by_length(rows), context_gain_by_length(rows), loss_by_position(positions)]
    for drawing in made:
        drawing.page.canvas.draw()
    return made


def test_pictures_have_the_size_of_a_page(report: Report) -> None:
    for picture in report.sections[0].pictures:
        with Image.open(picture.path) as image:
            assert image.width == 1280
            assert 780 <= image.height <= 860
            assert image.info["dpi"] == pytest.approx((160, 160), abs=0.1)


def test_lines_are_drawn_at_the_numbers_of_the_summary(rows: pd.DataFrame) -> None:
    summary = by_name(summarize(rows))
    drawn = [list(line.get_ydata()) for line in perplexity_by_length(rows).page.axes.get_lines()]
    for name in ("alibi", "rope"):
        numbers = [summary.loc[name, f"ppl_{ratio}x"] for ratio in (1, 2, 4, 8, 16)]
        assert any(len(line) == 5 and line == pytest.approx(numbers) for line in drawn)


@pytest.mark.parametrize("shapes", first(2, [{"alibi": BEHAVIOUR["alibi"]}, BEHAVIOUR, many(30)]), ids=["1", "6", "30"])
def test_labels_stay_on_the_page_and_apart(shapes: dict) -> None:
    rows, positions = results(shapes)
    alive = {name for name, (_, gain) in shapes.items() if gain is not None}
    for page, alt in drawings(rows, positions):
        assert alt.count("?") == 1
        renderer, extent = page.canvas.get_renderer(), page.figure.bbox
        texts = [text for text in page.figure.findobj(Annotation) if text.get_text()]
        boxes = [text.get_window_extent(renderer) for text in [*texts, *page.figure.texts]]
        assert all(box.x1 <= extent.x1 and box.y0 >= 0 and box.y1 <= extent.y1 for box in boxes)
        named = [text for text in texts if text.get_text().split()[0] in shapes]
        assert {text.get_text().split()[0] for text in named} >= alive
        at_right = [b for t in named if (b := t.get_window_extent(renderer)).x0 > page.axes.bbox.x1]
        assert not any(one.overlaps(other) for one, other in combinations(at_right, 2))


def test_failures_are_marks_at_their_lengths(rows: pd.DataFrame) -> None:
    strip = perplexity_by_length(rows).page.strip
    assert strip is not None
    (marks,) = strip.get_lines()
    assert list(marks.get_xdata()) == [512, 1024, 2048, 4096]
    assert marks.get_marker() == "x"
    assert any("learned: unsupported from 2x" in text.get_text() for text in strip.texts)


def test_a_small_gain_is_visible_beside_a_collapse(rows: pd.DataFrame) -> None:
    axes = context_gain_by_length(rows).page.axes
    zero, low, high = (axes.transData.transform((1, value))[1] for value in (0, 0.017, 0.026))
    assert low - zero > 25  # pixels, of 800
    assert high - low > 12
    assert axes.get_ylim()[0] < -4.4  # the interval of the collapse is inside


def test_a_picture_without_numbers_says_why(rows: pd.DataFrame) -> None:
    with pytest.raises(NothingToPlot, match="no protocol measured a gain"):
        context_gain_by_length(rows[rows["protocol"] == "nonoverlapping"])


def test_styles_differ_without_colour() -> None:
    names = [f"e{index}" for index in range(MAX_COLORED_LINES)]
    looks = styles_for(names).values()
    for one, other in combinations(looks, 2):
        assert (one.dash, one.marker, one.filled) != (other.dash, other.marker, other.filled)
        assert one.color != other.color
    crowd = styles_for([f"e{index:02d}" for index in range(50)], ["failed"])
    assert [name for name, style in crowd.items() if style.strong] == ["e00", "e01", "e02", "e03", "e04", "e48", "e49"]


def test_an_encoding_keeps_its_look_when_the_ranking_changes() -> None:
    assert styles_for(["a", "b", "c"]) == styles_for(["c", "a"], ["b"])


def test_labels_move_as_little_as_possible() -> None:
    assert place_labels([1.0, 5.0], 1.0, 0, 10) == pytest.approx([1.0, 5.0])
    assert place_labels([5.0, 5.0, 5.0], 1.0, 0, 10) == pytest.approx([4.0, 5.0, 6.0])
    assert place_labels([9.9, 9.8], 1.0, 0, 10) == pytest.approx([10.0, 9.0])
    assert place_labels([], 1.0, 0, 10) == []


def test_an_ok_row_without_a_finite_loss_is_nonfinite(rows: pd.DataFrame) -> None:
    broken = change(rows, (rows["encoding"] == "rope") & (rows["length"] == 4096), nll=math.inf)
    points = pool(broken, "sliding").set_index(["encoding", "length"])
    assert points.loc[("rope", 4096), "status"] == "nonfinite"


# --- runs of several tokenizers


def of_two_tokenizers() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs on bytes, and runs with tokens of 4 bytes whose losses per token are 5 times as large."""
    ours, of_bytes = results(corpus="stdlib")
    theirs, of_tokens = results(fingerprint="77aa88bb99cc")
    five = ["nll", "nll_low", "nll_high", "gain", "gain_low", "gain_high", "unigram", "chance", "guess_gain_low"]
    theirs = theirs.assign(tokenizer="bpe:300 (bpe1-0123456789abcdef)", bytes=4 * theirs["tokens"])
    theirs = theirs.assign(**{name: 5 * theirs[name] for name in five})
    theirs = theirs.assign(ppl=np.exp(theirs["nll"]), bpb=theirs["nll"] / math.log(2) / 4)
    of_tokens = of_tokens.assign(nll=5 * of_tokens["nll"])
    return pd.concat([ours, theirs], ignore_index=True), pd.concat([of_bytes, of_tokens], ignore_index=True)


def test_several_tokenizers_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        build_report(*of_two_tokenizers(), tmp_path)
    assert "tokenizers bpe:300 (6 runs) and bytes (6 runs)" in str(caught.value)
    assert "--mix compares them in bits per byte" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_several_tokenizers_are_mixed_in_bits_per_byte_only(tmp_path: Path) -> None:
    rows, positions = of_two_tokenizers()
    report = build_report(rows, positions, tmp_path, mix=True)
    (section,) = report.sections
    table = section.summary.set_index("encoding")
    ours, theirs = table.loc["alibi [bytes]"], table.loc["alibi [bpe:300]"]
    assert theirs["bpb_16x"] == pytest.approx(1.25 * ours["bpb_16x"])  # 5 times the nats on 4 times the bytes
    assert theirs["gain_bpb"] == pytest.approx(1.25 * ours["gain_bpb"])
    assert list(section.summary["bpb_16x"].dropna()) == sorted(section.summary["bpb_16x"].dropna())
    text = text_of(report)
    told = text.lower().replace("perplexity.png", "").replace("perplexity scripts", "")  # of papers
    assert "perplexity" not in told
    assert "bits per byte, reading windows of 1, 2, ... times L = 256 tokens" in text
    assert "bpe:300: 256 tokens are about 1024 bytes (4 each)" in text.replace("1.02k", "1024")
    assert "sliding 131k (of 21 documents)" in text  # tokens, not bytes
    written = pd.read_csv(tmp_path / "summary.csv")
    assert written.filter(regex="^ppl_|^growth$").isna().all(axis=None)
    ends = section.group.positions[section.group.positions["to"] == 4096].set_index("encoding")["nll"]
    assert ends["alibi [bpe:300]"] == pytest.approx(1.25 * ends["alibi [bytes]"])


def test_runs_of_other_tokenizers_are_not_paired(tmp_path: Path) -> None:
    rows, _ = of_two_tokenizers()
    group = split(rows, frame([], POSITION_COLUMNS), {"units": units_of(rows)}, mix=True)[0]
    assert group.units is not None
    found = against(group.rows, group.units, "alibi [bytes]").set_index("encoding")["word"]
    assert set(found["rope [bpe:300]"]) == {"not compared"}
    assert "not compared" not in set(found["rope [bytes]"])


def test_a_report_says_how_many_bytes_a_window_is(tmp_path: Path) -> None:
    rows, positions = of_two_tokenizers()
    own = rows["tokenizer"] != "bytes"
    assert "bpe:300: 256 tokens are about" in text_of(build_report(rows[own], positions, tmp_path / "a"))
    assert "Bytes in a window" not in text_of(build_report(rows[~own], positions, tmp_path / "b"))


def test_what_failed_for_one_seed_is_not_the_best_in_a_table(tmp_path: Path) -> None:
    shapes = {"alibi": (1.4, lambda octaves: 0.1 * octaves), "none": (1.4, lambda octaves: 0.02 * octaves)}
    rows, positions, _ = fake_tables(shapes | {"rope": (1.4, lambda octaves: 0.01 * octaves)}, (256, 1024))
    for failed, best in (("nobody", "alibi"), ("alibi", "none")):
        report = build_report(failed_once(rows, failed), positions, tmp_path / failed)
        table = next(column for column in summary_columns(report.sections[0].summary) if column.name.startswith("gain"))
        assert list(report.sections[0].summary["encoding"])[table.best] == best
