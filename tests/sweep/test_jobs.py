"""Jobs: plain data, run in this process or in another one with the same results."""

from __future__ import annotations

from pathlib import Path

import torch

from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.resolve import resolve
from poscli.runs.lock import locked
from poscli.runs.run import list_runs
from poscli.sweep.job import Job, perform

COST = ["seconds", "tokens_per_s", "peak_mb"]


def job(runs: Path, encoding: str = "alibi") -> Job:
    request = TrainRequest(preset="nano", length=32, batch=4, tokens=1280)
    config = resolve(request, encoding, 0, torch.device("cpu"))
    evaluation = ExtrapolateRequest(max_len=128, tokens=256, stride=16, **{"as": ["window"]})
    return Job(config=config, extrapolate=evaluation, runs=runs)


def test_a_job_trains_and_evaluates_a_run_also_under_other_encodings(tmp_path) -> None:
    outcome = perform(job(tmp_path))
    assert outcome.error == ""
    (run,) = list_runs(tmp_path)
    assert run.status()["state"] == "complete"
    itself, joined = outcome.folders
    assert itself == run.folder
    assert joined.parent == run.folder / "as"
    assert all((folder / "eval.csv").is_file() for folder in outcome.folders)
    with locked(run.folder):
        again = perform(job(tmp_path))
    assert (again.folders, again.error) == ((), "")
    assert again.held.startswith(f"{run.id} is being worked on by process ")


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
