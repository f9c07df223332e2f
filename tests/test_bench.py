"""`poscli bench`: what its numbers mean, what becomes of cases that cannot run, and that nothing is lost."""

import importlib.util
import itertools
import json
import math
import os
import signal
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from cli_runner import cli
from torch.utils.flop_counter import FlopCounterMode

from poscli.bench import machine, measure, memory, peers, session, terminal, work
from poscli.bench.memory import Needs, Peak, estimate
from poscli.bench.table import AGAINST_COLUMNS, BENCH_COLUMNS, LIMIT_COLUMNS, STATUSES
from poscli.bench.work import AUTO, Step, forward, memory_of, subject, synthetic_tokens
from poscli.data import VOCAB
from poscli.encodings import names
from poscli.flops import training_flops
from poscli.requests import TrainRequest
from poscli.results import read_table

CPU = torch.device("cpu")
SMALL = (
    *("--preset", "nano", "--train-length", 32, "--batch", 2, "--lengths", "32,64", "--past", 32),
    *("--repeats", 2, "--seconds", 1, "--threads", 1, "--device", "cpu"),
)
TOKENS = 512  # of an evaluation's pass


def config(encoding="none", length=32, batch=2):
    return TrainRequest(preset="nano", length=length, batch=batch).resolve(encoding, 0, CPU)


def bench(folder, *arguments):
    return cli("bench", *SMALL, "--out", folder, *arguments)


def read(folder, name="bench.csv"):
    columns = {"bench.csv": BENCH_COLUMNS, "machine.csv": LIMIT_COLUMNS, "against.csv": AGAINST_COLUMNS}
    return read_table(folder / name, columns[name])


