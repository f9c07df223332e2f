"""Whether seeds that had no part in telling encodings apart give the same order."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from fake_results import Shape, results, units_of

from poscli.report import build_report
from poscli.report.data import Analysis

LENGTHS = (64, 256, 1024)
SHAPES: dict[str, Shape] = {
    "alibi": (1.4, lambda octaves: 0.0),
    "fox": (1.4, lambda octaves: 0.0),
    "rope": (1.5, lambda octaves: 0.1 * octaves),
}


def analysis(tmp_path: Path, rows: pd.DataFrame, positions: pd.DataFrame) -> Analysis | None:
    report = build_report(rows, positions, tmp_path, details={"units": units_of(rows)})
    named = [each for each in report.sections[0].analyses if each.title == "Would other seeds give the same order?"]
    return named[0] if named else None


def test_pairs_of_a_real_difference_keep_their_order(tmp_path: Path) -> None:
    """Two encodings are equal and rope is worse: two pairs are told apart, and ordered alike."""
    made = analysis(tmp_path, *results(SHAPES, seeds=range(6), train_length=64, lengths=LENGTHS))
    assert made is not None
    assert "At 16x, 3 seeds tell 2 of 3 pairs apart, and 3 other seeds order these" in made.answer
    assert "Kendall's tau of 1.00 (at least 1.00, in 10 divisions of the seeds)" in made.answer


def test_an_order_that_turns_with_the_seeds_is_seen(tmp_path: Path) -> None:
    """Half of the seeds of rope are as much better as the others are worse: two divisions have the order reversed."""
    rows, positions = results(SHAPES, seeds=range(6), train_length=64, lengths=LENGTHS)
    turned = (rows["encoding"] == "rope") & (rows["seed"] >= 3)
    others = rows[rows["encoding"] == "alibi"].set_index(["seed", "protocol", "length", "variant"])["nll"]
    keys = pd.MultiIndex.from_frame(rows.loc[turned, ["seed", "protocol", "length", "variant"]])
    rows.loc[turned, "nll"] = 2 * others.reindex(keys).to_numpy() - rows.loc[turned, "nll"].to_numpy()
    made = analysis(tmp_path, rows, positions)
    assert made is not None
    assert "(at least -1.00" in made.answer


def test_fewer_than_three_seeds_in_a_half_say_nothing(tmp_path: Path) -> None:
    assert analysis(tmp_path, *results(SHAPES, seeds=range(5), train_length=64, lengths=LENGTHS)) is None
