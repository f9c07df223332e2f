"""Tasks: the copy task end to end, and what every task promises the trainer and the evaluation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cli_runner import cli
from toys import first

from poscli.evaluation.plan import Plan
from poscli.evaluation.protocol import EvaluationSettings
from poscli.tasks import IGNORED, TASKS, EpisodeTask, Task, language, open_task
from poscli.tasks.copy import COPY, PAD, SYMBOLS, Copy

LENGTH = 32
TRAIN = ("--task", "copy", "--preset", "nano", "--length", LENGTH, "--batch", 16, "--tokens", "120k")


def counted(task, length: int) -> list[tuple[list[int], list[int]]]:
    """The tokens of some training windows and those of their targets that count."""
    batch = task.batch(size=64, length=length, seed=0, step=3)
    inputs, targets = batch.tensors(torch.device("cpu"))
    assert (inputs == torch.from_numpy(batch.tokens[:, :-1])).all()
    return [
        (row.tolist(), [t for t in goal.tolist() if t != IGNORED])
        for row, goal in zip(batch.tokens, targets, strict=True)
    ]


def test_only_the_second_copy_of_the_string_is_scored() -> None:
    sizes = set()
    for tokens, answer in counted(open_task("copy", "stdlib", "bytes"), LENGTH):
        said = tokens[tokens.index(COPY) + 1 :]
        assert tokens == [PAD] * (LENGTH - 2 * len(said)) + said + [COPY] + said
        assert answer == said
        sizes.add(len(said))
    assert min(sizes) >= 1
    assert max(sizes) <= LENGTH // 2
    assert len(sizes) > 8


@pytest.mark.parametrize("name", TASKS.names())
def test_a_batch_is_a_function_of_seed_and_step(name: str) -> None:
    task = open_task(name, "stdlib", "bytes")
    drawn = [task.batch(size=4, length=LENGTH, seed=seed, step=step) for seed, step in ((0, 1), (0, 1), (0, 2), (1, 1))]
    assert drawn[0].tokens.shape == (4, LENGTH + 1)
    assert drawn[0].tokens.max() < task.vocab
    assert (drawn[0].tokens == drawn[1].tokens).all()
    assert all((drawn[0].tokens != other.tokens).any() for other in drawn[2:])


@pytest.mark.parametrize("name", TASKS.names())
def test_every_row_of_an_evaluation_scores_something(name: str) -> None:
    task = open_task(name, "stdlib", "bytes")
    settings = EvaluationSettings(train_length=LENGTH, max_len=4 * LENGTH, tokens=512, stride=4)
    plan = Plan(task, settings)
    for length in settings.lengths:
        for protocol in task.protocols:
            scored, text = plan.protocols[protocol].scored(settings, length), task.text(length)
            counts = text.counts(plan.spans(protocol, length), scored)
            assert counts.any(axis=1).all()
            assert text.windows(plan.spans(protocol, length), length)[:, -scored:].shape == counts.shape


def test_half_of_every_evaluation_window_is_scored() -> None:
    task = open_task("copy", "stdlib", "bytes")
    for length in (LENGTH, 4 * LENGTH):
        text = task.text(length)
        assert set(text.sizes) == {length}
        assert (text.split.tokens[: length + 1] == COPY).argmax() == length // 2
        assert text.counted is not None
        assert text.counted[: length + 1].sum() == length // 2
    assert task.vocab == SYMBOLS + 2


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    out = tmp_path_factory.mktemp("copy")
    trained = cli("train", "--enc", "rope", *TRAIN, "--out", out, "--json")
    assert trained.code == 0, trained.err
    return out


def test_a_model_learns_to_copy_and_its_accuracy_is_in_the_tables(copied) -> None:
    rows = cli("extrapolate", "--max-len", 2 * LENGTH, "--out", copied, "--json").json
    full = {row["length"]: row for row in rows if row["variant"] == "full"}
    assert {row["protocol"] for row in rows} == {"answer"}
    assert {row["corpus"] for row in rows} == {"copy"}
    assert full[LENGTH]["accuracy"] > 0.5  # a guess is right once in 16
    assert np.exp(full[LENGTH]["nll"]) < SYMBOLS
    assert full[2 * LENGTH]["tokens"] == full[LENGTH]["tokens"]
    report = cli("report", "--out", copied, "--json")
    assert report.code == 0, report.err
    assert "rope" in {row["encoding"] for row in report.json["summary"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--task", "copi"), "there is no task 'copi': did you mean copy?"),
        (("--task", "copy", "--corpus", "text:x"), "the task copy makes its own text"),
    ],
)
def test_an_impossible_task_is_refused_in_one_line(options, message, tmp_path) -> None:
    result = cli("train", "--enc", "none", *options, "--out", tmp_path)
    assert result.code == 2
    assert message in result.err
    assert not list(tmp_path.iterdir())


def test_a_guess_knows_the_frequencies_of_the_training_text(monkeypatch) -> None:
    monkeypatch.setattr(language, "CHUNK_TOKENS", 3)  # so that the counts of several parts are added
    tokens = np.array([4, 0, 1, 1, 4, 1, 2], np.uint16)
    train = SimpleNamespace(tokens=tokens, bytes=5, documents=2)
    corpus: Any = SimpleNamespace(spec="", fingerprint="", vocab=5, train=train, valid=None, tokenizer=None)
    loss = language.Language(corpus).unigram(np.array([[1, 3]]))  # counts 3 and 0, of 7; one is added to each of 5
    assert loss == pytest.approx(np.array([[-np.log(4 / 12), -np.log(1 / 12)]]))


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:260"])
def test_bytes_per_token_are_those_of_the_tokens_that_count(tokenizer: str, tmp_path) -> None:
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


@pytest.mark.parametrize("name", TASKS.names())
def test_a_guess_is_a_distribution_over_the_vocabulary(name: str) -> None:
    task = open_task(name, "stdlib", "bytes")
    scored = np.arange(task.symbols if isinstance(task, EpisodeTask) else task.vocab)
    assert np.exp(-task.unigram(scored)).sum() == pytest.approx(1)


class Even(Copy):
    unigram = Task.unigram


def test_a_task_without_a_text_guesses_evenly() -> None:
    assert Even().unigram(np.zeros((2, 3), np.int64)) == pytest.approx(np.full((2, 3), np.log(SYMBOLS + 2)))


@pytest.mark.parametrize("task", first(2, TASKS.names()))
def test_a_model_that_was_never_trained_is_called_so(task: str, tmp_path) -> None:
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
