"""`--on`: a trained model, evaluated on a corpus that it was not trained on."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_runner import cli

from poscli import api
from poscli.data import load_corpus
from poscli.report import build_report
from poscli.runs.results import open_evaluated
from poscli.runs.schema import POSITION_COLUMNS, frame
from poscli.system.errors import UsageError

SETTINGS = {"max_len": 32, "tokens": 64}


def write(folder: Path, count: int, seed: int, words: str = "one two three four five six") -> str:
    """A corpus of `count` files of random words."""
    folder.mkdir()
    draw = random.Random(seed)
    for n in range(count):
        (folder / f"{n}.txt").write_text(" ".join(draw.choices(words.split(), k=200)))
    return f"text:{folder}"


def trained(corpus: str, out: Path, **options: object) -> api.Run:
    defaults = {"preset": "nano", "layers": 1, "length": 16, "tokens": 4000, "batch": 4, "corpus": corpus, "out": out}
    return api.train("alibi", **defaults | options)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_the_same_documents_in_another_corpus_have_the_same_losses(tmp_path: Path, tokenizer: str) -> None:
    """A corpus with one more document for training than that of the run is another one, and holds out the same ones."""
    own = write(tmp_path / "own", 13, seed=0)
    run = trained(own, tmp_path / "out", tokenizer=tokenizer)
    mine = api.extrapolate(run, **SETTINGS).rows
    for n in range(20):  # until the document that is added is not held out
        other = write(tmp_path / f"more{n}", 13, seed=0)
        (tmp_path / f"more{n}" / "added.txt").write_text(f"{n} added " * 9)
        if np.array_equal(load_corpus(other).valid.tokens, load_corpus(own).valid.tokens):
            break
    rows = api.extrapolate(run, on=[other], **SETTINGS).rows
    assert set(rows["corpus"]) == {other}
    assert set(rows["trained_on"]) == {own}
    assert set(mine["trained_on"]) == {""}
    assert (rows["fingerprint"] != mine["fingerprint"]).all()
    pd.testing.assert_series_equal(rows["nll"], mine["nll"], rtol=1e-6)
    assert (rows["encoding"] == mine["encoding"]).all()


def test_its_own_corpus_under_another_name_is_its_own_evaluation(tmp_path: Path) -> None:
    own, copied = (write(tmp_path / name, 12, seed=0) for name in ("own", "copied"))
    run = trained(own, tmp_path / "out")
    rows = api.extrapolate(run, on=[copied], **SETTINGS).rows
    assert set(rows["run_id"]) == {run.id}
    assert not (run.folder / "as").exists()


def test_an_evaluation_on_another_corpus_can_be_opened_and_has_a_section_of_its_own(tmp_path: Path) -> None:
    own, other = write(tmp_path / "own", 12, seed=0), write(tmp_path / "other", 12, seed=1, words="six seven eight")
    run = trained(own, tmp_path / "out")
    both = [api.extrapolate(run, **SETTINGS), api.extrapolate(run, on=[other], **SETTINGS)]
    (folder,) = (run.folder / "as").iterdir()
    assert open_evaluated(folder).corpus == other
    assert open_evaluated(folder).fingerprint == both[1].rows["fingerprint"].iloc[0]
    rows = pd.concat([each.rows for each in both])
    report = build_report(rows, frame([], POSITION_COLUMNS), tmp_path / "report")
    titles = [section.title for section in report.sections]
    assert len(titles) == 2
    assert any(re.search(r"other \(.*trained on text:.*own at L = 16", title) for title in titles)


def test_a_run_that_was_evaluated_on_another_corpus_only_counts_as_evaluated(tmp_path: Path) -> None:
    own, other = write(tmp_path / "own", 12, seed=0), write(tmp_path / "other", 12, seed=1, words="six seven eight")
    run = trained(own, tmp_path / "out")
    trained(own, tmp_path / "out", seed=1)
    api.extrapolate(run, on=[other], **SETTINGS)
    assert "1 of 2 runs are not evaluated yet" in cli("report", "--out", tmp_path / "out").err
    listed = {each["run_id"]: each["evaluated"] for each in cli("ls", "runs", "--json", "--out", tmp_path / "out").json}
    assert sorted(listed.values()) == [False, True]
    assert listed[run.id]


def test_a_summary_says_on_what_the_models_were_trained(tmp_path: Path) -> None:
    own, other = write(tmp_path / "own", 12, seed=0), write(tmp_path / "other", 12, seed=1, words="six seven eight")
    for run in (trained(own, tmp_path / "out"), trained(other, tmp_path / "out")):
        api.extrapolate(run, on=[other], **SETTINGS)
    summary = api.summary(tmp_path / "out")
    assert list(summary["corpus"]) == [other, other]
    assert sorted(summary["trained_on"]) == ["", own]


def test_under_another_encoding(tmp_path: Path) -> None:
    own, other = write(tmp_path / "own", 12, seed=0), write(tmp_path / "other", 12, seed=1, words="six seven eight")
    run = trained(own, tmp_path / "out")
    rows = api.extrapolate(run, on=[other], as_=["alibi+window(8)"], **SETTINGS).rows
    assert rows.groupby("encoding")["corpus"].unique().map(list).to_dict() == {
        "alibi": [other],
        "alibi as alibi+window(width=8)": [other],
    }


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("language", {"on": ["nothing:at all"]}, "unknown corpus 'nothing:at all'"),
        ("language", {"on": ["stdlib"], "as_": ["none"], "recalibrate": 1000}, "exclude each other"),
        ("induction", {"on": ["stdlib"]}, "the task induction of alibi reads no text"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, task: str, options: dict, message: str) -> None:
    own = write(tmp_path / "own", 12, seed=0)
    given = {"corpus": own} if task == "language" else {}
    run = api.train(
        "alibi", task=task, preset="nano", layers=1, length=16, tokens=2000, batch=4, out=tmp_path / "out", **given
    )
    with pytest.raises(UsageError, match=message):
        api.extrapolate(run, **SETTINGS, **options)


def test_nothing_is_kept_for_training_of_a_corpus_that_has_text_of_the_training(tmp_path: Path) -> None:
    """Whatever a corpus is made of: the corpus itself, by the files that both read, also where the run's are gone."""
    own, other = write(tmp_path / "own", 12, seed=0), write(tmp_path / "other", 12, seed=1)
    run = trained(own, tmp_path / "out")
    for corpus in (own, f"echo:{own}", f"{own}/*.txt", f"spliced:{own}/1.txt"):
        with pytest.raises(UsageError, match="alibi was trained on text of it; leave out `whole:`"):
            api.extrapolate(run, on=[f"whole:{corpus}"], **SETTINGS)
    (tmp_path / "own").rename(tmp_path / "moved")
    rows = api.extrapolate(run, on=[f"whole:{other}"], **SETTINGS).rows
    assert set(rows["corpus"]) == {f"whole:{other}"}


