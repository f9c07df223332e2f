"""The report: numbers recomputed by hand, verdicts at their edges, failures kept, pictures that can be read."""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest
from fake_pages import against, failed_once, fake_tables
from fake_results import BEHAVIOUR, LN2, evaluated_run, many, of_two_tokenizers, results, units_of
from matplotlib.text import Annotation
from rich.console import Console
from toys import first

from poscli.drawing.page import Page, place_labels
from poscli.drawing.style import MAX_COLORED_LINES, styles_for
from poscli.report import (
    Report,
    build_report,
    collect,
    folder,
    summarize,
    terminal,
)
from poscli.report.figures import page_of
from poscli.report.folder import write_folder
from poscli.report.groups import split
from poscli.report.pooling import headline, pool, untrained, with_intervals
from poscli.report.summary import standings
from poscli.report.table import summary_columns
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


# ---- models that learned nothing


def guessing(rows: pd.DataFrame, name: str = "alibi", *, seed: int = 0, nll: float = 5.55) -> pd.DataFrame:
    """The rows with a seed of an encoding that predicts everywhere as before training; crop changes nothing then."""
    mine = (rows["encoding"] == name) & (rows["seed"] == seed)
    numbers = {"nll": nll, "ppl": math.exp(nll), "bpb": nll / LN2, "nll_low": nll - 0.01, "nll_high": nll + 0.01}
    gains = {"guess_gain_low": 3.3 - nll - 0.01, "gain": 0.0, "gain_low": -0.0001, "gain_high": 0.0001}
    return change(rows, mine & (rows["status"] == "ok"), **numbers, **gains)


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


def test_one_untrained_seed_is_not_hidden_by_the_mean_over_seeds() -> None:
    rows = guessing(results(seeds=(0, 1, 2))[0], seed=2)
    line = by_name(summarize(rows)).loc["alibi"]
    assert line["verdict"] == NOT_TRAINED
    assert line["reason"].startswith("1 of 3 seeds: its loss")


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


# ---- files


def test_nothing_to_report_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(PoscliError, match=r"poscli train --enc alibi.*poscli extrapolate --max-len 8192"):
        collect(tmp_path)
    with pytest.raises(PoscliError, match="poscli train --enc alibi"):
        build_report(frame([], EVAL_COLUMNS), frame([], POSITION_COLUMNS), tmp_path)


def test_runs_that_all_failed_are_still_a_report(tmp_path: Path, rows: pd.DataFrame) -> None:
    numbers = dict.fromkeys(("nll", "ppl", "bpb", "gain"), math.nan)
    failed = change(rows, rows["length"] > 0, status="diverged", reason="the loss rose to 9.1", **numbers)
    report = build_report(failed, frame([], POSITION_COLUMNS), tmp_path)
    assert not report.sections[0].pictures
    assert any("No picture of gain" in note for note in report.notes)
    assert "the loss rose to 9.1" in (tmp_path / "report.md").read_text(encoding="utf-8")


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


# ---- no number where there is none


def test_a_failed_seed_is_not_the_best_of_the_others(rows: pd.DataFrame) -> None:
    three = results({name: BEHAVIOUR[name] for name in ("alibi", "rope", "none")}, seeds=(0, 1, 2))[0]
    bad = (three["encoding"] == "alibi") & (three["seed"] == 1) & (three["length"] == 4096)
    summary = summarize(change(three, bad, status="oom", nll=math.nan, gain=math.nan))
    columns = {column.name: column for column in summary_columns(summary)}
    alibi = list(summary["encoding"]).index("alibi")
    assert summary["ppl_16x"].idxmin() == alibi  # the mean of two seeds
    assert columns["16x"].best not in (None, alibi)
    assert columns["8x"].best == alibi


@pytest.mark.parametrize(("status", "hole"), [("oom", 1024), ("diverged", 4096)])
def test_a_status_never_becomes_a_number(tmp_path: Path, rows: pd.DataFrame, status: str, hole: int) -> None:
    numbers = dict.fromkeys(("nll", "nll_low", "nll_high", "ppl", "bpb", "gain", "gain_low", "gain_high"), math.nan)
    bad = (rows["encoding"] == "alibi") & (rows["length"] == hole)
    rows = change(rows, bad, status=status, reason="it went wrong", tokens=0, bytes=0, documents=0, **numbers)
    ratio = f"{hole // 256}x"
    report = build_report(rows, frame([], POSITION_COLUMNS), tmp_path)
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


