"""The values of a bench by hand: rows from made-up times, what a resumed bench measures, and its workloads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_bench import CPU, SMALL, settings

from poscli.bench.cases import BenchCase, Refused, refuse_large_case, run_config
from poscli.bench.session import Bench
from poscli.bench.settings import BenchSettings
from poscli.bench.tables import COLUMNS, KEYS, ResultFile
from poscli.bench.timing import Conditions, Timing, TurnPace, time_in_turns
from poscli.bench.workloads import VOCAB, Decode, synthetic_tokens, untrained_model, work_of
from poscli.config.size import Needs
from poscli.system.errors import PoscliError

OWN, NONE, PRODUCT = (
    Timing((4.0, 2.0, 3.0), 30.0, "case"), Timing((2.0, 2.0, 1.0), 10.0, "case"), Timing((0.5, 0.5, 0.5), 1.0, "case"),
)  # fmt: skip


def made(folder: Path, monkeypatch: pytest.MonkeyPatch, **given: Any) -> Bench:
    """A bench whose works last as long as OWN, NONE and PRODUCT."""
    monkeypatch.setattr(Conditions, "time", lambda self, works: [OWN, NONE, PRODUCT][: len(works)])
    bench = Bench(settings(**given), CPU, folder, sizes=SMALL)
    bench.run()
    return bench


def test_every_number_of_a_row_follows_from_the_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = made(tmp_path, monkeypatch, encodings=("alibi|cope",), what=("train", "eval", "decode"), seconds=9.0)
    rows = bench.costs.table().set_index(["what", "length"])
    for (what, length), row in rows.iterrows():
        tokens = {"train": 2 * 32, "eval": 512, "decode": 1}[what]
        assert (row["status"], row["message"], row["repeats"], row["tokens"]) == ("ok", "", 3, tokens)
        assert (row["seconds"], row["seconds_min"], row["seconds_max"]) == (3.0, 2.0, 4.0)
        assert (row["none_seconds"], row["ratio"], row["ratio_low"], row["ratio_high"]) == (2.0, 1.5, 1.0, 3.0)
        assert (row["peak_mb"], row["none_peak_mb"], row["memory_of"]) == (30.0, 10.0, "case")
        assert row["tokens_per_s"] == pytest.approx(tokens / 3)
        assert row["tier"] == "row"  # the higher one of two layers
        config = bench.configs["alibi|cope"].model  # type: ignore[union-attr]
        matrices = config.width * (4 * config.width + 3 * config.mlp)
        forward = 2 * (config.layers * (matrices + config.width * length) + config.width * VOCAB)
        if what == "decode":
            assert row[["flops", "mfu", "product_gflops"]].isna().all()
        else:
            assert row["flops"] == pytest.approx((3 if what == "train" else 1) * forward)
    trained = rows.loc[("train", 32)]
    rate = trained["product_gflops"] * 1e9
    assert rate in [2 * side**3 / 0.5 for side in SMALL.products]
    assert trained["mfu"] == pytest.approx(64 / 3 * trained["flops"] / rate)
    model = untrained_model(bench.configs["alibi|cope"], "auto", CPU)  # type: ignore[arg-type]
    assert set(rows["parameters"]) == {sum(p.numel() for p in model.parameters())}


def test_the_next_length_is_foreseen_from_the_encoding_s_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 windows of 32 tokens take 3 s, so that 8 windows of 64, twice as many scores, take 6 s at most."""
    asked = {"encodings": ("alibi",), "what": ("eval",)}
    for limit, statuses in ((5.9, ["ok", "skipped"]), (6.0, ["ok", "ok"])):
        rows = made(tmp_path, monkeypatch, limit=limit, **asked).costs.table()
        assert list(rows["status"]) == statuses


# What a resumed bench measures again.

WHERE = {
    "device": "cpu", "machine": "Abacus", "cores": 2, "threads": 1, "torch": "9.9", "poscli": "1.0", "commit": "abc",
}  # fmt: skip
MODEL = {"train_length": 32, "layers": 2, "width": 64, "heads": 4, "mlp": 192, "dtype": "float32"}
CASE = {"what": "eval", "encoding": "alibi", "length": 64, "batch": 8}
MEASURED_FOR: dict[str, dict[str, Any]] = {
    "bench.csv": CASE | {"asked": "auto"} | MODEL | WHERE,
    "machine.csv": {"limit": "matrix product", "dtype": "float32", "shape": "8 x 8 x 8", "why": "square"} | WHERE,
}


@pytest.mark.parametrize("name", MEASURED_FOR)
def test_a_case_is_measured_again_where_anything_that_it_depends_on_differs(name: str, tmp_path: Path) -> None:
    case = MEASURED_FOR[name]
    first = ResultFile(tmp_path / name, COLUMNS[name], KEYS[name], resume=False)
    first.add(case | {"status": "ok", "seconds": 1.0, "message": "by hand"})
    file = ResultFile(tmp_path / name, COLUMNS[name], KEYS[name], resume=True)
    assert file.has(case)
    assert file.has(case | {"status": "failed", "seconds": 2.0, "message": "", "repeats": 7})
    for column, value in case.items():
        other = value + 1 if isinstance(value, int) else f"{value}x"
        assert not file.has(case | {column: other}), column


