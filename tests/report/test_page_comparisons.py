"""Every comparison that the page can show: all bases, all others, all lengths and protocols, with unequal seeds.

Differences are worked out with pandas from the table of documents; intervals and words are those of `poscli compare`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fake_pages import STEP, against, fake_runs, pairs_of, tables_with_holes, task_tables
from scipy import stats
from torture.reports import undrawn

from poscli.report import Report, build_report
from poscli.report.accuracy import wrong_answers
from poscli.report.page.data import section_data
from poscli.runs.schema import DETAILS, frame

HALF = 0.51 * STEP  # numbers are rounded on their way to the page


def made(tables: tuple[pd.DataFrame, pd.DataFrame, dict[str, pd.DataFrame]], folder: Path) -> tuple[Report, dict]:
    rows, positions, details = tables
    with undrawn():
        report = build_report(rows, positions, folder, details=details)
    return report, section_data(report.sections[0], fake_runs(rows))


@pytest.fixture(scope="module")
def holes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, dict[str, Any]]:
    return made(tables_with_holes(), tmp_path_factory.mktemp("holes"))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, dict[str, Any]]:
    rows, positions, details = task_tables()
    rows = rows[rows["length"].isin([256, 4096])]
    details = {name: table[table["length"].isin([256, 4096])] for name, table in details.items()}
    gone = (rows["encoding"] == "rope") & (rows["seed"] == 1)
    lost = set(rows.loc[gone, "run_id"])
    details = {name: table[~table["run_id"].isin(lost)] for name, table in details.items()}
    return made((rows[~gone], positions, details), tmp_path_factory.mktemp("task"))


def by_hand(losses: pd.DataFrame, one: str, base: str) -> float:
    """The mean difference in bits per byte between runs of equal seeds, each loss a sum of nats of one run."""
    ours, theirs = (losses[losses["encoding"] == name].set_index("seed")["bits"] for name in (one, base))
    if len(ours) == len(theirs) == 1:
        return float(ours.iloc[0] - theirs.iloc[0])
    return float((ours - theirs).mean())  # pandas pairs equal seeds


def bits(report: Report) -> dict[Any, pd.DataFrame]:
    """Bits per byte of every run, from the table of documents, by protocol, variant and length."""
    units = tables_with_holes()[2]["units"].drop(columns=["encoding", "seed"], errors="ignore")
    units = units.merge(report.sections[0].group.rows.drop_duplicates("run_id")[["run_id", "encoding", "seed"]])
    units = units.assign(nats=units["nll"] * units["tokens"])
    sums = units.groupby(["protocol", "variant", "length", "encoding", "seed"])[["nats", "bytes"]].sum()
    losses = (sums["nats"] / sums["bytes"] / math.log(2)).rename("bits").reset_index()
    return dict(list(losses.groupby(["protocol", "variant", "length"])))


def test_differences_of_losses_are_means_over_runs_of_equal_seeds(holes: tuple[Report, dict[str, Any]]) -> None:
    report, section = holes
    losses = bits(report)
    compared = 0
    for number, protocol in enumerate(section["protocols"]):
        found = pairs_of(section, section["pairs"][number]["loss"])
        for one, base, length in found:
            expected = by_hand(losses[protocol["name"], "full", length], one, base)
            numbers, word = found[one, base, length]
            assert numbers[0] == pytest.approx(expected, abs=HALF, nan_ok=True), (one, base, length)
            if not math.isnan(expected):
                assert numbers[1] <= numbers[0] <= numbers[2]
                assert word not in ("better", "worse") or (word == "better") == (expected < 0)
                compared += 1
    assert compared == 3 * 2 * (6 + 3)  # of 4 encodings 6 pairs at 256; learned ends there, and the others are 3 pairs


def test_intervals_and_words_are_those_of_the_report_under_every_protocol(holes: tuple[Report, dict[str, Any]]) -> None:
    report, section = holes
    group, seen = report.sections[0].group, set()
    for number, protocol in enumerate(section["protocols"]):
        found = pairs_of(section, section["pairs"][number]["loss"])
        own = group.rows[group.rows["protocol"] == protocol["name"]]
        for base in (each["name"] for each in section["encodings"]):
            for row in against(own, group.units, base).to_dict("records"):
                numbers, word = found[row["encoding"], base, row["length"]]
                expected = [row["difference"], row["low"], row["high"]]
                assert numbers == pytest.approx(expected, abs=HALF, nan_ok=True), (row, base)
                assert word == row["word"]
                seen.add(word)
    assert {"better", "worse", "not compared"} <= seen


def test_gains_compare_the_other_way_round(holes: tuple[Report, dict[str, Any]]) -> None:
    report, section = holes
    losses = bits(report)
    (number,) = {number for number in section["gainFrom"] if number is not None}
    name, found = section["protocols"][number]["name"], pairs_of(section, section["pairs"][number]["gain"])
    words = set()
    for one, base, length in found:
        full, cut = (losses[name, variant, length] for variant in ("full", "crop"))
        gains = full.merge(cut, on=["encoding", "seed"], suffixes=("", "_cut"))
        gains = gains.assign(bits=gains["bits_cut"] - gains["bits"])
        numbers, word = found[one, base, length]
        expected = by_hand(gains, one, base)
        assert numbers[0] == pytest.approx(expected, abs=HALF, nan_ok=True), (one, base, length)
        if word in ("better", "worse"):
            assert (word == "better") == (expected > 0)
        words.add(word)
    assert {"better", "worse"} <= words


def test_accuracies_of_all_pairs_are_those_of_the_report(task: tuple[Report, dict[str, Any]]) -> None:
    report, section = task
    group = report.sections[0].group
    units = wrong_answers(group.details["answers"], "answer")
    found, seen = pairs_of(section, section["answered"]["pairs"]), set()
    shares = group.details["answers"].groupby(["encoding", "seed", "length"])[["right", "tokens"]].sum()
    shares = (shares["right"] / shares["tokens"]).rename("bits").reset_index()
    for base in (each["name"] for each in section["encodings"]):
        for row in against(group.rows, units, base).to_dict("records"):
            numbers, word = found[row["encoding"], base, row["length"]]
            assert numbers == pytest.approx([row["difference"], row["low"], row["high"]], abs=HALF, nan_ok=True)
            own = by_hand(shares[shares["length"] == row["length"]], row["encoding"], base)
            assert math.isnan(numbers[0]) or numbers[0] == pytest.approx(own, abs=HALF)
            assert word == row["word"]
            seen.add(word)
            if word in ("better", "worse"):
                assert (word == "better") == (own > 0)
    assert {"better", "worse"} <= seen


def test_numbers_per_seed_stand_in_the_order_of_the_seeds(holes: tuple[Report, dict[str, Any]]) -> None:
    report, section = holes
    rows = report.sections[0].group.rows
    runs = fake_runs(rows)
    assert section["seeds"] == [0, 1, 2]
    assert section["student"] == pytest.approx(list(stats.t.ppf(0.975, [1, 2])), abs=STEP)
    of_run = rows.drop_duplicates("run_id").set_index(["encoding", "seed"])["run_id"]
    costs = {each["key"]: each["values"] for each in section["costs"]}
    last = rows[(rows["protocol"] == "sliding") & (rows["variant"] == "full") & (rows["length"] == 1024)]
    speeds = last[last["status"] == "ok"].set_index(["encoding", "seed"])["tokens_per_s"]
    for n, encoding in enumerate(each["name"] for each in section["encodings"]):
        for k, seed in enumerate(section["seeds"]):
            run = of_run.get((encoding, seed))
            assert costs["seconds"][n][k] == (None if run is None else pytest.approx(runs[run].seconds))
            speed = speeds.get((encoding, seed))
            assert costs["reading"][n][k] == (None if speed is None else pytest.approx(1e6 / speed, abs=STEP))


def test_bins_of_positions_and_distances_are_in_bits_by_seed(holes: tuple[Report, dict[str, Any]]) -> None:
    report, section = holes
    group = report.sections[0].group
    names = [each["name"] for each in section["encodings"]]
    table = group.positions
    longest = table[table["length"] == table.groupby("encoding")["length"].transform("max")]
    assert [each["from"] for each in section["position"]] == sorted(each["from"] for each in section["position"])
    assert min(each["to"] for each in section["position"]) > 256 / 16  # the first of them are costly for all
    recall = group.details["recall"]
    for bins, source, column in ((section["position"], longest, "nll"), (section["recall"], recall, "gain")):
        assert bins
        for each in bins:
            part = source[(source["from"] == each["from"]) & (source["to"] == each["to"])]
            known = (part.set_index(["encoding", "seed"])[column] / math.log(2)).to_dict()
            expected = [[known.get((name, seed)) for seed in section["seeds"]] for name in names]
            for own, other in zip(each["values"], expected, strict=True):
                assert own == [None if value is None else pytest.approx(value, abs=STEP) for value in other]


def test_harms_of_single_changes_are_in_bits_by_seed_or_say_why_not(holes: tuple[Report, dict[str, Any]]) -> None:
    report, section = holes
    table = report.sections[0].group.details["why/attribution"]
    names = [each["name"] for each in section["encodings"]]
    titles = [each["title"].rpartition("(")[2].strip(")") for each in section["attribution"]]
    changes = dict(zip(["full", *titles[1:]], section["attribution"], strict=True))
    assert list(changes) == ["full", "offset", "stretch", "crowd"]
    reasons = 0
    for change, found in changes.items():
        for n, name in enumerate(names):
            own = table[(table["change"] == change) & (table["encoding"] == name)].set_index("seed")
            good = own[own["status"] == "ok"]
            for k, seed in enumerate(section["seeds"]):
                harm = good["harm"].get(seed)
                expected = None if harm is None else pytest.approx(harm / math.log(2), abs=STEP)
                assert found["values"][n][k] == expected
            reasons += bool(found["why"][n])
            assert bool(found["why"][n]) == (len(own) > 0 and good.empty)
    assert reasons
    rope = names.index("rope")  # one seed is void: the others are shown, and no reason in their place
    assert [value is None for value in changes["stretch"]["values"][rope]] == [False, True, False]
    assert changes["stretch"]["why"][rope] == ""


def test_a_page_lacks_seeds_only_where_no_encoding_has_three(
    holes: tuple[Report, dict[str, Any]], tmp_path: Path
) -> None:
    _, section = holes
    seeds = {each["name"]: each["seeds"] for each in section["encodings"]}
    assert seeds == {"alibi": 2, "learned": 3, "none": 1, "rope": 3}
    assert not section["fewSeeds"]
    rows, positions, details = tables_with_holes()
    rows, positions = (table[table["encoding"].isin(["alibi", "none"])] for table in (rows, positions))
    details = {name: table[table["encoding"].isin(["alibi", "none"])] for name, table in details.items()}
    _, section = made((rows, positions, details), tmp_path)
    assert section["fewSeeds"]


def test_places_of_answers_are_shares_by_seed(task: tuple[Report, dict[str, Any]]) -> None:
    report, section = task
    place, answers = section["answered"]["place"], report.sections[0].group.details["answers"]
    last = answers[answers["length"] == 4096]
    assert (place["length"], place["depth"]) == (4096, True)
    assert [(each["from"], each["to"]) for each in place["bins"]] == [(n, n + 19) for n in range(0, 100, 20)]
    for each in place["bins"]:
        part = last[last["from"] == each["from"]].groupby(["encoding", "seed"])[["right", "tokens"]].sum()
        known = (part["right"] / part["tokens"]).to_dict()
        for n, encoding in enumerate(section["encodings"]):
            expected = [known.get((encoding["name"], seed)) for seed in section["seeds"]]
            own = each["values"][n]
            assert own == [None if value is None else pytest.approx(value, abs=STEP) for value in expected]


def test_a_task_without_any_seed_in_common_is_not_compared(tmp_path: Path) -> None:
    rows, positions, details = tables_with_holes()
    kept = rows[(rows["encoding"] == "alibi") | (rows["encoding"] == "learned") & (rows["seed"] == 1)]
    none = frame([], DETAILS["recall"])
    _, section = made((kept, positions, {"units": details["units"], "recall": none}), tmp_path)
    found = pairs_of(section, section["pairs"][section["main"]]["loss"])
    assert {word for _, word in found.values()} == {"not compared"}
    assert np.isnan([numbers for numbers, _ in found.values()]).all()
