"""`poscli extrapolate --as SPEC --recalibrate TOKENS`: a short training under another encoding, then an evaluation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from cli_runner import NANO, cli, document, run_of

from poscli.runs import checkpoint
from poscli.runs.results import evaluated_parts, training_log
from poscli.runs.run import Run
from poscli.tasks import open_task
from poscli.training import trainer
from poscli.training.recalibrate import recalibrate, recalibration_config

LENGTH = 32  # of NANO
STEPS = 25
TOKENS = STEPS * 4 * LENGTH
LABEL = f"rope as none (recalibrated {TOKENS})"
SHORT = ("extrapolate", "--max-len", LENGTH, "--tokens", 256, "--stride", 16)
RECALIBRATE = (*SHORT, "--as", "none", "--recalibrate", TOKENS)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rope model of 31 steps, evaluated as it is, and as none after a recalibration."""
    folder = tmp_path_factory.mktemp("recalibrated")
    for command in (("train", "--enc", "rope", *NANO), RECALIBRATE):
        result = cli(*command, "--out", folder)
        assert result.code == 0, result.err
    return folder


def part(out: Path, label: str) -> Run:
    (found,) = [each for each in evaluated_parts(run_of(out, "rope")) if each.label == label]
    return found


def losses(run: Run) -> pd.DataFrame:
    rows = pd.read_csv(run.folder / "eval.csv")
    return rows[(rows["variant"] == "full") & (rows["length"] == LENGTH)]["nll"]


@pytest.mark.wide
def test_recalibration_makes_a_rope_model_without_positions_better(tmp_path: Path) -> None:
    train = ("train", "--enc", "rope", *NANO, "--tokens", "64k")  # 500 steps, after which positions have an effect
    measured = ("extrapolate", "--max-len", LENGTH, "--tokens", "2k", "--stride", 16, "--as", "none")
    for command in (train, measured, (*measured, "--recalibrate", 12_800)):
        result = cli(*command, "--out", tmp_path)
        assert result.code == 0, result.err
    before, after = losses(part(tmp_path, "rope as none")), losses(part(tmp_path, "rope as none (recalibrated 12800)"))
    assert float(before.mean() - after.mean()) > 0.1  # nats per token


def test_recalibration_trains_other_weights_and_is_found_again(out: Path) -> None:
    """It trains other weights beside those of the run, on other windows, with lower learning rates, and is recorded."""
    run = part(out, LABEL)
    own = checkpoint.read_checkpoint(run.checkpoints, STEPS).model
    steps = run.training.status()["step"]
    trained = checkpoint.read_checkpoint(run.home / "checkpoints", steps).model
    assert own.keys() == trained.keys()
    assert not any(torch.equal(own[name], trained[name]) for name in own)
    assert (run.status()["state"], steps) == ("complete", run.training.config.steps)
    record = json.loads((run.folder / "eval.json").read_text())
    assert record["recalibration"] == {"tokens": TOKENS, "length": LENGTH, "rate": 0.3, "plugins": {}}
    config = recalibration_config(run)
    assert (config.steps, config.encoding) == (STEPS, "none")
    assert config.recipe.matrix_lr == pytest.approx(0.3 * run.config.recipe.matrix_lr)
    assert config.recipe.decay == run.config.recipe.decay
    assert config.seed != run.config.seed  # which decides the windows
    assert len(training_log(Run(run.folder, config, run.env))) == STEPS
    times = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.safetensors")}
    again = cli(*RECALIBRATE, "--out", out)
    assert (again.code, f"{run.id} is evaluated already" in again.err) == (0, True)
    assert cli(*RECALIBRATE, "--ngram", 5, "--out", out).code == 0  # evaluated anew
    assert times == {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.safetensors")}


def test_it_gives_the_same_weights_after_an_interruption(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = part(out, LABEL)
    expected = checkpoint.read_checkpoint(finished.checkpoints, STEPS).model
    shutil.copytree(out / "runs", tmp_path / "runs")
    run = part(tmp_path, LABEL)
    task = open_task(run.config.task, run.config.corpus, run.config.tokenizer)

    take_step = trainer.Trainer.take_step

    def stopping_step(self: trainer.Trainer) -> bool:
        if self.step == 11:
            self.save()
            raise KeyboardInterrupt
        return take_step(self)

    shutil.rmtree(run.folder)
    with monkeypatch.context() as patched:
        patched.setattr(trainer.Trainer, "take_step", stopping_step)
        with pytest.raises(KeyboardInterrupt):
            recalibrate(run, task, torch.device("cpu"))
    recalibrate(run, task, torch.device("cpu"))
    again = checkpoint.read_checkpoint(run.checkpoints, STEPS).model
    assert all(torch.equal(again[name], value) for name, value in expected.items())


def test_longer_windows_let_an_encoding_that_follows_the_length_differ(out: Path) -> None:
    """At L interpolated rope is rope; at 2 L it is not, and steps have half as many windows."""
    request = (*SHORT, "--as", "rope-linear", "--recalibrate", 256, "--out", out)
    same = cli(*request)
    assert same.code == 0
    assert "rope as rope-linear is rope on windows of 32 tokens, so that it is only trained further" in same.err
    longer = cli(*request, "--recalibrate-length", 2 * LENGTH)
    assert longer.code == 0
    assert "only trained further" not in longer.err
    config = recalibration_config(part(out, "rope as rope-linear (recalibrated 256 at length 64)"))
    assert (config.batch, config.length, config.steps) == (2, 64, 2)


def test_a_dry_run_counts_its_time(out: Path, tmp_path: Path) -> None:
    shutil.copytree(out / "runs", tmp_path / "runs")

    def seconds(*more: object) -> float:
        return document(*SHORT, "--as", "window(9)", *more, "--dry-run", "--out", tmp_path)["jobs"][1]["seconds"]

    assert seconds("--recalibrate", "10M") > 2 * seconds()
