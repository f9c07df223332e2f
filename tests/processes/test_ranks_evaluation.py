"""Evaluation by two ranks, which share the windows out, against one process."""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from cli_runner import LENGTH, NANO, cli, run_of
from several_ranks import on_rank, on_ranks
from torture.pipeline import results
from torture.processes import Ended

from poscli.evaluation import measure

ENCODINGS = ("alibi", "cope", "learned")  # of the distance and the row tier, and one that ends at L
SHORT = ("--max-len", 4 * LENGTH, "--tokens", 128, "--stride", 16)
CUT = 7  # passes before something happens: in the middle of a measurement


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSCLI_QUIET", "1")
        patch.setenv("POSCLI_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(measure, "PASS_TOKENS", 4 * LENGTH)  # so that a measurement takes several passes, and forks agree
        yield tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def trained(base: Path) -> Path:
    """A run of each encoding, not evaluated. Tests must not change it."""
    draw = random.Random(0)
    (base / "books").mkdir()
    for n in range(30):
        words = (draw.choice(("one", "three", "nine", "seventeen")) for _ in range(100))
        (base / "books" / f"{n}.txt").write_text(f"{n} {' '.join(words)}\n")
    named = [word for name in ENCODINGS for word in ("--enc", name)]
    shape = (*NANO, "--layers", 1, "--corpus", f"text:{base / 'books'}")
    result = cli("train", *named, *shape, "--out", base / "trained")
    assert result.code == 0, result.err
    return base / "trained"


@pytest.fixture(scope="module")
def alone(trained: Path, base: Path) -> Path:
    """The runs evaluated by one process. Tests must not change them."""
    shutil.copytree(trained, base / "alone")
    assert cli(*command(base / "alone")).code == 0
    return base / "alone"


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "results")
    return tmp_path / "results"


def command(out: Path, *options: object) -> tuple[object, ...]:
    return ("extrapolate", *SHORT, "--out", out, *options)


def losses(out: Path, encoding: str) -> dict[str, pd.DataFrame]:
    """The tables of losses of a run by the names of their files."""
    return {path.name: pd.read_parquet(path) for path in (run_of(out, encoding).folder / "nll").glob("*.parquet")}


def assert_ended(ended: list[Ended], code: int, *words: str) -> None:
    """All ranks must end with a code, and those that print an error say these words in one line."""
    assert [each.code for each in ended] == [code] * len(ended), [each.err for each in ended]
    assert not any("Traceback" in each.err for each in ended)
    lines = [line for each in ended for line in each.err.splitlines() if line.startswith("error: ")]
    assert lines
    assert all(word in line for word in words for line in lines), lines
    assert [each.out for each in ended] == [""] * len(ended)


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.wide)])
def test_windows_shared_out_give_the_bits_of_one_process(alone: Path, copied: Path, count: int) -> None:
    first, *others = on_ranks(*command(copied), count=count)
    assert first.code == 0, first.err
    assert [each.code for each in others] == [0] * len(others)
    assert [each.out for each in others] == [""] * len(others)
    assert first.out.count("next: poscli") == 0
    assert all(encoding in first.out for encoding in ENCODINGS)
    assert results(copied) == results(alone)
    for encoding in ENCODINGS:
        expected, shared = losses(alone, encoding), losses(copied, encoding)
        assert shared.keys() == expected.keys()
        assert all(shared[name].equals(expected[name]) for name in expected)
    rows = pd.read_csv(run_of(copied, "learned").folder / "eval.csv")
    assert set(rows.loc[rows["variant"] == "crop", "status"]) == {"ok"}
    assert set(rows.loc[(rows["length"] > LENGTH) & (rows["variant"] == "full"), "status"]) == {"unsupported"}


def before_passes(do: Callable[[int, int], object]) -> None:
    """Call `do(window, number)` before each forward pass: the tokens of its windows, and its number, from 1."""
    score, count = measure.score, itertools.count(1)

    def watched(model, task, inputs, targets):
        do(inputs.shape[1], next(count))
        return score(model, task, inputs, targets)

    measure.score = watched


def test_lack_of_memory_on_one_rank_is_the_status_of_the_row_and_a_bug_ends_all(copied: Path) -> None:
    """The other rank neither waits for ever nor writes numbers, and the measurements after it go on."""
    lacks = on_rank(1, lambda: before_passes(lambda window, _: window == 2 * LENGTH and torch.empty(2**60)))
    first, second = on_ranks(*command(copied, "--enc", "alibi"), prepare=lacks)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    rows = pd.read_csv(run_of(copied, "alibi").folder / "eval.csv")
    full = rows[(rows["variant"] == "full")].set_index(["protocol", "length"])["status"]
    assert set(full.xs(2 * LENGTH, level="length")) == {"oom"}
    assert set(full.xs(4 * LENGTH, level="length")) == {"ok"}
    fails = on_rank(1, lambda: before_passes(lambda window, _: window == 2 * LENGTH and 1 / 0))
    first, second = on_ranks(*command(copied, "--enc", "cope"), prepare=fails)
    assert (first.code, second.code) == (1, 1)
    assert "error: rank 1: ZeroDivisionError: division by zero" in first.err


def test_a_signal_to_one_rank_stops_both_at_one_pass_and_the_command_goes_on(alone: Path, copied: Path) -> None:
    asked = on_rank(1, lambda: before_passes(lambda _, n: n == CUT and signal.raise_signal(signal.SIGTERM)))
    ended = on_ranks(*command(copied, "--enc", "alibi"), prepare=asked)
    assert_ended(ended, 143, "stopped at", "the same command goes on from there")
    assert losses(copied, "alibi").keys() < losses(alone, "alibi").keys()
    assert cli(*command(copied, "--enc", "alibi")).code == 0
    expected = losses(alone, "alibi")
    assert all(table.equals(expected[name]) for name, table in losses(copied, "alibi").items())


def test_ranks_that_disagree_measure_nothing(copied: Path) -> None:
    def other_stride() -> None:
        sys.argv[sys.argv.index("--stride") + 1] = "8"

    ended = on_ranks(*command(copied, "--enc", "alibi"), prepare=on_rank(1, other_stride))
    assert_ended(ended, 2, "the settings", "stride", "16", "8")
    assert not (run_of(copied, "alibi").folder / "nll").exists()
    assert_ended(on_ranks(*command(copied, "--why")), 2, "--why runs in one process", "2 ranks")
