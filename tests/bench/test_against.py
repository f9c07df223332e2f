"""benchmarks/against.py: models of peers have poscli's sizes, compute what they say, and are timed on equal tokens.

T tokens, H heads, D head width, W model width.
"""

from __future__ import annotations

import bisect
import cmath
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from against import COLUMNS, FILE, Against, Comparison
from cli_runner import ROOT, environment
from peers import PEERS, PeerStep, find_peer
from plain_gpt import GPT, BucketedBias, LinearBias
from small_bench import CPU, SMALL, settings
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from poscli.bench.settings import AUTO
from poscli.bench.workloads import VOCAB, synthetic_tokens, untrained_model
from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import RunConfig
from poscli.config.size import Needs
from poscli.equation import Unsupported
from poscli.model.transformer import Model
from poscli.runs.schema import read_table
from poscli.system.errors import UsageError
from poscli.training.optimizer import Optimizer

L, LONGER = 32, 40  # tokens of a training window, and of an input beyond it
LIBRARY, PEER = PEERS["x-transformers"], PEERS["nanogpt-like"]
ENCODINGS = PEER.encodings()
STARTS = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]  # least distance of T5's buckets from 16 on
BEYOND = [name for name in ENCODINGS if name != "learned"]  # those that have positions from L on


def config(encoding: str = "none", **given: Any) -> RunConfig:
    return resolve(TrainRequest(preset="nano", length=L, batch=2, **given), encoding, 0, CPU)


@pytest.fixture
def library() -> None:
    pytest.importorskip("x_transformers")


# ---- the library


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "x_transformers", None)  # Python's way to say that a module cannot be imported
    with pytest.raises(UsageError, match=r"^x-transformers is not installed; pip install x-transformers$"):
        find_peer("x-transformers")


def test_what_is_not_there_to_compare_with_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"did you mean nanogpt-like\?"):
        find_peer("nanogpt")
    with pytest.raises(UsageError, match="'zzz' is nothing to compare with: there are nanogpt-like, x-transformers"):
        find_peer("zzz")
    with pytest.raises(UsageError, match="has none of dape; it has none, learned, rope, alibi, t5"):
        Against(settings(encodings=("dape",)), CPU, tmp_path, PEER, sizes=SMALL)


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


# ---- plain PyTorch


def gpt(encoding: str) -> GPT:
    """The model, with weights so large that every part of it matters."""
    model = PEER.build(config(encoding), CPU).model.model
    assert isinstance(model, GPT)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw) * (p.shape[-1] ** -0.5 if p.ndim == 2 else 1.0))
    return model


def largest(x: Tensor) -> float:
    return float(x.detach().abs().max())


# ---- the formulas, in float64


def bucket(d: int) -> int:
    """T5's: 16 exact ones, then 16 more that begin at the whole numbers from 16 * 8^(n/16) on."""
    return d if d < 16 else 15 + bisect.bisect(STARTS, d)


def no_bias(h: int, d: int, w: dict[str, Tensor]) -> float | Tensor:
    return 0.0


BIASES: dict[str, Callable[[int, int, dict[str, Tensor]], float | Tensor]] = {
    "alibi": lambda h, d, w: -d / 4 ** (h + 1),  # 4 heads: 2^-2, 2^-4, 2^-6, 2^-8
    "t5": lambda h, d, w: w["positions.table"][h, bucket(d)],
}


def turned(x: Tensor) -> Tensor:
    """Rows `[T, D]` as D/2 complex numbers each, the i-th times exp(i j 10000^(-2m/D)) for row j."""
    half = x.shape[1] // 2
    turns = [[cmath.exp(1j * n * 10000 ** (-m / half)) for m in range(half)] for n in range(len(x))]
    z = torch.complex(x[:, :half], x[:, half:]) * torch.tensor(turns, dtype=torch.complex128)
    return torch.cat([z.real, z.imag], dim=1)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def attention(x: Tensor, w: dict[str, Tensor], at: str, encoding: str) -> Tensor:
    """softmax(q_i . k_j / sqrt(D) + bias) v_j over j <= i, head by head. D = 16, H = 4."""
    q, k, v = (x @ part.T for part in w[f"{at}.qkv.weight"].split(64))
    heads = []
    for h in range(4):
        own_q, own_k = (z[:, 16 * h : 16 * h + 16] for z in (q, k))
        if encoding == "rope":
            own_q, own_k = turned(own_q), turned(own_k)
        rows = []
        for i in range(len(x)):
            bias = [torch.as_tensor(BIASES.get(encoding, no_bias)(h, i - j, w)) for j in range(i + 1)]
            p = (own_k[: i + 1] @ own_q[i] / 4 + torch.stack(bias)).softmax(0)
            rows.append(p @ v[: i + 1, 16 * h : 16 * h + 16])
        heads.append(torch.stack(rows))
    return torch.cat(heads, dim=1) @ w[f"{at}.out.weight"].T


