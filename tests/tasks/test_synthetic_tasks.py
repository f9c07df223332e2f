"""Synthetic tasks: an oracle solves them, the order of the tokens decides, and distances grow with the windows."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from cli_runner import assert_refused, cli, document, run_of
from scipy.stats import binomtest
from toys import first

from poscli.config.run import PRESETS, ModelConfig, RunConfig
from poscli.config.suite import load_suite
from poscli.evaluation.plan import Plan
from poscli.evaluation.protocol import EvaluationSettings
from poscli.evaluation.tables import answers_by_place, depth_bins, gap_bins
from poscli.model.initialise import fresh_model
from poscli.model.load import load_model
from poscli.report.accuracy import by_length, by_place
from poscli.report.summary import effective_ratio
from poscli.statistics.intervals import two_level_interval
from poscli.system.errors import UsageError
from poscli.tasks import TASKS, open_task
from poscli.tasks.copy import COPY
from poscli.tasks.episodes import DEPTH, EPISODES, EpisodeTask
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


by_induction = by_recall


def by_recency(seen: Tokens) -> int:
    context, said = seen[: seen.index(SORT)], seen[seen.index(SORT) + 1 :]
    last = {key: place for place, key in enumerate(context) if key != BLANK}
    return sorted(last, key=lambda key: last[key], reverse=True)[len(said)]


ORACLES: dict[str, Callable[[Tokens], int]] = {
    "copy": by_copy,
    "passkey": by_passkey,
    "recall": by_recall,
    "induction": by_induction,
    "recency": by_recency,
}
# The first 8 hexadecimal digits of the SHA-256 of 4 training windows of seed 3, step 5, and of the evaluation at 64.
BYTES = {
    "copy": "23cfc4f4",
    "passkey": "b2bebaa0",
    "recall": "bedfe257",
    "induction": "b13fe6b4",
    "recency": "45fae406",
}


def task_of(name: str) -> EpisodeTask:
    task = open_task(name, "stdlib", "bytes")
    assert isinstance(task, EpisodeTask)
    return task


def drawn(name: str, length: int, *, training: bool = False, count: int = 128):
    """Episodes of a task from a seed of this test."""
    return task_of(name).episodes(count, length, np.random.default_rng(11), training=training)


def test_every_synthetic_task_has_an_oracle() -> None:
    assert set(ORACLES) == {name for name in TASKS.names() if issubclass(TASKS.get(name), EpisodeTask)}


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize(("length", "training"), [(LENGTH, True), (LENGTH, False), (51, False), (LONG, False)])
def test_an_oracle_that_knows_the_rule_solves_every_episode(name: str, length: int, training: bool) -> None:
    episodes = drawn(name, length, training=training, count=64)
    for tokens, counted in zip(episodes.tokens.tolist(), episodes.counted, strict=True):
        assert counted.any()
        for place in np.flatnonzero(counted):
            padded = next(i for i, token in enumerate(tokens) if token != task_of(name).pad) if name != "recency" else 0
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
def test_the_bytes_of_an_episode_depend_on_seed_and_version_only(name: str) -> None:
    """Raise the task's `version`, and change its digits here, when its episodes are made in another way."""
    np.random.seed(0)  # the global generator must not matter
    task = task_of(name)
    content = task.batch(size=4, length=64, seed=3, step=5).tokens.tobytes()
    content += task.text(64).split.tokens.tobytes() + task.text(64).back.tobytes()
    assert hashlib.sha256(content).hexdigest()[:8] == BYTES[name]
    assert (task_of(name).batch(size=4, length=64, seed=3, step=5).tokens.tobytes()) == content[: 4 * 65 * 8]


@pytest.mark.parametrize("name", ORACLES)
def test_another_version_is_another_text(name: str, monkeypatch) -> None:
    before = task_of(name).fingerprint
    monkeypatch.setattr(TASKS.get(name), "version", 99)
    assert task_of(name).fingerprint != before


FINGERPRINTS = {
    "copy": "1fc7a7029a616bc9",
    "passkey": "c084714db73ab999",
    "recall": "7f91daba4cb857b5",
    "induction": "b49be01e639197d3",
    "recency": "804abcae02614b66",
}


@pytest.mark.parametrize("name", ORACLES)
def test_the_fingerprint_of_a_text_stays_as_in_runs_that_were_made_before(name: str) -> None:
    """Runs of one text can be compared with each other because they have its fingerprint."""
    assert task_of(name).fingerprint == task_of(name).describe()["fingerprint"] == FINGERPRINTS[name]


