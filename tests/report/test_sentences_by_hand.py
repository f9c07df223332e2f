"""Sentences of a report against numbers worked out by hand from tables of a few rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fake_pages import fake_runs
from fake_results import LN2, results
from scipy import stats

from poscli.config.run import RunConfig
from poscli.report.accuracy import answered, by_length, by_place, placed
from poscli.report.analyses import compared, known_limit, recalled, seed_spread
from poscli.report.caveats import budget_note
from poscli.report.collect import Trained, timed_together
from poscli.report.comparison import AllPairs, losses_of
from poscli.report.pooling import points_of, pool, untrained, with_intervals
from poscli.report.summary import safe_ratio, summarize
from poscli.report.table import failures, solved_up_to
from poscli.report.verdicts import NOT_TRAINED
from poscli.runs.schema import DETAILS, frame
from poscli.statistics.comparison import LossTable


def columns(analysis: Any) -> dict[str, tuple[str, ...]]:
    assert analysis is not None
    return {column.name: column.cells for column in analysis.columns}


def named(*names: str) -> pd.DataFrame:
    return pd.DataFrame({"encoding": list(names)})


# ---- losses of documents: spreads, intervals over seeds, comparisons

SEED, DOCUMENT = (-0.03, 0.0, 0.06), (-0.2, 0.1, 0.3, -0.2)  # bits per byte: what a seed, and what a document, adds


def of_parts(losses: dict[str, float], seeds: dict[str, Sequence[float]], per_byte: int = 1) -> tuple:
    """Rows and units of losses in bits per byte that are a sum of an encoding's, a seed's and a document's part.

    A token is `per_byte` bytes, so that nats per token are `per_byte` times those per byte.
    """
    rows, _ = results({name: (1.0, lambda _: 0.0) for name in losses}, seeds=(0, 1, 2), lengths=(256, 1024))
    rows = rows[rows["protocol"] != "nonoverlapping"]
    rows = rows.assign(bytes=rows["tokens"] * per_byte)
    made = []
    for row in rows.to_dict("records"):
        for n, part in enumerate(DOCUMENT):
            bits = losses[row["encoding"]] + seeds[row["encoding"]][row["seed"]] + part
            bits += 0.5 if row["variant"] == "crop" and row["length"] == 1024 else 0.0
            own = {name: row[name] for name in DETAILS["units"] if name in row}
            made.append(own | {"unit": str(n), "tokens": 100, "bytes": 100 * per_byte, "nll": bits * LN2 * per_byte})
    units = frame(made, DETAILS["units"])
    keys = ["run_id", "length", "protocol", "variant"]
    means = rows.merge(units.groupby(keys)["nll"].mean().rename("mean").reset_index(), how="left", on=keys)["mean"]
    return rows.assign(nll=means.to_numpy(), bpb=means.to_numpy() / LN2 / per_byte, gain=0.5 * LN2), units


@pytest.mark.parametrize("per_byte", [1, 4])
def test_the_spread_over_seeds_and_over_documents(per_byte: int) -> None:
    twice = tuple(2 * part for part in SEED)
    rows, units = of_parts({"a": 2.0, "b": 2.0}, {"a": SEED, "b": twice}, per_byte)
    found = seed_spread(rows, LossTable(units))
    of_seeds, of_documents = np.std(SEED, ddof=1), np.std(DOCUMENT, ddof=1)
    cells = columns(found)
    assert cells["over seeds 4x"] == (f"{of_seeds:.3f}", f"{2 * of_seeds:.3f}")
    assert cells["over documents 4x"] == (f"{of_documents:.3f}", f"{of_documents:.3f}")
    assert [cell.split()[0] for cell in cells["bits per byte 1x [95 %]"]] == ["2.010", "2.020"]
    assert found is not None
    assert found.answer == (
        f"3 seeds per encoding. At 4x, seeds of b differ most (by {2 * of_seeds:.3f} bits per byte), those of a least "
        f"(by {of_seeds:.3f})."
    )


def test_an_interval_over_seeds_is_students_where_documents_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "DOCUMENT", (0.0, 0.0, 0.0, 0.0))
    rows, units = of_parts({"a": 2.0}, {"a": SEED}, per_byte=4)
    made = with_intervals(rows, LossTable(units))
    point = pool(made, "sliding").set_index("length").loc[1024]
    reach = stats.t.ppf(0.975, 2) * np.std(SEED, ddof=1) / math.sqrt(3)
    assert np.log2([point["ppl_low"], point["ppl_high"]]) / 4 == pytest.approx([2.01 - reach, 2.01 + reach])
    gain = pool(made, "fixed").set_index("length").loc[1024]
    assert gain[["gain_low", "gain_high"]].to_list() == pytest.approx([0.5, 0.5])  # every seed gains as much
    sliding = made["protocol"].eq("sliding") & made["variant"].eq("full")
    assert made["seeds_nll_low"].notna().equals(sliding)
    two = with_intervals(rows[rows["seed"] < 2], LossTable(units))
    assert two["seeds_nll_low"].isna().all()


def against(rows: pd.DataFrame, units: pd.DataFrame, base: str) -> str:
    """What a report says of all encodings compared with one."""
    names, lengths = [str(name) for name in summarize(rows)["encoding"]], (256, 1024)
    pairs = AllPairs.of(losses_of(rows, LossTable(units), "sliding"), names, lengths)
    found = compared(pairs, points_of(rows, "sliding"), base, "bits per byte", of_answers=False)
    assert found is not None
    assert "although the intervals of the two overlap" in " ".join(found.legend)
    return found.answer


def test_a_comparison_says_who_is_better_and_by_how_much() -> None:
    losses = {"base": 2.0, "good": 1.9, "best": 1.7, "bad": 2.05, "worst": 2.5, "twin": 2.0}
    wobble = dict.fromkeys(losses, (0.0, 0.001, -0.001)) | {"base": (0.0, 0.0, 0.0), "twin": (0.02, -0.02, 0.01)}
    rows, units = of_parts(losses, wobble)
    assert against(rows, units, "base") == (
        "At 4x, best and good are better than base (best by 0.300 bits per byte); twin is within noise of base; "
        "bad and worst are worse than base (worst by 0.500 bits per byte)."
    )
    few = rows[rows["encoding"].isin(["base", "good"])]
    assert against(few, units, "base") == "At 4x, good is better than base by 0.100 bits per byte."
    assert against(few, units, "good") == "At 4x, base is worse than good by 0.100 bits per byte."


# ---- recall


def hits(*rows: tuple[str, int, int, float, float]) -> pd.DataFrame:
    """Rows of recall.csv about tokens that could be copied: (encoding, from, tokens, gain in bits, its lower end)."""
    table = pd.DataFrame(rows, columns=["encoding", "from", "tokens", "gain", "gain_low"])
    nats = {"gain": table["gain"] * LN2, "gain_low": table["gain_low"] * LN2}
    return table.assign(to=2 * table["from"] - 1, kind="hit", train_length=64, ngram=6, **nats)


def test_text_is_recalled_as_far_as_the_last_bin_that_is_sure() -> None:
    """Of `a`, the farthest bin may be chance, and of `b`, it is too small; the largest gains are not sure either."""
    table = hits(
        ("a", 64, 90, 0.3, 0.2), ("a", 128, 90, 0.4, 0.1), ("a", 256, 90, 0.9, -0.1),
        ("b", 64, 90, 0.6, 0.5), ("b", 128, 90, 0.09, 0.05), ("b", 32, 90, 2.0, 1.9),
        ("c", 64, 90, 0.8, -0.2), ("d", 64, 49, 0.8, 0.7),
    )  # fmt: skip
    found = recalled(table, named("a", "b", "c", "d"))
    assert found is not None
    assert found.answer == (
        "Beyond 64 tokens, text is recalled by b (up to 127 tokens back, +0.600 bits) and a (up to 255 tokens back, "
        "+0.400 bits)."
    )


def test_recall_is_the_mean_over_seeds_and_so_is_its_lower_end() -> None:
    table = hits(("a", 64, 60, 0.5, 0.3), ("a", 64, 80, 0.1, -0.1), ("a", 128, 70, 0.5, 0.1), ("a", 128, 70, 0.5, -0.3))
    found = recalled(table, named("a"))
    assert found is not None
    assert found.answer == "Beyond 64 tokens, text is recalled by a (up to 127 tokens back, +0.300 bits)."
    assert list(columns(found)) == ["encoding", "64 to 127 (80)", "128 to 255 (70)"]


# ---- tokens that need context, and texts of known limit


def test_the_share_that_is_used_of_what_the_longer_window_tells() -> None:
    """At 4x the optimum falls from 1.2 to 1.0 nats per token of two bytes; `a` wins 0.05 of that, `b` loses 0.1."""
    rows, _ = results({"a": (1.5, lambda _: 0.0), "b": (1.5, lambda _: 0.0)}, lengths=(256, 1024))
    rows = rows[rows["protocol"] == "fixed"].assign(bytes=rows["tokens"] * 2)
    long = (rows["length"] == 1024) & (rows["variant"] != "crop")
    won = rows["encoding"].map({"a": 0.05, "b": -0.1})
    rows = rows.assign(optimum=np.where(long, 1.0, 1.2), gain=won, nll=np.where(long, 1.4, 1.5))
    found = known_limit(rows, summarize(rows))
    cells = columns(found)
    order = cells["encoding"]
    assert dict(zip(order, cells["used 4x"], strict=True)) == {"a": "25 %", "b": "-50 %"}
    assert set(cells["above the optimum 4x"]) == {f"{0.4 / LN2 / 2:.2f}"}
    assert found is not None
    assert found.answer == (
        f"A perfect model would win {0.2 / LN2 / 2:+.3f} at 4x bits per byte by reading beyond L. "
        "At 4x, a wins the largest share of that, 25 %."
    )


# ---- how much of a window is used


# ---- right answers


def of_answers(*rows: tuple[str, int, int, int, int]) -> pd.DataFrame:
    """Rows of answers.csv, with ten episodes each: (encoding, seed, length, from, tokens right of 10 per episode)."""
    made = [
        {"run_id": f"{name}{seed}", "encoding": name, "seed": seed, "length": length, "from": first, "to": first + 49}
        | {"unit": f"{first}-{unit}", "tokens": 10, "right": right, "chance": 0.1, "train_length": 64, "by": "depth"}
        for name, seed, length, first, right in rows
        for unit in range(10)
    ]
    return pd.DataFrame(made)


def test_answers_are_told_with_their_shares_and_the_seeds_that_differ_most() -> None:
    table = of_answers(
        ("a", 0, 64, 0, 10), ("a", 1, 64, 0, 9), ("b", 0, 64, 0, 5), ("b", 1, 64, 0, 5),
        ("a", 0, 128, 0, 9), ("a", 0, 128, 50, 5), ("a", 1, 128, 0, 3), ("a", 1, 128, 50, 3),
        ("b", 0, 128, 0, 2), ("b", 0, 128, 50, 4), ("b", 1, 128, 0, 3), ("b", 1, 128, 50, 3),
        *(("c", seed, *at, 8) for seed in (0, 1) for at in ((64, 0), (128, 0), (128, 50))),
    )  # fmt: skip
    summary = named("a", "b", "c").assign(effective=[1.0, 0.0, 0.0])
    found = answered(table, by_length(table), summary)
    cells = columns(found)
    assert [cell.split()[0] for cell in cells["1x [95 %]"]] == ["0.950", "0.500", "0.800"]
    assert [cell.split()[0] for cell in cells["2x [95 %]"]] == ["0.500", "0.300", "0.800"]
    assert cells["seeds at 2x"] == ("0.300 to 0.700", "0.300 to 0.300", "0.800 to 0.800")
    assert cells["effective"] == ("1x (64)", "-", "-")
    assert found.answer == "Chance is 0.100. At 2x, seeds of a differ most (0.300 to 0.700)."
    where = placed(table, by_place(table), summary)
    assert columns(where)["0 to 50 %"] == ("0.600", "0.250", "0.800")
    assert columns(where)["50 to 100 %"] == ("0.400", "0.350", "0.800")
    assert where is not None
    assert where.answer == "Most for a, whose accuracy lies between 0.400 and 0.600."


# ---- encodings that learned nothing


def curve(*losses: float, every: int = 100) -> tuple[tuple[int, float], ...]:
    return tuple((every * (n + 1), loss) for n, loss in enumerate(losses))


def lost(names: Sequence[str]) -> pd.DataFrame:
    """Rows of encodings that guess, at a cost of 3.3 nats, beside one that does not."""
    rows, _ = results({name: (1.4, lambda _: 0.0) for name in (*names, "fine")}, lengths=(256, 1024))
    guesses = rows["encoding"].isin(list(names))
    return rows.assign(guess_gain_low=rows["guess_gain_low"].mask(guesses, -0.2), nll=rows["nll"].mask(guesses, 3.4))


def logs(rows: pd.DataFrame, **curves: Sequence[tuple[int, float]]) -> dict[str, Trained]:
    known = fake_runs(rows)
    return {run: replace(each, curve=tuple(curves.get(each.config.encoding, ()))) for run, each in known.items()}


def test_how_many_tokens_would_be_enough_is_a_line_in_their_logarithm() -> None:
    """The loss falls by 0.2 nats with every doubling of the tokens: 3.6 at 2,000, so 3.3 after 2^1.5 times as many."""
    rows = lost(["a"])
    falling = tuple(
        (tokens, 3.6 - 0.2 * math.log2(tokens / 2000) + (tokens < 1000)) for tokens in range(100, 2001, 100)
    )  # only the second half counts
    fine = curve(5.0, 3.31, 3.29, 2.0)
    (note,) = budget_note(rows, summarize(rows), logs(rows, a=falling, fine=fine))
    assert note.startswith("Not trained: a saw 2000 tokens. ")
    assert "encodings that did train fell below that of a guess after 300 tokens" in note
    assert f"reaches that of a guess after about {round(2000 * 2**1.5, -2):.0f} tokens in all" in note


@pytest.mark.parametrize(("count", "lines"), [(3, 3), (4, 1), (64, 1)])
def test_many_untrained_encodings_share_a_line(count: int, lines: int) -> None:
    names = [f"e{n:02d}" for n in range(count)]
    rows = lost(names)
    told = [line for line in failures(summarize(rows)) if line[1] == NOT_TRAINED]
    assert len(told) == lines
    assert untrained(rows).keys() == set(names)
    if lines == 1:
        assert told[0][0] == f"e00, e01, e02 and {count - 3} more"
        assert told[0][2].startswith(f"{count} encodings; e00: its loss at its training length is 3.40 nats per token")
        assert told[0][2].endswith("and guessing costs 3.30")  # by frequency, which is better than evenly


def test_runs_of_one_training_are_counted_once() -> None:
    """A run that was evaluated under several encodings was trained once, and not beside itself."""
    each = Trained(RunConfig(encoding="rope"), {}, training="rope-1", machine="m", span=(0.0, 50.0))
    runs = {"rope-1": each, "rope-1.as.yarn": each, "alibi-1": replace(each, training="alibi-1", span=(60.0, 90.0))}
    assert timed_together(runs, runs) == (0, 2)
    runs["t5-1"] = replace(each, training="t5-1", span=(80.0, 100.0))
    assert timed_together(runs, runs) == (2, 3)
    assert timed_together(["rope-1"], runs) == (0, 1)
    assert timed_together(["alibi-1"], runs) == (1, 1)  # beside a run of another section
    assert timed_together(["alibi-1"], runs | {"t5-1": replace(runs["t5-1"], span=None)}) == (0, 1)


# ---- protocols, and how far a task is solved


def test_a_task_is_solved_up_to_the_last_length_before_the_first_failure() -> None:
    """Nine in ten are enough, also as a mean of seeds that floats round down; a later success does not count."""
    names = ("a", "b", "c")
    rows, _ = results({name: (1.4, lambda _: 0.0) for name in names}, seeds=(0, 1, 2))
    shares = {"a": (0.9, 0.95, 0.89, 1.0, 1.0), "b": (0.9, 0.5, 1.0, 1.0, 1.0), "c": (0.89, 1.0, 1.0, 1.0, 1.0)}
    at = dict(zip((1, 2, 4, 8, 16), range(5), strict=True))
    keys = zip(rows["encoding"], rows["ratio"], rows["seed"], strict=True)
    accuracy = [shares[name][at[int(ratio)]] + 0.05 * (seed - 1) * (ratio < 4) for name, ratio, seed in keys]
    summary = summarize(rows.assign(accuracy=accuracy))
    assert summary.set_index("encoding")["effective"].to_dict() == {"a": 2.0, "b": 1.0, "c": 0.0}
    assert solved_up_to(summary) == (
        "At least 90 % of the answers are right with a up to 2x, b at 1x only; c at no length."
    )


@pytest.mark.parametrize(
    ("lows", "safe"), [([0.0, -0.009], 4.0), ([0.0, -0.01], 2.0), ([-0.02, 0.1], 1.0), ([0.0, math.nan], 2.0)]
)
def test_a_length_is_safe_if_the_lower_end_of_the_gain_excludes_harm(lows: list[float], safe: float) -> None:
    points = pd.DataFrame({"ratio": [2.0, 4.0], "gain_low": lows, "gain_high": 0.5, "seeds": 3, "failed": 0})
    assert safe_ratio(points) == safe
    assert safe_ratio(points.assign(failed=[0, 1])) == min(safe, 2.0)
    assert math.isnan(safe_ratio(points.assign(seeds=2)))