def logits_by_hand(w: dict[str, Tensor], ids: Tensor, encoding: str) -> Tensor:
    x = w["embedding.weight"][ids]
    if encoding == "learned":
        x = x + w["positions.table.weight"][: len(ids)]
    for n in range(2):
        at = f"layers.{n}"
        x = x + attention(normed(x, w[f"{at}.norm_attention.weight"]), w, f"{at}.attention", encoding)
        y = normed(x, w[f"{at}.norm_mlp.weight"]) @ w[f"{at}.up.weight"].T
        x = x + y * (1 + torch.erf(y / math.sqrt(2))) / 2 @ w[f"{at}.down.weight"].T
    return normed(x, w["norm.weight"]) @ w["head.weight"].T


@pytest.mark.parametrize(
    ("encoding", "length"), [(name, L) for name in ENCODINGS] + [(name, LONGER) for name in BEYOND]
)
def test_logits_and_gradients_are_those_of_the_formulas(encoding: str, length: int) -> None:
    """In float64. Angles are rounded to float32 as in people's code: up to 40 rad, they are off by 2e-6."""
    model = gpt(encoding).double()
    ids = synthetic_tokens(1, length)
    by_hand = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    found, expected = model(ids)[0], logits_by_hand(by_hand, ids[0], encoding)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * largest(expected))
    along = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = torch.autograd.grad((expected * along).sum(), list(by_hand.values()))
    (found * along).sum().backward()
    for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
        assert parameter.grad is not None, name
        assert gradient.any(), name
        tolerance = 1e-4 * largest(gradient)
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=tolerance, msg=name)


def test_buckets_are_those_of_t5() -> None:
    """At distances on both sides of 16 and 128, kept for L = 100 and made for 200."""
    positions = BucketedBias(length=100, width=8, heads=2)
    with torch.no_grad():
        positions.table.copy_(torch.arange(64.0).view(2, 32))
    for tokens in (100, 200):
        first = [[float(bucket(i - j)) if j <= i else -math.inf for j in range(tokens)] for i in range(tokens)]
        expected = torch.tensor(first)
        assert torch.equal(positions.mask(tokens)[0], torch.stack([expected, expected + 32]))


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [(1, [8]), (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]), (6, [2, 4, 6, 8, 1, 3])],
)
def test_slopes_are_those_of_alibi(heads: int, exponents: list[float]) -> None:
    """The paper's slopes, and those of its authors' code for numbers of heads between powers of two."""
    found = LinearBias(length=4, width=heads, heads=heads).mask(4)[0, :, 3, 2]
    torch.testing.assert_close(found, -(2.0 ** -torch.tensor(exponents)))


def test_a_table_has_no_positions_beyond_its_end() -> None:
    with pytest.raises(Unsupported, match=r"^the table has 32 positions, and the input has 33 tokens$"):
        gpt("learned")(synthetic_tokens(1, L + 1))


# ---- plain PyTorch at poscli's sizes


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_parameters_are_exactly_as_many_as_poscli_s(encoding: str) -> None:
    assert PEER.build(config(encoding), CPU).size == untrained_model(config(encoding), "auto", CPU).size


@pytest.mark.parametrize("mlp", [88, 31])
def test_matrix_products_take_as_many_operations_as_poscli_s(mlp: int) -> None:
    """An odd width of SwiGLU has no equal in GELU: then one hidden unit is added."""
    shape = config("none").model.model_copy(update={"mlp": mlp})
    given = config("none").model_copy(update={"model": shape})
    counts = []
    for model in (untrained_model(given, "auto", CPU), PEER.build(given, CPU).model):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(synthetic_tokens(2, L))
        counts.append(sum(n for operation, n in counter.get_flop_counts()["Global"].items() if "mm" in str(operation)))
    added = 2 * 2 * L * shape.layers * shape.width * (mlp % 2)  # half a unit of two matrices, 2 operations a product
    assert counts[1] == counts[0] + added
    assert counts[0] > 0


