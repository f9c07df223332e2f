"""Values of reports that follow from a few rows by hand: notes, labels, cells of the tables, points of the figures."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
from fake_results import BEHAVIOUR, LN2, many, results
from rich.console import Console

from poscli.report import build_report
from poscli.report.caveats import caveats
from poscli.report.figures import context_gain_by_length, loss_by_position, perplexity_by_length
from poscli.report.markdown import _protocols, report_markdown
from poscli.report.origin import _list, scored_at_the_end, unit_of
from poscli.report.pooling import pool
from poscli.report.sections import About, Report, _file_name, name_runs
from poscli.report.summary import join, summarize
from poscli.report.table import Column, failures, summary_columns
from poscli.report.terminal import OPTIONAL_COLUMNS, _fitting, comparison_table, lengths_table, summary_table

TWO = {name: BEHAVIOUR[name] for name in ("alibi", "rope")}


def cells(summary: pd.DataFrame, name: str) -> dict[str, str]:
    """One column of the summary's table by encoding."""
    columns = {column.name: column.cells for column in summary_columns(summary)}
    return dict(zip(columns["encoding"], columns[name], strict=True))


def printed(table: object) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


# ---- caveats


def test_an_encoding_of_one_seed_beside_others_of_several_is_a_caveat() -> None:
    rows, _ = results(TWO, seeds=(0, 1, 2))
    assert caveats(rows, summarize(rows)) == []
    few = rows[(rows["encoding"] != "rope") | (rows["seed"] < 2)]
    (note,) = caveats(few, summarize(few))
    assert note == "Fewer than 3 seeds for rope: intervals leave out the spread between seeds."
    two = rows[rows["seed"] < 2]
    (note,) = caveats(two, summarize(two))
    assert note.startswith("Fewer than 3 seeds per encoding: intervals cover the choice of documents, not the spread")


@pytest.mark.parametrize(("parameters", "told"), [(968_000, False), (969_000, True)])
def test_models_may_differ_in_size_by_fifteen_percent(parameters: int, told: bool) -> None:
    rows, _ = results(TWO, seeds=(0, 1, 2))
    rows.loc[rows["encoding"] == "rope", "parameters"] = parameters  # beside 842,000
    assert [note for note in caveats(rows, summarize(rows)) if "parameters" in note] == (
        ["Models have 842k to 969k parameters: size may explain part of a difference."] if told else []
    )


# ---- pooling and names


def test_a_failure_of_some_seeds_says_of_how_many() -> None:
    rows, _ = results(TWO, seeds=(0, 1, 2))
    longest = (rows["encoding"] == "rope") & (rows["length"] == 4096)
    lost = {"status": "diverged", "reason": "too large", "nll": math.nan}
    rows.loc[longest & (rows["seed"] < 2), list(lost)] = list(lost.values())
    points = pool(rows, "sliding").set_index(["encoding", "length"])
    assert points.loc[("rope", 4096), "reason"] == "2 of 3 seeds: too large"
    rows.loc[longest, list(lost)] = list(lost.values())
    points = pool(rows, "sliding").set_index(["encoding", "length"])
    assert points.loc[("rope", 4096), "reason"] == "too large"
    assert math.isnan(points.loc[("rope", 4096), "ppl"])
    assert points.loc[("rope", 2048), "status"] == "ok"


def test_bands_of_few_seeds_are_the_interval_over_documents_about_their_mean() -> None:
    for seeds, low, high in (((1,), 1.33, 1.39), ((0, 2), 1.36 + 0.16 - 0.03, 1.36 + 0.16 + 0.03)):
        length = 256 if len(seeds) == 1 else 512
        points = pool(results(TWO, seeds=seeds)[0], "sliding").set_index(["encoding", "length"]).loc[("rope", length)]
        assert (points["ppl_low"], points["ppl_high"]) == pytest.approx((math.exp(low), math.exp(high)))


def test_runs_that_differ_in_more_than_the_seed_carry_the_end_of_their_names() -> None:
    rows, _ = results({"query-bias": (1.4, lambda octaves: 0.0), "rope": BEHAVIOUR["rope"]})
    again = rows[rows["encoding"] == "query-bias"].assign(run_id="query-bias-s0-99ab")
    labels, notes = name_runs(pd.concat([rows, again], ignore_index=True))
    assert labels["query-bias-s0-99ab"] == "query-bias [99ab]"
    assert labels["query-bias-3f22560"] == "query-bias [3f22560]"
    assert labels["rope-3f22560"] == "rope"
    (note,) = notes
    assert note.startswith("query-bias: several runs")


