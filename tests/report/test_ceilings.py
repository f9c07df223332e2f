"""What a longer context is worth to models that were trained with it, and what of that others use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fake_results import LN2, Shape, results, units_of

from poscli.config.run import PRESETS, RunConfig
from poscli.report import build_report
from poscli.report.ceilings import ngram_gains
from poscli.report.collect import Trained
from poscli.report.data import Section
from poscli.system.errors import CorruptError

LENGTHS = (64, 256, 1024)
SLIDING = ("sliding",)
SHORT: dict[str, Shape] = {
    "alibi": (1.4, lambda octaves: 0.05 * octaves),
    "rope": (1.38, lambda octaves: -0.1 * octaves),
}
LONG: dict[str, Shape] = {"alibi": (1.1, lambda octaves: 0.0), "fox": (1.0, lambda octaves: 0.0)}


def section(
    tmp_path: Path,
    long: dict[str, Shape],
    *,
    fingerprint: str = "3f2a9c41d0e7",
    seeds: tuple[int, ...] = (0, 1, 2),
    fewer: int = 0,
    **columns: float,
) -> Section:
    """The section of models that were trained at 64 with these seeds, beside three of each that was trained at 1024.

    The latter are scored on `fewer` documents.
    """
    short_rows, positions = results(SHORT, seeds=seeds, train_length=64, lengths=LENGTHS, protocols=SLIDING)
    long_rows, _ = results(
        long, seeds=(0, 1, 2), train_length=1024, lengths=(1024,), fingerprint=fingerprint, protocols=SLIDING
    )
    rows = pd.concat([short_rows, long_rows], ignore_index=True).assign(**columns)
    ngrams = ngram_gains(tmp_path / "corpus")
    units = units_of(rows)
    dropped = units["run_id"].isin(long_rows["run_id"]) & units["unit"].isin(units["unit"].unique()[:fewer])
    details = {"units": units[~dropped]}
    report = build_report(rows, positions, tmp_path / "report", details=details, ngrams=ngrams)
    return next(each for each in report.sections if each.train_length == 64)


def test_headroom_use_and_price(tmp_path: Path) -> None:
    """At 1024 the best is fox, at 64 alibi, which alone has both trainings: 0.4 nats, of which alibi uses half."""
    made = section(tmp_path, LONG)
    (ceiling,) = made.ceilings
    assert (ceiling.length, ceiling.ratio, ceiling.short, ceiling.long) == (1024, 16, "alibi", "fox")
    assert ceiling.headroom[0] == pytest.approx(0.4 / LN2, abs=0.01)
    alibi = [each.name for each in made.encodings].index("alibi")
    assert ceiling.gains[alibi][0] == pytest.approx(0.2 / LN2, abs=0.01)
    assert ceiling.used[alibi][0] == pytest.approx(0.5, abs=0.02)
    assert ceiling.used[alibi][1] < 0.5 < ceiling.used[alibi][2]
    assert ceiling.prices[alibi][0] == pytest.approx(0.1 / LN2, abs=0.01)
    rope = 1 - alibi
    assert ceiling.used[rope][2] < 0
    assert np.isnan(ceiling.prices[rope]).all()
    analysis = next(each for each in made.analyses if each.title.startswith("How much of what a longer context"))
    assert "by training at 16x (best there: fox; best at L: alibi)" in analysis.answer
    assert "these use a part of that: alibi 50 %" in analysis.answer


@pytest.mark.parametrize(
    ("change", "count"),
    [({"length": 1024}, 1), ({"tokens": 3_000_000}, 0), ({"model": PRESETS["nano"]}, 0)],
    ids=["the same", "more tokens", "another shape"],
)
def test_only_models_of_the_same_shape_and_budget_say_what_a_longer_context_is_worth(
    tmp_path: Path, change: dict[str, Any], count: int
) -> None:
    short, positions = results(SHORT, train_length=64, lengths=LENGTHS, protocols=SLIDING)
    long, _ = results(LONG, train_length=1024, lengths=(1024,), protocols=SLIDING)
    rows, here = pd.concat([short, long], ignore_index=True), RunConfig(encoding="rope", length=64)
    runs = {name: Trained(here, {}) for name in short["run_id"]}
    runs |= {name: Trained(here.model_copy(update=change), {}) for name in long["run_id"]}
    report = build_report(rows, positions, tmp_path, details={"units": units_of(rows)}, runs=runs)
    assert [len(each.ceilings) for each in report.sections if each.train_length == 64] == [count]


def test_shares_are_of_the_seeds_that_both_trainings_have(tmp_path: Path) -> None:
    (ceiling,) = section(tmp_path, LONG, seeds=(0, 1, 2, 3, 4, 5)).ceilings
    (same,) = section(tmp_path, LONG).ceilings
    assert ceiling.used[0] == pytest.approx(same.used[0], abs=1e-9)
    assert 0.4 < ceiling.used[0][1] < 0.5 < ceiling.used[0][2]


def test_shares_over_other_documents_are_unknown_and_not_called_none(tmp_path: Path) -> None:
    made = section(tmp_path, LONG, fewer=1)
    assert made.ceilings[0].headroom[1] > 0.02
    assert not any(np.isfinite(ceiling.used).any() for ceiling in made.ceilings)
    assert not any("uses any of it" in each.answer for each in made.analyses)


def test_shares_of_next_to_nothing_are_not_stated(tmp_path: Path) -> None:
    (ceiling,) = section(tmp_path, {"alibi": (1.395, lambda octaves: 0.0)}).ceilings
    assert ceiling.headroom[0] == pytest.approx(0.005 / LN2, abs=0.005)
    assert np.isnan(ceiling.used).all()


def test_models_that_were_scored_on_another_text_are_no_ceiling(tmp_path: Path) -> None:
    made = section(tmp_path, LONG, fingerprint="77aa88bb99cc")
    assert made.ceilings == ()
    assert not any(each.title.startswith("How much of what") for each in made.analyses)


def test_tasks_have_no_ceilings_because_a_context_that_is_cut_lacks_the_answer(tmp_path: Path) -> None:
    made = section(tmp_path, LONG, accuracy=0.95)
    assert made.answered
    assert made.ceilings == ()


def test_what_an_n_gram_wins_on_the_text_is_said_where_it_was_measured_at_this_length(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    for length, won, mark in ((64, 0.35, "3f2a9c41d0e7"), (128, 0.4, "3f2a9c41d0e7"), (64, 0.5, "77aa88bb99cc")):
        windows = [{"window": 16 * length, "won": won, "low": won - 0.1, "high": None if won > 0.45 else won + 0.1}]
        measured = {"corpus": {"fingerprint": mark}, "length": length, "windows": windows}
        (tmp_path / "corpus" / f"{mark}-L{length}.json").write_text(json.dumps(measured))
    made = section(tmp_path, LONG)
    analysis = next(each for each in made.analyses if each.title.startswith("How much of what a longer context"))
    assert analysis.answer.endswith(" An n-gram with a cache wins +0.350 [+0.250, +0.450] by 16x.")


def test_a_damaged_measurement_of_a_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/3f2a9c41d0e7-L64.json").write_text("{")
    with pytest.raises(CorruptError, match=r"3f2a9c41d0e7-L64\.json is not JSON"):
        section(tmp_path, LONG)
