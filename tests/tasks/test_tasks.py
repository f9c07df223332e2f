"""Tasks: an oracle solves them, the order of tokens decides, distances grow with the windows, and accuracies agree.

What tasks say of themselves, and their episodes and windows token by token, are whole texts of test_snapshots_tasks.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from cli_runner import assert_refused, cli, document, run_of
from toys import first

from poscli.data import Corpus, Split
from poscli.evaluation.plan import Plan
from poscli.evaluation.protocol import EvaluationSettings
from poscli.model.load import load_model
from poscli.report.reach import effective_ratio
from poscli.system.errors import DataError
from poscli.tasks import TASKS, EpisodeTask, language, open_task
from poscli.tasks.copy import COPY
from poscli.tasks.episodes import EPISODES, Episodes
from poscli.tasks.passkey import KEY
from poscli.tasks.recall import PAIRS
from poscli.tasks.recency import KEYS, SORT
from poscli.tasks.recency import PAD as BLANK

LENGTH = 32
LONG = 16 * LENGTH
Tokens = Sequence[int]


def by_copy(seen: Tokens) -> int:
    middle = seen.index(COPY)
    return seen[middle - (middle - next(i for i, t in enumerate(seen) if t != COPY + 1)) + len(seen) - middle - 1]


def by_passkey(seen: Tokens) -> int:
    first, second = (place for place, token in enumerate(seen) if token == KEY)
    return seen[first + len(seen) - second]


def by_recall(seen: Tokens) -> int:
    return seen[seen.index(seen[-1]) + 1]


def by_recency(seen: Tokens) -> int:
    context, said = seen[: seen.index(SORT)], seen[seen.index(SORT) + 1 :]
    last = {key: place for place, key in enumerate(context) if key != BLANK}
    return sorted(last, key=lambda key: last[key], reverse=True)[len(said)]


ORACLES: dict[str, Callable[[Tokens], int]] = {
    "copy": by_copy,
    "passkey": by_passkey,
    "recall": by_recall,
    "induction": by_recall,
    "recency": by_recency,
}


def task_of(name: str) -> EpisodeTask:
    task = open_task(name, "stdlib", "bytes")
    assert isinstance(task, EpisodeTask)
    return task


def drawn(name: str, length: int, *, training: bool = False, count: int = 128) -> Episodes:
    """Episodes of a task from a seed of this test."""
    return task_of(name).episodes(count, length, np.random.default_rng(11), training=training)


# ---- episodes


def test_every_synthetic_task_has_an_oracle() -> None:
    made = {name for name in TASKS.names() if issubclass(TASKS.get(name), EpisodeTask)}
    assert set(ORACLES) == {name for name in made if not TASKS.get(name).reads_text}


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize(("length", "training"), [(0, True), (LENGTH, True), (51, False), (LONG, False)])
def test_an_oracle_that_knows_the_rule_solves_every_episode(name: str, length: int, training: bool) -> None:
    """Length 0 stands for the shortest window that the task admits."""
    task = task_of(name)
    episodes = drawn(name, length or task.shortest, training=training, count=64)
    for tokens, counted in zip(episodes.tokens.tolist(), episodes.counted, strict=True):
        assert counted.any()
        for place in np.flatnonzero(counted):
            padded = next(i for i, token in enumerate(tokens) if token != task.pad) if name != "recency" else 0
            assert ORACLES[name](tokens[padded:place]) == tokens[place]


@pytest.mark.parametrize("name", ORACLES)
def test_what_is_asked_for_stands_where_it_is_said_to_stand(name: str) -> None:
    for training in (True, False):
        episodes = drawn(name, LENGTH, training=training)
        row, place = np.nonzero(episodes.counted)
        back = episodes.back[row, place]
        assert (place - back >= 0).all()
        assert (episodes.tokens[row, place - back] == episodes.tokens[row, place]).all()
        assert episodes.tokens.max() < task_of(name).vocab
        assert (episodes.tokens[row, place] < task_of(name).symbols).all()


@pytest.mark.parametrize("name", ORACLES)
def test_longer_windows_ask_for_tokens_from_farther_back(name: str) -> None:
    """Places are uniform: 1/16 of the answers of a window of 16 L lies within L (of recency, 1 - (15/16)^2 = 12 %)."""
    episodes = drawn(name, LONG)
    back = episodes.back[episodes.counted]
    assert (back <= LENGTH).mean() < 0.2
    assert back.max() > LONG / 2
    assert drawn(name, LENGTH, training=True).back.max() < LENGTH


@pytest.mark.parametrize("name", ORACLES)
def test_every_answer_is_scored_at_every_length(name: str) -> None:
    """Of a string to copy, which grows with the window, as many tokens at its end are scored at every length."""
    task = task_of(name)
    for train_length in (task.shortest, task.shortest + 1, 4 * task.shortest):
        settings = EvaluationSettings(train_length=train_length, max_len=4 * train_length, tokens=10**6, stride=1)
        plan = Plan(task, settings)
        for length in settings.lengths:
            text, spans = task.text(length), plan.spans("answer", length)
            assert len(spans) == EPISODES
            assert text.counted is not None
            scored = text.counts(spans, plan.scored("answer", length)).sum()
            assert scored == (EPISODES * (train_length // 2) if name == "copy" else text.counted.sum())


def test_as_many_episodes_are_read_as_hold_the_tokens_to_score() -> None:
    for tokens, episodes in ((50, 12), (2, 1)):  # of 4 tokens each
        plan = Plan(task_of("recall"), EvaluationSettings(train_length=32, max_len=64, tokens=tokens, stride=1))
        assert [len(plan.spans("answer", length)) for length in (32, 64)] == [episodes] * 2


@pytest.mark.parametrize("name", ["passkey", "recall", "induction"])
def test_without_the_order_of_the_tokens_nothing_beats_chance(name: str) -> None:
    """Given only how often each token occurs, the best guess is the most frequent one.

    Noise and answers are drawn alike, so it is right with the probability of its share of the symbols in the window;
    only that share's chance excess over 1 / symbols is left of the task.
    """
    task, episodes = task_of(name), drawn(name, LONG, count=EPISODES)
    right, share = [], []
    for tokens, back in zip(episodes.tokens, episodes.back, strict=True):
        place = int(np.flatnonzero(back)[0])
        context = tokens[: len(tokens) - 2 * int((back > 0).sum()) - 1]
        (symbol, count), *_ = Counter(t for t in context.tolist() if t < task.symbols).most_common()
        right.append(tokens[place] == symbol)
        share.append(count / len(context))
    assert np.mean(share) < task.chance + 0.06
    sigma = math.sqrt(np.mean(share) / len(right))
    assert abs(np.mean(right) - np.mean(share)) < 4 * sigma
    assert abs(np.mean(right) - task.chance) < 0.06 + 4 * sigma


def test_in_recency_every_key_is_equally_frequent_and_guesses_are_right_by_chance() -> None:
    episodes = drawn("recency", LENGTH, count=1000)
    context = episodes.tokens[:, : LENGTH - KEYS]
    assert (np.sort(context, axis=1)[:, : 2 * KEYS] == np.repeat(np.arange(KEYS), 2)).all()
    answers = episodes.tokens[:, -KEYS:]
    guess = np.array([[min(set(range(KEYS)) - set(row[:n].tolist())) for n in range(KEYS)] for row in answers])
    chance = task_of("recency").chance
    assert abs((guess == answers).mean() - chance) < 4 * math.sqrt(chance / answers.size)


@pytest.mark.slow
def test_a_model_that_solves_recall_at_16_times_its_length_is_at_chance_once_the_context_is_shuffled(tmp_path) -> None:
    task, out = task_of("recall"), ("--out", tmp_path)
    small = ("--task", "recall", "--preset", "nano", "--length", LENGTH, "--batch", 32, "--tokens", "2M", "--yes")
    assert cli("train", "--enc", "alibi", *small, *out).code == 0
    model = load_model(run_of(tmp_path, "alibi"), torch.device("cpu"))
    episodes = drawn("recall", LONG, count=EPISODES)
    shuffled, context = episodes.tokens.copy(), slice(0, LONG + 1 - 2 * PAIRS)
    shuffled[:, context] = np.random.default_rng(0).permuted(shuffled[:, context], axis=1)

    def accuracy(tokens: np.ndarray) -> float:
        found = [model(torch.from_numpy(row[None, :-1])).argmax(-1)[0].numpy() for row in tokens]
        return float((np.stack(found) == tokens[:, 1:])[episodes.counted[:, 1:]].mean())

    with torch.inference_mode():
        assert accuracy(episodes.tokens) > 0.9
        sigma = math.sqrt(task.chance / episodes.counted.sum())
        assert accuracy(shuffled) < task.chance + 2 * PAIRS / LONG + 4 * sigma  # a value may follow its key by accident


# ---- what every task promises the trainer and the evaluation


def short(name: str) -> int:
    """Windows that any episode of a task fits."""
    return max(LENGTH, getattr(TASKS.get(name), "shortest", LENGTH))


@pytest.mark.parametrize("name", TASKS.names())
def test_a_batch_is_a_function_of_seed_and_step(name: str) -> None:
    task, length = open_task(name, "stdlib", "bytes"), short(name)
    drawn = [task.batch(size=4, length=length, seed=seed, step=step) for seed, step in ((0, 1), (0, 1), (0, 2), (1, 1))]
    assert drawn[0].tokens.shape == (4, length + 1)
    assert drawn[0].tokens.max() < task.vocab
    assert (drawn[0].tokens == drawn[1].tokens).all()
    assert all((drawn[0].tokens != other.tokens).any() for other in drawn[2:])


@pytest.mark.parametrize("name", TASKS.names())
def test_every_row_of_an_evaluation_scores_something(name: str) -> None:
    task, length = open_task(name, "stdlib", "bytes"), short(name)
    settings = EvaluationSettings(train_length=length, max_len=4 * length, tokens=512, stride=4)
    plan = Plan(task, settings)
    for length in settings.lengths:
        for protocol in task.protocols:
            scored, text = plan.protocols[protocol].scored(settings, length), task.text(length)
            counts = text.counts(plan.spans(protocol, length), scored)
            assert counts.any(axis=1).all()
            assert text.windows(plan.spans(protocol, length), length)[:, -scored:].shape == counts.shape


@pytest.mark.parametrize("name", sorted({*TASKS.names()} - {"facts", "needle", "repeat"}))  # which guess whole answers
def test_a_guess_is_a_distribution_over_the_vocabulary(name: str) -> None:
    task = open_task(name, "stdlib", "bytes")
    scored = np.arange(task.symbols if isinstance(task, EpisodeTask) else task.vocab)
    assert np.exp(-task.unigram(scored)).sum() == pytest.approx(1)


def test_a_guess_knows_the_frequencies_of_the_training_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "CHUNK_TOKENS", 3)  # so that the counts of several parts are added
    tokens = np.array([4, 0, 1, 1, 4, 1, 2], np.uint16)
    train, none = Split(tokens, np.array([0, 2, 7]), 5), Split(tokens[:0], np.array([0]))
    coder: Any = SimpleNamespace(vocab=5)
    corpus = Corpus("", "", coder, train, none, none)
    loss = language.Language(corpus).unigram(np.array([[1, 3]]))  # counts 3 and 0, of 7; one is added to each of 5
    assert loss == pytest.approx(np.array([[-np.log(4 / 12), -np.log(1 / 12)]]))


def test_a_corpus_of_which_all_is_scored_has_no_frequencies(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(f'"""{"Words. " * 1000}"""')
    (tmp_path / "two.py").write_text("pass")
    with pytest.raises(DataError, match="nothing is left to count frequencies by; add documents"):
        open_task("language", f"whole:prose:text:{tmp_path}", "bytes")


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:260"])
def test_bytes_per_token_are_those_of_the_tokens_that_count(tokenizer: str, tmp_path: Path) -> None:
    """Thirty short documents: the token that opens a document stands for no byte, and no loss is measured on it."""
    for n in range(30):
        (tmp_path / f"{n}.txt").write_text(f"number {n} number")
    task = open_task("language", f"text:{tmp_path}", tokenizer)
    assert isinstance(task, language.Language)
    coder, tokens = task.data.tokenizer, task.data.train.tokens.tolist()
    sizes = [len(coder.decode([token])) for token in tokens if token != coder.end]
    assert task.bytes_per_token == pytest.approx(sum(sizes) / len(sizes))
    assert task.token_bytes(np.array(tokens)).sum() == sum(sizes) == task.data.train.bytes
    assert (task.bytes_per_token == 1) == (tokenizer == "bytes")


# ---- accuracies


@pytest.mark.parametrize(
    ("accuracy", "failed", "effective"),
    [
        ([1.0, 0.95, 0.9, 0.5], [0, 0, 0, 0], 4.0),
        ([1.0, 0.8, 0.95, 0.95], [0, 0, 0, 0], 1.0),
        ([0.89, 1.0, 1.0, 1.0], [0, 0, 0, 0], 0.0),
        ([1.0, 1.0, 1.0, 1.0], [0, 0, 1, 0], 2.0),
        ([1.0, 1.0, 1.0, math.nan], [0, 0, 0, 3], 4.0),
        ([math.nan] * 4, [0, 0, 0, 0], math.nan),
    ],
)
def test_the_effective_length_is_the_last_before_the_first_failure(accuracy, failed, effective) -> None:
    points = pd.DataFrame({"accuracy": accuracy, "failed": failed}, index=[1.0, 2.0, 4.0, 8.0])
    assert effective_ratio(points.iloc[::-1]) == pytest.approx(effective, nan_ok=True)
    assert math.isnan(effective_ratio(points.drop(columns="accuracy")))


# ---- on the command line


@pytest.mark.parametrize("name", first(1, ["recall", "passkey"]))
def test_results_of_a_task_agree_with_each_other_and_are_reported(name: str, tmp_path: Path) -> None:
    small = ("--task", name, "--preset", "nano", "--length", LENGTH, "--batch", 4, "--tokens", "2k")
    assert cli("train", "--enc", "alibi", "--enc", "none", *small, "--out", tmp_path).code == 0
    rows = pd.DataFrame(document("extrapolate", "--max-len", 4 * LENGTH, "--out", tmp_path))
    stated = rows[rows["variant"] == "full"].set_index(["run_id", "length"])
    answers = pd.concat([pd.read_csv(path) for path in sorted(tmp_path.glob("runs/*/answers.csv"))])
    found = answers.groupby(["run_id", "length"])[["tokens", "right"]].sum()
    right = found["right"] / found["tokens"]
    assert (found["tokens"] == stated["tokens"].reindex(found.index)).all()
    assert right.to_numpy() == pytest.approx(stated["accuracy"].reindex(found.index))
    assert set(answers["by"]) == {"depth" if name == "passkey" else "gap"}
    assert set(answers["chance"]) == {task_of(name).chance}

    report = cli("report", "--out", tmp_path, "--json")
    assert report.code == 0, report.err
    assert {row["effective"] for row in report.json["summary"]} == {0.0}
    (path,) = tmp_path.rglob("report.md")
    assert f"Chance is {task_of(name).chance:.3f}." in path.read_text()
    assert {path.name for path in tmp_path.rglob("*.png")} == {"accuracy.png", "place.png"}
    alibi, none = (right[right.index.get_level_values("run_id").str.startswith(each)] for each in ("alibi", "none"))
    compared = document("compare", "alibi", "none", "--out", tmp_path)
    assert [row["difference"] for row in compared] == pytest.approx(list(alibi.to_numpy() - none.to_numpy()))


# Tasks that ask in words need longer windows, and the most frequent byte is right of the space before every number.
UNWORDED = [name for name in TASKS.names() if getattr(TASKS.get(name), "shortest", 0) <= LENGTH]


@pytest.mark.parametrize("task", first(1, UNWORDED))
def test_a_model_that_was_never_trained_is_called_so(task: str, tmp_path: Path) -> None:
    """One step at a learning rate of almost nothing: the loss is at chance, and cutting the context changes nothing."""
    rates = [word for part in ("matrix", "head", "embedding") for word in ("--set", f"{part}_lr=1e-12")]
    still = ("--tokens", 64, *rates)
    words = ("--enc", "rope", "--task", task, "--preset", "nano", "--length", LENGTH, "--batch", 2, *still)
    for command in (("train", *words), ("extrapolate", "--max-len", 2 * LENGTH, "--tokens", 256, "--stride", 4)):
        result = cli(*command, "--out", tmp_path)
        assert result.code == 0, result.err
    assert "rope: not trained: its loss at its training length is" in " ".join(result.out.split())
    (row,) = cli("report", "--out", tmp_path, "--json").json["summary"]
    assert row["verdict"] == "not trained"


def test_an_impossible_task_is_refused_in_one_line(here: Path) -> None:
    train = ("train", "--enc", "none", "--task")
    assert_refused((*train, "recency", "--length", 16), 2, ("--length 16", "at least 24 tokens"))
    assert_refused((*train, "paskey"), 2, "there is no task 'paskey': did you mean passkey?")
    assert_refused((*train, "recall", "--tokenizer", "hf:x"), 2, "the task recall makes its own text")
