"""`poscli bench`: real measurements, the rows of cases that cannot run, interruption, and what its workloads do.

Tables, sentences, pictures and turns, from made-up times, are whole texts of test_snapshots_bench.py.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from cli_runner import cli, in_own_process
from small_bench import CPU, SMALL, read, settings
from torch import Tensor
from toys import Slope

from poscli.bench.cases import BenchCase, Refused, needs_of_model, refuse_large_case, run_config
from poscli.bench.limits import machine_limits
from poscli.bench.session import Bench
from poscli.bench.tables import COLUMNS, KEYS, ResultFile
from poscli.bench.timing import SIZES, Conditions
from poscli.bench.workloads import VOCAB, Decode, forward, synthetic_task, synthetic_tokens, untrained_model, work_of
from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.config.size import Needs, activation_bytes
from poscli.encodings import names
from poscli.equation.shapes import TOKENS
from poscli.runs.lock import locked
from poscli.system.errors import Interrupted, PoscliError, UsageError
from poscli.system.memory import Peak

CORES = os.cpu_count() or 1
OPTIONS = (
    *("--preset", "nano", "--train-length", 32, "--batch", 2, "--lengths", "32,64", "--past", 32),
    *("--repeats", 2, "--seconds", 60, "--threads", 1, "--device", "cpu"),
)


class Failing(Slope):
    """A bug: no length can be computed."""

    def distance_bias(self, d: Tensor) -> Tensor:
        raise ArithmeticError("no such luck")


class Greedy(Slope):
    """Torch finds no memory for inputs of up to 32 tokens."""

    def distance_bias(self, d: Tensor) -> Tensor:
        if int(d.max()) < 32:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 1 PB")
        return super().distance_bias(d)


class Interrupting(Slope):
    """Its first call on more tokens than it is tried on beforehand sends SIGINT to this process."""

    signals = 1

    def distance_bias(self, d: Tensor) -> Tensor:
        if Interrupting.signals and len(d) > TOKENS:
            Interrupting.signals -= 1
            os.kill(os.getpid(), signal.SIGINT)
        return super().distance_bias(d)


def run(folder: Path, *, resume: bool = False, **given: Any) -> Bench:
    """A small bench, run to its end."""
    bench = Bench(settings(**given), CPU, folder, resume=resume, sizes=SMALL)
    bench.run()
    return bench


def test_what_is_measured_is_in_the_document_and_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "cpu", SMALL)
    encodings = ("--enc", "alibi", "--enc", "cope", "--engine", "auto", "--engine", "reference")
    workloads = ("--what", "train", "--what", "eval", "--what", "decode")
    result = cli("bench", *OPTIONS, *encodings, *workloads, "--json", "--out", tmp_path)
    assert result.code == 0, result.err
    cases = {("train", 32), ("eval", 32), ("eval", 64), ("decode", 32)}
    wanted = {(e, a, *case) for e in ("alibi", "cope") for a in ("auto", "reference") for case in cases}
    rows = read(tmp_path)
    for each in (rows, pd.DataFrame(result.json["rows"])):
        assert len(each) == len(wanted)
        assert set(each[["encoding", "asked", "what", "length"]].itertuples(index=False, name=None)) == wanted
    assert (rows["status"] == "ok").all()
    assert (rows["repeats"] == 2).all()
    assert (rows["seconds"] > 0).all()
    assert (rows["machine"] != "").all()
    assert set(rows.loc[rows["asked"] == "reference", "engine"]) == {"reference"}
    files = [Path(name) for name in result.json["files"]]
    assert [path.name for path in files] == ["bench.csv", "training.png", "time.png", "memory.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files[1:])


def test_a_case_that_cannot_fit_is_not_tried_and_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "cpu", SMALL)
    far = 10**13  # tokens: not even the operands of attention fit
    workloads = ("--what", "machine", "--what", "eval", "--what", "decode")
    result = cli(
        *("bench", *OPTIONS, *workloads, "--enc", "alibi", "--engine", "reference"),
        *("--lengths", f"32,{far}", "--max-len", far, "--limit", 1e30, "--out", tmp_path),
    )
    assert result.code == 0, result.err
    limits = read(tmp_path, "machine.csv").set_index("why")
    assert limits.loc[[f"one layer at {length}" for length in (32, far)], "status"].tolist() == ["ok", "oom"]
    rows = read(tmp_path).set_index(["what", "length"])
    assert rows["status"].to_dict() == {("eval", 32): "ok", ("eval", far): "oom", ("decode", 32): "ok"}
    assert "GiB are free" in rows.loc[("eval", far), "message"]
    assert math.isnan(rows.loc[("eval", far), "seconds"])


def test_a_failed_allocation_is_a_row_and_others_go_on(tmp_path: Path) -> None:
    run(tmp_path, what=("eval",), encodings=("test_bench:Greedy",), engines=("reference",))
    assert read(tmp_path).set_index("length")["status"].to_dict() == {32: "oom", 64: "ok"}


def test_an_unforeseen_failure_is_a_row_and_the_exit_code(tmp_path: Path) -> None:
    result = cli("bench", *OPTIONS, "--what", "eval", "--enc", "test_bench:Failing", "--out", tmp_path)
    assert result.code == 3
    assert set(read(tmp_path)["message"]) == {"ArithmeticError: no such luck"}
    for encoding, code, rows in (("alibi", 0, 4), ("test_bench:Failing", 3, 4)):  # only what is tried again can fail
        resumed = cli("bench", *OPTIONS, "--what", "eval", "--enc", encoding, "--out", tmp_path, "--resume")
        assert (resumed.code, len(read(tmp_path))) == (code, rows), resumed.err


def test_an_interrupted_bench_keeps_its_rows_and_resume_measures_the_others_only(tmp_path: Path) -> None:
    given = {"what": ("eval",), "encodings": ("alibi", "test_bench:Interrupting")}
    Interrupting.signals = 1
    with pytest.raises(Interrupted, match="--resume goes on from there") as stopped:
        run(tmp_path, **given)
    assert stopped.value.exit_code == 130
    before = read(tmp_path)
    assert list(before["encoding"]) == ["alibi", "alibi"]
    bench = run(tmp_path, resume=True, **given)
    after = read(tmp_path)
    assert list(after["status"]) == ["ok"] * 4
    pd.testing.assert_frame_equal(after.head(2), before)
    # Rows of other machines and of other shapes would be drawn as if one of them had been measured.
    others = [after.assign(**{name: value}) for name, value in (("machine", "B"), ("threads", 99), ("width", 9))]
    assert list(bench.own(pd.concat([*others, after], ignore_index=True)).index) == [12, 13, 14, 15]


def test_rows_are_neither_replaced_nor_written_by_two_at_once(tmp_path: Path) -> None:
    command = ("bench", *OPTIONS, "--what", "eval", "--enc", "none", "--out", tmp_path)
    assert cli(*command).code == 0
    before = (tmp_path / "bench.csv").read_bytes()
    refused = cli(*command)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "bench.csv has 2 rows, which would be replaced; keep them with --resume, or delete it" in refused.err
    with locked(tmp_path):
        assert cli(*command, "--resume").code == 75
    assert (tmp_path / "bench.csv").read_bytes() == before


def test_a_table_shows_models_of_the_shape_that_is_asked_for(tmp_path: Path) -> None:
    shown = [
        cli("bench", *OPTIONS, "--what", "eval", "--enc", name, "--train-length", length, "--out", tmp_path, "--resume")
        for name, length in (("alibi", 16), ("none", 32))
    ]
    assert "alibi" in shown[0].out
    assert "alibi" not in shown[1].out


def test_a_model_has_the_layers_that_its_encodings_alternate_in(tmp_path: Path) -> None:
    command = ("bench", *OPTIONS, "--what", "eval", "--enc", "rope|none|alibi", "--out", tmp_path)
    refused = cli(*command)
    assert (refused.code, "the model has 2 layers; give it 3 or more, as by --layers 3" in refused.err) == (2, True)
    assert cli(*command, "--layers", 3).code == 0
    assert set(read(tmp_path)["layers"]) == {3}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--enc", "cope", "--engine", "sdpa"), "--engine sdpa: the engine sdpa cannot run cope"),
        (("--enc", "alibi", "--engine", "spda"), "did you mean sdpa?"),
        (("--enc", "alibi", "--what", "tran"), "'machine', 'train', 'eval' or 'decode'"),
        (("--enc", "alibi", "--lengths", "64,oops"), "--lengths 'oops': no number of tokens"),
        (("--enc", "alibi", "--lengths", "64", "--max-len", "32"), "all above --max-len 32"),
        (("--enc", "alibi", "--threads", 4 * CORES + 1), f"this machine has {CORES} cores; give 1 to {4 * CORES}"),
    ],
)
def test_bad_input_gets_one_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    result = cli("bench", *OPTIONS, *arguments, "--out", tmp_path / "out")
    assert result.code == 2, result.err
    assert said in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("encodings", "engine", "what", "refused"),
    [
        (("cope", "shaw"), "sdpa", ("eval",), "--engine sdpa: the engine sdpa cannot run cope"),
        (("cope", "none"), "sdpa", ("eval",), ""),
        (("none",), "tiles", ("train",), "--engine tiles: .* no backward pass"),
        (("none",), "tiles", ("machine", "train", "eval"), ""),
        (("none",), "tiles", (), ""),
    ],
)
def test_an_engine_is_refused_that_can_run_nothing_of_what_is_asked_for(
    encodings: tuple[str, ...], engine: str, what: tuple[str, ...], refused: str, tmp_path: Path
) -> None:
    asked = settings(encodings=encodings, engines=(engine,), what=what)
    with pytest.raises(UsageError, match=refused) if refused else nullcontext():
        Bench(asked, CPU, tmp_path, sizes=SMALL)


@pytest.mark.slow
def test_every_registered_encoding_is_measured(tmp_path: Path) -> None:
    run(tmp_path, repeats=1)
    rows = read(tmp_path)
    assert set(rows["encoding"]) == set(names())
    assert set(rows["status"]) <= {"ok", "oom", "unsupported", "skipped"}


def test_a_resumed_bench_skips_what_its_earlier_rows_predict_to_be_long(tmp_path: Path) -> None:
    given = {"what": ("eval",), "encodings": ("alibi",), "limit": 1e-9}
    run(tmp_path, **given, lengths=(32,))
    run(tmp_path, resume=True, **given, lengths=(32, 64))
    assert list(read(tmp_path)["status"]) == ["ok", "skipped"]
    run(tmp_path, resume=True, **given | {"limit": 60.0}, lengths=(32, 64))
    assert list(read(tmp_path)["status"]) == ["ok", "ok"]


def test_a_picture_shows_one_measurement_of_each_encoding(tmp_path: Path) -> None:
    """Steps of another batch, and the same step under an earlier commit, stay in the file and are not drawn."""
    given = {"what": ("train",), "encodings": ("alibi",)}
    run(tmp_path, **given, batch=2)
    bench = run(tmp_path, resume=True, **given, batch=4)
    table = bench.costs.table()
    assert list(table["batch"]) == [2, 4]
    earlier = table.assign(commit="earlier", seconds=0.0)
    assert list(bench.own(pd.concat([earlier, table], ignore_index=True)).index) == [3]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("--engine", "nosuch"), "there is no engine 'nosuch'"),
        (("--resume",), "leave out --resume"),
        (("--what", "eval", "--limit", "3"), "leave out --what and --limit"),
    ],
)
def test_a_profile_refuses_what_it_would_ignore(given: tuple[str, ...], why: str, tmp_path: Path) -> None:
    result = cli("bench", "--profile", "--enc", "none", *given, "--out", tmp_path)
    assert (result.code, why in result.err) == (2, True), result.err
    assert not list(tmp_path.iterdir())


# ---- what a resumed bench measures again

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
    first = ResultFile(tmp_path / name, COLUMNS[name], KEYS[name])
    first.add(case | {"status": "ok", "seconds": 1.0, "message": "by hand"})
    file = ResultFile(tmp_path / name, COLUMNS[name], KEYS[name])
    file.open(resume=True)
    assert file.find(case)
    assert file.find(case | {"status": "failed", "seconds": 2.0, "message": "", "repeats": 7})
    for column, value in case.items():
        other = value + 1 if isinstance(value, int) else f"{value}x"
        assert not file.find(case | {column: other}), column


# ---- workloads


class Recorded(torch.nn.Module):
    """Keeps the inputs of every call; its logits are those of a bigram model."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[list[list[int]], object]] = []
        self.table = torch.nn.Parameter(torch.eye(VOCAB))

    def forward(self, tokens: torch.Tensor, cache: object = None) -> torch.Tensor:
        assert torch.is_inference_mode_enabled()
        self.calls.append((tokens.tolist(), cache))
        return self.table[tokens]


