"""Jobs: plain data, run in this process or in another one with the same results."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from toys import first

from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.resolve import resolve
from poscli.runs.run import list_runs
from poscli.sweep.__main__ import main
from poscli.sweep.job import Job, Outcome
from poscli.sweep.runners import Here, Subprocess

COST = ["seconds", "tokens_per_s", "peak_mb"]


def job(runs: Path, encoding: str = "alibi") -> Job:
    request = TrainRequest(preset="nano", length=32, batch=4, tokens=1280)
    config = resolve(request, encoding, 0, torch.device("cpu"))
    evaluation = ExtrapolateRequest(max_len=128, tokens=256, stride=16, **{"as": ["window"]})
    return Job(config=config, extrapolate=evaluation, runs=runs)


def test_a_job_and_its_outcome_survive_json(tmp_path) -> None:
    asked = job(tmp_path)
    assert Job.model_validate_json(asked.model_dump_json(by_alias=True)) == asked
    outcome = Outcome(folders=(tmp_path,), error="x")
    assert Outcome.model_validate_json(outcome.model_dump_json()) == outcome


def test_another_process_gives_the_same_results(tmp_path) -> None:
    here, apart = Here().run(job(tmp_path / "here")), Subprocess().run(job(tmp_path / "apart"))
    assert here.error == apart.error == ""
    assert len(here.folders) == len(apart.folders) == 2  # itself, and with a window joined
    for ours, theirs in zip(here.folders, apart.folders, strict=True):
        assert ours.relative_to(tmp_path / "here") == theirs.relative_to(tmp_path / "apart")
        own, other = (pd.read_csv(folder / "eval.csv").drop(columns=COST) for folder in (ours, theirs))
        pd.testing.assert_frame_equal(own, other, rtol=1e-4)  # another process may use another number of threads
    (run,) = list_runs(tmp_path / "apart")
    assert run.status()["state"] == "complete"


@pytest.mark.parametrize("runner", first(1, [Here(), Subprocess()]), ids=["here", "subprocess"])
def test_a_job_that_fails_is_an_outcome_with_the_cause(runner, tmp_path) -> None:
    asked = job(tmp_path)
    broken = asked.model_copy(update={"config": asked.config.model_copy(update={"corpus": "text:nowhere"})})
    outcome = runner.run(broken)
    assert outcome.folders == ()
    assert "nowhere" in outcome.error
    assert "Traceback" not in outcome.error


@pytest.mark.parametrize("text", ["garbage", "{}", '{"config": 3, "runs": "x"}'])
def test_what_is_not_a_job_is_refused_in_one_line(text, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: stdin is not a job (")
    assert err.count("\n") == 1