def shrink(patch):
    """Small products and passes, short samples: what is tested here is not how fast this machine is."""
    patch.setattr(machine, "SIZES", {"cpu": (64, 128)})
    patch.setattr(machine, "COPIED", {"cpu": 2**20})
    patch.setattr(measure, "SAMPLE", 0.002)
    patch.setattr(work, "BATCH_TOKENS", TOKENS)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    shrink(monkeypatch)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A bench of two encodings on two engines, its folder and what it said."""
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        engines = ("--engine", "auto", "--engine", "reference")
        return folder, bench(folder, "--enc", "alibi", "--enc", "cope", *engines, "--json")


def test_every_case_is_a_row_and_the_document_holds_them_all(made):
    folder, result = made
    assert result.code == 0, result.err
    document = result.json
    rows = read(folder)
    cases = {("train", 32), ("eval", 32), ("eval", 64), ("decode", 32)}
    wanted = {(e, a, *case) for e in ("alibi", "cope") for a in ("auto", "reference") for case in cases}
    assert {tuple(row) for row in rows[["encoding", "asked", "what", "length"]].itertuples(index=False)} == wanted
    assert len(document["rows"]) == len(rows) == len(wanted)
    assert len(document["limits"]) == len(read(folder, "machine.csv"))
    assert document["against"] == []
    assert {"bench.csv", "machine.csv", "training.png", "time.png", "memory.png"} == {
        Path(name).name for name in document["files"]
    }
    for name in document["files"]:
        assert not name.endswith(".png") or Path(name).read_bytes().startswith(b"\x89PNG")


def test_numbers_of_a_row_agree_with_each_other(made):
    rows = read(made[0])
    assert (rows["status"] == "ok").all()
    assert (rows["repeats"] == 2).all()
    assert rows["ratio"].to_numpy() == pytest.approx((rows["seconds"] / rows["none_seconds"]).to_numpy(), rel=1e-9)
    assert (rows["ratio_low"] <= rows["ratio"] * (1 + 1e-9)).all()
    assert (rows["ratio"] <= rows["ratio_high"] * (1 + 1e-9)).all()
    assert (rows["seconds_min"] <= rows["seconds"]).all()
    assert (rows["seconds"] <= rows["seconds_max"]).all()
    per_second = rows["tokens"] / rows["seconds"]
    assert rows["tokens_per_s"].to_numpy() == pytest.approx(per_second.to_numpy(), rel=1e-9)
    trained = rows[rows["what"] == "train"]
    used = trained["tokens_per_s"] * trained["flops"] / (trained["product_gflops"] * 1e9)
    assert trained["mfu"].to_numpy() == pytest.approx(used.to_numpy(), rel=1e-9)
    assert rows.loc[rows["what"] != "train", "mfu"].isna().all()


def test_rows_say_what_ran(made):
    rows = read(made[0]).set_index(["encoding", "asked"])
    assert set(rows.loc[("alibi", "auto"), "tier"]) == {"distance"}
    assert set(rows.loc[("cope", "auto"), "tier"]) == {"row"}
    assert set(rows.loc[("alibi", "reference"), "engine"]) == {"reference"}
    assert all("sdpa" in reason for reason in rows.loc[("cope", "auto"), "engine_reason"])
    assert (rows["machine"] != "").all()
    assert (rows["threads"] == 1).all()


def test_limits_are_rates(made):
    limits = read(made[0], "machine.csv")
    assert set(limits["limit"]) == {
        "matrix product", "memory copy", "causal attention", "causal attention with backward"
    }  # fmt: skip
    square = limits[limits["shape"] == "128 x 128 x 128"].iloc[0]
    assert square["rate"] == pytest.approx(2 * 128**3 / square["seconds"] / 1e9)
    copy = limits[limits["limit"] == "memory copy"].iloc[0]
    assert copy["rate"] == pytest.approx(2 * 2**20 / copy["seconds"] / 1e9)
    forward_pass = limits[limits["why"] == "one layer at 64"].iloc[0]
    assert forward_pass["shape"] == "[8, 4, 64, 16]"
    assert forward_pass["rate"] == pytest.approx(8 * 4 * 2 * 2 * 64 * 64 / 2 * 16 / forward_pass["seconds"] / 1e9)


def test_flops_of_a_step_are_those_that_torch_counts():
    """The reference computes whole score matrices, of which the formula counts the causal half."""
    run = config(length=32, batch=2)
    model = subject(run, "reference", CPU)
    step = Step(model, run.model_copy(update={"tokens": 2**30}))
    with FlopCounterMode(display=False) as counter:
        model(synthetic_tokens(2, 32)).sum().backward()
    scores = 3 * run.model.layers * 2 * 2 * 32 * 32 * run.model.width  # two products, forward and twice backward
    both_halves = sum(counter.get_flop_counts()["Global"].values())
    per_token = training_flops(run.model, VOCAB, 32)
    assert step.tokens_per_step * per_token == pytest.approx(both_halves - 2 * scores / 2)


def test_works_take_turns_and_the_first_runs_do_not_count():
    order = []
    works = [lambda: order.append("a"), lambda: order.append("b")]
    timings = measure.in_turns(works, measure.Pace(3, 60.0), CPU)
    assert [len(timing.seconds) for timing in timings] == [3, 3]
    runs = [name for name, _ in itertools.groupby(order)]
    assert runs == ["a", "b"] * 5  # to warm up, to measure memory, three turns


def test_a_long_first_run_is_all_there_is():
    order = []
    works = [lambda: order.append("a"), lambda: order.append("b")]
    timings = measure.in_turns(works, measure.Pace(5, 0.0), CPU)
    assert order == ["a", "b"]
    assert [len(timing.seconds) for timing in timings] == [1, 1]


def test_a_ratio_is_that_of_the_medians_and_lies_within_its_spread():
    a, b = (measure.Timing(seconds, 0.0, "case") for seconds in ((3.0, 10.0, 2.0), (2.0, 5.0, 4.0)))
    found = measure.ratio(a, b)
    assert (found.median, found.low, found.high) == (3 / 4, 2 / 4, 10 / 5)


@pytest.mark.skipif(sys.platform != "linux", reason="the counter that can be reset is Linux'")
def test_memory_is_that_of_the_case_alone():
    torch.ones(2**26).sum()  # 256 MiB, freed before the case
    with Peak(CPU) as peak:
        torch.ones(2**24).sum()
    assert peak.of == "case"
    assert 63 < peak.mb < 80
    with Peak(CPU) as peak:
        torch.ones(2**20).sum()
    assert 3 < peak.mb < 20


@pytest.mark.skipif(sys.platform != "linux", reason="needs the memory of a case")
@pytest.mark.parametrize("encoding", ["none", "alibi", "cope", "shaw"])
def test_estimates_are_right_within_a_factor_of_three(encoding):
    length = 512
    run = config(encoding, length=length, batch=1)
    model = subject(run, "reference", CPU)
    run_once = forward(model, 1, length, CPU)
    run_once()
    with Peak(CPU) as peak:
        run_once()
    expected = estimate(run.model, VOCAB, memory_of(model, False), batch=1, length=length, training=False) / 2**20
    assert expected / 3 < peak.mb < 3 * expected


def test_what_does_not_fit_is_estimated_and_the_rest_goes_on(tmp_path, monkeypatch):
    run = config("alibi")
    needs = memory_of(subject(run, "reference", CPU), False)
    sizes = [estimate(run.model, VOCAB, needs, batch=TOKENS // n, length=n, training=False) for n in (32, 64)]
    assert sizes[0] < sizes[1]
    free = sum(sizes) / 2 / memory.SPARE
    monkeypatch.setattr(memory, "available", lambda _: free)
    result = bench(tmp_path, "--what", "eval", "--what", "decode", "--enc", "alibi", "--engine", "reference")
    assert result.code == 0
    rows = read(tmp_path).set_index(["what", "length"])
    assert rows["status"].to_dict() == {("eval", 32): "ok", ("eval", 64): "oom", ("decode", 32): "ok"}
    assert "GiB are free" in rows.loc[("eval", 64), "message"]
    assert math.isnan(rows.loc[("eval", 64), "seconds"])
    assert "oom: alibi" in result.out


def test_memory_that_torch_does_not_get_is_a_row_too(tmp_path, monkeypatch):
    def work_of(model, config, case, device):
        if case.length == 32:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 1 PB")
        return forward(model, 1, case.length, device)

    monkeypatch.setattr(session, "work_of", work_of)
    result = bench(tmp_path, "--what", "eval", "--enc", "alibi")
    assert result.code == 0
    rows = read(tmp_path).set_index("length")
    assert rows.loc[32, "status"] == "oom"
    assert rows.loc[64, "status"] == "ok"


def test_an_unforeseen_failure_is_a_row_and_the_exit_code(tmp_path, monkeypatch):
    def work_of(model, config, case, device):
        raise ArithmeticError("no such luck")

    monkeypatch.setattr(session, "work_of", work_of)
    assert bench(tmp_path, "--what", "eval", "--enc", "alibi").code == 3
    assert set(read(tmp_path)["message"]) == {"ArithmeticError: no such luck"}


def test_an_engine_that_can_run_some_leaves_rows_for_the_others(tmp_path):
    result = bench(tmp_path, "--what", "eval", "--enc", "cope", "--enc", "alibi", "--engine", "sdpa")
    assert result.code == 0
    rows = read(tmp_path)
    assert set(rows.loc[rows["encoding"] == "alibi", "status"]) == {"ok"}
    refused = rows[rows["encoding"] == "cope"]
    assert set(refused["status"]) == {"unsupported"}
    assert all("blocks can" in message for message in refused["message"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--enc", "cope", "--engine", "sdpa"), "--engine sdpa: the engine sdpa cannot run cope"),
        (("--enc", "alibi", "--engine", "spda"), "did you mean sdpa?"),
        (("--enc", "alibbi"), "did you mean alibi?"),
        (("--enc", "alibi", "--preset", "tinny"), "did you mean tiny"),
        (("--enc", "alibi", "--what", "tran"), "'machine', 'train', 'eval' or 'decode'"),
        (("--enc", "alibi", "--lengths", "64,oops"), "--lengths 'oops' is no number of tokens"),
        (("--enc", "alibi", "--lengths", "64", "--max-len", "32"), "all above --max-len 32"),
        (("--enc", "alibi", "--against", "x-transformer"), "did you mean x-transformers?"),
        (("--enc", "dape", "--against", "x-transformers"), "has none of dape; it has none, rope"),
        (("--enc", "alibi", "--seconds", "-1"), "seconds = -1.0"),
    ],
)
def test_bad_input_gets_one_line(tmp_path, arguments, said):
    result = cli("bench", *SMALL, *arguments, "--out", tmp_path / "out")
    assert result.code == 2, result.err
    assert said in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_peer_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = bench(tmp_path, "--enc", "alibi", "--against", "x-transformers")
    assert result.code == 2
    assert result.err.strip() == "error: --against x-transformers: it is not installed; pip install x-transformers"


def test_what_takes_too_long_is_skipped_and_says_so(tmp_path):
    bench(tmp_path, "--what", "eval", "--enc", "alibi", "--limit", 1e-6)
    rows = read(tmp_path).set_index("length")
    assert rows.loc[32, "status"] == "ok"  # nothing is known before the first
    assert rows.loc[64, "status"] == "skipped"
    assert "longer than --limit 1e-06" in rows.loc[64, "message"]


def test_positions_that_an_encoding_has_not_got_are_unsupported(tmp_path):
    bench(tmp_path, "--what", "eval", "--enc", "learned")
    rows = read(tmp_path).set_index("length")
    assert list(rows["status"]) == ["ok", "unsupported"]
    assert "learned has 32 positions" in rows.loc[64, "message"]


def test_interrupted_it_keeps_its_rows_and_resumed_it_measures_the_others_only(tmp_path, monkeypatch):
    calls, whole = [], session.in_turns

    def interrupting(works, *arguments):
        calls.append(works)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return whole(works, *arguments)

    monkeypatch.setattr(session, "in_turns", interrupting)
    result = bench(tmp_path, "--what", "eval", "--enc", "alibi", "--enc", "rope")
    assert result.code == 130
    assert "--resume goes on from there" in result.err
    before = read(tmp_path)
    assert list(before["status"]) == ["ok", "ok"]
    result = bench(tmp_path, "--what", "eval", "--enc", "alibi", "--enc", "rope", "--resume")
    assert result.code == 0
    assert len(calls) == 5  # two rows, the interrupted one, and two more
    after = read(tmp_path)
    assert len(after) == 4
    pd.testing.assert_frame_equal(after.head(2), before)


def test_a_damaged_table_is_not_resumed(tmp_path):
    (tmp_path / "bench.csv").write_text("what,encoding\ntrain,alibi\n")
    result = bench(tmp_path, "--enc", "alibi", "--resume")
    assert result.code == 5
    assert "lacks the column" in result.err


def test_a_container_s_limit_counts(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 600\ninactive_file 50\nactive_file 50\n")
    assert memory._free_of_the_container(tmp_path) == 350
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._free_of_the_container(tmp_path) == math.inf
    assert memory._free_of_the_container(tmp_path / "none") == math.inf


def test_needs_grow_with_what_is_materialised():
    fused = memory.needs("sdpa", frozenset({"distance_bias"}), 16)
    assert fused == Needs()
    dense = memory.needs("reference", frozenset({"distance_bias"}), 16)
    vectors = memory.needs("reference", frozenset({"relative_keys"}), 16)
    assert 0 < dense.at_once < vectors.at_once


@pytest.fixture
def library():
    pytest.importorskip("x_transformers")


@pytest.mark.usefixtures("library")
def test_another_library_is_timed_on_the_same_tokens(tmp_path):
    result = bench(tmp_path, "--what", "train", "--what", "eval", "--enc", "alibi", "--enc", "dape",
                   "--against", "x-transformers")  # fmt: skip
    assert result.code == 0, result.err
    assert "no version of dape" in result.err
    rows = read(tmp_path, "against.csv")
    assert list(rows["what"]) == ["forward+backward", "train", "eval", "eval"]
    assert set(rows["encoding"]) == {"alibi"}
    assert (rows["status"] == "ok").all()
    assert rows["speedup"].to_numpy() == pytest.approx((rows["peer_seconds"] / rows["seconds"]).to_numpy(), rel=1e-9)
    assert rows["peer_tokens_per_s"].to_numpy() == pytest.approx((rows["tokens"] / rows["peer_seconds"]).to_numpy())
    assert (tmp_path / "against.png").exists()


@pytest.mark.usefixtures("library")
def test_a_peer_that_does_not_fit_leaves_poscli_s_own_number(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "Needs", lambda **_: Needs(at_once=1e9))
    bench(tmp_path, "--what", "eval", "--enc", "t5", "--against", "x-transformers", "--lengths", "64")
    row = read(tmp_path, "against.csv").iloc[0]
    assert row["status"] == "oom"
    assert row["message"].startswith("x-transformers")
    assert row["seconds"] > 0
    assert math.isnan(row["peer_seconds"])


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("encoding", peers.encodings())
def test_parameters_are_the_same_but_for_the_encoding_and_its_biases(encoding):
    """Its gated MLP keeps the biases of its first matrix; nothing else is there twice or missing."""
    run = config(encoding)
    model, peer = subject(run, AUTO, CPU), peers.build(run, CPU)
    shape = run.model
    biases = 2 * shape.mlp * shape.layers
    plain = subject(config("none"), AUTO, CPU).size
    assert peers.build(config("none"), CPU).size == plain + biases
    assert abs((peer.size - biases) - model.size) <= max(shape.layers * (3 * shape.width + 100), 1)
    logits = peer.model(synthetic_tokens(2, 32))
    assert logits.shape == (2, 32, VOCAB)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("encoding", "theirs"), [("none", "none"), ("alibi", "alibi"), ("rope(layout=interleaved)", "rope")]
)
def test_with_the_same_weights_it_is_the_same_model(encoding, theirs):
    model, peer = subject(config(encoding), AUTO, CPU), peers.build(config(theirs), CPU).model
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2 and not parameter.any():  # what starts at zero
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * parameter.shape[1] ** -0.5)
        copy_weights(model, peer.model)
    tokens = synthetic_tokens(2, 32)
    with torch.no_grad():
        ours, others = model(tokens), peer(tokens)
    assert ours.std() > 0.1
    torch.testing.assert_close(ours, others, rtol=0, atol=2e-5 * float(ours.abs().max()))


def copy_weights(model, peer):
    """Poscli's weights into x-transformers' places; their norms count from one, their gate comes second."""
    peer.token_emb.emb.weight.copy_(model.embedding)
    peer.to_logits.weight.copy_(model.head.weight)
    blocks = iter(peer.attn_layers.layers)
    for layer in model.layers:
        attention, mlp = next(blocks)[1], next(blocks)[1]
        for name in "qkv":
            getattr(attention, f"to_{name}").weight.copy_(getattr(layer.attention, name).weight)
        attention.to_out.weight.copy_(layer.attention.o.weight)
        mlp.ff[0].proj.weight.copy_(torch.cat([layer.up.weight, layer.gate.weight]))
        mlp.ff[0].proj.bias.zero_()
        mlp.ff[2].weight.copy_(layer.down.weight)


def test_a_table_for_people_says_each_failure_once(made, capsys):
    rows = read(made[0])
    rows.loc[rows["encoding"] == "cope", ["status", "message"]] = ["oom", "needs a lot"]
    terminal.show(rows, read(made[0], "machine.csv"), read_empty(), terminal_console())
    shown = capsys.readouterr().out
    assert shown.count("needs a lot") == 1
    assert "GFLOP/s" in shown


def read_empty():
    return pd.DataFrame(columns=list(AGAINST_COLUMNS))


def terminal_console():
    from rich.console import Console

    return Console(file=sys.stdout, width=200)


@pytest.mark.slow
def test_every_registered_encoding_is_measured(tmp_path):
    result = bench(tmp_path, "--repeats", 1, "--json")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert {row["encoding"] for row in document["rows"]} == set(names())
    assert {row["status"] for row in document["rows"]} <= set(STATUSES) - {"failed"}
