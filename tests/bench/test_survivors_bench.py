"""Numbers of a bench by hand: its settings, its synthetic text, its timing, its estimates and its tables."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from small_bench import CPU, SMALL, settings

from poscli.bench import limits, session
from poscli.bench.cases import BenchCase, cases_of, check_engines, run_config
from poscli.bench.comparison import Comparison
from poscli.bench.conditions import SIZES, Conditions, Sizes
from poscli.bench.peers import PeerModel, find_peer
from poscli.bench.peers.step import forward_backward
from poscli.bench.refusals import Refused, TimeEstimate, outcome
from poscli.bench.result_file import ResultFile
from poscli.bench.rows import limit_values, once_message, utilisation
from poscli.bench.settings import BenchSettings
from poscli.bench.show import show
from poscli.bench.synthetic import VOCAB, synthetic_task, synthetic_tokens
from poscli.bench.timing import Pace, Timing, in_turns, ratio
from poscli.config.needs import BLOCK_BYTES, Needs, estimate, needs
from poscli.config.run import ModelConfig, RunConfig
from poscli.equation import Unsupported
from poscli.system.errors import UsageError
from poscli.system.progress import Meter
from poscli.system.signals import Interrupted


def test_settings_have_the_defaults_that_their_descriptions_name() -> None:
    usual, quick = BenchSettings(), BenchSettings(quick=True)
    assert (usual.train_length, usual.batch, usual.max_len) == (512, None, 32_768)
    assert (usual.repeats, usual.seconds, usual.limit) == (5, 10.0, 60.0)
    assert usual.lengths == (512, 1024, 2048, 4096, 8192, 16384, 32768)
    assert usual.past == (512, 4096)
    assert (quick.repeats, quick.seconds, quick.limit) == (3, 2.0, 20.0)
    assert (quick.lengths, quick.past) == ((512, 2048), (512,))
    assert BenchSettings(quick=True, repeats=4).repeats == 4
    assert BenchSettings(max_len=4096).past == (512, 4096)
    assert BenchSettings(max_len=4095).past == (512,)


def test_the_numbers_of_a_bench_have_limits() -> None:
    most = 9_223_372_036_854_775_807  # the largest int64
    limits: dict[str, tuple[float, float, float | None]] = {  # one below what is allowed, the least, the most
        "train_length": (7, 8, 1_048_576), "batch": (0, 1, 1_048_576), "max_len": (0, 1, most), "repeats": (0, 1, None),
        "seconds": (0.0, 1e-9, None), "limit": (0.0, 1e-9, None),
    }  # fmt: skip
    for field, (below, least, largest) in limits.items():
        others = {"lengths": (1,), "past": (1,)} if field == "max_len" else {}
        for value in filter(None, (least, largest)):
            assert getattr(BenchSettings(**others, **{field: value}), field) == value
        with pytest.raises(ValidationError, match="greater than"):
            BenchSettings(**others, **{field: below})
        if largest is not None:
            with pytest.raises(ValidationError, match="less than"):
                BenchSettings(**others, **{field: largest + 1})


def test_an_engine_that_can_run_no_encoding_is_refused_with_the_first_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = {"alibi": "", "rope": "first", "cope": "second"}
    monkeypatch.setattr(session, "engine_refusal", lambda config, *_: reasons[config.encoding])

    def bench(*encodings: str) -> session.Bench:
        return session.Bench(
            settings(encodings=encodings, engines=("blocks",), what=("eval",)), CPU, tmp_path, sizes=SMALL
        )

    for encodings in (("rope", "cope"), ("rope",)):
        with pytest.raises(UsageError, match=r"^--engine blocks: first$"):
            bench(*encodings)
    bench("rope", "alibi", "cope")


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
    peer = find_peer("x-transformers").build(RunConfig(encoding="rope", model=shape, length=16), CPU)
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


# ---- what is measured


def test_a_schedule_of_a_million_steps_never_ends_in_a_bench() -> None:
    config = run_config(settings(), "alibi", CPU)
    assert (config.batch, config.length, config.tokens) == (2, 32, 64_000_000)
    assert config.steps == 1_000_000


def test_unknown_engines_are_refused() -> None:
    check_engines(settings(engines=("auto", "reference", "blocks", "sdpa")))
    with pytest.raises(UsageError, match="there is no engine 'blocs': did you mean blocks"):
        check_engines(settings(engines=("auto", "blocs")))


def test_cases_have_the_batches_of_an_evaluation_and_ascend() -> None:
    made = cases_of(settings(lengths=(64, 1000, 32), past=(32, 16)), train_batch=3, pass_tokens=512)
    assert [(case.what, case.length, case.batch) for case in made] == [
        ("train", 32, 3), ("eval", 32, 16), ("eval", 64, 8), ("eval", 1000, 1), ("decode", 16, 1), ("decode", 32, 1),
    ]  # fmt: skip
    assert [(case.tokens, case.scores) for case in made[2:5]] == [(512, 8 * 64**2), (1000, 10**6), (1, 16**2)]
    assert [case.training for case in made] == [True, False, False, False, False, False]
    assert [case.what for case in cases_of(settings(what=("machine", "decode")), 3, 512)] == ["decode"]


def test_a_bench_reports_the_rows_of_its_own_model_shape(tmp_path: Path) -> None:
    """After --resume the file may hold larger and smaller models, other training lengths and other precisions."""
    bench = session.Bench(settings(encodings=("alibi",)), CPU, tmp_path, sizes=SMALL)
    shape = {"layers": 2, "width": 64, "heads": 4, "mlp": 192, "train_length": 32, "dtype": "float32"}
    others = [shape | {name: number} for name, value in shape.items() if value != "float32" for number in (1, 9999)]
    others += [shape | {"dtype": dtype} for dtype in ("bfloat16", "float64")]
    table = pd.DataFrame([*others[:6], shape | {"encoding": "alibi"}, *others[6:], shape | {"encoding": "rope"}])
    assert list(bench.own(table)["encoding"]) == ["alibi", "rope"]


def test_a_bench_reports_the_rows_of_its_own_machine(tmp_path: Path) -> None:
    """Times of two machines would be drawn as if one of them had been measured."""
    bench = session.Bench(settings(encodings=("alibi",)), CPU, tmp_path, sizes=SMALL)
    own = {name: bench.conditions.where[name] for name in ("device", "machine", "cores", "threads")}
    others = [own | change for change in ({"device": "cuda:A"}, {"machine": "B"}, {"cores": 0}, {"threads": 0})]
    assert list(bench.own(pd.DataFrame([*others, own, *others])).index) == [4]


def test_rows_of_an_earlier_bench_are_kept_only_to_go_on(tmp_path: Path) -> None:
    bench = session.Bench(settings(encodings=("alibi",)), CPU, tmp_path, sizes=SMALL)
    for file in bench.files:
        file.add({"status": "ok", "machine": "Abacus"})
    kept = {
        resume: session.Bench(bench.settings, CPU, tmp_path, resume=resume, sizes=SMALL) for resume in (True, False)
    }
    assert [[row["machine"] for row in file.rows] for file in kept[True].files] == 3 * [["Abacus"]]
    assert [file.rows for file in kept[False].files] == 3 * [[]]
    assert [file.rows for file in session.Bench(bench.settings, CPU, tmp_path, sizes=SMALL).files] == 3 * [[]]


def test_memory_that_the_other_library_keeps_is_half_of_what_it_holds_at_once() -> None:
    pytest.importorskip("x_transformers", reason="an extra of the tests")
    shape = ModelConfig(layers=1, width=16, heads=2, mlp=16)
    library = find_peer("x-transformers")
    found = {
        name: library.build(RunConfig(encoding=name, model=shape, length=16), CPU).needs for name in ("none", "alibi")
    }
    assert found == {"none": Needs(), "alibi": Needs(at_once=2.5, kept=1.25)}


def test_a_case_is_skipped_where_squared_lengths_take_longer_than_the_limit() -> None:
    estimate_of = TimeEstimate(limit=36.0)
    estimate_of.check(BenchCase("eval", 10**6, 10**6))  # nothing is known yet
    estimate_of.note(BenchCase("eval", 100, 4), 2.0)
    estimate_of.note(BenchCase("train", 100, 4), 1000.0)
    for case in (BenchCase("eval", 300, 8), BenchCase("decode", 600, 2), BenchCase("train", 10**6, 1)):
        estimate_of.check(case)  # 2 s * 9 * 2 is 36 s; training is always tried
    message = r"a run may take 38 s \(2.0 s at 100\): longer than --limit 36"
    with pytest.raises(Refused, match=message) as caught:
        estimate_of.check(BenchCase("eval", 435, 4))  # 4.35 squared is 18.9
    assert caught.value.status == "skipped"


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (Refused("skipped", "too long"), "skipped", "too long"),
        (Unsupported("no backward pass"), "unsupported", "no backward pass"),
        (MemoryError("no\n room"), "oom", "no room"),
        (RuntimeError("can't allocate memory"), "oom", "can't allocate memory"),
        (UsageError("a wrong\nspec"), "failed", "a wrong spec"),
        (ArithmeticError("no luck"), "failed", "ArithmeticError: no luck"),
    ],
)
def test_a_case_without_a_number_says_why(error: Exception, status: str, message: str) -> None:
    def measure() -> dict[str, object]:
        raise error

    assert outcome(measure) == {"status": status, "message": message}


def test_a_signal_ends_the_bench_and_is_no_outcome() -> None:
    def measure() -> dict[str, object]:
        raise Interrupted("stopped", 2)

    with pytest.raises(Interrupted):
        outcome(measure)


# ---- limits of the machine


@pytest.mark.parametrize(
    ("kind", "sides", "copied"), [("cpu", (512, 1024, 1536), 2**28), ("cuda", (2048, 4096, 8192), 2**31)]
)
def test_limits_are_products_a_copy_and_attention_of_the_model_s_shapes(
    kind: str, sides: tuple[int, ...], copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tensor gets memory: torch's device `meta` knows shapes only."""
    meta = torch.device("meta")
    monkeypatch.setattr(limits, "_random", lambda shape, dtype, _: torch.empty(shape, dtype=dtype, device=meta))
    config = RunConfig(encoding="none", model=ModelConfig(layers=1, width=64, heads=4, mlp=192), length=32, batch=2)
    conditions = Conditions(settings(lengths=(32, 20_000)), meta, SIZES[kind], lambda: None)
    found = list(limits.machine_limits(config, conditions))
    shown = [(x.columns["limit"], x.columns["dtype"], x.columns["shape"], x.columns["unit"], x.amount) for x in found]
    product, attention = "matrix product", "causal attention"
    assert shown == [
        *(
            (product, dtype, f"{side} x {side} x {side}", "GFLOP/s", 2 * side**3)
            for dtype in ("float32", "bfloat16")
            for side in sides
        ),
        (product, "float32", "64 x 64 x 64", "GFLOP/s", 2 * 64 * 64 * 64),
        (product, "float32", "64 x 64 x 192", "GFLOP/s", 2 * 64 * 64 * 192),
        (product, "float32", "64 x 192 x 64", "GFLOP/s", 2 * 64 * 64 * 192),
        (product, "float32", "64 x 64 x 257", "GFLOP/s", 2 * 64 * 64 * 257),
        ("memory copy", "uint8", f"{copied} bytes", "GB/s", 2 * copied),
        (f"{attention} with backward", "float32", "[2, 4, 32, 16]", "GFLOP/s", 6 * 2 * 4 * 32 * 32 * 16),
        (attention, "float32", "[256, 4, 32, 16]", "GFLOP/s", 2 * 256 * 4 * 32 * 32 * 16),
        (attention, "float32", "[1, 4, 20000, 16]", "GFLOP/s", 2 * 4 * 20_000**2 * 16),
    ]
    reasons = ["query, key, value, output", "MLP, in", "MLP, out", "logits", "read and written bytes"]
    reasons += ["one layer in training", "one layer at 32", "one layer at 20000"]
    assert [x.columns["why"] for x in found] == 6 * ["square"] + reasons