def test_decoding_reads_the_past_once_and_then_one_token_at_a_time_from_the_same_cache() -> None:
    model: Any = Recorded()
    decode = Decode(model, 24, CPU)
    decode()
    decode()
    (past, cache), *later = model.calls
    assert past == synthetic_tokens(1, 24).tolist()
    assert cache.columns == 6  # of a grid of 24 cells
    assert [(len(tokens[0]), each is cache) for tokens, each in later] == [(1, True), (1, True)]


def test_an_evaluation_reads_every_token_but_the_last() -> None:
    model: Any = Recorded()
    forward(model, 2, 5, CPU)()
    assert model.calls == [(synthetic_tokens(2, 6)[:, :5].tolist(), None)]


def test_training_reads_one_document_of_64_windows() -> None:
    assert synthetic_task(10).text(10).sizes.tolist() == [64 * 11 - 1]


def test_the_first_token_of_causal_attention_sees_itself_alone() -> None:
    """What it reads is a random value, and what later tokens read are means of many."""
    conditions = Conditions(settings(), CPU, SMALL, lambda: None)
    every = machine_limits(run_config(settings(), "none", CPU), conditions)
    limits = [limit for limit in every if limit.columns["limit"] == "causal attention"]
    assert limits
    for limit in limits:
        spread = limit.work().std(dim=(0, 1, 3))
        assert 0.8 < spread[0] < 1.2
        assert (spread[16:] < 0.6).all()


