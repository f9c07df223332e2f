"""Tasks that ask in words about a long text: what is asked was told, and a checkpoint is evaluated on it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from books import write_books
from checkpoints import LENGTH, corpus, make
from cli_runner import assert_refused, document
from numpy.typing import NDArray

from poscli import api
from poscli.checkpoints.tasks import ASKED, CUE, REPEATED
from poscli.tasks import open_task

TOLD = ("needle", "facts", "repeat")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose trained length is long enough for the questions."""
    return make("llama", tmp_path_factory.mktemp("told") / "llama", max_position_embeddings=8 * LENGTH)


def opened(name: str, place: Path) -> Any:
    return open_task(name, f"whole:{corpus(place)}", f"hf:{place / 'llama'}")


def text_of(task: Any, tokens: NDArray[np.int64]) -> str:
    return task.data.tokenizer.decode(tokens).decode(errors="replace")


@pytest.mark.parametrize("name", TOLD)
def test_every_token_that_counts_repeats_one_that_was_told(name: str, place: Path) -> None:
    task = opened(name, place)
    drawn = task.episodes(20, 400, np.random.default_rng(3), training=False)
    assert drawn.tokens.shape == (20, 401)
    rows, columns = np.nonzero(drawn.back)
    back = drawn.back[rows, columns]
    assert (drawn.tokens[rows, columns] == drawn.tokens[rows, columns - back]).all()
    assert (back >= 3).all()
    assert np.unique(drawn.back[:, -1] // 80).size >= 4 or name == "facts"  # told at any depth
    assert (columns >= 200).all()  # in the second half, as the protocol wants


@pytest.mark.parametrize(("name", "answers"), [("needle", 90_000), ("facts", 9_000), ("repeat", 0)])
def test_a_guess_that_knows_the_question_spreads_over_all_answers(name: str, answers: int, place: Path) -> None:
    """So it costs as much as all tokens of an answer hold, however many digits a token has."""
    task = opened(name, place)
    drawn = task.episodes(200, 512, np.random.default_rng(4), training=False)
    scored = drawn.tokens[drawn.back > 0]
    if name == "repeat":  # every token is an answer of its own
        expected = np.log(np.unique(scored).size)
    else:
        begins = np.diff(drawn.back, axis=1) > 0
        expected = np.log(answers) * begins.sum() / scored.size
    assert task.unigram(scored).mean() == pytest.approx(expected, rel=0.02)


def test_a_key_is_told_once_and_asked_for_at_the_end(place: Path) -> None:
    task = opened("needle", place)
    (tokens,) = task.episodes(1, 300, np.random.default_rng(5), training=False).tokens
    text = text_of(task, tokens)
    (key,) = re.findall(r"Remember this: the pass key is (\d{5})\.", text)
    assert text.endswith(f"What is the pass key? It is {key}")


def test_a_few_questions_are_asked_about_all_depths(place: Path) -> None:
    """However many are asked, each part of a text has one, if there are half as many parts."""
    drawn = opened("needle", place).episodes(16, 2048, np.random.default_rng(7), training=False)
    asked = (drawn.back > 0).argmax(axis=1)
    told = asked - drawn.back[np.arange(16), asked]
    for count in (4, 8, 16):
        assert set(told[:count] * (count // 2) // 2048) == set(range(count // 2))


def test_numbers_belong_to_the_names_that_are_asked_for(place: Path) -> None:
    task = opened("facts", place)
    (tokens,) = task.episodes(1, 500, np.random.default_rng(6), training=False).tokens
    said = re.findall(r"The number of (\w+) is (\d{4})\.", text_of(task, tokens))
    assert len(said) == 8 + ASKED
    told = dict(said[:8])
    assert len(told) == 8
    assert all(told[name] == value for name, value in said[8:])
    assert len({name for name, _ in said[8:]}) == ASKED


def test_the_first_words_are_a_cue_and_the_others_count(place: Path) -> None:
    task = opened("repeat", place)
    drawn = task.episodes(5, 300, np.random.default_rng(7), training=False)
    assert (np.count_nonzero(drawn.back, axis=1) == REPEATED - CUE).all()
    assert (drawn.back[:, -(REPEATED - CUE) :] > 0).all()


def test_the_token_between_documents_is_no_word_to_say_again(tmp_path: Path) -> None:
    task = open_task("repeat", f"text:{write_books(tmp_path / 'books')}", "bytes")
    drawn = task.episodes(200, 400, np.random.default_rng(8), training=False)
    assert task.data.tokenizer.end not in drawn.tokens[drawn.back > 0]


@pytest.mark.parametrize("name", TOLD)
def test_a_text_without_documents_for_tuning_is_refused_before_training(name: str, tmp_path: Path) -> None:
    """The share of right answers while a task is learned is asked about passages of these documents."""
    for n in range(3):
        (tmp_path / f"{n}.txt").write_text(f"The keeper counted {n} ships. " * 400)
    command = ("train", "--enc", "rope", "--task", name, "--corpus", f"text:{tmp_path}", "--preset", "nano")
    assert_refused((*command, "--length", 512), 4, "has no document for tuning", notes=1)


@pytest.mark.parametrize("name", TOLD)
def test_episodes_depend_on_the_text_the_length_and_what_they_are_for(name: str, place: Path) -> None:
    task = opened(name, place)
    again, tuned = opened(name, place), task.tuning()
    windows = [each.text(300).split.tokens for each in (task, again, tuned)]
    assert (windows[0] == windows[1]).all()
    assert windows[0].max() > 255  # tokens that no byte holds are stored whole
    assert not (windows[0] == windows[2]).all()
    fingerprints = {opened(each, place).fingerprint for each in TOLD} | {task.data.fingerprint}
    assert len(fingerprints) == 4


def test_a_checkpoint_is_asked_at_growing_lengths_and_under_another_scaling(model: Path, place: Path) -> None:
    command = ("extrapolate", "--model", model, "--task", "needle", "--corpus", corpus(place))
    rows = document(*command, "--max-len", "2x", "--tokens", 64, "--as", "yarn")
    full = [row for row in rows if row["variant"] == "full"]
    assert {(row["encoding"], row["length"]) for row in full} == {
        (name, n * 8 * LENGTH) for name in ("llama", "llama as yarn(base=5000.0)") for n in (1, 2)
    }
    assert all(row["protocol"] == "answer" and 0 <= row["accuracy"] <= 1 for row in full)
    assert all(row["tokens"] <= 64 for row in full)


def test_a_checkpoint_is_asked_from_python(model: Path, place: Path) -> None:
    run = api.checkpoint(model, corpus=corpus(place), task="repeat")
    rows = api.extrapolate(run, max_len="1x", tokens=64).rows
    assert set(rows["protocol"]) == {"answer"}
    assert (rows["tokens"] == 60).all()  # three episodes of twenty tokens


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--task", "passkey"), "--task passkey makes its own tokens, which a checkpoint does not know"),
        (("--task", "needles"), "needle"),
        (("--task", "repeat", "--length", 64), "windows have 64; take a model with a trained length of at least"),
    ],
)
def test_questions_that_cannot_be_asked(options: tuple[object, ...], words: str, model: Path, place: Path) -> None:
    document(
        "extrapolate", "--model", model, "--corpus", corpus(place), "--max-len", "1x", "--dry-run"
    )  # prepares the text
    assert_refused(("extrapolate", "--model", model, "--corpus", corpus(place), *options), 2, words)