def test_the_work_of_a_limit_has_the_shape_that_its_row_names() -> None:
    product = limits._product((3, 4, 5), torch.float32, CPU, "square").work()
    attention = limits._attention((2, 3, 4, 5), torch.float32, CPU).work()
    assert isinstance(product, torch.Tensor)
    assert isinstance(attention, torch.Tensor)
    assert product.shape == (3, 5)
    assert attention.shape == (2, 3, 4, 5)
    limits._attention_with_backward((2, 3, 4, 5), torch.float32, CPU).work()
    copied = limits._copy(7, CPU).work()
    assert isinstance(copied, torch.Tensor)
    assert copied.tolist() == [0] * 7


def test_training_is_compared_with_the_product_of_the_highest_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes(products=(10, 20, 30), copied_bytes=1)
    times = [Timing((seconds, 99.0, seconds), 0.0, "") for seconds in (1.0, 2.0, 9.0)]  # 2000, 8000, 6000 a second
    monkeypatch.setattr(limits, "in_turns", lambda works, pace, device: times[: len(works)])
    fastest = limits.fastest_product(torch.float32, CPU, sizes)
    assert (fastest.columns["shape"], fastest.amount) == ("20 x 20 x 20", 16_000)
    assert limit_values(fastest, times[1])["rate"] == 16_000 / 2 / 1e9
    assert utilisation({"tokens_per_s": 30.0, "flops": 4.0}, times[1], fastest) == {
        "product_gflops": 8e-6, "mfu": 30 * 4 / 8000,
    }  # fmt: skip


