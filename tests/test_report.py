"""The report: numbers recomputed by hand, verdicts at their edges, failures kept, pictures that can be read."""

from __future__ import annotations

import io
import json
import math
from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest
from fake_results import BEHAVIOUR, LN2, many, results
from matplotlib.text import Annotation
from PIL import Image
from rich.console import Console

from poscli import plots
from poscli.errors import PoscliError, UsageError
from poscli.report import build_report, collect, records, summarize, terminal, trained_tokens
from poscli.report.canvas import Page, spread
from poscli.report.sections import split
from poscli.report.series import pool
from poscli.report.style import MOST, styles_for
from poscli.report.summary import BREAKS, FADES, HOLDS, UNCLEAR, UNTESTED, USES, verdict
from poscli.results import EVAL_COLUMNS, POSITION_COLUMNS, TRAIN_COLUMNS, frame, write_table

REASON = "learned table of 256 positions has no row for position 4096"


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return results()[0]


@pytest.fixture(scope="module")
def positions() -> pd.DataFrame:
    return results()[1]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> list[Page]:
    """The pages drawn in a test, instead of files."""
    pages: list[Page] = []
    monkeypatch.setattr(Page, "save", lambda self, path: (self.canvas.draw(), pages.append(self)))
    return pages


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures that cost nothing, for tests of what is around them."""
    for name in ("perplexity_by_length", "context_gain_by_length", "loss_by_position"):
        monkeypatch.setattr(plots, name, lambda data, path, **_: (path.touch(), "What? That.")[1])


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
    summary = by_name(summarize(results(seeds=(0, 1, 2))[0]))
    line, one = summary.loc["rope"], by_name(summarize(results(seeds=(1,))[0])).loc["rope"]
    gains = [-0.16 * 8 * factor for factor in (0.94, 1.0, 1.06)]
    assert line["seeds"] == 3
    assert line["ppl_16x"] == pytest.approx(math.exp(sum(1.36 - gain for gain in gains) / 3))
    spread_of_seeds = 4.302653 * 0.0768 / math.sqrt(3)  # Student's t of two degrees, standard deviation of the gains
    documents = 0.002 + 0.08 * 1.28
    half = math.hypot(spread_of_seeds, documents) / LN2
    assert line["gain_bpb"] - line["gain_bpb_low"] == pytest.approx(half, rel=1e-5)
    assert line["gain_bpb_high"] - line["gain_bpb_low"] > one["gain_bpb_high"] - one["gain_bpb_low"]


def test_bits_are_per_byte_where_tokens_are_longer(rows: pd.DataFrame) -> None:
    halved = rows.assign(bytes=rows["bytes"] * 4)
    assert by_name(summarize(halved)).loc["alibi", "gain_bpb"] == pytest.approx(
        by_name(summarize(rows)).loc["alibi", "gain_bpb"] / 4
    )


@pytest.mark.parametrize(
    ("gain", "low", "high", "word"),
    [
        (0.05, 1e-9, 0.1, USES),
        (0.05, 0.0, 0.1, HOLDS),
        (-0.05, -0.1, 0.0, HOLDS),
        (0.0, -0.1, 0.1, HOLDS),
        (-0.0008, -0.0012, -0.0003, HOLDS),  # significant, and of no consequence
        (-0.1, -0.2, -0.0099, HOLDS),
        (-0.5, -1.0, -0.0099, HOLDS),  # it may be nothing
        (-0.1, -0.2, -0.01, FADES),
        (-0.299, -0.5, -0.2, FADES),
        (-0.3, -0.5, -0.2, BREAKS),
        (0.0, math.nan, math.nan, UNCLEAR),
        (0.1, 0.1, math.nan, UNCLEAR),
    ],
)
def test_verdict_at_the_edges_of_the_interval(gain: float, low: float, high: float, word: str) -> None:
    assert verdict(gain, low, high) == word


def test_best_at_the_longest_length_first_and_failures_last(rows: pd.DataFrame) -> None:
    summary = summarize(rows)
    assert list(summary["encoding"]) == ["alibi", "t5(buckets=32)", "none", "rope", "sinusoidal", "learned"]
    assert list(summary["verdict"]) == [USES, FADES, BREAKS, BREAKS, BREAKS, "unsupported"]
    assert summary["reason"].iloc[-1] == REASON
    assert math.isnan(summary["ppl_16x"].iloc[-1])


def test_one_failed_seed_is_a_failure_with_the_numbers_of_the_others() -> None:
    rows, _ = results(seeds=(0, 1, 2))
    bad = (rows["encoding"] == "alibi") & (rows["seed"] == 1) & (rows["length"] == 4096)
    rows = change(rows, bad, status="nonfinite", reason="the loss is not a number", nll=math.nan, gain=math.nan)
    summary = summarize(rows)
    assert set(summary["encoding"].tail(2)) == {"alibi", "learned"}
    line = by_name(summary).loc["alibi"]
    assert line["verdict"] == "nonfinite"
    assert line["reason"] == "1 of 3 seeds: the loss is not a number"
    assert line["ppl_16x"] == pytest.approx(math.exp(1.385 - 0.016))


def test_a_shorter_evaluation_is_not_a_verdict(rows: pd.DataFrame) -> None:
    short = rows[(rows["encoding"] != "alibi") | (rows["length"] <= 1024)]
    line = by_name(summarize(short)).loc["alibi"]
    assert (line["verdict"], line["max_length"]) == (UNTESTED, 4096)
    assert line["ppl_4x"] > 0
    assert math.isnan(line["ppl_16x"])
    assert set(summarize(rows[rows["length"] == 256])["verdict"]) == {UNTESTED}


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
    assert told[0]["verdict"] == USES


# ---- groups


@pytest.mark.usefixtures("no_pictures")
def test_each_corpus_and_length_is_its_own_section(tmp_path: Path) -> None:
    small = {name: BEHAVIOUR[name] for name in ("alibi", "rope")}
    parts = [results(), results(small, train_length=512), results(small, fingerprint="beef00112233", seeds=(7,))]
    rows, positions = (pd.concat(tables, ignore_index=True) for tables in zip(*parts, strict=True))
    report = build_report(rows, positions, tmp_path)
    assert [len(section.summary) for section in report.sections] == [6, 2, 2]
    names = {path.name for path in report.files}
    assert {"perplexity-stdlib-L512.png", "gain-stdlib-L256-3f2a9c41.png", "position-stdlib-L256-beef0011.png"} <= names
    assert all(path.exists() for path in report.files)
    assert report.summary.groupby(["fingerprint", "train_length"]).ngroups == 3
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.count("### How this was made") == 3
    assert "cannot be compared" in text


def test_mix_joins_corpora_and_tells_them_apart() -> None:
    parts = [results(), results(fingerprint="beef00112233", seeds=(7,))]
    rows, positions = (pd.concat(tables, ignore_index=True) for tables in zip(*parts, strict=True))
    (group,) = split(rows, positions, mix=True)
    assert {"alibi [3f2a9c]", "alibi [beef00]"} <= set(group.rows["encoding"])
    assert set(group.positions["encoding"]) == set(group.rows["encoding"])
    assert "alibi" in group.notes[0]


def test_runs_of_one_encoding_that_differ_are_never_averaged(rows: pd.DataFrame, positions: pd.DataFrame) -> None:
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
    for run, part in rows.groupby("run_id"):
        write_table(tmp_path / str(run) / "eval.csv", part)
        if run != rows["run_id"].iloc[0]:
            write_table(tmp_path / str(run) / "position.csv", positions[positions["run_id"] == run])
        log = pd.DataFrame([{**dict.fromkeys(TRAIN_COLUMNS, 1), "tokens": 9000, "status": "ok"}])
        write_table(tmp_path / str(run) / "train.csv", log)
    evals, curves = collect(tmp_path)
    pd.testing.assert_frame_equal(summarize(evals), summarize(rows))
    assert curves["run_id"].nunique() == len(BEHAVIOUR) - 1
    assert set(trained_tokens(tmp_path).values()) == {9000}


def test_nothing_to_report_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(PoscliError, match=r"poscli train --enc alibi.*poscli extrapolate --max-len 8192"):
        collect(tmp_path)
    with pytest.raises(PoscliError, match="poscli train --enc alibi"):
        build_report(frame([], EVAL_COLUMNS), frame([], POSITION_COLUMNS), tmp_path)


def test_report_says_everything(tmp_path: Path, rows: pd.DataFrame, positions: pd.DataFrame) -> None:
    bar = rows["encoding"].replace("none", "rope|none")
    report = build_report(rows.assign(encoding=bar), positions, tmp_path, trained={rows["run_id"].iloc[0]: 2_100_000})
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for name in BEHAVIOUR:
        assert name in text
    assert "rope\\|none" in text
    for word in (REASON, "3f2a9c41d0e7", "2.1M tokens", "0123abc", "sdpa", "One seed each"):
        assert word in text
    for picture in report.sections[0].pictures:
        assert picture.path.exists()
        assert f"]({picture.path.name})" in text
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in tables} == {12, 8}  # no cell was cut by a bar
    back = pd.read_csv(tmp_path / "summary.csv")
    assert back["gain_bpb"].to_numpy() == pytest.approx(report.summary["gain_bpb"].to_numpy(), nan_ok=True)


def test_runs_that_all_failed_are_still_a_report(tmp_path: Path, rows: pd.DataFrame) -> None:
    numbers = dict.fromkeys(("nll", "ppl", "bpb", "gain"), math.nan)
    failed = change(rows, rows["length"] > 0, status="diverged", reason="the loss rose to 9.1", **numbers)
    report = build_report(failed, frame([], POSITION_COLUMNS), tmp_path)
    assert not report.sections[0].pictures
    assert any("No picture of gain" in note for note in report.notes)
    assert "the loss rose to 9.1" in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_pictures")
def test_caveats_speak_up(rows: pd.DataFrame, positions: pd.DataFrame, tmp_path: Path) -> None:
    doubtful = rows.assign(resampled="spans", gain_low=-0.4, gain_high=0.4)
    doubtful.loc[doubtful["encoding"] == "rope", ["parameters", "stride"]] = [9_000_000, 64]
    notes = " ".join(build_report(doubtful, positions, tmp_path).notes)
    for word in ("spans of text", "too wide to rule out harm", "842k to 9M parameters", "strides of 64 to 128"):
        assert word in notes


# ---- the terminal


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("width", [100, 140])
def test_terminal_table_fits_and_needs_no_colour(
    tmp_path: Path, rows: pd.DataFrame, positions: pd.DataFrame, width: int
) -> None:
    report = build_report(rows, positions, tmp_path)
    console = Console(width=width, file=io.StringIO(), no_color=True)
    terminal.show(report, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    for word in (*BEHAVIOUR, USES, BREAKS, "unsupported", REASON, "3.94", "16x"):
        assert word in text


def test_rows_of_a_run_as_a_table(rows: pd.DataFrame) -> None:
    console = Console(width=240, file=io.StringIO())
    console.print(terminal.lengths_table([part for _, part in rows.groupby("run_id")]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("unsupported") == 4
    assert text.count("no row for position") == 1


# ---- the pictures


def test_pictures_have_their_size_and_follow_the_data(
    tmp_path: Path, rows: pd.DataFrame, positions: pd.DataFrame
) -> None:
    for name, draw, data in (
        ("ppl", plots.perplexity_by_length, rows),
        ("gain", plots.context_gain_by_length, rows),
        ("position", plots.loss_by_position, positions),
    ):
        draw(data, tmp_path / f"{name}.png")
        other = change(data, data["encoding"] == "rope", nll=data["nll"] * 1.1, ppl=9.0, gain=-0.5)
        draw(other[list(data.columns)], tmp_path / "other.png")
        with Image.open(tmp_path / f"{name}.png") as picture, Image.open(tmp_path / "other.png") as changed:
            assert picture.width == 1280
            assert 780 <= picture.height <= 860
            assert picture.info["dpi"] == pytest.approx((160, 160), abs=0.1)
            assert picture.tobytes() != changed.tobytes()


@pytest.mark.parametrize("shapes", [{"alibi": BEHAVIOUR["alibi"]}, BEHAVIOUR, many(30)], ids=["1", "6", "30"])
def test_labels_stay_on_the_page_and_apart(page: list[Page], shapes: dict) -> None:
    rows, positions = results(shapes)
    said = [
        plots.perplexity_by_length(rows, Path("a.png")),
        plots.context_gain_by_length(rows, Path("b.png")),
        plots.loss_by_position(positions, Path("c.png")),
    ]
    assert all(text.count("?") == 1 for text in said)
    for drawn in page:
        renderer, extent = drawn.canvas.get_renderer(), drawn.figure.bbox
        texts = [text for text in drawn.figure.findobj(Annotation) if text.get_text()]
        boxes = [text.get_window_extent(renderer) for text in [*texts, *drawn.figure.texts]]
        assert all(box.x1 <= extent.x1 and box.y0 >= 0 and box.y1 <= extent.y1 for box in boxes)
        named = [text for text in texts if text.get_text().split()[0] in shapes]
        assert {text.get_text().split()[0] for text in named} >= set(rows.loc[rows["ratio"] == 16, "encoding"]) - {
            name for name, (_, gain) in shapes.items() if gain is None
        }
        at_right = [b for t in named if (b := t.get_window_extent(renderer)).x0 > drawn.axes.bbox.x1]
        assert not any(one.overlaps(other) for one, other in combinations(at_right, 2))


def test_failures_are_marks_at_their_lengths(page: list[Page], rows: pd.DataFrame) -> None:
    plots.perplexity_by_length(rows, Path("a.png"))
    assert page[0].strip is not None
    (marks,) = page[0].strip.get_lines()
    assert list(marks.get_xdata()) == [512, 1024, 2048, 4096]
    assert marks.get_marker() == "x"
    assert any("learned: unsupported from 2x" in text.get_text() for text in page[0].strip.texts)


def test_a_small_gain_is_visible_beside_a_collapse(page: list[Page], rows: pd.DataFrame) -> None:
    plots.context_gain_by_length(rows, Path("a.png"))
    axes = page[0].axes
    zero, low, high = (axes.transData.transform((1, value))[1] for value in (0, 0.017, 0.026))
    assert low - zero > 25  # pixels, of 800
    assert high - low > 12
    assert axes.get_ylim()[0] < -4.4  # and the collapse is inside


def test_styles_differ_without_colour() -> None:
    names = [f"e{index}" for index in range(MOST)]
    looks = styles_for(names).values()
    for one, other in combinations(looks, 2):
        assert (one.dash, one.marker, one.filled) != (other.dash, other.marker, other.filled)
        assert one.color != other.color
    crowd = styles_for([f"e{index:02d}" for index in range(50)], ["failed"])
    assert [name for name, style in crowd.items() if style.strong] == ["e00", "e01", "e02", "e03", "e04", "e48", "e49"]


def test_an_encoding_keeps_its_look_when_the_ranking_changes() -> None:
    assert styles_for(["a", "b", "c"]) == styles_for(["c", "a"], ["b"])


def test_labels_move_as_little_as_possible() -> None:
    assert spread([1.0, 5.0], 1.0, 0, 10) == [1.0, 5.0]
    assert spread([5.0, 5.0, 5.0], 1.0, 0, 10) == pytest.approx([4.0, 5.0, 6.0])
    assert spread([9.9, 9.8], 1.0, 0, 10) == pytest.approx([10.0, 9.0])
    assert spread([], 1.0, 0, 10) == []


def test_failed_rows_with_a_number_missing_are_nonfinite(rows: pd.DataFrame) -> None:
    broken = change(rows, (rows["encoding"] == "rope") & (rows["length"] == 4096), nll=math.inf)
    points = pool(broken, "sliding").set_index(["encoding", "length"])
    assert points.loc[("rope", 4096), "status"] == "nonfinite"