def test_rows_of_which_the_end_is_scored_have_a_stride_below_their_length() -> None:
    rows = results(TWO)[0].iloc[:4].assign(length=128, stride=[0, 1, 127, 128])
    assert list(scored_at_the_end(rows)["stride"]) == [1, 127]


def test_the_unit_is_a_byte_only_where_every_scored_token_is_one() -> None:
    rows, _ = results(TWO)
    assert unit_of(rows) == "byte"
    rows.loc[rows.index[-1], "bytes"] += 1
    assert unit_of(rows) == "token"
    rows.loc[rows.index[-1], "status"] = "unsupported"
    assert unit_of(rows) == "byte"
    assert unit_of(rows.iloc[:0]) == "token"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([10, 9, 100, 9], "9, 10, 100"),
        (["b", "", "a", "b"], "a, b"),
        ([math.nan, "bf16", ""], "bf16"),
        ([0.5, math.nan, 0.25], "0.25, 0.5"),
        ([math.nan, ""], ""),
    ],
)
def test_facts_list_distinct_values_without_missing_and_empty_ones(values: list[object], text: str) -> None:
    assert _list(pd.Series(values)) == text


# ---- tables


def test_cells_of_the_summary_are_its_numbers_and_dashes_where_there_are_none() -> None:
    summary = summarize(results()[0])
    assert cells(summary, "growth") == {
        "alibi": "0.99x", "t5(buckets=32)": "1.04x", "none": "1.54x", "rope": "3.33x", "sinusoidal": "16.8x",
        "learned": "-",
    }  # fmt: skip
    assert cells(summary, "gain 16x [95 %]")["alibi"] == "+0.022 [+0.017, +0.026]"
    assert cells(summary, "gain 16x [95 %]")["learned"] == "-"
    assert cells(summary, "bpb 16x")["learned"] == "-"
    assert cells(summary, "params")["rope"] == "842k"
    assert [name for name, *_ in failures(summary)] == ["learned"]


def test_lines_of_an_evaluation_are_in_bits_per_byte_with_short_names_of_protocols() -> None:
    rows = results({"rope": BEHAVIOUR["rope"]}, seeds=(1,), lengths=(256, 512))[0]
    text = printed(lengths_table([rows.assign(bytes=rows["bytes"] * 2)]))
    assert "sliding" in text
    assert "sliding." not in text
    assert "nonoverl." in text
    (line,) = (line for line in text.splitlines() if "512 (2x)" in line)
    gain = -0.16 / LN2 / 2
    assert f"{gain:+.3f} [" in line
    (first,) = (line for line in text.splitlines() if "256 (1x)" in line)
    assert first.strip().startswith("rope, seed 1")
    assert " - " in first  # no gain at the training length


def test_columns_are_left_out_only_where_the_terminal_is_too_narrow() -> None:
    summary = summarize(results()[0])
    without, table = _fitting(summary, Console(width=200))
    assert without == ()
    assert "gain 16x [95 %]" in printed(table)
    without, table = _fitting(summary, Console(width=80))
    assert without == OPTIONAL_COLUMNS[: len(without)]
    text = printed(table)
    assert "±" in text
    assert max(map(len, text.splitlines())) <= 80
    assert _fitting(summary, Console(width=30))[0] == OPTIONAL_COLUMNS


def test_only_names_and_verdicts_may_be_folded() -> None:
    table = summary_table(summarize(results(TWO)[0]))
    assert [str(column.header) for column in table.columns if not column.no_wrap] == ["encoding", "verdict"]
    assert [column.min_width for column in table.columns[:2]] == [12, None]
    assert str(table.columns[-2].header) == "gain 16x [95 %]"  # wide unless asked otherwise


def test_joined_summaries_are_numbered_through() -> None:
    summary = summarize(results(TWO)[0])
    assert list(join([summary, summary]).index) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf:owner/data_set", "hf-owner-data-set"),
        ("text:/" + "folder/" * 9 + "end", "r-" + "folder-" * 5 + "end"),
        ("/.", "corpus"),
    ],
)
def test_files_of_several_corpora_carry_the_last_forty_characters_of_their_names(name: str, expected: str) -> None:
    assert _file_name(name) == expected