@pytest.mark.parametrize("name", ORACLES)
def test_windows_that_cannot_hold_an_episode_are_refused_and_the_shortest_others_are_not(name: str) -> None:
    task = task_of(name)
    task.check(task.shortest)
    assert task.batch(size=2, length=task.shortest, seed=0, step=0).counted.any(axis=1).all()
    with pytest.raises(UsageError, match=f"--length {task.shortest - 1}: .* at least {task.shortest} tokens"):
        task.check(task.shortest - 1)


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
    plan = Plan(task_of("recall"), EvaluationSettings(train_length=32, max_len=64, tokens=50, stride=1))
    assert [len(plan.spans("answer", length)) for length in (32, 64)] == [12, 12]  # of 4 tokens each
    plan = Plan(task_of("recall"), EvaluationSettings(train_length=32, max_len=64, tokens=2, stride=1))
    assert len(plan.spans("answer", 32)) == 1


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


@pytest.mark.parametrize("name", ["passkey", "recall", "induction"])
def test_a_layer_without_positions_does_not_see_the_order(name: str) -> None:
    """Its last prediction is the same for a shuffled context, so that it cannot know the answer."""
    task, config = task_of(name), RunConfig(encoding="none", task=name, length=LENGTH, model=one_layer())
    model = fresh_model(config, task.vocab, torch.device("cpu")).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(0))  # the output matrix begins as zero
    tokens = torch.from_numpy(drawn(name, LENGTH, count=8).tokens)[:, :-1]
    order = torch.cat([torch.from_numpy(np.random.default_rng(0).permutation(LENGTH - 1)), torch.tensor([LENGTH - 1])])
    one, other = model(tokens)[:, -1], model(tokens[:, order])[:, -1]
    assert (one - other).abs().max() < 1e-5 * one.abs().max()  # sums of 32 numbers in another order, in float32
    assert (one - one[:1]).abs().max() > 1e-3  # they do depend on which tokens there are


def one_layer() -> ModelConfig:
    return PRESETS["nano"].model_copy(update={"layers": 1})


@pytest.mark.slow
def test_a_model_that_solves_recall_at_16_times_its_length_is_at_chance_once_the_context_is_shuffled(tmp_path) -> None:
    task, out = task_of("recall"), ("--out", tmp_path)
    small = ("--task", "recall", "--preset", "nano", "--length", LENGTH, "--batch", 32, "--tokens", "1M", "--yes")
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


def test_bins_of_depths_and_gaps() -> None:
    back = np.array([[0, 9, 1], [4, 0, 9]])  # of targets 8, 9 and 10 in windows of 10 tokens
    right = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    made = {"units": ["0", "7"], "length": 10}
    rows = list(answers_by_place(back, right, by=DEPTH, bins=depth_bins(), **made))
    found = [(row["unit"], row["from"], row["to"], row["tokens"], row["right"]) for row in rows]
    assert sorted(found) == [("0", 0, 19, 1, 1), ("0", 80, 99, 1, 0), ("7", 0, 19, 1, 1), ("7", 40, 59, 1, 1)]
    rows = list(answers_by_place(back, right, by="gap", bins=gap_bins(4, 16), **made))
    found = [(row["unit"], row["from"], row["to"], row["tokens"], row["right"]) for row in rows]
    assert sorted(found) == [("0", 1, 1, 1, 0), ("0", 8, 15, 1, 1), ("7", 4, 7, 1, 1), ("7", 8, 15, 1, 1)]


def table(right: np.ndarray, length: int = 64, **columns: object) -> pd.DataFrame:
    """Rows of answers.csv from the right answers `[S, D]`, of 4 in each episode."""
    return pd.DataFrame(
        {
            "run_id": f"run-{seed}", "encoding": "rope", "train_length": 32, "length": length, "unit": str(unit),
            "by": "gap", "from": 1, "to": 7, "tokens": 4, "right": int(value), "chance": 0.1, **columns,
        }
        for (seed, unit), value in np.ndenumerate(right)
    )  # fmt: skip


def test_intervals_of_the_accuracy_are_over_seeds_and_episodes() -> None:
    right = np.random.default_rng(0).integers(0, 5, (3, 20))
    points = by_length(table(right))
    expected = two_level_interval(right.astype(float), np.full(20, 4.0))
    assert points[["length", "ratio", "seeds", "tokens"]].iloc[0].tolist() == [64, 2, 3, 80]
    assert points[["accuracy", "low", "high"]].iloc[0].tolist() == pytest.approx(expected[:3])
    assert expected.low < right.mean() / 4 < expected.high


