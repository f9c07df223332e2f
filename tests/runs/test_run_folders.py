"""The folder of a run: what its files say, and what is said of files that poscli cannot have written."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import pytest
import torch

from poscli.config.run import SCHEMA, Recalibration, RunConfig
from poscli.runs import summary
from poscli.runs.checkpoint import Checkpoint, is_whole, last_with_model, load_last, read_checkpoint, save
from poscli.runs.results import open_evaluated, training_log, write_training_log
from poscli.runs.run import Run, create, evaluated_as, open_run
from poscli.runs.schema import perplexity
from poscli.runs.summary import run_summary, training_summary
from poscli.system.errors import CorruptError


def a_run(folder: Path, **config: object) -> Run:
    env = {"schema": SCHEMA, "corpus": {"fingerprint": "0123456789abcdef"}, "parameters": 7, "engine": "sdpa"}
    return create(folder, RunConfig(encoding="alibi", **config), env)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("env", "config", "reason"),
    [
        ({}, "", "'corpus'"),
        ({"corpus": {}}, "", "'fingerprint'"),
        ({"corpus": 5}, "", "'int' object"),
        ({"corpus": {"fingerprint": "0"}}, "seed = 1\nseed = 2\n", "Cannot overwrite a value"),
        ({"corpus": {"fingerprint": "0"}}, "seed = 1\n", "the key 'encoding' is missing"),
        ({"corpus": {"fingerprint": "0"}}, b"\xff", "'utf-8' codec"),
    ],
)
def test_a_sealed_folder_that_poscli_cannot_have_written_is_corrupt(
    env: dict[str, object], config: str | bytes, reason: str, tmp_path: Path
) -> None:
    """Its sums are right, so that somebody has made it; the error says what is wrong and what to do."""
    run = create(tmp_path / "made", RunConfig(encoding="alibi"), env | {"schema": SCHEMA})
    if config:
        run.files.write("config.toml", config)
    with pytest.raises(CorruptError) as caught:
        open_run(run.folder)
    assert str(caught.value).startswith(f"{run.folder} is not what poscli wrote ({reason}")
    assert str(caught.value).endswith(
        "; repeat the command that made this run, which writes it again and keeps the model"
    )


def test_only_another_version_is_called_one(tmp_path: Path) -> None:
    """Without its manifest, a folder of this version is damaged, and one of an older version may have had none."""
    old = create(tmp_path / "old", RunConfig(encoding="alibi"), {"schema": SCHEMA - 1})
    with pytest.raises(CorruptError, match="made by another version of poscli"):
        open_run(old.folder)
    folder = a_run(tmp_path / "made").folder
    whole = (folder / "env.json").read_text()
    (folder / "env.json").write_text(whole.replace(f": {SCHEMA}", f": {SCHEMA - 1}"))
    with pytest.raises(CorruptError, match="SHA-256 differs"):
        open_run(folder)
    (folder / "env.json").write_text(whole)
    (folder / "MANIFEST.json").unlink()
    with pytest.raises(CorruptError, match="SHA-256 differs"):
        open_run(folder)
    for schema in (SCHEMA - 1, SCHEMA + 1):
        (folder / "env.json").write_text(json.dumps({"schema": schema}))
        with pytest.raises(CorruptError, match=f"made by another version of poscli .results of schema {schema}, this"):
            open_run(folder)


@pytest.mark.parametrize("schema", ["4", None, 2.5, [1]], ids=repr)
def test_a_version_that_is_no_number_is_damage(schema: object, tmp_path: Path) -> None:
    folder = a_run(tmp_path / "made").folder
    (folder / "env.json").write_text(json.dumps({"schema": schema}))
    with pytest.raises(CorruptError, match=r"env\.json is not the file that was written"):
        open_run(folder)


def test_a_run_says_what_it_is_whatever_is_wrong_with_its_files(tmp_path: Path) -> None:
    run = a_run(tmp_path / "made", seed=3)
    steps = run.config.steps
    assert repr(run) == f"made: alibi, seed 3, planned at step 0 of {steps}, in {run.folder}"
    run.set_status("failed", 2, "no luck")
    assert f", failed at step 2 of {steps}: no luck, in" in repr(run)
    assert ">7<" in run._repr_html_()
    assert ">0<" in Run(run.folder, run.config, {})._repr_html_()  # nothing is known of its parameters
    (run.folder / "status.json").unlink()
    (run.folder / "MANIFEST.json").write_text("{")
    assert f", damaged: {run.folder / 'MANIFEST.json'} is not JSON" in repr(run)


def test_a_status_that_poscli_cannot_have_written_is_damage(tmp_path: Path) -> None:
    run = a_run(tmp_path / "made")
    for status in ({"state": "odd", "step": 1}, {"state": "complete", "step": "1"}):
        run.files.write("status.json", json.dumps(status))
        assert "status.json has no known state; repeat the command" in run.status_fault()
        assert (run.status()["state"], run.status()["step"]) == ("interrupted", 0)  # there are no checkpoints


def test_an_evaluation_under_another_encoding_is_known_by_what_is_left_of_its_files(tmp_path: Path) -> None:
    home = a_run(tmp_path / "made")
    home.folder.rename(tmp_path / home.config.run_id("0123456789abcdef"))
    home = open_run(tmp_path / home.config.run_id("0123456789abcdef"))
    part = evaluated_as(home, "rope", Recalibration(tokens=64, length=32))
    part.folder.mkdir(parents=True)
    known = {"encoding": "rope", "recalibration": {"tokens": 64, "length": 32}}
    command = f"repair it: poscli extrapolate --run {home.id} --as rope --recalibrate 64 --recalibrate-length 32 --out "
    lost = f"repeat the `poscli extrapolate --run {home.id} --as` that made it"
    for left, said in ((known, command), (known | {"recalibration": 5}, lost), ({"encoding": "t5"}, lost), ([1], lost)):
        (part.folder / "eval.json").write_text(json.dumps(left))
        with pytest.raises(CorruptError, match=said):
            open_evaluated(part.folder)
    part.files.write("eval.json", json.dumps(known))
    assert open_evaluated(part.folder).recalibration == part.recalibration
    part.folder.rename(part.folder.with_name("renamed"))
    with pytest.raises(CorruptError, match=f"was renamed: it holds the evaluation of {part.folder.name}"):
        open_evaluated(part.folder.with_name("renamed"))


def test_a_perplexity_that_no_float_holds_is_infinite() -> None:
    found = [perplexity(nll) for nll in (0.0, 708.5, 1000.0, math.inf, math.nan)]
    assert found == pytest.approx([1.0, math.exp(708.5), math.inf, math.inf, math.nan], nan_ok=True)


def test_the_newest_two_checkpoints_are_kept_and_tensors_that_were_never_such_are_damage(tmp_path: Path) -> None:
    """Where their sums are right, only the reader of safetensors can notice."""
    (tmp_path / ".step-9.tmp").mkdir()  # of a process that was killed here
    for step in (4, 5, 6):
        save(tmp_path, step, Checkpoint({"w": torch.tensor([step])}, {}, {"step": step}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-5", "step-6"]
    assert read_checkpoint(tmp_path, 6).model["w"].item() == 6
    folder = tmp_path / "step-6"
    (folder / "model.safetensors").write_bytes(b"no tensors")
    sums = json.loads((folder / "MANIFEST.json").read_text())
    sums["model.safetensors"] = hashlib.sha256(b"no tensors").hexdigest()
    (folder / "MANIFEST.json").write_text(json.dumps(sums))
    with pytest.raises(
        CorruptError, match=r"step-6/model\.safetensors cannot be read \(.*\); repeat the command that trained it"
    ):
        read_checkpoint(tmp_path, 6)
    assert not is_whole(tmp_path, 6)
    assert is_whole(tmp_path, 5)
    assert last_with_model(tmp_path) == 5
    last = load_last(tmp_path)
    assert last is not None
    assert last.state == {"step": 5}
    (tmp_path / "step-5" / "state.json").unlink()
    assert load_last(tmp_path) is None
    assert last_with_model(tmp_path) == 5  # whose model is whole
    (tmp_path / "step-5" / "model.safetensors").unlink()
    assert last_with_model(tmp_path) == 0
    for step in (1, 2):  # training begins again; what is damaged does not count among the two that are kept
        save(tmp_path, step, Checkpoint({"w": torch.tensor([step])}, {}, {"step": step}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-2"]


def logged(step: int, **values: object) -> dict[str, object]:
    common = {"step": step, "tokens": 100 * step, "nll": 1.0, "bpb": float(step), "grad_norm": 1.0, "lr_scale": 1.0}
    return common | {"tokens_per_s": 50.0, "seconds": 0.5 * step, "status": "ok"} | values


def test_a_log_is_missing_only_before_the_first_checkpoint(tmp_path: Path) -> None:
    run = a_run(tmp_path / "made")
    assert len(training_log(run)) == 0
    run.set_status("interrupted", 0)
    assert len(training_log(run)) == 0
    run.set_status("interrupted", 1)
    with pytest.raises(CorruptError, match=r"train\.csv is missing"):
        training_log(run)
    write_training_log(run, [logged(1)])
    assert list(training_log(run)["step"]) == [1]
    run.set_status("interrupted", 0)
    assert list(training_log(run)["step"]) == [1]


def test_a_summary_has_the_end_of_the_log_and_the_mean_of_its_last_twentieth(tmp_path: Path) -> None:
    run = a_run(tmp_path / "made", seed=3)
    found = training_summary(run)
    assert (found["tokens"], found["seconds"], found["tokens_per_s"], found["bpb"]) == (0, 0.0, 0.0, None)
    assert (found["status"], found["steps"], found["parameters"], found["engine"]) == ("planned", 0, 7, "sdpa")
    for rows, bpb in ((1, 1.0), (39, 39.0), (40, 39.5), (60, 59.0)):
        run.set_status("complete", rows, "done")
        write_training_log(run, [logged(step) for step in range(1, rows + 1)])
        found = training_summary(run)
        assert (found["tokens"], found["seconds"], found["tokens_per_s"]) == (100 * rows, 0.5 * rows, 200.0)
        assert (found["status"], found["message"], found["steps"], found["seed"]) == ("complete", "done", rows, 3)
        assert found["bpb"] == run_summary(run)["bpb"] == bpb
    write_training_log(run, [logged(1), logged(2, bpb=float("nan"))])
    assert training_summary(run)["bpb"] is None


def test_the_log_of_a_run_is_read_once_for_its_summary(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where hundreds of runs are listed, reading them is what takes the time."""
    read: list[str] = []
    monkeypatch.setattr(summary, "training_log", lambda run: read.append(run.id) or training_log(run))
    rows = summary.run_summaries(results / "runs")
    assert sorted(read) == sorted(row["run_id"] for row in rows)
    assert all(row["bpb"] and not row["damaged"] for row in rows)
