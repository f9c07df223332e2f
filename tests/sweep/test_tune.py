"""Recipes of equal budget: nine trials, judged on documents that no evaluation scores, which suites take."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
from cli_runner import ask_before_any_work, assert_refused, cli, document, snapshot
from training_faults import Loss, change_losses

from poscli import api
from poscli.config.run import TUNING_SEED, Recipe
from poscli.runs.run import list_runs
from poscli.system.files import read_object
from poscli.tasks.language import Language
from poscli.training.trainer import Trainer

OPTIONS = ("--preset", "nano", "--length", 16, "--batch", 1, "--tokens", 64, "--corpus", "text:notes")
SUITE = """
title = "Tuned"
encodings = ["none"]
recipe = "tuned"
[train]
preset = "nano"
length = 16
batch = 1
tokens = 64
corpus = "text:notes"
[extrapolate]
max_len = 32
tokens = 32
stride = 8
"""


@pytest.fixture(autouse=True)
def folder(here: Path) -> Path:
    """A folder with forty small texts and a suite."""
    draw = random.Random(0)
    Path("notes").mkdir()
    for number in range(40):
        Path("notes", f"{number:02}.txt").write_text(" ".join(draw.choices(["kan", "lora", "misto", "puvel"], k=300)))
    Path("tuned.toml").write_text(SUITE)
    return here


@pytest.mark.wide
def test_a_suite_takes_the_best_of_nine_trials(folder: Path) -> None:
    planned = cli("run", "tuned.toml", "--dry-run", "--json").json["jobs"]
    assert [job["encoding"] for job in planned] == ["none"] * 9 + ["none (tuned recipe)"]
    assert not (folder / "results").exists()
    (found,) = document("tune", "none", *OPTIONS)
    assert len({(trial["matrix_lr"], trial["embedding_lr"]) for trial in found["trials"]}) == 9
    losses = [trial["bpb"] for trial in found["trials"]]
    assert found["spread"] == max(losses) - min(losses)
    best = found["trials"][losses.index(min(losses))]
    assert found["best"] == {rate: best[rate] for rate in ("matrix_lr", "embedding_lr")}
    runs = list_runs(folder / "results/tune/runs")
    assert {(run.config.seed, run.config.tokens) for run in runs} == {(TUNING_SEED, 32)}

    # Without the file, the trials that are done are found again, and the file is the same.
    (file,) = (folder / "results/tune").glob("*.json")
    content, trained = file.read_bytes(), snapshot(folder / "results/tune/runs")
    file.unlink()
    table = api.tune("none", preset="nano", length=16, batch=1, tokens=64, corpus="text:notes")
    assert file.read_bytes() == content
    assert table["bpb"].tolist() == sorted(losses)
    assert snapshot(folder / "results/tune/runs") == trained

    assert cli("run", "tuned.toml").code == 0
    (run,) = list_runs(folder / "results/runs")
    assert {rate: getattr(run.config.recipe, rate) for rate in found["best"]} == found["best"]
    assert run.label == "none (tuned recipe)"
    assert read_object(file, "")["best"] == found["best"]

    # Without `poscli tune` before it, the suite makes the same trials and the same run.
    assert cli("run", "tuned.toml", "--out", "alone").code == 0
    assert next(Path("alone/tune").glob("*.json")).read_bytes() == content
    assert [each.id for each in list_runs(folder / "alone/runs")] == [run.id]

    Path("tuned.toml").write_text(SUITE.replace('"tuned"\n[', '"both"\n['))
    jobs = cli("run", "tuned.toml", "--dry-run", "--json").json["jobs"]
    assert [job["encoding"] for job in jobs] == ["none", "none (tuned recipe)"]
    Path("tuned.toml").write_text(
        SUITE.replace('recipe = "tuned"\n', "") + '[[part]]\nencodings = ["rope"]\n[[part]]\nrecipe = "tuned"\n'
    )
    jobs = cli("run", "tuned.toml", "--dry-run", "--json").json["jobs"]
    assert [job["encoding"] for job in jobs] == ["rope", "none (tuned recipe)"]


def test_a_trial_that_lacks_memory_is_made_again_by_the_same_command_and_refused_force_deletes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(trainer: Trainer, loss: Loss) -> torch.Tensor:
        if trainer.config.recipe.matrix_lr == Recipe().matrix_lr:
            raise torch.OutOfMemoryError("no memory is left")
        return loss()

    with monkeypatch.context() as patch:
        change_losses(lacks, patch.setattr)
        result = cli("tune", "none", *OPTIONS)
    assert result.code == 1
    assert "error: a trial lacked memory, none-" in result.err
    assert len(re.findall(r"\] none with matrix_lr [\d.]+, embedding_lr [\d.]+", result.err)) == 9, result.err
    assert not list((folder / "results/tune").glob("*.json"))
    (found,) = document("tune", "none", *OPTIONS)
    assert all(trial["bpb"] for trial in found["trials"])

    ask_before_any_work(monkeypatch)
    assert_refused(("tune", "none", *OPTIONS, "--force"), 2, "give --yes to start all the same", notes=1)


def test_what_judges_a_trial_is_never_scored() -> None:
    task = Language.open("text:notes", "bytes")
    tuning, scored = (each.data.valid.tokens.astype("u1").tobytes() for each in (task.tuning(), task))
    documents = [path.read_bytes() for path in Path("notes").iterdir()]
    assert any(text in tuning for text in documents)
    assert not any(text in tuning and text in scored for text in documents)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tokens", "0"), "--tokens"),
        (("--tokens", "16"), ("--tokens 16", "at least 32")),
        (("--set", "matrix_lr=0.02"), ("matrix_lr=0.02", "leave it out")),
    ],
)
def test_budgets_and_rates_that_cannot_be_tuned_are_refused(options: tuple[str, str], words: str | tuple) -> None:
    assert_refused(("tune", "none", *OPTIONS, *options), 2, words, notes=1)


def test_an_unknown_recipe_and_the_seed_of_trials_are_refused() -> None:
    Path("tuned.toml").write_text(SUITE.replace('"tuned"\n[', '"best"\n['))
    assert_refused(("run", "tuned.toml"), 2, ("recipe = 'best'", "'both'"))
    assert_refused(("train", "--enc", "none", *OPTIONS, "--seed", TUNING_SEED), 2, "poscli tune")