@pytest.mark.parametrize("right", [0, 4])
def test_where_all_answers_are_right_or_wrong_the_interval_is_that_of_a_binomial(right: int) -> None:
    (point,) = by_length(table(np.full((3, 20), right))).to_dict("records")
    exact = binomtest(5 * right, 20).proportion_ci()
    assert (point["low"], point["high"]) == pytest.approx((exact.low, exact.high))


def test_the_table_by_place_is_of_the_longest_window_and_leaves_out_few_tokens() -> None:
    right = np.full((1, 20), 4)
    rows = [table(right), table(right // 2, 128), table(right[:, :5], 128, **{"from": 8, "to": 15})]
    points = by_place(pd.concat(rows))
    assert points[["from", "tokens", "accuracy"]].to_numpy().tolist() == [pytest.approx([1, 80, 0.5])]


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


@pytest.mark.parametrize("name", first(1, ["recall", "passkey"]))
def test_results_of_a_task_agree_with_each_other_and_are_reported(name: str, tmp_path) -> None:
    small = ("--task", name, "--preset", "nano", "--length", LENGTH, "--batch", 4, "--tokens", "2k")
    encodings = ("--enc", "alibi", "--enc", "none")
    assert cli("train", *encodings, *small, "--out", tmp_path).code == 0
    rows = pd.DataFrame(document("extrapolate", "--max-len", 4 * LENGTH, "--out", tmp_path))
    rows = rows[rows["variant"] == "full"]
    tables = [pd.read_csv(path) for path in sorted(tmp_path.glob("runs/*/answers.csv"))]
    answers = pd.concat(tables)
    found = answers.groupby(["run_id", "length"])[["tokens", "right"]].sum()
    stated = rows.set_index(["run_id", "length"])
    assert (found["tokens"] == stated["tokens"].reindex(found.index)).all()
    assert (found["right"] / found["tokens"]).to_numpy() == pytest.approx(stated["accuracy"].reindex(found.index))
    assert set(answers["by"]) == {"depth" if name == "passkey" else "gap"}
    assert set(answers["chance"]) == {task_of(name).chance}

    report = cli("report", "--out", tmp_path, "--json")
    assert report.code == 0, report.err
    assert {row["effective"] for row in report.json["summary"]} == {0.0}
    (path,) = tmp_path.rglob("report.md")
    text = path.read_text()
    assert "### What share of the answers is right?" in text
    assert f"Chance is {task_of(name).chance:.3f}." in text
    assert "### Does it matter" in text
    assert {path.name for path in tmp_path.rglob("*.png")} == {"accuracy.png", "place.png"}
    right = found["right"] / found["tokens"]
    alibi, none = (right[right.index.get_level_values("run_id").str.startswith(name)] for name in ("alibi", "none"))
    compared = document("compare", "alibi", "none", "--out", tmp_path)
    assert [row["difference"] for row in compared] == pytest.approx(list(alibi.to_numpy() - none.to_numpy()))
    assert "accuracy of the first minus that of the second" in " ".join(
        cli("compare", "alibi", "none", "--out", tmp_path).out.split()
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--task", "recency", "--length", 16), ("--length 16", "at least 24 tokens")),
        (("--task", "recall", "--length", 14), ("--length 14", "at least 15 tokens")),
        (("--task", "paskey"), "there is no task 'paskey': did you mean passkey?"),
        (("--task", "recall", "--corpus", "text:x"), "the task recall makes its own text"),
        (("--task", "recall", "--tokenizer", "hf:x"), "the task recall makes its own text"),
    ],
)
def test_an_impossible_task_is_refused_in_one_line(options, words, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(("train", "--enc", "none", *options), 2, words)


def test_a_suite_in_which_a_task_does_not_fit_is_refused_before_anything_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    suite = 'title = "t"\nencodings = ["none"]\n[train]\ntask = "recency"\nlength = 16\npreset = "nano"\n'
    (tmp_path / "bad.toml").write_text(suite)
    assert_refused(("run", "bad.toml", "--yes"), 2, "at least 24 tokens")


def test_tasks_are_listed_with_what_is_measured_and_chance() -> None:
    rows = {row["task"]: row for row in document("ls", "tasks")}
    assert rows["passkey"]["chance"] == 0.1
    assert "depth" in rows["passkey"]["measured"]
    assert "gap" in rows["recall"]["measured"]
    assert rows["language"]["chance"] is None
    assert rows["language"]["measured"] == "perplexity and context gain"


def test_the_suite_of_tasks_asks_what_it_says() -> None:
    suite = load_suite(Path(__file__).parents[2] / "suites" / "tasks.toml")
    assert suite.encodings == ["rope", "alibi", "t5", "none", "fox", "cope"]
    assert suite.seeds == [0, 1, 2]
    assert [part.train.task for part in suite.parts()] == ["passkey", "recall"]