# ---- tables


def test_the_cheapest_in_training_comes_first_then_the_cheapest_in_the_longest_evaluation() -> None:
    nan = float("nan")
    ratios = {  # training, evaluation at 256, 64 and 128 tokens
        "slow": (3.0, 1.0, 1.0, 1.0),
        "quick": (1.0, 9.0, 9.0, 9.0),
        "mid-b": (2.0, 4.0, 1.0, 2.0),
        "mid-a": (2.0, 3.0, 8.0, 9.0),
        "mid-c": (2.0, nan, 1.0, 5.0),  # its longest one that was measured took 5 times as long
        "untrained": (nan, 1.0, 1.0, 1.0),
        "unmeasured": (nan, nan, nan, nan),
    }
    cases = (("train", 512), ("eval", 256), ("eval", 64), ("eval", 128))
    rows = [
        row(encoding=name, what=what, length=length, ratio=ratio)
        for name, values in ratios.items()
        for (what, length), ratio in zip(cases, values, strict=True)
    ]
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        show(pd.DataFrame(rows), pd.DataFrame(), pd.DataFrame(), console)
    names = [line.split()[0] for line in capture.get().splitlines() if line.strip()]
    assert [name for name in names if name in ratios] == [
        "quick", "mid-a", "mid-b", "mid-c", "slow", "untrained", "unmeasured",
    ]  # fmt: skip