def test_names_of_encodings_are_the_only_column_at_the_left() -> None:
    rows, _ = results(TWO)
    first, *others = _protocols(rows, summarize(rows))
    assert first == Column("encoding", ("alibi", "rope"), right=False)
    assert others
    assert all(column.right for column in others)


# ---- figures


def test_the_title_names_the_longest_multiple_of_the_training_length() -> None:
    texts = [text.get_text().replace("\n", " ") for text in perplexity_by_length(results(TWO)[0]).page.figure.texts]
    assert "Which encodings still predict well at 16x their training length?" in texts


def test_lines_of_perplexity_are_drawn_through_the_pooled_points() -> None:
    rows, _ = results(TWO)
    axes = perplexity_by_length(rows).page.axes
    drawn = [line for line in axes.lines if len(line.get_xdata()) == 5]
    assert len(drawn) == 2
    assert list(drawn[1].get_xdata()) == [256, 512, 1024, 2048, 4096]
    expected = [math.exp(1.36 + 0.16 * octave**1.5 * 0.94) for octave in range(5)]
    assert list(drawn[1].get_ydata()) == pytest.approx(expected)


def test_perplexity_is_on_a_log_axis_where_it_differs_widely() -> None:
    assert perplexity_by_length(results({"alibi": BEHAVIOUR["alibi"]})[0]).page.axes.get_yscale() == "linear"
    assert perplexity_by_length(results()[0]).page.axes.get_yscale() == "log"


def test_points_of_gains_are_moved_sideways_beyond_the_training_length_only() -> None:
    rows, _ = results(TWO)
    lines = context_gain_by_length(rows).page.axes.lines
    alibi, rope = (line.get_xdata() for line in lines if line.get_marker() != "None")  # baselines have none
    assert alibi[0] == rope[0] == 256
    assert alibi[-1] == pytest.approx(4096 * 2**-0.02)
    assert rope[-1] == pytest.approx(4096 * 2**0.02)


@pytest.mark.parametrize(("count", "baselines"), [(2, True), (30, False)])
def test_baselines_are_drawn_beside_few_encodings(count: int, baselines: bool) -> None:
    rows, _ = results(TWO if count == 2 else many(count))
    page = context_gain_by_length(rows).page
    note = page.figure.texts[-1].get_text().replace("\n", " ")
    assert ("under the baseline window" in note) == baselines


def test_positions_are_ticked_at_octaves_of_the_training_length() -> None:
    _, positions = results(TWO)
    axes = loss_by_position(positions).page.axes
    shown = list(axes.xaxis.get_major_locator()())
    assert shown[-1] == 4096
    assert 256 in shown
    assert all(length % 256 == 0 or 256 % length == 0 for length in shown)


def test_a_comparison_prints_the_p_values_that_its_caption_names() -> None:
    common = {"encoding": "rope", "baseline": "alibi", "low": 0.01, "high": 0.03, "word": "worse", "documents": 12}
    lengths = {512: (0.002, 0.006), 1024: (0.02, 0.04), 2048: (0.5, 0.55), 4096: (math.nan, math.nan)}
    made = [
        common | {"length": length, "ratio": length / 256, "difference": 0.02, "p": p, "p_holm": corrected}
        for length, (p, corrected) in lengths.items()
    ]
    lines = printed(comparison_table(pd.DataFrame(made))).splitlines()
    assert any("p after Holm" in line for line in lines)
    assert [line.split()[-2] for line in lines if "worse" in line] == ["0.006", "0.040", "0.550", "-"]


# ---- the file


def test_a_report_has_the_title_that_it_is_given() -> None:
    for about, title in ((About(title="Tiny"), "Tiny"), (About(), "Position encodings beyond their training length")):
        assert report_markdown(Report((), pd.DataFrame(), (), about), {}) == f"# {title}\n"


def test_the_report_has_no_holes_and_its_tables_no_gaps(tmp_path: Path) -> None:
    rows, positions = results()
    text = build_report(rows, positions, tmp_path).files[0].read_text(encoding="utf-8")
    assert "\n\n\n" not in text
    lines = text.splitlines()
    for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
        assert line or not (before.startswith("|") and after.startswith("|"))
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
