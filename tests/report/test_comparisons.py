"""Comparisons that look fair and are not: other tokens, too few documents, missing seeds, other tasks."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_pages import against, fake_runs, fake_tables, summarized, task_tables
from fake_results import BEHAVIOUR, LN2, results, units_of
from lines import printed
from torture.reports import undrawn

from poscli.report import build_report
from poscli.report.accuracy import by_length
from poscli.report.collect import Trained
from poscli.report.comparison import AllPairs, compare_named, pick, wrong_answers
from poscli.report.page import page_section
from poscli.report.page.site import site_pages
from poscli.report.terminal import comparison_table
from poscli.statistics.comparison import TOO_FEW, WITHIN_NOISE, WORSE, Comparison, LossTable, judged
from poscli.statistics.intervals import many_differences, ratio_interval
from poscli.system.errors import UsageError

ALIKE = {"alibi": (1.385, lambda octaves: 0.0), "rope": (1.385, lambda octaves: 0.0)}


def test_losses_on_other_amounts_of_text_are_compared_as_if_it_were_as_much() -> None:
    """10 nats on 100 bytes of a document, and 6 on 50 of them, which are 12 on 100; by bytes of the first."""
    made = {"protocol": "sliding", "length": 512, "variant": "full", "unit": "a"}
    rows = [made | {"run_id": "one", "nll": 0.1, "tokens": 100, "bytes": 100}]
    rows += [made | {"run_id": "other", "nll": 0.5, "tokens": 12, "bytes": 50}]
    units = LossTable(pd.DataFrame(rows))
    one, other = (units.losses([run], "sliding", 512, "full") for run in ("one", "other"))
    assert one is not None
    assert other is not None
    assert one.minus(other).tolist() == [[pytest.approx(-2.0)]]
    assert other.minus(one).tolist() == [[pytest.approx(1.0)]]


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


def test_one_of_many_comparisons_could_not_be_significant_whatever_it_showed() -> None:
    """Six documents that all agree have p = 0.03, which is significant for one comparison and not for twenty."""
    twenty = [Comparison(-1.0, -2.0, -0.5, p, seeds=1, documents=6) for p in (0.03125, 0.0625, 0.125, *[0.5] * 17)]
    assert {each.word for each in judged(twenty)} == {TOO_FEW}
    alone = judged(twenty[:1])
    assert alone[0].word == "better"
    # Of many documents, flips are drawn at random, and some of them are drawn twice.
    agreed = many_differences([(np.ones((1, 14)), np.ones(14))])[0, 3]
    assert {each.word for each in judged([Comparison(-1.0, -2.0, -0.5, agreed, seeds=1, documents=14)] * 300)} == {
        TOO_FEW
    }


def test_the_best_of_many_was_lucky() -> None:
    """Of 14 that are alike on one text of 20 documents, the best is called better than some in less than a tenth."""
    random, found = np.random.default_rng(0), 0
    names = tuple("abcdefghijklmn")
    for _ in range(100):
        losses = random.normal(0, 0.1, (len(names), 20))
        cases = [(losses[[i]] - losses[[j]], np.ones(20)) for i in range(len(names)) for j in range(i)]
        numbers = many_differences(cases).tolist()
        pairs = AllPairs(names, (512,), tuple(Comparison(*each, 1, 20) for each in numbers))
        best = names[int(np.argmin(losses.mean(axis=1)))]
        found += any(each.word == WORSE for each in pairs.of_the_best(best, 512).values())
    assert found < 10


def test_failures_do_not_pair_runs_of_different_seeds() -> None:
    """Each encoding has another seed left at 4096 tokens. Single runs are a pair whatever their seeds."""
    rows, _ = results(ALIKE, seeds=(0, 1))
    failed = (rows["length"] == 4096) & (rows["seed"] == (rows["encoding"] == "rope"))
    rows = rows.assign(status=rows["status"].mask(failed, "oom"))
    table = against(rows, LossTable(units_of(rows)), "rope")
    assert list(table["seeds"]) == [2, 2, 2, 2, 0]
    assert table["word"].iloc[-1] == "not compared"
    single = rows[~failed & (rows["seed"] == (rows["encoding"] == "alibi"))]
    assert list(against(single, LossTable(units_of(single)), "rope")["seeds"]) == [1] * 5


def test_with_five_documents_and_one_seed_a_report_does_not_say_noise(tmp_path: Path) -> None:
    rows, _ = results({"alibi": BEHAVIOUR["alibi"], "rope(base=500000.0)": BEHAVIOUR["rope"]})
    units = units_of(rows, documents=4)
    report = build_report(rows, results()[1], tmp_path, details={"units": units}, baseline="rope(base=5e5)")
    text = (tmp_path / "report.md").read_text()
    assert "within noise" not in report.sections[0].answer.text
    assert report.sections[0].analyses[0].title == "Compared with rope(base=500000.0)"
    assert "with too few documents to tell from rope" in text
    assert "so few were scored that no difference could be significant" in text


def test_a_task_has_too_few_episodes_and_not_documents(tmp_path: Path) -> None:
    rows, positions, details = task_tables()
    rows = rows[rows["seed"] == 0]
    few = {name: table[(table["unit"].astype(int) < 4) & (table["seed"] == 0)] for name, table in details.items()}
    few["answers"] = few["answers"][few["answers"]["encoding"] != "rope"]
    with undrawn():
        report = build_report(rows, positions, tmp_path, details=few, baseline="none")
    (analysis,) = [each for each in report.sections[0].analyses if each.title == "Compared with none"]
    told = {name: text for name, text in site_pages(report).items() if name.startswith("encoding-rope")}
    told["analysis"] = " ".join([analysis.answer, *analysis.legend, *map(str, analysis.columns)])
    table = against(rows, wrong_answers(few["answers"], "answer"), "none")
    told["terminal"] = printed(lambda console: console.print(comparison_table(table, of_answers=True)), 200)
    for place, text in told.items():
        assert "too few episodes" in text, place
        assert "too few documents" not in text, place


def test_bands_of_losses_per_byte_are_over_documents_and_not_over_tokens(tmp_path: Path) -> None:
    """Documents of which each token is 1, 2 or 3 bytes have other losses per byte than per token."""
    rows, _ = results({"alibi": BEHAVIOUR["alibi"]})
    other = results({"rope": BEHAVIOUR["rope"]}, fingerprint="ff00aa")[0].assign(tokenizer="bpe:512")
    both = pd.concat([rows.assign(tokenizer="bytes"), other], ignore_index=True)
    units = units_of(both)
    sizes = units["unit"].map({unit: 1 + n % 3 for n, unit in enumerate(sorted(set(units["unit"])))})
    units = units.assign(bytes=units["tokens"] * np.where(units["run_id"].str.startswith("rope"), sizes, 1))
    report = build_report(both, results()[1], tmp_path, details={"units": units}, mix=True)
    (run,) = set(other["run_id"])
    losses = LossTable(units).losses([run], "sliding", 4096, "full")
    assert losses is not None
    expected = [end / LN2 for end in ratio_interval(losses.nats[0], losses.bytes)]
    (line,) = (each for each in report.sections[0].figures[0].lines if each.name == "rope [bpe:512]")
    assert (line.low[-1], line.high[-1]) == pytest.approx(expected)


# ---- right answers


def test_tasks_with_right_answers_are_not_mixed_with_others(tmp_path: Path) -> None:
    rows, positions, details = task_tables()
    text = results({"alibi": BEHAVIOUR["alibi"]}, fingerprint="beef00112233", corpus="text")[0]
    both = pd.concat([rows, text])
    with pytest.raises(UsageError, match="--mix would join stdlib and text, all trained at L = 256, although stdlib"):
        build_report(both, positions, tmp_path, details=details, mix=True)
    assert not list(tmp_path.iterdir())


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
    answers = details["answers"]
    right = answers["encoding"].map({"alibi": 4, "learned": 4, "none": 0, "rope": 4})
    right -= (answers["encoding"].eq("rope") & answers["unit"].eq("7")).astype(int)
    report = build_report(rows, positions, tmp_path, details=details | {"answers": answers.assign(right=right)})
    section = page_section(report.sections[0])
    numbers = np.array(section["answered"]["pairs"]["numbers"], float).reshape(-1, 3) / 1e5
    numbers = numbers[~np.isnan(numbers[:, 0])]
    assert (np.abs(numbers) <= 1).all()
    assert ((numbers[:, 2] - numbers[:, 1]) > 0.02).all()
    assert math.isclose(np.abs(numbers[:, 0]).max(), 1)
    json.dumps(section, allow_nan=False)


def test_encodings_without_rows_of_answers_keep_their_accuracy(tmp_path: Path) -> None:
    rows, positions, details = task_tables()
    answers = details["answers"][details["answers"]["encoding"] != "rope"]
    report = build_report(rows, positions, tmp_path, details=details | {"answers": answers})
    section = page_section(report.sections[0])
    rope = [each["name"] for each in section["encodings"]].index("rope")
    accuracy = rows[(rows["encoding"] == "rope") & (rows["ratio"] == 16)]["accuracy"].mean()
    assert section["answered"]["points"][rope][-1] == [pytest.approx(accuracy, abs=1e-5), None, None]
    assert section["answered"]["place"]["depth"]
    in_one_bin = details | {"answers": answers.assign(**{"from": 0, "to": 99})}
    (whole,) = build_report(rows, positions, tmp_path, details=in_one_bin).sections
    assert page_section(whole)["answered"]["place"] is None
    assert [each.name for each in whole.figures] == ["accuracy"]


def test_a_task_is_judged_by_answers_also_where_its_loss_is_that_of_a_guess() -> None:
    rows, _, _ = task_tables()
    guessing = rows.assign(guess_gain_low=-1.0, nll=rows["unigram"] + 1)
    verdicts = summarized(guessing).set_index("encoding")["verdict"]
    assert verdicts.to_dict() == {"alibi": "solved", "rope": "fades", "none": "unsolved", "learned": "unsupported"}
    none = guessing["encoding"] == "none"
    guessing.loc[none, "accuracy"] = np.exp(-guessing.loc[none, ["unigram", "chance"]].min(axis=1))
    assert summarized(guessing).set_index("encoding")["verdict"]["none"] == "not trained"


def test_a_beginning_of_many_ids_names_the_first_three() -> None:
    rows = pd.DataFrame({"run_id": [f"alibi-{n}" for n in range(5)], "encoding": "alibi"})
    with pytest.raises(UsageError, match=r"begins 5 ids: alibi-0, alibi-1, alibi-2, \.\.\.; give more"):
        pick(rows, "alibi-")


def test_an_encoding_that_no_run_has_is_not_the_beginning_of_another_name() -> None:
    rows = pd.DataFrame({"run_id": ["rope-none-15079b59"], "encoding": "rope|none"})
    with pytest.raises(UsageError, match="no run that was evaluated here has the encoding rope: did you mean"):
        pick(rows, "rope")
    assert len(pick(rows, "rope-none")) == 1


def trained_with(rows: pd.DataFrame, heads: tuple[int, ...]) -> dict[str, Trained]:
    """The trainings of rope's runs with so many heads, by seed."""
    runs = fake_runs(rows)
    for run, each in runs.items():
        if each.config.encoding == "rope":
            shape = each.config.model.model_copy(update={"heads": heads[each.config.seed]})
            runs[run] = replace(each, config=each.config.model_copy(update={"model": shape}))
    return runs


def test_runs_that_differ_in_more_than_the_seed_are_never_averaged(tmp_path: Path) -> None:
    """Heads change neither the text, nor the parameters, nor the tokens, nor the recipe."""
    rows, positions, details = fake_tables(BEHAVIOUR)
    details["answers"] = task_tables()[2]["answers"][:0]
    report = build_report(rows, positions, tmp_path, details=details, runs=trained_with(rows, (4, 8, 8)))
    (section,) = report.sections
    assert {"rope [heads=4]", "rope [heads=8]"} < {each.name for each in section.encodings}
    assert any("differ in more than the seed" in note for note in section.notes)
    for heads, seeds in (((16, 16, 16), 3), ((4, 8, 8), 2), ((4, 8, 4), 1)):  # alibi has 8 heads
        table = compare_named(rows, details, "rope", "alibi", trained=trained_with(rows, heads)).table
        assert set(table["seeds"]) == {seeds}
    with pytest.raises(UsageError, match="the runs of rope differ in more than the seed: rope-"):
        compare_named(rows, details, "rope", "alibi", trained=trained_with(rows, (4, 4, 2)))