def test_two_texts_are_two_rows_and_no_mean(tmp_path: Path) -> None:
    own, other = write(tmp_path / "own", 12, seed=0), write(tmp_path / "other", 12, seed=1, words="six seven eight")
    third = write(tmp_path / "third", 12, seed=2, words="nine ten eleven twelve")
    run = trained(own, tmp_path / "out")
    measured = api.extrapolate(run, on=[other, third], **SETTINGS)
    rows = measured.by_length
    assert list(zip(rows["corpus"], rows["length"], strict=True)) == [(t, n) for t in (other, third) for n in (16, 32)]
    alone = api.extrapolate(run, on=[third], **SETTINGS).by_length
    assert list(rows["bpb"][2:]) == list(alone["bpb"])
    assert f"alibi on {third}" in repr(measured)


def test_text_that_was_trained_on_is_not_scored_under_another_division(tmp_path: Path) -> None:
    own = write(tmp_path / "own", 12, seed=0)
    run = trained(own, tmp_path / "out")
    with pytest.raises(UsageError, match=r"alibi was trained on text of it; name text:.*own, or what is made of that"):
        api.extrapolate(run, on=[f"{own}/3.txt"], **SETTINGS)
    assert set(api.extrapolate(run, on=[f"spliced:{own}"], **SETTINGS).rows["trained_on"]) == {own}
