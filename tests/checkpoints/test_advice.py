"""The advice about a trained model: what is recommended, and when the honest answer is to read the last tokens only."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from fake_results import results, units_of
from lines import bare_table, outcome, outline, printed, sections

from poscli.checkpoints.advice import advice_on, answer, notes, show_advice
from poscli.statistics.comparison import LossTable

L, T = 256, 1024
BASE = 1.3  # the loss for which the window of fake results changes nothing


def gains(gain, cost=0.0):
    """A behaviour: this gain in nats at 4 L, and this much more loss at L, which the gain at 4 L is measured beside."""
    return BASE + cost, lambda octaves: gain * octaves / 2


def measured(**behaviours):
    """Rows and units of a model `m` under its own encoding and others; the names are those of specs."""
    shapes = {("m" if name == "own" else f"m as {name}"): shape for name, shape in behaviours.items()}
    rows, _ = results(shapes, train_length=L, lengths=(L, 2 * L, T))
    return rows, units_of(rows, documents=16)


def advice_for(**behaviours):
    rows, units = measured(**behaviours)
    return advice_on(rows, LossTable(units), "m", T)


def test_the_best_is_chosen_and_what_it_costs_is_said():
    advice = advice_for(own=gains(-0.5), yarn=gains(0.2, 0.02), rope=gains(0.1), none=gains(-0.9))
    assert [each.spec for each in advice.candidates][:2] == ["yarn", "rope"]
    assert advice.chosen.spec == "yarn"
    ln2 = math.log(2)
    # fake results gain 6 % less at seed 0; yarn loses again what it costs at every length
    assert advice.chosen.gain.difference == pytest.approx((0.2 * 0.94 - 0.02) / ln2, abs=2e-3)
    assert advice.chosen.cost.difference == pytest.approx(0.02 / ln2, rel=1e-3)
    assert advice.chosen.gain.low < advice.chosen.gain.difference < advice.chosen.gain.high
    (first,) = answer(advice)
    assert first.startswith("Run m under yarn: at 1024 tokens it gains +0.")
    assert "costs +0.029" in first
    assert {each.name: each.verdict for each in advice.candidates}["none"] == "breaks"


@pytest.mark.parametrize(("own", "variant"), [(0.2, "full"), (-0.5, "window")])
def test_the_model_as_it_is_is_simpler_than_a_baseline_and_that_than_another_encoding(own, variant):
    """The window of the model as it is reads as well as the best does, give or take, and no worse at L."""
    rows, units = measured(own=gains(own), yarn=gains(0.1))
    fixed = units[(units["length"] == T) & (units["protocol"] == "fixed")]
    window = fixed.index[(fixed["encoding"] == "m") & (fixed["variant"] == "window")]
    best = fixed[(fixed["encoding"] == ("m" if own > 0 else "m as yarn")) & (fixed["variant"] == "full")]
    units.loc[window, "nll"] = best["nll"].to_numpy() + 0.01 * (-1.0) ** np.arange(len(window))
    chosen = advice_on(rows, LossTable(units), "m", T).chosen
    assert (chosen.spec, chosen.variant) == ("", variant)


def test_a_gain_that_one_of_many_has_by_chance_does_not_count():
    rows, units = measured(own=gains(-0.5), **{f"other{n}": gains(-0.02) for n in range(2, 30)})
    fixed = units[(units["length"] == T) & (units["protocol"] == "fixed")]
    crop = fixed[(fixed["encoding"] == "m") & (fixed["variant"] == "crop")]["nll"].to_numpy()
    lucky = fixed.index[(fixed["encoding"] == "m as other7") & (fixed["variant"] == "full")]
    better = [0.4, 3.0, 0.2, -1.2, 2.0, 0.1, 1.3, -0.8, 1.2, 1.5, 0.0, 1.0, -0.9, 0.8, 0.2, 1.0]  # p = 0.04, of 30
    units.loc[lucky, "nll"] = crop - 0.01 * np.array(better)
    found = advice_on(rows, LossTable(units), "m", T)
    best = found.candidates[0]
    assert best.spec == "other7"
    assert best.gain.low > 0
    assert best.verdict == "may use context"
    assert found.chosen is None
    assert answer(found)[1].startswith("If inputs must be read whole, other7 costs least")
    assert answer(found)[-1].endswith(
        "may be chance, given how many were tried and how much text was read: give more --tokens."
    )
    assert answer(replace(found, more="--minutes"))[-1].endswith("give more --minutes.")


@pytest.mark.parametrize(("dropped", "counts"), [(0, True), (20, False)])
def test_candidates_that_were_dropped_on_the_same_text_count_among_the_many(dropped: int, counts: bool) -> None:
    rows, units = measured(own=gains(-0.5), other=gains(-0.02))
    fixed = units[(units["length"] == T) & (units["protocol"] == "fixed")]
    crop = fixed[(fixed["encoding"] == "m") & (fixed["variant"] == "crop")]["nll"].to_numpy()
    lucky = fixed.index[(fixed["encoding"] == "m as other") & (fixed["variant"] == "full")]
    better = [0.7, 3.3, 0.5, -0.9, 2.3, 0.4, 1.6, -0.5, 1.5, 1.8, 0.3, 1.3, -0.6, 1.1, 0.5, 1.3]
    units.loc[lucky, "nll"] = crop - 0.01 * np.array(better)
    best = advice_on(rows, LossTable(units), "m", T, dropped=dropped).candidates[0]
    assert (best.spec, best.gain.low > 0, best.counts) == ("other", True, counts)


@pytest.mark.parametrize("documents", [1, 3])
def test_a_gain_on_too_little_text_is_not_said_to_be_none(documents):
    rows, _ = measured(own=gains(-0.5), yarn=gains(0.2))
    few = advice_on(rows, LossTable(units_of(rows, documents=documents)), "m", T)
    assert few.chosen is None
    said = answer(few)
    assert said[0].endswith("none is known to be better.")
    assert said[-1].startswith("The gain of yarn may be chance")
    assert ("no 95 % intervals: 1 document cannot give any" in notes(few)) == (documents == 1)


def test_ways_that_were_left_out_are_counted():
    advice = replace(advice_for(own=gains(-0.5), yarn=gains(-0.2)), unfollowed=5)
    said = "of 3 ways to read 1024 (5 others were left out for lack of time), none is known to be better."
    assert answer(advice)[0].endswith(said)


def shifted(seed):
    """How much harder the text is for the model of a seed, in nats, under every encoding."""
    return {0: 0.0, 1: 0.5, 2: -0.3, 7: 0.9}[seed]


def seeded(name, gain, seeds):
    """Rows and units of one encoding whose seeds differ by far more than encodings do."""
    rows, _ = results({name: gains(gain)}, seeds=seeds, train_length=L, lengths=(L, T))
    rows = rows.assign(nll=rows["nll"] + rows["seed"].map(shifted))
    return rows, units_of(rows, documents=9)


@pytest.mark.parametrize(
    ("own", "other", "common"),
    [((0, 1, 2), (2, 1, 0), 3), ((0, 1), (1, 2), 1), ((0, 1, 2), (1, 2, 7), 2), ((0,), (1,), 0)],
)
def test_runs_are_compared_with_those_of_the_same_seed(own, other, common):
    """Seeds differ by up to 1.2 nats, so that a gain of 0.2 is only seen between equal seeds."""
    tables = [seeded("m", -0.5, own), seeded("m as yarn", 0.2, other)]
    rows, units = (pd.concat(parts, ignore_index=True) for parts in zip(*tables, strict=True))
    yarn = next(each for each in advice_on(rows, LossTable(units), "m", T).candidates if each.spec == "yarn")
    if not common:
        assert math.isnan(yarn.gain.difference)
        assert yarn.verdict == "not tested"
        return
    expected = np.mean([0.2 * (1 + 0.06 * (seed - 1)) for seed in set(own) & set(other)])  # fakes differ by seed
    assert yarn.gain.difference == pytest.approx(expected / math.log(2), abs=5e-3)
    assert yarn.cost.difference == pytest.approx(0, abs=1e-9)
    assert yarn.verdict == ("uses context" if common >= 3 else "may use context")


def test_spans_of_one_text_are_not_said_to_be_documents():
    rows, units = measured(own=gains(-0.5), yarn=gains(0.2))
    advice = advice_on(rows.assign(resampled="spans", documents=1), LossTable(units), "m", T)
    said = notes(advice)
    assert "95 % intervals are over 16 spans of 1 document only: this one training of the model" in said
    assert "spans of a document are not independent: true intervals are wider" in said


def numbers(each):
    gain, cost = ([*some.numbers, some.p, some.documents] for some in (each.gain, each.cost))
    return [*gain, *cost, each.price]


def cheaper_of_two_alike():
    """Advice between yarn and rope+logn, within noise of each other, of which the one with more parts costs less."""
    rows, units = measured(own=gains(-0.5), yarn=gains(0.2, 0.03), **{"rope+logn": gains(0.2)})
    ends = units[(units["length"] == 1024) & (units["variant"] == "full")]
    yarn, other = (ends[ends["encoding"] == f"m as {name}"] for name in ("yarn", "rope+logn"))
    units.loc[yarn.index, "nll"] = other["nll"].to_numpy() + 0.01 * (-1.0) ** np.arange(len(yarn)) - 5e-4
    return advice_on(rows, LossTable(units), "m", 1024)


def test_the_advice_about_a_model(snapshot):
    """Which of several encodings to use, under every outcome: the page of one, and the sentences of all."""
    rows, units = measured(own=gains(-0.5), yarn=gains(0.2, 0.02), rope=gains(0.1), learned=(1.4, None))
    three = pd.concat([rows.assign(seed=n, run_id=rows["run_id"] + str(n)) for n in range(3)])
    theirs = pd.concat([units.assign(seed=n, run_id=units["run_id"] + str(n)) for n in range(3)])
    found = {
        "one is best": advice_for(own=gains(-0.5), yarn=gains(0.2, 0.02), rope=gains(0.1), none=gains(-0.9)),
        "the model as it is": advice_for(own=gains(0.1), yarn=gains(0.1), **{"rope+logn": gains(0.1)}),
        "nothing gains": advice_for(own=gains(-0.5), yarn=gains(-0.002, 0.001), rope=gains(-0.003), none=gains(-0.9)),
        "the simplest": advice_for(own=gains(-0.5), **{"rope+logn": gains(0.1), "yarn": gains(0.1)}),
        "the cheaper of two alike": cheaper_of_two_alike(),
        "three seeds": advice_on(three, LossTable(theirs), "m", 1024),
        "at twice the length": advice_on(rows, LossTable(units), "m", 512),
        "of images": advice_on(rows.assign(corpus="images"), LossTable(units), "m", 1024),
        "it only guesses": advice_on(rows.assign(guess_gain_low=-0.1), LossTable(units), "m", 1024),
    }
    texts = {"a page": printed(lambda console: show_advice(found["three seeds"], console), 110)}
    texts["all answers"] = "\n".join(f"{name}: {' / '.join(answer(each))}" for name, each in found.items())
    texts["all notes"] = "\n".join(dict.fromkeys(line for each in found.values() for line in notes(each)))
    texts["all candidates"] = bare_table(
        (name, each.name, each.variant, each.verdict, each.counts, each.word, *numbers(each))
        for name, advice in found.items()
        for each in advice.candidates
    )
    record = found["at twice the length"].record()
    json.dumps(record, allow_nan=False)
    texts["the record of one"] = "\n".join(outline(record))
    again = pd.concat([rows, rows.assign(run_id=rows["run_id"] + "b")])
    other = pd.concat([rows, rows.assign(fingerprint="other")])
    texts["refused"] = "\n".join(
        [
            outcome(lambda: advice_on(rows, LossTable(units), "m", 4096)),
            outcome(lambda: advice_on(other, LossTable(units), "m", 1024)),
            outcome(lambda: advice_on(again, LossTable(units), "m", 1024)),
            outcome(lambda: advice_on(rows[:0], LossTable(units), "m", 1024)),
        ]
    )
    snapshot(sections(texts), rounded=True)
