"""How a bench measures: functions timed in turns, and estimates of memory."""

from __future__ import annotations

import itertools
import sys

import pytest
from cli_runner import in_own_process
from small_bench import CPU

from poscli.bench import timing
from poscli.bench.cases import needs_of_model
from poscli.bench.workloads import VOCAB, forward, untrained_model
from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.config.size import Needs, activation_bytes, needs
from poscli.system.memory import Peak


def test_functions_take_turns_and_first_runs_do_not_count() -> None:
    order: list[str] = []
    works = [lambda: order.append("a"), lambda: order.append("b")]
    timings = timing.time_in_turns(works, timing.TurnPace(3, 60.0), CPU)
    assert [len(found.seconds) for found in timings] == [3, 3]
    runs = [name for name, _ in itertools.groupby(order)]
    assert runs == ["a", "b"] * 5  # to warm up, to measure memory, three turns


def test_a_long_first_run_is_the_only_one() -> None:
    order: list[str] = []
    works = [lambda: order.append("a"), lambda: order.append("b")]
    timings = timing.time_in_turns(works, timing.TurnPace(5, 0.0), CPU)
    assert order == ["a", "b"]
    assert [len(found.seconds) for found in timings] == [1, 1]


def test_a_ratio_is_that_of_the_medians_with_the_extremes_of_the_turns() -> None:
    a, b = (timing.Timing(seconds, 0.0, "case") for seconds in ((3.0, 10.0, 2.0), (2.0, 5.0, 4.0)))
    found = timing.ratio(a, b)
    assert (found.median, found.low, found.high) == (3 / 4, 2 / 4, 10 / 5)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the peak memory of a case")
@pytest.mark.parametrize("encoding", ["none", "alibi", "cope", "shaw"])
def test_estimates_are_right_within_a_factor_of_three(encoding: str) -> None:
    expected, found = in_own_process(peak_of_forward, encoding)
    assert expected / 3 < found < 3 * expected


def peak_of_forward(encoding: str) -> tuple[float, float]:
    """The MiB that a forward pass is expected to need, and those that it needs."""
    length = 512
    config = resolve(TrainRequest(preset="nano", length=length, batch=1), encoding, 0, CPU)
    model = untrained_model(config, "reference", CPU)
    work = forward(model, 1, length, CPU)
    work()
    with Peak(CPU) as peak:
        work()
    wanted = needs_of_model(model, False)
    expected = activation_bytes(config.model, VOCAB, wanted, batch=1, length=length, training=False) / 2**20
    return expected, peak.mb


def test_needs_grow_with_what_an_engine_materialises() -> None:
    assert needs("sdpa", frozenset({"distance_bias"}), 16, learned=False) == Needs()
    dense = needs("reference", frozenset({"distance_bias"}), 16)
    vectors = needs("reference", frozenset({"relative_keys"}), 16)
    assert 0 < dense.at_once < vectors.at_once