def test_lengths_up_to_the_longest_are_kept() -> None:
    assert BenchSettings(lengths=(64, 128, 129), past=(16, 128, 200), max_len=128).lengths == (64, 128)
    assert BenchSettings(lengths=(64, 128, 129), past=(16, 128, 200), max_len=128).past == (16, 128)


# Workloads.


class Recorded(torch.nn.Module):
    """Keeps the inputs of every call; its logits are those of a bigram model."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[list[list[int]], object]] = []
        self.table = torch.nn.Parameter(torch.eye(VOCAB))

    def forward(self, tokens: torch.Tensor, cache: object = None) -> torch.Tensor:
        self.calls.append((tokens.tolist(), cache))
        return self.table[tokens]


def test_decoding_reads_the_past_once_and_then_one_token_at_a_time_from_the_same_cache() -> None:
    model: Any = Recorded()
    decode = Decode(model, 24, CPU)
    decode()
    decode()
    (past, cache), *later = model.calls
    assert past == synthetic_tokens(1, 24).tolist()
    assert cache is not None
    assert [(len(tokens[0]), each is cache) for tokens, each in later] == [(1, True), (1, True)]


def test_a_decoded_token_is_predicted_from_all_tokens_before_it() -> None:
    config = run_config(settings(), "rope", CPU)
    model = untrained_model(config, "auto", CPU)
    with torch.no_grad():
        for n, weight in enumerate(model.parameters()):  # output matrices start at zero
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(n))
    decode = Decode(model, 24, CPU)
    with torch.inference_mode():
        found = model(decode.token, cache=decode.cache)[0, -1]
        expected = model(torch.cat([synthetic_tokens(1, 24), decode.token], dim=1))[0, -1]
        alone = model(decode.token)[0, -1]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert (alone - expected).abs().max() > 0.01


@pytest.mark.parametrize(("what", "windows", "tokens"), [("eval", 3, 40), ("decode", 1, 1)])
def test_a_work_reads_as_many_tokens_as_its_case_says(what: str, windows: int, tokens: int) -> None:
    model: Any = Recorded()
    work_of(model, run_config(settings(), "none", CPU), BenchCase(what, 40, windows), CPU)()
    last, _ = model.calls[-1]
    assert (len(last), len(last[0])) == (windows, tokens)


def test_a_training_step_without_a_finite_loss_is_not_timed() -> None:
    config = run_config(settings(), "none", CPU)
    model = untrained_model(config, "auto", CPU)
    with torch.no_grad():
        next(iter(model.parameters())).fill_(float("nan"))
    with pytest.raises(PoscliError, match="the loss of none was not finite at step 0"):
        work_of(model, config, BenchCase("train", config.length, config.batch), CPU)()


def test_memory_is_foreseen_for_training_where_a_case_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[float] = []
    monkeypatch.setattr("poscli.bench.cases.unaffordable", lambda size, _: sizes.append(size) or "needs too much")
    config = run_config(settings(), "none", CPU)
    shape, needs = config.model, Needs(at_once=3.0, kept=2.0)
    for what in ("train", "eval", "forward+backward", "decode"):
        with pytest.raises(Refused, match=r"^the peer: needs too much$") as caught:
            refuse_large_case(config, needs, BenchCase(what, 64, 2), CPU, "the peer: ")
        assert caught.value.status == "oom"
    scores, tokens = 4 * 2 * shape.heads * 64**2, 4 * 2 * 64
    kept = shape.layers * (24 * shape.width + 6 * shape.mlp) + 4 * VOCAB
    assert sizes[0] == scores * (3 + 2 * shape.layers) + tokens * kept
    assert sizes[2] == sizes[0]  # its gradients are kept too
    assert sizes[3] == sizes[1] == scores * 3 + tokens * (8 * shape.width + 3 * shape.mlp + 2 * VOCAB)


# Time.


def clocked(monkeypatch: pytest.MonkeyPatch, durations: list[float], pace: TurnPace) -> tuple[Timing, int]:
    """Time a function whose calls last so long, the last duration again and again; and how often it was called."""
    clock = SimpleNamespace(now=0.0, calls=0)

    def work() -> None:
        clock.now += durations[min(clock.calls, len(durations) - 1)]
        clock.calls += 1

    monkeypatch.setattr("poscli.bench.timing.time", SimpleNamespace(perf_counter=lambda: clock.now))
    (timing,) = time_in_turns([work], pace, CPU)
    return timing, clock.calls


def test_no_turn_begins_after_the_seconds_of_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    timing, _ = clocked(monkeypatch, [0.4], TurnPace(repeats=10, seconds=1.0, sample=0.0))
    assert timing.seconds == pytest.approx([0.4] * 3)  # they begin at 0, 0.4 and 0.8 s


def test_how_often_a_function_is_called_in_a_turn_is_told_from_its_second_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run loads kernels."""
    timing, calls = clocked(monkeypatch, [0.5, 0.02], TurnPace(repeats=2, seconds=10.0, sample=0.05))
    assert calls == 2 + 2 * 3  # ceil(0.05 / 0.02) in each turn
    assert timing.seconds == pytest.approx([0.02] * 2)


def test_the_median_of_uneven_turns_is_not_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    timing, _ = clocked(monkeypatch, [1.0, 1.0, 1.0, 2.0, 9.0], TurnPace(repeats=3, seconds=99.0, sample=0.0))
    assert timing.seconds == pytest.approx((1.0, 2.0, 9.0))
    assert timing.median == pytest.approx(2.0)