# ---- beside another library


class Tiny(torch.nn.Module):
    """Logits of the next token from the last one alone; the names are those of the other library."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(VOCAB, 8), torch.nn.Linear(8, VOCAB, bias=False)
        self.net = torch.nn.ModuleDict({"layers": torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False))})

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.net["layers"](self.embedding(tokens)))


def compared(needs_of_peer: Needs = Needs()) -> Comparison:  # noqa: B008 - immutable
    conditions = Conditions(settings(), CPU, SMALL, lambda: None)
    config = run_config(settings(), "none", CPU)
    return Comparison(conditions, config, PeerModel("tiny 1", Tiny(), "eager", "no attention", needs_of_peer))


@pytest.mark.parametrize(
    ("what", "gradients", "steps"), [("forward+backward", True, False), ("train", True, True), ("eval", False, False)]
)
@pytest.mark.parametrize("whose", ["own", "peer"])
def test_only_training_takes_steps_and_only_evaluation_has_no_gradients(
    whose: str, what: str, gradients: bool, steps: bool
) -> None:
    pair = compared()
    model, work_of = {"own": (pair.model, pair._own_work), "peer": (pair.peer.model, pair._peer_work)}[whose]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    work_of(BenchCase(what, 32, 2))()
    after = list(model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(after, before, strict=True)) == steps
    assert any(parameter.grad is not None for parameter in after) == gradients


def test_gradients_of_one_call_are_not_added_to_those_of_the_last() -> None:
    model, tokens = Tiny(), synthetic_tokens(2, 9)
    work = forward_backward(model, list(model.parameters()), tokens)
    found = []
    for _ in range(2):
        work()
        found.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    assert len(found[0]) == 3
    assert all(torch.allclose(one, other, rtol=1e-3, atol=1e-6) for one, other in zip(*found, strict=True))
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    expected = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.allclose(one, other, rtol=1e-3, atol=1e-6) for one, other in zip(found[0], expected, strict=True))


def test_a_comparison_has_a_row_for_each_workload_but_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The times are those of a clock that the test turns: 2 s in poscli, 3 s in the other library."""
    pair = compared()
    both = [Timing((2.0, 2.0), 10.0, "case"), Timing((3.0, 3.0), 20.0, "case")]
    monkeypatch.setattr(Conditions, "time", lambda self, works: both[: len(works)])
    monkeypatch.setattr(Comparison, "_own_work", lambda self, case: None)
    monkeypatch.setattr(Comparison, "_peer_work", lambda self, case: None)
    file = ResultFile(tmp_path / "against.csv", resume=False)
    cases = [BenchCase("train", 32, 2), BenchCase("eval", 64, 2), BenchCase("decode", 32, 1)]
    for _ in range(2):  # what is in the file is not measured again
        pair.run(cases, file)
    rows = file.table()
    assert list(rows["what"]) == ["forward+backward", "train", "eval"]
    assert list(rows["tokens"]) == [64, 64, 128]
    assert list(rows["speedup"]) == [1.5, 1.5, 1.5]
    assert list(rows["peer_tokens_per_s"]) == [64 / 3, 64 / 3, 128 / 3]
    assert list(rows["peer_peak_mb"]) == [20.0, 20.0, 20.0]
    assert set(rows["peer_parameters"]) == {2 * VOCAB * 8 + 8 * 8}
    assert set(rows["status"]) == {"ok"}
    assert (pair.own_time.last_seconds, pair.peer_time.last_seconds) == (2.0, 3.0)


