"""Comparisons that look fair and are not: other tokens, too few documents, missing seeds, other tasks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cli_runner import cli
from fake_pages import against, task_tables
from fake_results import BEHAVIOUR, LN2, results, units_of
from torture.reports import undrawn

from poscli.report import Report, build_report
from poscli.report.accuracy import by_length
from poscli.report.caveats import caveats
from poscli.report.page import page_section
from poscli.report.pooling import headline, points_of
from poscli.report.summary import summarize
from poscli.report.table import verdict_sentences
from poscli.runs.schema import DETAILS, frame
from poscli.statistics.comparison import TOO_FEW, WITHIN_NOISE, Comparison, LossTable, judged
from poscli.statistics.intervals import ratio_interval
from poscli.system.errors import UsageError

NOTHING = frame([], DETAILS["answers"])
ALIKE = {"alibi": (1.385, lambda octaves: 0.0), "rope": (1.385, lambda octaves: 0.0)}


def report(tmp_path: Path, rows: pd.DataFrame, units: pd.DataFrame | None = None, **more: Any) -> Report:
    with undrawn():
        return build_report(rows, results()[1], tmp_path, details={} if units is None else {"units": units}, **more)


def twice(table: pd.DataFrame, chosen: pd.Series) -> pd.DataFrame:
    """The table as if the chosen rows were of twice as much text."""
    return table.assign(**{name: table[name] * np.where(chosen, 2, 1) for name in ("tokens", "bytes")})


def sentence(made: Report) -> str:
    found = page_section(made.sections[0])
    return "".join(text for text, _ in found["answers"][found["main"]]["sentence"])


def test_encodings_that_were_scored_on_other_amounts_of_text_are_compared_by_their_rates(tmp_path: Path) -> None:
    rows, _ = results(ALIKE, seeds=(0, 1, 2))
    units = units_of(rows)
    fair = against(rows, LossTable(units), "rope")
    more = {"rows": twice(rows, rows["encoding"] == "rope"), "units": twice(units, units["encoding"] == "rope")}
    other = against(more["rows"], LossTable(more["units"]), "rope")
    numbers = ["difference", "low", "high", "p"]
    np.testing.assert_allclose(other[numbers], fair[numbers], atol=1e-12)
    summary = report(tmp_path, rows, units).summary
    for table, told in ((rows, False), (more["rows"], True)):
        notes = caveats(table, summary, points_of(table, headline(table).perplexity))
        assert any("different windows" in note for note in notes) == told


def test_evaluations_of_several_sizes_compare_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line, with two runs of one seed that do not differ much and read different windows."""
    monkeypatch.chdir(tmp_path)
    small = ("--preset", "nano", "--length", 32, "--batch", 4, "--tokens", "2k")
    assert cli("train", "--enc", "alibi", "--enc", "none", *small).code == 0
    for name, tokens in (("alibi", 512), ("none", 2048)):
        assert cli("extrapolate", "--enc", name, "--max-len", 64, "--tokens", tokens).code == 0
    table = cli("compare", "alibi", "none", "--json").json
    assert all(abs(row["difference"]) < 1 for row in table)


def test_what_no_agreement_could_decide_is_not_within_noise() -> None:
    """Of 40 comparisons, five or ten documents that all agree are too few; of two, ten are enough."""
    shown = [(0.0625, 5), (0.25, 5), (2**-9, 10), (2**-9, 12), (0.2, 12)]
    family = [Comparison(-1.0, -2.0, -0.5, p, seeds=1, documents=documents) for p, documents in shown]
    others = [Comparison(1.0, 0.0, 2.0, 0.9, seeds=1, documents=12)] * 35
    words = [each.word for each in judged([*family, Comparison(), *others])]
    assert words[:6] == [TOO_FEW, TOO_FEW, TOO_FEW, WITHIN_NOISE, WITHIN_NOISE, "not compared"]
    two = [family[2], family[2].reversed()]
    assert [each.word for each in judged(two)] == ["better", "worse"]
    assert [each.word for each in judged(two, more_is_better=True)] == ["worse", "better"]


