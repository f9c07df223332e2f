"""Numbers of a bench by hand: its settings, its synthetic text, its timing, its estimates and its tables."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from small_bench import CPU, SMALL, settings

from poscli.bench import session
from poscli.bench.peers import build
from poscli.bench.rows import once_message
from poscli.bench.settings import BenchSettings
from poscli.bench.show import show
from poscli.bench.synthetic import VOCAB, synthetic_task, synthetic_tokens
from poscli.bench.timing import Pace, Timing, in_turns, ratio
from poscli.config.needs import BLOCK_BYTES, Needs, estimate, needs
from poscli.config.run import ModelConfig, RunConfig
from poscli.system.progress import Meter


def test_settings_have_the_defaults_that_their_descriptions_name() -> None:
    usual, quick = BenchSettings(), BenchSettings(quick=True)
    assert (usual.repeats, usual.seconds, usual.limit) == (5, 10.0, 60.0)
    assert usual.lengths == (512, 1024, 2048, 4096, 8192, 16384, 32768)
    assert usual.past == (512, 4096)
    assert (quick.repeats, quick.seconds, quick.limit) == (3, 2.0, 20.0)
    assert (quick.lengths, quick.past) == ((512, 2048), (512,))
    assert BenchSettings(quick=True, repeats=4).repeats == 4
    assert BenchSettings(max_len=4096).past == (512, 4096)
    assert BenchSettings(max_len=4095).past == (512,)


def test_synthetic_text_is_one_document_of_64_windows() -> None:
    task = synthetic_task(10)
    text = task.text(10)
    assert list(text.sizes) == [64 * 11 - 1]
    assert task.segments(10) == 70  # (64 * 11 - 1) // 10
    assert np.array_equal(text.split.tokens, synthetic_tokens(1, 64 * 11)[0].numpy())
    assert int(text.split.tokens.max()) < VOCAB
    assert task.bytes_per_token == 1.0
    assert torch.equal(synthetic_tokens(2, 5), synthetic_tokens(2, 5))


def test_a_function_runs_once_per_turn_where_one_call_is_long_enough() -> None:
    calls = []
    (timing,) = in_turns([lambda: calls.append(1)], Pace(repeats=3, seconds=1000.0, sample=0.0), CPU)
    assert len(timing.seconds) == 3
    assert len(calls) in (4, 5)  # one or, if it was quick, two calls to warm up


def test_a_function_that_takes_too_long_runs_once() -> None:
    calls = []
    (timing,) = in_turns([lambda: calls.append(1)], Pace(repeats=3, seconds=-1.0, sample=0.0), CPU)
    assert (len(calls), len(timing.seconds)) == (1, 1)
    assert (
        once_message([Timing((3.0,), 0.0, "process")], 2.5)
        == "one run, not repeated: it took longer than --seconds 2.5"
    )
    assert once_message([Timing((2.5,), 0.0, "process")], 2.5) == ""
    assert once_message([Timing((3.0, 3.0), 0.0, "process")], 2.5) == ""


def test_a_ratio_is_of_medians_and_its_spread_is_over_turns() -> None:
    found = ratio(Timing((4.0, 6.0, 9.0), 0.0, ""), Timing((2.0, 2.0, 4.5), 0.0, ""))
    assert (found.median, found.low, found.high) == (3.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("engine", "blanks", "expected"),
    [
        ("reference", set(), Needs(4.0, 2.5)),
        ("reference", {"distance_bias"}, Needs(6.0, 4.0)),
        ("reference", {"relative_keys", "relative_values"}, Needs(4 + 1.5 * 8 * 2, 2.5 + 1.2 * 8 * 2)),
        ("blocks", {"distance_bias"}, Needs(kept=2, buffer=BLOCK_BYTES)),
        ("blocks", {"relative_keys"}, Needs(kept=4, buffer=BLOCK_BYTES)),
        ("sdpa", {"distance_bias"}, Needs(block=6)),
        ("sdpa", {"relative_keys"}, Needs(kept=3, buffer=BLOCK_BYTES)),
        ("sdpa", {"bias"}, Needs(kept_once=3, buffer=BLOCK_BYTES)),
    ],
)
def test_needs_of_an_engine(engine: str, blanks: set[str], expected: Needs) -> None:
    assert needs(engine, frozenset(blanks), 8) == expected


def test_the_estimate_counts_scores_activations_and_logits() -> None:
    config = ModelConfig(layers=3, width=16, heads=2, mlp=40)
    found = Needs(at_once=5.0, kept=2.0, buffer=7.0)
    scores, tokens = 4 * 6 * 2 * 100**2, 4 * 6 * 100
    forward = scores * 5 + tokens * (8 * 16 + 3 * 40 + 258 * 2) + 7
    assert estimate(config, 258, found, batch=6, length=100, training=False) == forward
    train = scores * (5 + 3 * 2) + tokens * ((24 * 16 + 6 * 40) * 3 + 258 * 4) + 7
    assert estimate(config, 258, found, batch=6, length=100, training=True) == train


def row(**values: object) -> dict[str, object]:
    common = {"encoding": "alibi", "asked": "auto", "engine": "sdpa", "status": "ok", "message": "", "repeats": 3}
    return (
        common | {"tokens_per_s": 20_000.0, "ratio": 1.25, "mfu": 0.5, "peak_mb": 12_345.0, "seconds": 0.004} | values
    )


def test_the_overview_shows_times_of_all_lengths_and_memory_of_the_longest() -> None:
    rows = [
        row(what="train", length=32),
        row(what="eval", length=64, ratio=1.5, peak_mb=111.0),
        row(what="eval", length=128, ratio=1.75, peak_mb=222.0),
        row(what="eval", length=256, ratio=2.0, peak_mb=333.0),
        row(what="decode", length=64),
    ]
    costs, empty = pd.DataFrame(rows), pd.DataFrame()
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        show(costs, empty, empty, console)
    (head,) = (line.split() for line in capture.get().splitlines() if "encoding" in line)
    assert head[:2] == ["encoding", "engine"]
    (line,) = (line.split() for line in capture.get().splitlines() if "alibi" in line)
    assert line == ["alibi", "sdpa", "20k", "1.25", "0.50", "1.50", "1.75", "2.00", "333", "4.00"]


def test_the_meter_of_a_bench_ends_at_its_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meters: list[Meter] = []

    class Kept(Meter):
        def __enter__(self) -> Meter:
            meters.append(self)
            return super().__enter__()

    monkeypatch.setattr(session, "Meter", Kept)
    given = settings(encodings=("alibi", "t5"), engines=("auto", "reference"), what=("eval",), repeats=1)
    session.Bench(given, CPU, tmp_path, resume=False, sizes=SMALL).run()
    (meter,) = meters
    assert meter.done == meter.total == 2 * 2 * 2 + 1  # encodings, engines, lengths; the machine


def test_the_other_library_gets_a_model_of_the_same_sizes_and_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("x_transformers", reason="an extra of the tests")
    shape = ModelConfig(layers=1, width=32, heads=4, mlp=88)  # the MLP is 2.75 times as wide as the model
    peer = build(RunConfig(encoding="rope", model=shape, length=16), CPU)
    assert capsys.readouterr() == ("", "")  # it would advise wider heads
    shapes = {tuple(parameter.shape) for parameter in peer.model.parameters()}
    assert {(2 * 88, 32), (32, 88), (32, 32), (VOCAB, 32)} <= shapes
    assert not any(size not in (88, 2 * 88, 32, VOCAB) for shape in shapes if len(shape) == 2 for size in shape)


def test_a_fast_function_is_repeated_until_a_sample_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = SimpleNamespace(now=0.0), []

    def work() -> None:
        clock.now += 0.02
        calls.append(1)

    monkeypatch.setattr("poscli.bench.timing.time", SimpleNamespace(perf_counter=lambda: clock.now))
    (timing,) = in_turns([work], Pace(repeats=3, seconds=1000.0, sample=0.05), CPU)
    assert len(calls) == 2 + 3 * 3  # two to warm up; in each turn ceil(0.05 / 0.02)
    assert timing.seconds == pytest.approx([0.02] * 3)
