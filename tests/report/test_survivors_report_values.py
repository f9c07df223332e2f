"""What pooling, verdicts, findings, tables and caveats of a report say of tables of a few rows, by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fake_results import LN2

from poscli.report.build import _no_formula
from poscli.report.caveats import _dtypes, _holes, _resampled, _sizes, _strides
from poscli.report.findings import _left_out, gain_finding, perplexity_finding, position_finding, verdicts_told
from poscli.report.folder import REPORT, _list, _listed
from poscli.report.guessing import _reason
from poscli.report.markdown import _protocols, escape, markdown_table
from poscli.report.origin import corpora, facts, footnote, seeds
from poscli.report.pooling import Headline, _failure, _gain, headline, task_measures, the_train_length
from poscli.report.sections import _slugs, split
from poscli.report.summary import HEAD, TAIL, _judge, _sorted, join, measures_of, ratios_of, records, standings
from poscli.report.table import Column, _best, failures, gain_text, legend, summary_columns
from poscli.report.terminal import _cell, _LengthColumns, _status
from poscli.report.terminal import _gain as _gain_of_line
from poscli.runs.schema import POSITION_COLUMNS, frame, perplexity
from poscli.system.errors import UsageError

NAN = math.nan


# ---- pooling


def measured(**columns: list[float]) -> dict[str, np.ndarray]:
    unknown = dict.fromkeys(("seeds_gain_low", "seeds_gain_high"), [NAN] * len(columns["gain"]))
    return {name: np.array(values, dtype=float) for name, values in (unknown | columns).items()}


def test_a_gain_is_in_bits_per_byte_and_seeds_without_one_do_not_count() -> None:
    part = measured(gain=[NAN, LN2], gain_low=[0, LN2 / 2], gain_high=[0, 2 * LN2], tokens=[5, 100], bytes=[5, 200])
    assert _gain(part) == pytest.approx((0.5, 0.25, 1.0))
    nothing = {name: values[:1] for name, values in part.items()}
    assert _gain(nothing) == pytest.approx((NAN, NAN, NAN), nan_ok=True)


def test_a_gain_on_tokens_of_no_bytes_is_not_a_number() -> None:
    one = measured(gain=[0.5], gain_low=[0.4], gain_high=[0.6], tokens=[100], bytes=[0])
    assert _gain(one) == pytest.approx((NAN, NAN, NAN), nan_ok=True)


def test_without_an_interval_over_seeds_a_gain_has_that_over_documents() -> None:
    """The mean over seeds, with the mean distance of the ends; with the ends over seeds if they are known."""
    nats = [[0.1, 0.3], [0.0, 0.1], [0.2, 0.4]]
    gain, low, high = ([value * LN2 for value in values] for values in nats)
    found = _gain(measured(gain=gain, gain_low=low, gain_high=high, tokens=[9, 9], bytes=[9, 9]))
    assert found == pytest.approx((0.2, 0.2 - 0.15, 0.2 + 0.1))
    ends = {"seeds_gain_low": [-LN2] * 2, "seeds_gain_high": [2 * LN2] * 2}
    known = _gain(measured(gain=gain, gain_low=low, gain_high=high, tokens=[9, 9], bytes=[9, 9], **ends))
    assert known == pytest.approx((0.2, -1, 2))
    undefined = _gain(measured(gain=gain, gain_low=[0, NAN], gain_high=high, tokens=[9, 9], bytes=[9, 9]))
    assert undefined[0] == pytest.approx(0.2)
    assert math.isnan(undefined[1])


def test_a_perplexity_that_no_float_holds_is_infinite() -> None:
    assert perplexity(0.0) == 1.0
    assert perplexity(708.9) < math.inf
    assert perplexity(709.0) == perplexity(math.inf) == math.inf
    assert math.isnan(perplexity(NAN))


@pytest.mark.parametrize(
    ("status", "reason", "runs", "told"),
    [
        (["oom", "failed"], ["too large", "x"], 2, ("oom", "too large")),
        (["oom"], ["too large"], 3, ("oom", "1 of 3 seeds: too large")),
        (["ok"], [""], 1, ("nonfinite", "no finite loss")),
        (["ok", "oom"], ["", "x"], 3, ("nonfinite", "2 of 3 seeds: no finite loss")),
    ],
)
def test_a_failure_is_the_first_with_the_number_of_failed_seeds(status, reason, runs, told) -> None:
    bad = {"status": np.array(status, dtype=object), "reason": np.array(reason, dtype=object)}
    assert _failure(bad, runs) == dict(zip(("status", "reason"), told, strict=True))


@pytest.mark.parametrize(
    ("protocols", "with_gain", "chosen"),
    [
        (["fixed", "sliding"], ["fixed"], ("sliding", "fixed")),
        (["a", "b"], ["b"], ("a", "b")),
        (["a", "sliding", "b"], ["sliding", "b"], ("sliding", "sliding")),
        (["b", "a"], [], ("b", "")),
        (["b", "fixed"], ["b"], ("b", "fixed")),
    ],
)
def test_quoted_are_sliding_and_fixed_or_the_first_there_are(protocols, with_gain, chosen) -> None:
    gains = [0.0 if name in with_gain else NAN for name in protocols]
    assert headline(pd.DataFrame({"protocol": protocols, "gain": gains})) == chosen


def test_measures_of_a_task_are_its_columns_of_numbers() -> None:
    rows = pd.DataFrame({"nll": [1.0], "accuracy": [0.5], "word": ["x"], "empty": [NAN], "hits": [3]})
    assert task_measures(rows) == ["accuracy", "hits"]


@pytest.mark.parametrize(("lengths", "found"), [([], "none"), ([8, 16, 8], "8, 16")])
def test_a_table_has_one_training_length(lengths: list[int], found: str) -> None:
    with pytest.raises(UsageError, match=f"^training lengths {found}: one table or plot needs exactly one"):
        the_train_length(pd.DataFrame({"train_length": lengths}))
    assert the_train_length(pd.DataFrame({"train_length": [8, 8]})) == 8


# ---- verdicts


POINT = {"status": "ok", "reason": "", "seeds": 4, "failed": 1, "gain": 0.1, "gain_low": 0.05, "gain_high": 0.2}
FAILED = POINT | {"status": "oom", "reason": "too large"}


@pytest.mark.parametrize(
    ("score", "gain", "last", "guesses", "told"),
    [
        (POINT, POINT, 4.0, "", ("uses context", "")),
        (None, POINT, 4.0, "", ("uses context", "")),
        (POINT, FAILED, 4.0, "it guesses", ("oom", "too large")),
        (FAILED, POINT, 4.0, "", ("oom", "too large")),
        (FAILED, None, 1.0, "", ("oom", "too large")),
        (POINT, POINT, 4.0, "it guesses", ("not trained", "it guesses")),
        (POINT, None, 4.0, "", ("not tested", "no protocol measured a gain")),
        (None, None, 4.0, "", ("not tested", "evaluate it up to the same length")),
        (POINT, POINT, 1.0, "", ("not tested", "evaluated at its training length only")),
        (POINT, POINT, 1.5, "", ("uses context", "")),
    ],
)
def test_a_verdict_is_a_failure_a_guess_a_gap_or_the_gain(score, gain, last, guesses, told) -> None:
    scores = pd.DataFrame([score or FAILED], index=[last if score else last / 2])
    gains = pd.DataFrame([gain] if gain else [], columns=list(POINT))
    assert _judge(scores, gains, last, guesses) == told


@pytest.mark.parametrize(
    ("nll", "gain_low", "guess", "seeds", "text"),
    [
        (3.5, -0.3, 3.25, (1, 1), "its loss at its training length is 3.50 nats per token, and guessing costs 3.25"),
        (3.25, -0.3, 3.25, (2, 2), "its loss at its training length is 3.25 nats per token, and guessing costs 3.25"),
        (
            3.25, -0.003, 3.5, (1, 2),
            "1 of 2 seeds: its loss at its training length is 3.25 nats per token, and guessing costs 3.50 "
            "(the 95 % interval of the difference begins at -0.003)",
        ),
    ],
)  # fmt: skip
def test_a_guess_is_told_with_its_numbers(nll, gain_low, guess, seeds, text) -> None:
    assert _reason(nll, gain_low, guess, seeds) == text


# ---- the summary


def summary(*lines: tuple[str, float, float, str], **changes: object) -> pd.DataFrame:
    """Lines of (encoding, perplexity at 1x, at 4x, verdict)."""
    table = pd.DataFrame(lines, columns=["encoding", "ppl_1x", "ppl_4x", "verdict"])
    return table.assign(
        **{"corpus": "c", "fingerprint": "f", "train_length": 8, "max_length": 32, "seeds": 1, "parameters": 100}
        | {
            "machine": "",
            "tokenizer": "bytes",
            "bpb_1x": 1.0,
            "bpb_4x": 2.0,
            "growth": table["ppl_4x"] / table["ppl_1x"],
            "reason": "",
        }
        | {"gain_bpb": 0.1, "gain_bpb_low": 0.05, "gain_bpb_high": 0.2, "safe": NAN, "effective": NAN}
        | changes
    )


def test_lines_are_sorted_by_failure_then_guessing_then_perplexity() -> None:
    table = summary(
        ("failed", 1.0, 1.0, "oom"), ("guess", 1.0, 1.0, "not trained"), ("none", 2.0, NAN, "not tested"),
        ("b", 3.0, 4.0, "degrades"), ("a", 3.0, 4.0, "degrades"), ("c", 2.0, 4.0, "breaks"), ("d", 9.0, 3.0, "breaks"),
    )  # fmt: skip
    ordered = _sorted(table)
    assert ordered["encoding"].tolist() == ["d", "c", "a", "b", "none", "guess", "failed"]
    assert ordered.index.tolist() == list(range(7))
    assert standings(ordered) == (["d", "c", "a", "b"], ["none", "guess", "failed"])


def test_joined_summaries_have_the_lengths_of_all_in_order() -> None:
    one = summary(("a", 1.0, 2.0, "degrades")).assign(accuracy_1x=0.5, accuracy_4x=0.25)
    other = summary(("b", 1.0, 2.0, "degrades")).rename(columns={"ppl_4x": "ppl_0.5x", "bpb_4x": "bpb_0.5x"})
    assert (ratios_of(one), measures_of(one)) == (["1x", "4x"], ["ppl", "bpb", "accuracy"])
    lengths = ["ppl_0.5x", "ppl_1x", "ppl_4x", "bpb_0.5x", "bpb_1x", "bpb_4x", "accuracy_1x", "accuracy_4x"]
    joined = join([one, other])
    assert list(joined.columns) == [*HEAD, *lengths, *TAIL]
    assert joined["encoding"].tolist() == ["a", "b"]


def test_records_have_plain_values_and_none_for_what_is_no_number() -> None:
    (record,) = records(pd.DataFrame({"a": [np.int64(3)], "b": [math.inf], "c": [NAN], "d": ["x"], "e": [0.5]}))
    assert record == {"a": 3, "b": None, "c": None, "d": "x", "e": 0.5}
    assert {type(record[name]) for name in "ae"} == {int, float}


# ---- tables


def test_the_best_of_a_column_is_the_smallest_of_two_or_more_that_may_win() -> None:
    table = summary(
        ("a", 3.0, 1.0, "oom"), ("b", 2.0, 3.0, "not trained"), ("c", 4.0, 4.0, "breaks"), ("d", 5.0, 5.0, "degrades")
    )
    assert _best(table["ppl_4x"], table, at_last=True) == 2
    assert _best(table["ppl_1x"], table, at_last=False) == 0  # a failure at the last length is none at the first
    assert _best(table["ppl_4x"].iloc[:3], table.iloc[:3], at_last=True) is None
    assert _best(table["ppl_4x"].where(table["encoding"] != "d"), table, at_last=True) is None


def test_the_columns_of_the_summary_and_its_cells() -> None:
    table = summary(("a", 3.0, 4.5, "degrades"), ("b", 2.0, NAN, "oom"), gain_bpb=[-0.1, NAN]).assign(
        accuracy_1x=0.5, accuracy_4x=[0.25, NAN], seeds=[1, 2], parameters=[842_000, 12_345]
    )
    columns = summary_columns(table)
    assert [(column.name, *column.cells) for column in columns] == [
        ("encoding", "a", "b"),
        ("seeds", "1", "2"),
        ("params", "842k", "12.3k"),
        ("ppl 1x", "3.00", "2.00"),
        ("4x", "4.50", "-"),
        ("growth", "1.50x", "-"),
        ("bpb 4x", "2.00", "2.00"),
        ("accuracy 4x", "0.25", "-"),
        ("gain 4x [95 %]", "-0.100 [+0.050, +0.200]", "-"),
        ("verdict", "degrades", "oom"),
    ]
    assert [column.name for column in columns if not column.right] == ["encoding", "verdict"]
    assert [column.name for column in columns if column.best is not None] == ["ppl 1x"]
    safe = summary_columns(table.assign(safe=[2.0, NAN]))[-2]
    assert (safe.name, safe.cells) == ("safe", ("2x", "-"))
    narrow = summary_columns(table.assign(seeds=1), wide=False)
    assert [column.name for column in narrow][:2] == ["encoding", "params"]
    assert (narrow[-2].name, narrow[-2].cells[0]) == ("gain 4x", "-0.100 ±0.300")


@pytest.mark.parametrize(
    ("gain", "low", "high", "wide", "narrow"),
    [
        (0.1, 0.05, 0.2, "+0.100 [+0.050, +0.200]", "+0.100 ±0.100"),
        (0.1, -0.1, 0.2, "+0.100 [-0.100, +0.200]", "+0.100 ±0.200"),
        (-1.0, -1.5, -0.9, "-1.00 [-1.50, -0.900]", "-1.00 ±0.50"),
        (0.1, NAN, 0.2, "+0.100", "+0.100"),
        (0.1, 0.05, NAN, "+0.100", "+0.100"),
        (NAN, NAN, NAN, "-", "-"),
    ],
)
def test_a_gain_is_written_with_its_interval_or_the_larger_half_of_it(gain, low, high, wide, narrow) -> None:
    assert gain_text(gain, low, high) == wide
    assert gain_text(gain, low, high, wide=False) == narrow


def test_the_legend_explains_the_columns_and_verdicts_there_are() -> None:
    table = summary(("a", 3.0, 4.5, "oom"), ("b", 2.0, 3.0, "unclear")).assign(accuracy_1x=0.5, accuracy_4x=0.25)
    lines = [
        "ppl 1x, 2x, ...: perplexity per token, reading windows of 1, 2, ... times L = 8 (p)",
        "growth: perplexity at 4x over that at 1x",
        "bpb 4x: bits per byte at 4x",
        "accuracy 4x: accuracy of the task at 4x (p)",
        "gain 4x: bits per byte won by reading 4x instead of 1x, on the same tokens (g), with its 95 % interval",
        "unclear: the interval of the gain includes a harm of 0.01 bits per byte and also smaller ones, so that it is "
        "open whether the harm matters; or there is no interval, because too few documents are long enough",
    ]
    assert legend(table, Headline("p", "g")) == lines
    assert legend(table, Headline("p", "")) == lines[:4] + lines[5:]
    assert legend(table, Headline("p", "g"), without=("growth", "bpb", "params")) == [lines[0], *lines[3:]]
    told = legend(table.assign(safe=2.0, excess_1x=0.1, excess_4x=0.2), Headline("p", "g"))
    assert "excess 4x: bits per byte above the best possible loss at 4x (p)" in told
    assert told[-2].startswith("safe: the largest multiple of L up to which the interval over at least 3 seeds")


def test_failures_are_the_lines_with_a_reason() -> None:
    table = summary(("a", 1, 1, "oom"), ("b", 1, 1, "breaks"), ("c", 1, 1, "unclear"), reason=["too large", "", NAN])
    assert failures(table) == [("a", "oom", "too large")]


def test_a_table_in_markdown_aligns_numbers_right_and_the_best_is_bold() -> None:
    columns = [Column("a|b", ("x", "y*"), right=False), Column("n", ("1", "2"), best=1)]
    assert markdown_table(columns) == "| a\\|b | n |\n| --- | ---: |\n| x | 1 |\n| y\\* | **2** |"
    assert escape("see https://a.b, www.c.d and e.f: $1") == "see https\\://a.b, www\\.c.d and e.f: \\$1"


def test_verdicts_have_a_colour_in_the_terminal_and_the_best_number_is_bold() -> None:
    words = ("uses context", "holds", "degrades", "breaks", "unclear", "not tested", "not trained", "oom")
    verdicts = Column("verdict", words, best=0)
    assert [str(_cell(verdicts, row).style) for row in range(8)] == [
        "green", "cyan", "yellow", "red", "yellow", "dim", "magenta", "magenta",
    ]  # fmt: skip
    assert [str(_cell(verdicts, row)) for row in range(8)] == list(words)
    numbers = Column("4x", ("breaks", "2.00"), best=1)
    assert [(str(_cell(numbers, row)), str(_cell(numbers, row).style)) for row in range(2)] == [
        ("breaks", ""), ("2.00", "bold"),
    ]  # fmt: skip


def test_a_status_has_its_reason_the_first_time() -> None:
    part = pd.DataFrame({"status": ["ok", "oom", "oom"], "variant": ["full", "crop", "full"], "reason": ["", "x", "y"]})
    told: set[str] = set()
    assert [str(_status(part, told)) for _ in range(2)] == ["oom: y", "oom"]
    assert str(_status(part[:2], set())) == "ok"
    assert str(_status(part.assign(reason=""), set())) == "oom"


LINE = {
    "protocol": ["fixed", "sliding", "nonoverlapping"], "variant": "full", "encoding": "a", "seed": 2, "length": 16,
    "corpus": "text",
    "ratio": 2.0, "ppl": [3.0, 4.0, 5.0], "bpb": [0.1, 0.2, 0.3], "tokens_per_s": [1.0, 20_000.0, 3.0], "tokens": 50,
    "bytes": 100, "gain": [LN2, NAN, NAN], "gain_low": [0.0, NAN, NAN], "gain_high": [2 * LN2, NAN, NAN],
}  # fmt: skip


def test_lines_name_the_corpus_where_there_are_several() -> None:
    rows = pd.DataFrame(LINE).assign(corpus="passkey")
    both = pd.concat([rows, rows.assign(corpus="recall")])
    assert str(_LengthColumns(both).line(rows)[0]) == "a, seed 2, passkey"
    assert str(_LengthColumns(rows).line(rows)[0]) == "a, seed 2"


def test_a_line_of_an_evaluation_has_a_perplexity_per_protocol_and_the_gain_of_one() -> None:
    rows = pd.DataFrame(LINE)
    columns = _LengthColumns(rows)
    gain = "gain, bits/byte\n[95 %]"
    assert columns.heads() == ["length", "sliding\nppl", "nonoverl.\nppl", "bpb", gain, "tok/s"]
    crop = rows.assign(variant="crop", ppl=99.0, bpb=99.0)
    cells = ["a, seed 2", "16 (2x)", "4.00", "5.00", "0.20", "+0.500 [0.000, +1.00]", "20k"]
    assert list(map(str, columns.line(pd.concat([crop, rows])))) == cells
    own = rows.assign(seed=0, ratio=1.0, tokens_per_s=NAN)
    assert list(map(str, columns.line(own[own["protocol"] != "nonoverlapping"]))) == [
        "a", "16 (1x)", "4.00", "-", "0.20", "-", "-",
    ]  # fmt: skip
    assert list(map(str, columns.line(own[:1]))) == ["a", "16 (1x)", "-", "-", "0.10", "-", "-"]


def test_lines_without_a_gain_or_of_one_protocol_have_what_there_is() -> None:
    rows = pd.DataFrame(LINE)
    assert _LengthColumns(rows[:1]).heads()[1:3] == ["fixed\nppl", "bpb"]
    plain = rows[1:].assign(protocol=["nine_char", "ten_charac"], accuracy=0.5)
    assert _LengthColumns(plain).heads() == ["length", "nine_char\nppl", "ten_char.\nppl", "bpb", "accuracy", "tok/s"]
    assert [str(cell) for cell in _LengthColumns(plain).line(plain)][2:] == ["4.00", "5.00", "0.20", "0.50", "20k"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "+0.500 [0.000, +1.00]"),
        ({"bytes": 200}, "+0.250 [0.000, +0.500]"),
        ({"bytes": 0}, "-"),
        ({"ratio": 1.0}, "-"),
        ({"protocol": "other"}, "-"),
    ],
)
def test_the_gain_of_a_line_is_in_bits_per_byte_beyond_the_training_length(changes: dict[str, Any], text: str) -> None:
    assert _gain_of_line(pd.DataFrame(LINE)[:1].assign(**changes).set_index("protocol"), "fixed") == text


def test_protocols_and_baselines_have_their_perplexity_at_the_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"full": [9.0, 1.0, 2.0], "crop": [9.0, 3.0, NAN]}

    def pool(rows: pd.DataFrame, protocol: str, variant: str) -> pd.DataFrame:
        return pd.DataFrame({"length": [8, 32, 32], "encoding": ["b", "b", "a"], "ppl": found[variant]})

    monkeypatch.setattr("poscli.report.markdown.pool", pool)
    rows = pd.DataFrame({"protocol": ["p", "p", "q"], "variant": ["full", "crop", "full"]})
    table = summary(("a", 1, 1, "breaks"), ("b", 1, 1, "breaks"), ("c", 1, 1, "oom"), gain_bpb=[0.1, 0.2, NAN])
    assert [(column.name, *column.cells) for column in _protocols(pd.concat([rows, rows]), table)] == [
        ("encoding", "a", "b", "c"),
        ("p", "2.00", "1.00", "-"),
        ("p, crop", "-", "3.00", "-"),
        ("q", "2.00", "1.00", "-"),
        ("gain, bits per byte [95 %]", "+0.100 [+0.050, +0.200]", "+0.200 [+0.050, +0.200]", "-"),
    ]


def test_the_list_of_files_is_sorted_and_names_only_files_of_reports(tmp_path: Path) -> None:
    _list(
        tmp_path / "files.json", {"summary.csv": ["2"], "mine.png": ["3"], "place.png": ["1", "4"], "report.md": ["0"]}
    )
    text = (tmp_path / "files.json").read_text(encoding="utf-8")
    assert text.endswith("}\n")
    assert [line.split('"')[1] for line in text.splitlines() if line.startswith('  "')] == [
        "mine.png", "place.png", "report.md", "summary.csv",
    ]  # fmt: skip
    assert _listed(tmp_path, REPORT) == {"summary.csv": ["2"], "place.png": ["1", "4"], "report.md": ["0"]}


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_what_a_spreadsheet_would_execute_gets_an_apostrophe(sign: str) -> None:
    assert _no_formula(f"{sign}1") == f"'{sign}1"
    assert _no_formula(f"1{sign}") == f"1{sign}"


# ---- findings


def ends(*rows: tuple[str, int, float]) -> pd.DataFrame:
    """Points of models trained at length 8: (encoding, length, value of every column)."""
    table = pd.DataFrame(rows, columns=["encoding", "length", "nll"])
    same = dict.fromkeys(("ppl", "gain", "gain_low", "gain_high", "bits"), table["nll"])
    return table.assign(**same, ratio=table["length"] / 8, seeds=3, failed=0)


def test_left_out_are_those_that_guess_and_those_without_a_number_at_the_longest_length() -> None:
    table = ends(("a", 8, NAN), ("a", 16, 1.0), ("b", 8, 1.0), ("b", 16, NAN), ("c", 8, 2.0), ("c", 16, 2.0))
    assert _left_out(table, ["c", "d"]) == "Not trained: c. No result there: b."
    assert _left_out(table, []) == "No result there: b."
    assert _left_out(table[table["encoding"] == "c"], ["c"]) == "Not trained: c."
    assert _left_out(table[table["encoding"] == "c"], []) == ""


def test_the_finding_on_perplexity_names_the_best_and_the_worst_at_the_longest_length() -> None:
    table = ends(("a", 8, 1.0), ("a", 16, 5.0), ("b", 16, 4.0), ("c", 16, 4.5), ("d", 16, 3.0), ("e", 8, 1.0))
    assert perplexity_finding(table, "byte", ["d"]) == (
        "Reading 16 bytes at once, b has the lowest perplexity (4.00) and a the highest (5.00). Not trained: d."
    )
    assert perplexity_finding(table[:2], "token") == "Reading 16 tokens at once, a has perplexity 5.00."
    assert perplexity_finding(table[:2], "token", ["a"]) == "Not trained: a."
    assert perplexity_finding(ends(("a", 8, 1.0), ("a", 16, NAN)), "token") == "No result there: a."


def test_the_finding_on_gains_groups_encodings_by_what_longer_context_does() -> None:
    table = ends(("a", 8, 0.0), ("a", 16, 0.1), ("b", 16, 0.2), ("c", 16, 0.0), ("d", 16, -0.2), ("e", 16, -0.4))
    harmed = "makes no difference of consequence to c; harms d; breaks e."
    assert gain_finding(table) == f"At 2x, longer context helps b and a; {harmed}"
    assert gain_finding(table, ["b"]).startswith("At 2x, longer context helps a; ")
    assert gain_finding(table[table["length"] == 8]) == "Only the training length was evaluated."
    assert gain_finding(table[:2].assign(gain_low=NAN)) == "At 2x, the effect of longer context is unclear."
    wide = table.assign(gain_high=0.3)
    assert gain_finding(wide) == (
        "At 2x, longer context helps b and a; makes no difference of consequence to c; for d and e that is unclear."
    )
    few = gain_finding(table.assign(seeds=3, failed=1))
    assert few == f"At 2x, longer context may help b and a; {harmed}"


def test_the_finding_on_positions_is_about_the_end_of_the_window() -> None:
    bins = ends(("a", 8, 1.0), ("a", 16, 2.0), ("b", 16, 1.234), ("c", 16, NAN), ("d", 16, 0.5))
    assert position_finding(bins, ["d"]) == (
        "At the end of the window b needs 1.23 bits per byte, a 2.00. Not trained: d."
    )
    assert position_finding(bins[:2]) == "At the end of the window a needs 2.00 bits per byte."
    assert position_finding(bins[:2], ["a"]) == "Not trained: a."


def test_the_answer_groups_encodings_by_verdict_failures_last() -> None:
    table = summary(
        ("a", 2.0, 3.0, "breaks"), ("b", 2.0, 4.0, "holds"), ("c", 1.0, 2.0, "not trained"),
        ("d", 1.0, 1.0, "oom"), ("e", 2.0, 5.0, "breaks"),
    )  # fmt: skip
    assert verdicts_told(table) == (
        "Not trained, since already at 8 they predict no better than a guess: c. "
        "Longer context than 8 costs less than 0.01 bits per byte, if anything: b. Broken there: a and e. "
        "Failed (oom): d."
    )
    assert verdicts_told(table[3:4]) == "Failed (oom): d."


# ---- caveats


def evaluated(**changes: Any) -> pd.DataFrame:
    """Two rows of one encoding at two lengths under the one protocol there is."""
    columns = {
        "protocol": "p",
        "variant": "full",
        "gain": 0.1,
        "encoding": "a",
        "length": [8, 16],
        "resampled": "documents",
    }
    return pd.DataFrame(columns | {"documents": 12, "stride": 4, "dtype": "float32"} | changes)


def test_spans_in_quoted_protocols_are_a_caveat() -> None:
    assert _resampled(evaluated()) == []
    (note,) = _resampled(evaluated(resampled=["documents", "spans"]))
    assert note.startswith("Few documents are long enough")
    other = evaluated(protocol="q", resampled="spans")  # not quoted, since p comes first
    assert _resampled(pd.concat([evaluated(), other])) == []


def test_strides_that_differ_at_one_length_are_a_caveat() -> None:
    assert _strides(evaluated(stride=[4, 8])) == []  # at different lengths
    (note,) = _strides(evaluated(stride=[4, 8], length=16))
    assert note == "Runs were evaluated with strides of 4 to 8: evaluate them again with one --stride to compare."


def test_several_dtypes_are_a_caveat() -> None:
    assert _dtypes(evaluated(dtype=["float32", None])) == []
    assert _dtypes(evaluated(dtype=["float32", "bfloat16"])) == [
        "Evaluated in bfloat16 and float32: small differences may be rounding."
    ]


def test_sizes_that_differ_by_more_than_fifteen_percent_are_a_caveat() -> None:
    table = summary(("a", 1, 1, "breaks"), ("b", 1, 1, "breaks"))
    assert _sizes(table.assign(parameters=[10_000, 11_500])) == []
    assert _sizes(table.assign(parameters=[10_000, 11_600])) == [
        "Models have 10k to 11.6k parameters: size may explain part of a difference."
    ]


def test_failures_before_the_longest_length_are_caveats(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ["encoding", "ratio", "status", "reason"]
    points = [
        ("a", 1, "oom", "x"),
        ("a", 2, "failed", "y"),
        ("a", 4, "ok", ""),
        ("b", 1, "ok", ""),
        ("c", 1, "oom", "z"),
    ]
    monkeypatch.setattr("poscli.report.caveats.pool", lambda rows, protocol: pd.DataFrame(points, columns=columns))
    table = summary(("a", 1, 1, "breaks"), ("b", 1, 1, "breaks"), ("c", 1, 1, "oom"))
    assert _holes(evaluated(), table) == ["a failed at 1x and 2x (oom): x."]


# ---- where the numbers come from


ORIGIN = {
    "protocol": "sliding", "status": "ok", "run_id": ["a-1", "b-1", "b-2"], "encoding": ["a", "b", "b"],
    "seed": [0, 0, 1], "corpus": "books", "fingerprint": "0123456789ab", "train_length": 8, "length": 16, "stride": 4,
    "tokens": [1000, 1000, 2000], "documents": 7, "device": "cpu", "dtype": "float32", "engine": "sdpa",
    "parameters": 842_000, "poscli": "1.0", "commit": "",
}  # fmt: skip


def test_a_footnote_says_how_the_numbers_of_a_protocol_were_made() -> None:
    rows = pd.DataFrame(ORIGIN)
    assert footnote(rows, "sliding", {"a-1": 9000, "b-2": 90_000, "c-1": 1}) == (
        "Corpus books (01234567); trained at L = 8 on 9000 to 90k tokens; protocol sliding, stride 4; "
        "1000 to 2000 tokens of 7 documents scored; 1 to 2 seeds; cpu, float32."
    )
    whole = pd.concat([rows.assign(stride=16), rows.assign(protocol="tiled", tokens=5)])
    assert footnote(whole, "sliding") == (
        "Corpus books (01234567); trained at L = 8; protocol sliding; "
        "1000 to 2000 tokens of 7 documents scored; 1 to 2 seeds; cpu, float32."
    )
    assert seeds(rows[:2]) == "1 seed"
    assert seeds(rows[1:]) == "2 seeds"


def test_facts_are_listed_where_there_is_a_value() -> None:
    rows = pd.DataFrame(
        ORIGIN | {"length": [16, 8, 128], "device": ["cpu", "gpu", "gpu"], "status": ["ok", "ok", "oom"]}
    )
    assert facts(rows, {"a-1": 9000}) == [
        ("Corpus", "books"),
        ("Fingerprint", "0123456789ab"),
        ("Training length L", "8"),
        ("Trained on", "9000 tokens"),
        ("Lengths evaluated", "8, 16, 128"),
        ("Tokens scored per length", "sliding 1000 (of 7 documents)"),
        ("Tokens scored per window (sliding)", "4"),
        ("Seeds", "0, 1"),
        ("Runs", "3, models of 842k parameters"),
        ("Device", "cpu, gpu"),
        ("Dtype", "float32"),
        ("Attention engine", "sdpa"),
        ("poscli", "1.0"),
    ]


def test_more_than_three_corpora_are_counted() -> None:
    rows = pd.DataFrame({"corpus": list("dcba"), "fingerprint": "0123456789ab"})
    assert corpora(rows[:3]) == "b (01234567), c (01234567) and d (01234567)"
    assert corpora(rows) == "a (01234567), b (01234567), c (01234567) and 1 more"


# ---- sections


def test_sections_begin_with_the_one_of_the_most_encodings_then_rows_then_the_longer_training() -> None:
    def rows(corpus: str, train_length: int, *encodings: str) -> pd.DataFrame:
        runs = [f"{name}-{corpus}{train_length}{n}" for n, name in enumerate(encodings)]
        same = {"corpus": corpus, "fingerprint": corpus * 12, "train_length": train_length}
        return pd.DataFrame({"encoding": encodings, "run_id": runs, "seed": 0, "parameters": 9} | same)

    table = pd.concat([rows("a", 8, "x"), rows("a", 16, "x"), rows("b", 8, "x", "x"), rows("c", 8, "x", "y")])
    nothing = frame([], POSITION_COLUMNS)
    groups = split(table.assign(seed=range(len(table))), nothing)
    assert [group.title for group in groups] == [
        f"{corpus} ({corpus * 8}), trained at L = {length}"
        for corpus, length in (("c", 8), ("b", 8), ("a", 16), ("a", 8))
    ]
    assert [group.slug for group in groups] == ["-c-L8", "-b-L8", "-a-L16", "-a-L8"]
    assert len(split(table[table["train_length"] == 8].assign(seed=range(5)), nothing, mix=True)) == 1


def test_names_of_pictures_have_the_fingerprint_only_where_corpora_are_named_alike() -> None:
    def part(corpus: str, fingerprint: str) -> pd.DataFrame:
        return pd.DataFrame({"corpus": [corpus], "fingerprint": [fingerprint], "train_length": [8]})

    parts = [part("a", "0123456789"), part("a", "abcdefghij"), part("b", "0123456789")]
    assert _slugs(parts) == ["-a-L8-01234567", "-a-L8-abcdefgh", "-b-L8"]
    assert _slugs(parts[:1]) == [""]
