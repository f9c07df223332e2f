"""`poscli bench --against x-transformers`: the library's models are poscli's, and are timed on equal tokens."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_bench import CPU, SMALL, read, settings
from torch import nn

from poscli.bench import pictures
from poscli.bench.comparison import Comparison
from poscli.bench.peers import PEERS, find_peer
from poscli.bench.session import Bench
from poscli.bench.settings import AUTO
from poscli.bench.synthetic import VOCAB, synthetic_tokens
from poscli.bench.workloads import untrained_model
from poscli.config.needs import Needs
from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import RunConfig
from poscli.model.transformer import Model
from poscli.system.errors import UsageError

LIBRARY = PEERS["x-transformers"]


@pytest.fixture
def library() -> None:
    pytest.importorskip("x_transformers")


def config(encoding: str = "none") -> RunConfig:
    return resolve(TrainRequest(preset="nano", length=32, batch=2), encoding, 0, CPU)


def bench_of(folder: Path, **given: Any) -> Bench:
    return Bench(settings(**given), CPU, folder, against="x-transformers", sizes=SMALL)


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "x_transformers", None)  # Python's way to say that a module cannot be imported
    with pytest.raises(UsageError) as error:
        find_peer("x-transformers")
    assert str(error.value) == "--against x-transformers: it is not installed; pip install x-transformers"


@pytest.mark.usefixtures("library")
def test_both_libraries_are_timed_on_equal_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = bench_of(tmp_path, what=("train", "eval"), encodings=("alibi", "dape"))
    bench.run()
    assert "no version of dape" in capsys.readouterr().err
    rows = read(tmp_path, "against.csv")
    assert list(rows["what"]) == ["forward+backward", "train", "eval", "eval"]
    assert set(rows["encoding"]) == {"alibi"}
    assert (rows["status"] == "ok").all()
    assert rows["speedup"].to_numpy() == pytest.approx((rows["peer_seconds"] / rows["seconds"]).to_numpy(), rel=1e-9)
    assert rows["peer_tokens_per_s"].to_numpy() == pytest.approx((rows["tokens"] / rows["peer_seconds"]).to_numpy())
    drawn = pictures.draw(bench.own(bench.costs.table()), bench.own(rows), tmp_path)
    assert tmp_path / "against-x-transformers.png" in drawn


@pytest.mark.usefixtures("library")
def test_a_model_that_does_not_fit_leaves_poscli_s_own_number(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, what=("eval",), encodings=("t5",), lengths=(64,))
    peer = replace(LIBRARY.build(config("t5"), CPU), needs=Needs(at_once=1e9))
    cases = [case for case in bench.cases if case.what == "eval"]
    Comparison(bench.conditions, config("t5"), peer).run(cases, bench.comparisons)
    row = read(tmp_path, "against.csv").iloc[0]
    assert row["status"] == "oom"
    assert row["message"].startswith("x-transformers")
    assert row["seconds"] > 0
    assert math.isnan(row["peer_seconds"])


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("encoding", LIBRARY.encodings())
def test_parameters_are_equal_but_for_the_encoding_and_the_library_s_biases(encoding: str) -> None:
    """The library's gated MLP keeps the biases of its first matrix; everything else is there exactly once."""
    model, peer = untrained_model(config(encoding), AUTO, CPU), LIBRARY.build(config(encoding), CPU)
    shape = config(encoding).model
    biases = 2 * shape.mlp * shape.layers
    plain = untrained_model(config("none"), AUTO, CPU).size
    assert LIBRARY.build(config("none"), CPU).size == plain + biases
    assert abs((peer.size - biases) - model.size) <= max(shape.layers * (3 * shape.width + 100), 1)
    assert peer.model(synthetic_tokens(2, 32)).shape == (2, 32, VOCAB)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("encoding", "theirs"), [("none", "none"), ("alibi", "alibi"), ("rope(layout=interleaved)", "rope")]
)
def test_equal_weights_give_equal_logits(encoding: str, theirs: str) -> None:
    model, peer = untrained_model(config(encoding), AUTO, CPU), LIBRARY.build(config(theirs), CPU).model
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2 and not parameter.any():  # a matrix that starts at zero
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * parameter.shape[1] ** -0.5)
        copy_weights(model, peer.model)
    tokens = synthetic_tokens(2, 32)
    with torch.no_grad():
        ours, others = model(tokens), peer(tokens)
    assert ours.std() > 0.1
    torch.testing.assert_close(ours, others, rtol=0, atol=2e-5 * float(ours.abs().max()))


def copy_weights(model: Model, peer: nn.Module) -> None:
    """Copy poscli's weights into x-transformers' places; its norms count from one, and its gate comes second."""
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
