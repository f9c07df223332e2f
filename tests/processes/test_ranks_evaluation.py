"""Evaluation by two ranks: windows shared out, or each long window read by both, against one process."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from cli_runner import LENGTH, NANO, Result, cli, run_of
from several_ranks import on_rank, on_ranks
from torture import parts
from torture.pipeline import results
from torture.processes import Ended

from poscli.attention.arriving import ArrivingKeys
from poscli.config.run import ModelConfig
from poscli.evaluation import measure
from poscli.evaluation.measure import Evaluation
from poscli.model.context_parallel import TOKENS_OF_FULL_ATTENTION, boundaries, refusal
from poscli.model.transformer import Attention
from poscli.runs.load import load_trained
from poscli.runs.run import Run
from poscli.verify.noise import draw_tokens, rounding

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
    assert evaluated(base / "alone").code == 0
    return base / "alone"


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "results")
    return tmp_path / "results"


def command(out: Path, *options: object) -> tuple[object, ...]:
    return ("extrapolate", *SHORT, "--out", out, *options)


def evaluated(out: Path, *options: object) -> Result:
    return cli(*command(out, *options))


def losses(out: Path, encoding: str) -> dict[str, pd.DataFrame]:
    """The tables of losses of a run by the names of their files."""
    return {path.name: pd.read_parquet(path) for path in (run_of(out, encoding).folder / "nll").glob("*.parquet")}


def said(ended: list[Ended]) -> list[str]:
    """All lines of stderr that report an error, of all ranks."""
    return [line for each in ended for line in each.err.splitlines() if line.startswith("error: ")]


def assert_ended(ended: list[Ended], code: int, *words: str) -> None:
    """All ranks must end with a code, and those that print an error say these words in one line."""
    assert [each.code for each in ended] == [code] * len(ended), [each.err for each in ended]
    assert not any("Traceback" in each.err for each in ended)
    lines = said(ended)
    assert lines
    for line in lines:
        assert all(word in line for word in words), line
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
        expected, found = losses(alone, encoding), losses(copied, encoding)
        assert found.keys() == expected.keys()
        assert all(found[name].equals(expected[name]) for name in expected)


@pytest.mark.parametrize("encoding", ["alibi", "cope"])
def test_windows_read_by_two_ranks_together_give_the_losses_of_one(alone: Path, copied: Path, encoding: str) -> None:
    first, second = on_ranks(*command(copied, "--enc", encoding, "--context-parallel"))
    assert (first.code, second.code, second.out) == (0, 0, ""), first.err
    expected, found = losses(alone, encoding), losses(copied, encoding)
    assert found.keys() == expected.keys()
    limit = rounding_of_losses(run_of(copied, encoding))
    for name in expected:
        where = ["document", "end", "position"]
        assert found[name][where].equals(expected[name][where])
        apart = (found[name]["nll"] - expected[name]["nll"]).abs().max()
        assert apart <= limit, (name, apart, limit)
        if name.startswith(str(LENGTH)):  # windows of the training length are shared out
            assert apart == 0
    rows = pd.read_csv(run_of(copied, encoding).eval_csv)
    together = (rows["length"] > LENGTH) & (rows["variant"] != "crop")
    assert rows.loc[together, "engine"].str.endswith("(2 ranks)").all()
    assert not rows.loc[~together, "engine"].str.endswith("(2 ranks)").any()


def rounding_of_losses(run: Run) -> float:
    """The largest difference to allow between two correct computations of a loss.

    The log of a softmax changes by at most twice the largest change of a logit.
    """
    model = load_trained(run, torch.device("cpu"))
    return 2 * rounding(model, draw_tokens(256, 1, 4 * LENGTH))


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["rope", "alibi", "shaw", "fire", "stick-breaking"])  # of each tier
def test_16384_tokens_read_by_two_ranks_together(base: Path, tmp_path: Path, encoding: str) -> None:
    assert not parts.read_by_two(tmp_path, encoding)


def test_the_status_of_a_refused_length_is_that_of_all_ranks(copied: Path) -> None:
    ended = on_ranks(*command(copied, "--enc", "learned", "--context-parallel"))
    assert [each.code for each in ended] == [0, 0]
    rows = pd.read_csv(run_of(copied, "learned").eval_csv)
    assert set(rows.loc[rows["variant"] == "crop", "status"]) == {"ok"}
    assert set(rows.loc[(rows["length"] > LENGTH) & (rows["variant"] == "full"), "status"]) == {"unsupported"}


@pytest.mark.parametrize(
    ("options", "rank", "where"),
    [((), 1, Attention), (("--context-parallel",), 1, Attention), (("--context-parallel",), 0, ArrivingKeys)],
    ids=["shared out", "together", "while the other waits for keys"],
)
def test_lack_of_memory_on_one_rank_is_the_status_of_the_row(
    copied: Path, options: tuple[str, ...], rank: int, where: type
) -> None:
    """The other rank neither waits for ever nor writes numbers, and the measurements after it go on."""
    fails = on_rank(rank, lambda: in_attention_of(2 * LENGTH, lambda: torch.empty(2**60), where))
    first, second = on_ranks(*command(copied, "--enc", "alibi", *options), prepare=fails)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    rows = pd.read_csv(run_of(copied, "alibi").eval_csv)
    full = rows[(rows["variant"] == "full")].set_index(["protocol", "length"])["status"]
    assert set(full.xs(2 * LENGTH, level="length")) == {"oom"}
    assert set(full.xs(4 * LENGTH, level="length")) == {"ok"}


@pytest.mark.parametrize("options", [(), ("--context-parallel",)], ids=["shared out", "together"])
def test_a_bug_on_one_rank_ends_all_of_them(copied: Path, options: tuple[str, ...]) -> None:
    fails = on_rank(1, lambda: in_attention_of(2 * LENGTH, lambda: 1 / 0))
    first, second = on_ranks(*command(copied, "--enc", "alibi", *options), prepare=fails)
    assert (first.code, second.code) == (1, 1)
    assert "error: rank 1: ZeroDivisionError: division by zero" in first.err


def in_attention_of(window: int, do: Callable[[], object], where: type = Attention) -> None:
    """Do something in every pass over windows of so many tokens: before attention, or before keys are used."""
    name = "forward" if where is Attention else "take"
    forward, method, now = Evaluation._forward, getattr(where, name), []

    def watched(self, model, measurement, spans):
        now[:] = [measurement.window]
        return forward(self, model, measurement, spans)

    def doing(self, *rest):
        if now == [window]:
            do()
        return method(self, *rest)

    Evaluation._forward = watched  # type: ignore[method-assign]
    setattr(where, name, doing)


@pytest.mark.parametrize("options", [(), ("--context-parallel",)], ids=["shared out", "together"])
def test_a_signal_to_one_rank_stops_both_at_one_pass_and_the_command_goes_on(
    alone: Path, copied: Path, options: tuple[str, ...]
) -> None:
    asked = on_rank(1, lambda: in_pass(CUT, lambda: signal.raise_signal(signal.SIGTERM)))
    ended = on_ranks(*command(copied, "--enc", "alibi", *options), prepare=asked)
    assert_ended(ended, 143, "stopped at", "the same command goes on from there")
    done = losses(copied, "alibi")
    assert done.keys() < losses(alone, "alibi").keys()
    if not options:
        assert evaluated(copied, "--enc", "alibi").code == 0
        expected = losses(alone, "alibi")
        assert all(table.equals(expected[name]) for name, table in losses(copied, "alibi").items())


def in_pass(number: int, do: Callable[[], object]) -> None:
    """Do something in the pass of this number that this rank makes, counted from 1."""
    forward, count = Evaluation._forward, itertools.count(1)

    def counted(self, model, measurement, spans):
        if next(count) == number:
            do()
        return forward(self, model, measurement, spans)

    Evaluation._forward = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("options", [(), ("--context-parallel",)], ids=["shared out", "together"])
def test_a_rank_that_dies_is_one_line(copied: Path, options: tuple[str, ...]) -> None:
    dies = on_rank(1, lambda: in_pass(CUT, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    first, second = on_ranks(*command(copied, "--enc", "alibi", *options), prepare=dies)
    assert second.code == -signal.SIGKILL
    assert_ended([first], 1, "rank 0 of 2", "has lost another rank")


def test_ranks_that_disagree_measure_nothing(copied: Path) -> None:
    def other_stride() -> None:
        sys.argv[sys.argv.index("--stride") + 1] = "8"

    ended = on_ranks(*command(copied, "--enc", "alibi"), prepare=on_rank(1, other_stride))
    assert_ended(ended, 2, "the settings", "stride", "16", "8")
    assert not (run_of(copied, "alibi").folder / "nll").exists()


def test_a_run_that_is_locked_is_refused_on_both_ranks(copied: Path) -> None:
    with run_of(copied, "alibi").locked():
        ended = on_ranks(*command(copied, "--enc", "alibi"))
    assert_ended(ended, 75, "is being worked on by")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--as", "interpolated", "--context-parallel"), ("alibi+interpolated", "the number of tokens after it")),
        (("--why",), ("--why runs in one process", "2 ranks")),
        (("--as", "interpolated", "--recalibrate", "1k"), ("--recalibrate 1000", "2 ranks")),
    ],
    ids=lambda each: each[-1],
)
def test_what_several_ranks_cannot_do_is_refused(
    copied: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_ended(on_ranks(*command(copied, "--enc", "alibi", *options)), 2, *words)


def test_one_process_cannot_be_context_parallel(copied: Path) -> None:
    result = evaluated(copied, "--context-parallel")
    assert result.code == 2
    assert "--context-parallel needs several ranks" in result.err


def test_a_model_with_a_memory_is_not_read_in_parts() -> None:
    config = ModelConfig(layers=1, width=8, heads=1, mlp=8, memory=4)
    assert "segment by segment" in refusal(config, [])
    assert not refusal(config.model_copy(update={"memory": 0}), [])


@pytest.mark.parametrize(("tokens", "count"), [(16384, 2), (16384, 7), (1000, 3), (9, 4), (5, 5), (64, 1)])
def test_all_parts_of_a_window_take_equally_long(tokens: int, count: int) -> None:
    ends = boundaries(tokens, count)
    assert (ends[0], ends[-1], len(ends)) == (0, tokens, count + 1)
    assert all(a < b for a, b in itertools.pairwise(ends))
    work = [sum(1 + 2 * t / TOKENS_OF_FULL_ATTENTION for t in range(a, b)) for a, b in itertools.pairwise(ends)]
    if tokens > 100 * count:
        assert max(work) - min(work) <= 2 * (1 + 2 * tokens / TOKENS_OF_FULL_ATTENTION)  # a token at either end
