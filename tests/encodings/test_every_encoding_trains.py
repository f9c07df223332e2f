"""Every encoding, from corpus to rows: its loss falls in 20 steps of training, and it is evaluated at 4 times L."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch
from toys import ENDS, first

from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.encodings import get, missing, names
from poscli.evaluation.evaluate import evaluate_run
from poscli.evaluation.measure import EvaluationSetup
from poscli.evaluation.protocol import EvaluationSettings
from poscli.tasks import open_task
from poscli.training.train import train as train_run

CPU = torch.device("cpu")
LENGTH, STEPS = 64, 20
SOME = ["alibi", "cope", "fox", "learned", "rope", "shaw"]  # of every tier


def config(name: str):
    tokens = STEPS * 8 * LENGTH
    request = TrainRequest(preset="nano", length=LENGTH, batch=8, tokens=tokens, task=task_of(name))
    return resolve(request, name, seed=0, device=CPU)


def task_of(name: str) -> str:
    return "language" if missing(name) or get(name).axes == 1 else "grid"


@pytest.fixture(scope="module")
def corpora():
    return {name: open_task(name, "stdlib", "bytes") for name in ("language", "grid")}


@pytest.mark.parametrize("name", first(len(SOME), [*SOME, *(name for name in names() if name not in SOME)]))
def test_every_encoding_trains_and_extrapolates(name: str, corpora, tmp_path) -> None:
    corpus = corpora[task_of(name)]
    run = train_run(config(name), corpus, tmp_path, CPU)
    assert run.status()["state"] == "complete", run.status()["message"]
    log = pd.read_csv(run.folder / "train.csv")
    first, last = log["nll"].iloc[0], log["nll"].iloc[-1]
    assert first == pytest.approx(math.log(corpus.vocab), abs=0.01)  # a fresh model knows nothing
    assert last < 0.75 * first
    settings = EvaluationSettings(train_length=LENGTH, max_len=4 * LENGTH, tokens=256, stride=corpus.strides(LENGTH)[0])
    rows = evaluate_run(EvaluationSetup(run, corpus, settings, CPU))
    at = rows[(rows["protocol"] == "sliding") & (rows["variant"] == "full")].set_index("length")
    assert list(at.index) == [LENGTH, 2 * LENGTH, 4 * LENGTH]
    assert at["status"][LENGTH] == "ok"
    assert at["nll"][LENGTH] < 0.8 * first
    beyond = at.loc[2 * LENGTH :]
    ends = bool(set(beyond["status"]) - {"ok"})
    assert ends == (name in ENDS)
    if ends:
        assert set(beyond["status"]) == {"unsupported"}
        assert (beyond["reason"] != "").all()
    else:
        assert (beyond["nll"] < 50).all()
