"""`poscli extrapolate --as SPEC --recalibrate TOKENS`: a short training under another encoding, then an evaluation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from cli_runner import NANO, assert_refused, cli, document, run_of

from poscli.config.request import ExtrapolateRequest
from poscli.evaluation.posthoc import posthoc_runs
from poscli.runs import checkpoint
from poscli.runs.results import evaluated_parts, training_log
from poscli.runs.run import Run
from poscli.tasks import open_task
from poscli.training import trainer
from poscli.training.recalibrate import recalibrate, recalibration_config

LENGTH = 32  # of NANO
STEPS = 100
TOKENS = STEPS * 4 * LENGTH
TRAIN = ("train", "--enc", "rope", *NANO, "--tokens", "64k")  # 500 steps, after which positions have an effect
SHORT = ("extrapolate", "--max-len", LENGTH, "--tokens", "2k", "--stride", 16)
RECALIBRATE = (*SHORT, "--as", "none", "--recalibrate", TOKENS)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained rope model, evaluated as it is, as none, and as none after a recalibration."""
    folder = tmp_path_factory.mktemp("recalibrated")
    for command in (TRAIN, (*SHORT, "--as", "none"), RECALIBRATE):
        result = cli(*command, "--out", folder)
        assert result.code == 0, result.err
    return folder


def part(out: Path, label: str) -> Run:
    (found,) = [each for each in evaluated_parts(run_of(out, "rope")) if each.label == label]
    return found


def losses(run: Run) -> pd.DataFrame:
    rows = pd.read_csv(run.eval_csv)
    return rows[(rows["variant"] == "full") & (rows["length"] == LENGTH)]["nll"]


def test_recalibration_makes_a_rope_model_without_positions_clearly_better(out: Path) -> None:
    before, after = losses(part(out, "rope as none")), losses(part(out, "rope as none (recalibrated 12800)"))
    assert float(before.mean() - after.mean()) > 0.1  # nats per token


def test_it_trains_other_weights_beside_those_of_the_run(out: Path) -> None:
    run = part(out, "rope as none (recalibrated 12800)")
    own = checkpoint.read_checkpoint(run.checkpoints, STEPS).model
    trained = checkpoint.read_checkpoint(run.home / "checkpoints", 500).model
    assert own.keys() == trained.keys()
    assert not any(torch.equal(own[name], trained[name]) for name in own)
    assert run.status()["state"] == "complete"
    assert run.training.status()["step"] == 500


def test_it_is_recorded_and_trains_with_lower_learning_rates(out: Path) -> None:
    run = part(out, "rope as none (recalibrated 12800)")
    record = json.loads((run.folder / "eval.json").read_text())
    assert record["recalibration"] == {"tokens": TOKENS, "length": LENGTH, "rate": 0.3, "plugins": {}}
    config = recalibration_config(run)
    assert (config.steps, config.encoding) == (STEPS, "none")
    assert config.recipe.matrix_lr == pytest.approx(0.3 * run.config.recipe.matrix_lr)
    assert config.recipe.decay == run.config.recipe.decay
    assert len(training_log(Run(run.folder, config, run.env))) == STEPS
    rows = document("report", "--out", out)
    assert "rope as none (recalibrated 12800)" in json.dumps(rows)


def test_its_windows_are_not_those_of_the_first_steps_of_the_training(out: Path) -> None:
    run = part(out, "rope as none (recalibrated 12800)")
    task = open_task(run.config.task, run.config.corpus, run.config.tokenizer)
    seeds = (run.config.seed, recalibration_config(run).seed)
    one, other = (
        task.batch(size=4, length=LENGTH, seed=seed, step=0).tensors(torch.device("cpu"))[0] for seed in seeds
    )
    assert not torch.equal(one, other)


def test_it_is_found_again(out: Path) -> None:
    run = part(out, "rope as none (recalibrated 12800)")
    before = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.safetensors")}
    result = cli(*RECALIBRATE, "--out", out)
    assert result.code == 0
    assert f"{run.id} is evaluated already" in result.err
    longer = cli(*SHORT, "--as", "none", "--recalibrate", TOKENS, "--ngram", 5, "--out", out)  # evaluated anew
    assert longer.code == 0
    assert before == {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.safetensors")}
    other = ExtrapolateRequest.model_validate({"as": ["none"], "recalibrate": TOKENS, "recalibrate_length": 64})
    assert posthoc_runs(run.training, other, strict=True)[0].folder != run.folder


def weights(run: Run) -> dict[str, torch.Tensor]:
    return checkpoint.read_checkpoint(run.checkpoints, STEPS).model


def test_it_gives_the_same_weights_after_an_interruption(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = weights(part(out, "rope as none (recalibrated 12800)"))
    shutil.copytree(out / "runs", tmp_path / "runs")
    run = part(tmp_path, "rope as none (recalibrated 12800)")
    task = open_task(run.config.task, run.config.corpus, run.config.tokenizer)

    take_step = trainer.Trainer.take_step

    def stopping_step(self: trainer.Trainer) -> bool:
        if self.step == 37:
            self.save()
            raise KeyboardInterrupt
        return take_step(self)

    shutil.rmtree(run.folder)
    with monkeypatch.context() as patched:
        patched.setattr(trainer.Trainer, "take_step", stopping_step)
        with pytest.raises(KeyboardInterrupt):
            recalibrate(run, task, torch.device("cpu"))
    recalibrate(run, task, torch.device("cpu"))
    assert all(torch.equal(weights(run)[name], value) for name, value in expected.items())


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--recalibrate", "4k"), "--recalibrate 4000 trains a model under the encodings of --as; give --as too"),
        (("--as", "none", "--recalibrate", "0"), "--recalibrate '0'"),
        (("--as", "none", "--recalibrate", "100"), "--recalibrate 100 is less than one step of 128 tokens"),
        (("--as", "none", "--recalibrate-length", "64"), "--recalibrate-length 64 is the window of --recalibrate"),
        (("--as", "none", "--recalibrate", "4k", "--recalibrate-length", "7"), "recalibrate_length = 7"),
    ],
)
def test_what_makes_no_sense_is_refused(
    out: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(out)
    assert_refused((*SHORT, *options, "--out", "."), 2, words)


def test_a_model_with_a_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("train", "--enc", "rope", *NANO, "--memory", 8, "--out", tmp_path).code == 0
    monkeypatch.chdir(tmp_path)
    assert_refused((*SHORT, "--as", "none", "--recalibrate", "4k", "--out", "."), 2, "has a memory")