def test_a_library_that_needs_too_much_memory_is_left_out_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conditions, "time", lambda self, works: [Timing((2.0,), 10.0, "case")] * len(works))
    found = compared(Needs(at_once=1e12))._measure(BenchCase("eval", 64, 2))
    assert (found["status"], found["seconds"]) == ("oom", 2.0)
    assert found["message"].startswith("tiny 1: needs about ")
    assert "peer_seconds" not in found


def test_a_library_that_is_known_to_be_too_slow_is_left_out_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conditions, "time", lambda self, works: [Timing((2.0,), 10.0, "case")] * len(works))
    pair = compared()
    pair.peer_time.note(BenchCase("eval", 64, 2), 1e9)
    found = pair._measure(BenchCase("eval", 128, 2))
    assert (found["status"], found["seconds"]) == ("skipped", 2.0)
    assert "peer_seconds" not in found


def tiny_peer(name: str) -> SimpleNamespace:
    """A peer that has two encodings, and names in the place of models."""
    return SimpleNamespace(
        title=f"{name} 1", encodings=lambda: ["alibi", "t5"], build=lambda config, device: config.encoding
    )


def test_the_meter_counts_each_comparison_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advanced: list[tuple[float, str]] = []
    monkeypatch.setattr(session, "find_peer", tiny_peer)
    monkeypatch.setattr(session, "Comparison", lambda *_: SimpleNamespace(run=lambda cases, file: None))
    monkeypatch.setattr(session.Bench, "_measure_encoding", lambda *_: None)
    monkeypatch.setattr(session.Bench, "_measure_machine", lambda _: None)
    monkeypatch.setattr(Meter, "advance", lambda self, amount, words="": advanced.append((amount, words)))
    given = settings(encodings=("alibi", "cope", "t5"))
    session.Bench(given, CPU, tmp_path, against="tiny", sizes=SMALL).run()
    assert advanced == [(1, "machine"), (1, "alibi against tiny 1"), (1, "t5 against tiny 1")]