def test_a_training_step_without_a_finite_loss_is_not_timed() -> None:
    config = run_config(settings(), "none", CPU)
    model = untrained_model(config, "auto", CPU)
    with torch.no_grad():
        next(iter(model.parameters())).fill_(float("nan"))
    with pytest.raises(PoscliError, match="the loss of none was not finite at step 0"):
        work_of(model, config, BenchCase("train", config.length, config.batch), CPU)()


# ---- memory


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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the peak memory of a case")
def test_estimates_are_right_within_a_factor_of_three() -> None:
    for encoding, (expected, found) in in_own_process(peaks_of_forward, ["none", "alibi", "cope", "shaw"]).items():
        assert expected / 3 < found < 3 * expected, encoding


def peaks_of_forward(encodings: list[str]) -> dict[str, tuple[float, float]]:
    """For each encoding, the MiB that a forward pass is expected to need, and those that it needs."""
    length, peaks = 512, {}
    for encoding in encodings:
        config = resolve(TrainRequest(preset="nano", length=length, batch=1), encoding, 0, CPU)
        model = untrained_model(config, "reference", CPU)
        work = forward(model, 1, length, CPU)
        work()
        with Peak(CPU) as peak:
            work()
        needs = needs_of_model(model, False)
        expected = activation_bytes(config.model, VOCAB, needs, batch=1, length=length, training=False)
        peaks[encoding] = expected / 2**20, peak.mb
    return peaks
