"""Jobs: plain data, run in this process or in another one with the same results."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
import torch

from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.resolve import resolve
from poscli.runs.run import list_runs
from poscli.sweep.__main__ import main
from poscli.sweep.job import Job, perform
from poscli.sweep.workers import Processes

COST = ["seconds", "tokens_per_s", "peak_mb"]


def job(runs: Path, encoding: str = "alibi") -> Job:
    request = TrainRequest(preset="nano", length=32, batch=4, tokens=1280)
    config = resolve(request, encoding, 0, torch.device("cpu"))
    evaluation = ExtrapolateRequest(max_len=128, tokens=256, stride=16, **{"as": ["window"]})
    return Job(config=config, extrapolate=evaluation, runs=runs)


def test_another_process_gives_the_same_results(tmp_path) -> None:
    here = perform(job(tmp_path / "here"))
    with Processes(1, threads=1) as workers:
        apart = workers.submit(job(tmp_path / "apart")).result()
    assert here.error == apart.error == ""
    assert len(here.folders) == len(apart.folders) == 2  # itself, and with a window joined
    for ours, theirs in zip(here.folders, apart.folders, strict=True):
        assert ours.relative_to(tmp_path / "here") == theirs.relative_to(tmp_path / "apart")
        own, other = (pd.read_csv(folder / "eval.csv").drop(columns=COST) for folder in (ours, theirs))
        pd.testing.assert_frame_equal(own, other, rtol=1e-4)  # another process may use another number of threads
    (run,) = list_runs(tmp_path / "apart")
    assert run.status()["state"] == "complete"


def test_a_job_that_fails_is_an_outcome_with_the_cause(tmp_path) -> None:
    asked = job(tmp_path)
    outcome = perform(asked.model_copy(update={"config": asked.config.model_copy(update={"corpus": "text:nowhere"})}))
    assert outcome.folders == ()
    assert "nowhere" in outcome.error
    assert "Traceback" not in outcome.error


def test_a_job_refuses_a_corpus_that_differs_from_where_it_was_made(tmp_path) -> None:
    outcome = perform(job(tmp_path).model_copy(update={"fingerprint": "0123456789abcdef"}))
    assert "0123456789abcdef where the suite was started" in outcome.error
    assert not list(tmp_path.iterdir())


def test_a_job_returns_its_warnings_also_those_that_were_said_before(tmp_path) -> None:
    for runs in ("a", "b"):
        asked = job(tmp_path / runs)
        wanted = ExtrapolateRequest(max_len=64, tokens=64, stride=16, **{"as": ["yarn"]})
        asked = asked.model_copy(update={"extrapolate": wanted})
        *of_this_machine, warning = perform(asked).warnings
        assert "cannot be evaluated as" in warning
        assert all("runs on the engine" in each for each in of_this_machine)  # without a compiler


def run_worker(text: str) -> tuple[int, str]:
    outcomes = io.StringIO()
    return main(io.StringIO(text), outcomes), outcomes.getvalue()


@pytest.mark.parametrize("text", ["garbage\n", "{}\n", '{"config": 3, "runs": "x"}\n'])
def test_what_is_not_a_job_is_refused_in_one_line(text, capsys) -> None:
    assert run_worker(text) == (2, "")
    err = capsys.readouterr().err
    assert err.startswith("error: stdin is not a job (")
    assert err.count("\n") == 1
