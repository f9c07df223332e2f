"""`poscli bench --profile`: parts that add up to the whole, and time that counts for the part that takes it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from cli_runner import cli
from small_bench import CPU, SMALL, settings
from torch import Tensor
from toys import Slope

from poscli.bench.breakdown import PARTS, Breakdown
from poscli.bench.timing import SIZES
from poscli.runs.lock import locked
from poscli.system.errors import UsageError

OF_TRAINING = {"attention, backward", "Muon", "AdamW and clipping", "batch"}
NANO = ("--preset", "nano", "--train-length", 32, "--batch", 2, "--repeats", 2, "--threads", 1, "--device", "cpu")
SECONDS = 0.1  # that the slow encodings below take, far more than all the rest of a nano model


class SlowForward(Slope):
    """Computes its distance bias slowly."""

    def distance_bias(self, d: Tensor) -> Tensor:
        time.sleep(SECONDS if d.numel() > 8 else 0.0)
        return super().distance_bias(d)


class _Slowly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        time.sleep(SECONDS)
        return grad


class SlowBackward(Slope):
    """Computes the gradient of its queries slowly."""

    def query(self, q_BHTD: Tensor, pos_T: Tensor) -> Tensor:
        return _Slowly.apply(q_BHTD) if q_BHTD.requires_grad else q_BHTD


def parts_of(folder: Path, **given: Any) -> pd.DataFrame:
    breakdown = Breakdown(settings(**given), CPU, folder, sizes=SMALL)
    breakdown.run()
    return breakdown.files[0].table()


def test_parts_add_up_to_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "cpu", SMALL)
    result = cli(
        "bench", "--profile", *NANO, "-e", "none", "-e", "alibi", "--lengths", "32,64", "--json", "--out", tmp_path
    )
    assert result.code == 0, result.err
    assert "USDT" not in result.err
    assert [Path(name).name for name in result.json["files"]] == ["profile.csv"]
    rows = pd.DataFrame(result.json["profile"])
    cases = rows.groupby(["encoding", "what", "length"])
    assert set(cases.groups) == {(name, *case) for name in ("none", "alibi") for case in (("train", 32), ("eval", 64))}
    for (_, what, _), case in cases:
        assert set(case["part"]) == set(PARTS) - (OF_TRAINING if what == "eval" else set())
        assert case["share"].sum() == pytest.approx(1)
        assert case["seconds"].sum() == pytest.approx(case["profiled_seconds"].iloc[0])
        assert (case[["seconds", "plain_seconds"]] > 0).all(axis=None)


def test_a_table_with_bars_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "cpu", SMALL)
    result = cli("bench", "--profile", *NANO, "--max-len", 64, "--out", tmp_path)
    assert result.code == 0, result.err
    assert ", train, 2 windows of 32 tokens" in result.out
    assert all(part in result.out for part in PARTS)
    assert "\u2588" in result.out


def test_rows_of_a_profile_are_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "cpu", SMALL)
    command = ("bench", "--profile", *NANO, "--max-len", 64, "--out", tmp_path, "-e")
    assert cli(*command, "alibi").code == 0
    before = (tmp_path / "profile.csv").read_bytes()
    refused = cli(*command, "rope")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "which would be replaced; delete it, or choose another folder with --out" in refused.err
    with locked(tmp_path):
        assert cli(*command, "rope").code == 75
    assert (tmp_path / "profile.csv").read_bytes() == before


@pytest.mark.parametrize("slow", ["SlowForward", "SlowBackward"])
def test_time_counts_for_the_part_that_takes_it(slow: str, tmp_path: Path) -> None:
    rows = parts_of(tmp_path, encodings=(f"test_profile:{slow}",), lengths=(32,), repeats=1)
    shares = rows[rows["what"] == "train"].set_index("part")["share"]
    assert shares["encoding"] > 0.5
    assert shares["attention"] + shares["attention, backward"] < 0.3


def test_an_engine_that_cannot_train_is_a_row_and_the_evaluation_goes_on(tmp_path: Path) -> None:
    rows = parts_of(tmp_path, engines=("tiles",), lengths=(32,)).groupby("what")
    assert rows["status"].first().to_dict() == {"train": "unsupported", "eval": "ok"}
    assert rows["message"].first()["train"] != ""


def test_other_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--profile measures on the CPU"):
        Breakdown(settings(), torch.device("cuda"), tmp_path)