def test_failures_do_not_pair_runs_of_different_seeds() -> None:
    """Each encoding has another seed left at 4096 tokens. Single runs are a pair whatever their seeds."""
    rows, _ = results(ALIKE, seeds=(0, 1))
    at_end = rows["length"] == 4096
    failed = at_end & (rows["seed"] == (rows["encoding"] == "rope"))
    rows = rows.assign(status=rows["status"].mask(failed, "oom"))
    found = against(rows, LossTable(units_of(rows)), "rope")
    assert list(found["seeds"]) == [2, 2, 2, 2, 0]
    assert found["word"].iloc[-1] == "not compared"
    single = rows[~failed & (rows["seed"] == (rows["encoding"] == "alibi"))]
    assert list(against(single, LossTable(units_of(single)), "rope")["seeds"]) == [1] * 5


def test_with_five_documents_and_one_seed_the_answer_does_not_say_noise(tmp_path: Path) -> None:
    rows, _ = results({name: BEHAVIOUR[name] for name in ("alibi", "none", "rope")})
    units = units_of(rows)
    few = units[units["unit"].isin(sorted(set(units["unit"]))[:4])]
    made = report(tmp_path, rows, few, baseline="alibi")
    assert "within noise" not in sentence(made)
    assert "with too few documents to tell it from" in sentence(made)
    text = (tmp_path / "report.md").read_text()
    assert "with too few documents to tell from alibi" in text
    assert "so few were scored that no difference could be significant" in text


def test_who_is_better_on_the_seeds_in_common_is_told(tmp_path: Path) -> None:
    """Alibi lacks the seed that is hard for all, so that its mean is the best one, and rope is better seed by seed."""
    shapes = {"alibi": (1.385, lambda o: 0.0), "rope": (1.37, lambda o: 0.0), "none": (1.45, lambda o: 0.0)}
    rows, _ = results(shapes, seeds=(0, 1, 2))
    rows["nll"] += 0.3 * (rows["seed"] == 2)
    rows = rows.assign(bpb=rows["nll"] / LN2, ppl=np.exp(rows["nll"]))
    kept = [table[~((table["encoding"] == "alibi") & (table["seed"] == 2))] for table in (rows, units_of(rows))]
    told = sentence(report(tmp_path, *kept))
    assert "alibi has the lowest loss" in told
    assert "predicts best" not in told
    assert "but worse than rope on the seeds in common" in told
    assert "better than 1 of 2 others" in told


def test_tasks_with_right_answers_are_not_mixed_with_others(tmp_path: Path) -> None:
    rows, positions, details = task_tables()
    text = results({"alibi": BEHAVIOUR["alibi"]}, fingerprint="beef00112233", corpus="text")[0]
    both = pd.concat([rows, text])
    with pytest.raises(
        UsageError, match="--mix would join stdlib and text, all trained at L = 256, although stdlib is"
    ):
        build_report(both, positions, tmp_path, details=details, mix=True)
    assert not list(tmp_path.iterdir())
    with undrawn():
        assert len(build_report(both, positions, tmp_path, details=details).sections) == 2