def test_a_library_without_any_of_the_encodings_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_peer", tiny_peer)
    with pytest.raises(UsageError, match=r"^tiny 1 has none of cope, rope; it has alibi, t5$"):
        session.Bench(settings(encodings=("cope", "rope")), CPU, tmp_path, against="tiny", sizes=SMALL)


def printed(limits: pd.DataFrame, against: pd.DataFrame) -> list[str]:
    """The lines that are printed, without rules and empty ones."""
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        show(pd.DataFrame(), limits, against, console)
    return [line for line in capture.get().splitlines() if line.strip(" \N{BOX DRAWINGS LIGHT HORIZONTAL}")]


def test_the_table_beside_another_library_has_its_name_and_spreads() -> None:
    common = {
        "peer": "tiny 1.2", "peer_attention": "eager", "what": "train", "parameters": 12_345, "peer_parameters": 54_321,
        "tokens_per_s": 2000.0, "peer_tokens_per_s": 1000.0, "peak_mb": 10.0, "peer_peak_mb": 20.0, "status": "ok",
        "message": "", "repeats": 2, "speedup": 2.0, "speedup_low": 1.5, "speedup_high": 2.5,
    }  # fmt: skip
    nan = float("nan")
    missing = {"peer_tokens_per_s": nan, "peer_peak_mb": nan, "speedup": nan, "speedup_low": nan, "speedup_high": nan}
    one = pd.DataFrame([common | {"encoding": "alibi", "length": 32}])
    title, head, units, line = printed(pd.DataFrame(), one)
    assert title.strip() == "beside tiny 1.2"
    assert head.split() == ["poscli", "tiny", "times", "poscli", "theirs"]
    assert units.split()[:6] == ["encoding", "work", "theirs", "length", "tokens/s", "tokens/s"]
    values = ["alibi", "train", "eager", "32", "2000", "1000", "2.00", "1.50..2.50", "10", "20", "12.3k", "54.3k"]
    assert line.split() == values
    rows = pd.DataFrame([
        common | {"encoding": "alibi", "length": 32, "repeats": 1},
        common | missing | {"encoding": "t5", "length": 64, "status": "oom", "message": "too large"},
    ])  # fmt: skip
    *_, first, second, failure = printed(pd.DataFrame(), rows)
    assert first.split()[6:9] == ["2.00", "one", "run"]
    assert second.split() == ["t5", "train", "eager", "64", "2000", "-", "-", "-..-", "10", "-", "12.3k", "54.3k"]
    assert failure == "oom: t5 (train 64): too large"


def test_the_table_of_limits_has_milliseconds_and_the_machine() -> None:
    limit = {
        "limit": "memory copy", "dtype": "uint8", "why": "read and written bytes", "shape": "1 bytes", "unit": "GB/s",
        "rate": 12.34, "seconds": 0.002, "seconds_min": 0.001, "seconds_max": 0.004, "machine": "a processor",
        "device": "cpu", "threads": 3, "status": "ok", "message": "",
    }  # fmt: skip
    title, head, line = printed(pd.DataFrame([limit]), pd.DataFrame())
    assert title.strip() == "limits of a processor (cpu), 3 threads"
    assert " ".join(head.split()) == "limit dtype of what shape rate least ms ms most ms"
    assert " ".join(line.split()) == "memory copy uint8 read and written bytes 1 bytes 12.3 GB/s 1.00 2.00 4.00"