def test_a_loss_too_large_for_a_perplexity_is_drawn_as_a_failure(tmp_path: Path, rows: pd.DataFrame) -> None:
    huge = change(rows, (rows["encoding"] == "rope") & (rows["length"] == 4096), nll=1e6, nll_low=1e6, nll_high=1e6)
    report = build_report(huge, frame([], POSITION_COLUMNS), tmp_path)
    assert by_name(report.summary).loc["rope", "ppl_16x"] == math.inf
    missing = {each.names: each.cause for each in report.sections[0].figures[0].missing}
    assert missing["rope",] == "infinite from 16x"


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
    terminal.print_report(report, console)
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


# ---- the terminal


@pytest.mark.parametrize("width", [100, 140])
def test_terminal_table_fits_and_needs_no_colour(report: Report, width: int) -> None:
    console = printed(width)
    terminal.print_report(report, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    for word in (*BEHAVIOUR, MAY_USE_CONTEXT, BREAKS, "unsupported", REASON, "3.94", "16x"):
        assert word in text


# ---- the pictures


def pages(rows: pd.DataFrame, positions: pd.DataFrame, folder: Path) -> list[tuple[Page, str]]:
    """Every picture of the first section, and its alternative text."""
    (section, *_) = build_report(rows, positions, folder).sections
    styles = styles_for(*standings(section.summary))
    return [(page_of(figure, styles), figure.alt) for figure in section.figures]


@pytest.mark.parametrize("shapes", first(2, [{"alibi": BEHAVIOUR["alibi"]}, BEHAVIOUR, many(30)]), ids=["1", "6", "30"])
def test_labels_stay_on_the_page_and_apart(shapes: dict, tmp_path: Path) -> None:
    alive = {name for name, (_, gain) in shapes.items() if gain is not None}
    for page, alt in pages(*results(shapes), tmp_path):
        page.canvas.draw()
        assert alt.count("?") == 1
        renderer, extent = page.canvas.get_renderer(), page.figure.bbox
        texts = [text for text in page.figure.findobj(Annotation) if text.get_text()]
        boxes = [text.get_window_extent(renderer) for text in [*texts, *page.figure.texts]]
        assert all(box.x1 <= extent.x1 and box.y0 >= 0 and box.y1 <= extent.y1 for box in boxes)
        named = [text for text in texts if text.get_text().split()[0] in shapes]
        assert {text.get_text().split()[0] for text in named} >= alive
        at_right = [b for t in named if (b := t.get_window_extent(renderer)).x0 > page.axes.bbox.x1]
        assert not any(one.overlaps(other) for one, other in combinations(at_right, 2))


def test_a_small_gain_is_visible_beside_a_collapse(rows: pd.DataFrame, positions: pd.DataFrame, tmp_path: Path) -> None:
    axes = pages(rows, positions, tmp_path)[1][0].axes
    zero, low, high = (axes.transData.transform((1, value))[1] for value in (0, 0.017, 0.026))
    assert low - zero > 25  # pixels, of 800
    assert high - low > 12
    assert axes.get_ylim()[0] < -4.4  # the interval of the collapse is inside


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
    ends = dict(zip((each.name for each in section.encodings), section.positions[-1].values, strict=True))
    assert ends["alibi [bpe:300]"] == pytest.approx([1.25 * value for value in ends["alibi [bytes]"]])


def test_runs_of_other_tokenizers_are_not_paired(tmp_path: Path) -> None:
    rows, _ = of_two_tokenizers()
    group = split(rows, frame([], POSITION_COLUMNS), {"units": units_of(rows)}, mix=True)[0]
    assert group.units is not None
    found = against(group.rows, group.units, "alibi [bytes]").set_index("encoding")["word"]
    assert set(found["rope [bpe:300]"]) == {"not compared"}
    assert "not compared" not in set(found["rope [bytes]"])


def test_what_failed_for_one_seed_is_not_the_best_in_a_table(tmp_path: Path) -> None:
    shapes = {"alibi": (1.4, lambda octaves: 0.1 * octaves), "none": (1.4, lambda octaves: 0.02 * octaves)}
    rows, positions, _ = fake_tables(shapes | {"rope": (1.4, lambda octaves: 0.01 * octaves)}, (256, 1024))
    for failed, best in (("nobody", "alibi"), ("alibi", "none")):
        report = build_report(failed_once(rows, failed), positions, tmp_path / failed)
        table = next(column for column in summary_columns(report.sections[0].summary) if column.name.startswith("gain"))
        assert list(report.sections[0].summary["encoding"])[table.best] == best