@pytest.mark.parametrize("encoding", ["none", "t5"])
def test_a_step_has_muon_for_the_matrices_of_poscli_s_and_adamw_outside_the_layers(encoding: str) -> None:
    """The first step of Adam moves every weight that has a gradient by the learning rate."""
    run = config(encoding)
    run = run.model_copy(update={"recipe": run.recipe.model_copy(update={"head_lr": 0.003, "matrix_lr": 0.05})})
    model = PEER.build(run, CPU).model
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    step = PeerStep(model, run, CPU)
    of_muon = {id(p) for p in step.optimizers[0].param_groups[0]["params"]}
    same = (
        Optimizer(untrained_model(run, "auto", CPU), run.recipe, steps=1).optimizers["muon"].param_groups[0]["params"]
    )
    assert sum(p.numel() for p in model.parameters() if id(p) in of_muon) == sum(p.numel() for p in same)
    step()
    for name, parameter in model.named_parameters():
        moved = float((parameter.detach() - before[name]).abs().max())
        if id(parameter) in of_muon:
            assert 0 < moved <= run.recipe.matrix_lr * 1.5, name
            assert moved != pytest.approx(run.recipe.head_lr, rel=1e-3), name
        else:
            assert moved == pytest.approx(run.recipe.head_lr, rel=1e-3), name


class Operations(TorchDispatchMode):
    """The names of the operations that torch performs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_column_of_attention_says_what_torch_does(encoding: str, training: bool) -> None:
    peer = PEER.build(config(encoding), CPU)
    with torch.set_grad_enabled(training), Operations() as performed:
        peer.model(synthetic_tokens(2, L))
    fused = any("flash_attention" in name for name in performed.names)
    assert peer.columns(training)["peer_attention"] == ("fused" if fused else "eager")


# ---- as a program


@pytest.mark.wide
def test_the_program_times_both_on_equal_tokens(tmp_path: Path) -> None:
    shape = ("--preset", "nano", "--train-length", 32, "--lengths", "32,64", "--threads", 1, "--device", "cpu")
    asked = ("--quick", "-e", "learned", "-e", "rope", "-e", "dape", "--what", "eval", "--seconds", 0.1)
    command = [sys.executable, ROOT / "benchmarks/against.py", "nanogpt-like", *asked, *shape, "--out", tmp_path]
    environ = environment(PYTHONPATH=str(ROOT))
    words = [*map(str, command), "--json"]
    result = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "nanogpt-like has no version of dape: left out" in result.stderr
    table = read_table(tmp_path / FILE, COLUMNS)
    assert len(json.loads(result.stdout)["against"]) == len(table) == 2 * 2
    rows = table.set_index(["encoding", "what", "length"])
    assert rows.loc[("learned", "eval", 64), "status"] == "unsupported"
    others = rows.drop([("learned", "eval", 64)])
    assert (others["status"] == "ok").all()
    assert others["speedup"].to_numpy() == pytest.approx((others["peer_seconds"] / others["seconds"]).to_numpy())
    assert (rows["peer_parameters"] == rows["parameters"]).all()
    assert (tmp_path / "against-nanogpt-like.png").exists()


def test_a_model_that_does_not_fit_leaves_poscli_s_own_number(tmp_path: Path) -> None:
    bench = Against(settings(what=("eval",), encodings=("t5",), lengths=(64,)), CPU, tmp_path, PEER, sizes=SMALL)
    peer = replace(PEER.build(config("t5"), CPU), needs=Needs(at_once=1e9))
    Comparison(bench.conditions, config("t5"), peer).run(bench.cases, bench.comparisons)
    row = read_table(tmp_path / FILE, COLUMNS).iloc[0]
    assert row["status"] == "oom"
    assert row["message"].startswith("nanogpt-like: needs about")
    assert row["seconds"] > 0
    assert math.isnan(row["peer_seconds"])