def test_the_interval_of_a_loss_per_byte_holds_its_estimate(tmp_path: Path) -> None:
    rows, _ = results({"alibi": BEHAVIOUR["alibi"]})
    other = results({"rope": BEHAVIOUR["rope"]}, fingerprint="ff00aa")[0]
    pieces = {name: 2 * other[name] for name in ("nll", "nll_low", "nll_high")}
    other = other.assign(tokenizer="bpe:512", tokens=other["tokens"] // 2, ppl=other["ppl"] ** 2, **pieces)
    made = report(tmp_path, pd.concat([rows, other]), mix=True)
    found = page_section(made.sections[0])
    for line in found["points"][found["main"]]:
        loss, low, high = line[0][3:6]
        assert low <= loss <= high


def test_intervals_of_accuracies_grow_no_narrower_with_a_wrong_answer() -> None:
    def answers(wrong: int) -> pd.DataFrame:
        right = np.array([4] * 256)
        right[:wrong] = 3
        columns = {"run_id": "a", "encoding": "rope", "train_length": 32, "length": 64, "tokens": 4, "chance": 0.1}
        return pd.DataFrame({"unit": map(str, range(256)), "right": right}).assign(**columns)

    lows = [by_length(answers(wrong))["low"].iloc[0] for wrong in range(4)]
    assert lows == sorted(lows, reverse=True)
    assert lows[0] == pytest.approx(0.025 ** (1 / 256))


def test_differences_of_accuracy_stay_within_one_and_are_never_certain(tmp_path: Path) -> None:
    rows, positions, details = task_tables()
    right = details["answers"]["encoding"].map({"alibi": 4, "learned": 4, "none": 0, "rope": 4})
    shaken = right - (details["answers"]["encoding"].eq("rope") & details["answers"]["unit"].eq("7")).astype(int)
    with undrawn():
        made = build_report(
            rows, positions, tmp_path, details=details | {"answers": details["answers"].assign(right=shaken)}
        )
    found = page_section(made.sections[0])
    numbers = np.array(found["answered"]["pairs"]["numbers"], float).reshape(-1, 3) / 1e5
    numbers = numbers[~np.isnan(numbers[:, 0])]
    assert (np.abs(numbers) <= 1).all()
    assert ((numbers[:, 2] - numbers[:, 1]) > 0.02).all()
    assert math.isclose(np.abs(numbers[:, 0]).max(), 1)
    json.dumps(found, allow_nan=False)


def test_encodings_without_rows_of_answers_keep_their_accuracy(tmp_path: Path) -> None:
    rows, positions, details = task_tables()
    answers = details["answers"][details["answers"]["encoding"] != "rope"]
    with undrawn():
        made = build_report(rows, positions, tmp_path, details=details | {"answers": answers})
    found = page_section(made.sections[0])
    rope = [each["name"] for each in found["encodings"]].index("rope")
    accuracy = rows[(rows["encoding"] == "rope") & (rows["ratio"] == 16)]["accuracy"].mean()
    assert found["answered"]["points"][rope][-1] == [pytest.approx(accuracy, abs=1e-5), None, None]


def test_bands_of_losses_per_byte_are_over_documents_and_not_over_tokens(tmp_path: Path) -> None:
    """Documents of which each token is 1, 2 or 3 bytes have other losses per byte than per token."""
    rows, _ = results({"alibi": BEHAVIOUR["alibi"]})
    other = results({"rope": BEHAVIOUR["rope"]}, fingerprint="ff00aa")[0].assign(tokenizer="bpe:512")
    both = pd.concat([rows.assign(tokenizer="bytes"), other], ignore_index=True)
    units = units_of(both)
    sizes = units["unit"].map({unit: 1 + n % 3 for n, unit in enumerate(sorted(set(units["unit"])))})
    units = units.assign(bytes=units["tokens"] * np.where(units["run_id"].str.startswith("rope"), sizes, 1))
    made = report(tmp_path, both, units, mix=True)
    (run,) = set(other["run_id"])
    losses = LossTable(units).losses([run], "sliding", 4096, "full")
    assert losses is not None
    expected = [end / LN2 for end in ratio_interval(losses.nats[0], losses.bytes)]
    (line,) = (each for each in made.sections[0].figures[0].lines if each.name == "rope [bpe:512]")
    assert (line.low[-1], line.high[-1]) == pytest.approx(expected)


def test_a_task_is_judged_by_answers_also_where_its_loss_is_that_of_a_guess() -> None:
    rows, _, _ = task_tables()
    guessing = rows.assign(guess_gain_low=-1.0, nll=rows["unigram"] + 1)
    verdicts = summarize(guessing).set_index("encoding")["verdict"]
    assert verdicts.to_dict() == {"alibi": "solved", "rope": "fades", "none": "unsolved", "learned": "unsupported"}
    none = guessing["encoding"] == "none"
    guessing.loc[none, "accuracy"] = np.exp(-guessing.loc[none, ["unigram", "chance"]].min(axis=1))
    assert summarize(guessing).set_index("encoding")["verdict"]["none"] == "not trained"
    poor = verdict_sentences(summarize(rows[rows["encoding"] == "none"]))
    assert poor.startswith("No encoding answers 90 % right, not even at its training length.")
