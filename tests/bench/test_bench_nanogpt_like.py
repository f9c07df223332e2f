"""`poscli bench --against nanogpt-like`: the GPT in plain PyTorch computes what its formulas say, at poscli's sizes.

T tokens, H heads, D head width, W model width.
"""

from __future__ import annotations

import bisect
import cmath
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from cli_runner import cli
from rich.console import Console
from small_bench import CPU, SMALL, read, settings
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from poscli.bench import pictures
from poscli.bench.peers import PeerModel, find_peer
from poscli.bench.peers.plain_positions import BucketedBias, LinearBias
from poscli.bench.peers.plain_pytorch import GPT
from poscli.bench.peers.step import PeerStep
from poscli.bench.session import Bench
from poscli.bench.show import show
from poscli.bench.synthetic import synthetic_tokens
from poscli.bench.workloads import untrained_model
from poscli.config.needs import Needs
from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import RunConfig
from poscli.equation import Positions, Unsupported
from poscli.training.optimizer import Optimizer

L, LONGER = 32, 40  # tokens of a training window, and of an input beyond it
PEER = find_peer("nanogpt-like")
ENCODINGS = PEER.encodings()
STARTS = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]  # least distance of T5's buckets from 16 on
BEYOND = [name for name in ENCODINGS if name != "learned"]  # those that have positions from L on


def config(encoding: str, **given: Any) -> RunConfig:
    return resolve(TrainRequest(preset="nano", length=L, batch=2, **given), encoding, 0, CPU)


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


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_later_token_changes_no_earlier_logit(encoding: str) -> None:
    model, ids = gpt(encoding), synthetic_tokens(1, L)
    changed = ids.clone()
    changed[0, 20] = (changed[0, 20] + 1) % 256
    with torch.no_grad():
        difference = (model(changed) - model(ids)).abs().amax(dim=2)[0]
    assert float(difference[:20].max()) < 1e-4  # rounding of logits of about 1, should a kernel sum in another order
    assert float(difference[20:].min()) > 1e-3


@pytest.mark.parametrize("length", [L, LONGER])
@pytest.mark.parametrize("encoding", ["none", "rope", "alibi", "t5"])
def test_attention_is_poscli_s_with_equal_weights(encoding: str, length: int) -> None:
    """Two float32 computations of sums of at most 64 products differ by a few 2^-24 of the largest number."""
    plain, own = gpt(encoding), untrained_model(config(encoding), "reference", CPU).layers[0].attention
    theirs = plain.layers[0].attention
    with torch.no_grad():
        for part, weight in zip("qkv", theirs.qkv.weight.split(64), strict=True):
            getattr(own, part).weight.copy_(weight)
        own.o.weight.copy_(theirs.out.weight)
        for table in own.encoding.parameters():
            table.copy_(plain.positions.table)
    x = torch.randn(2, length, 64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    outputs = [
        theirs(x, plain.positions.rotation(length), plain.positions.mask(length)),
        own(x, Positions(pos=torch.arange(length)), None, None),
    ]
    gradients = [torch.autograd.grad(output.square().sum(), x)[0] for output in outputs]
    for ours, others in (outputs, gradients):
        torch.testing.assert_close(ours, others, rtol=0, atol=2e-5 * largest(others))


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
    [
        (1, [8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (6, [2, 4, 6, 8, 1, 3]),
    ],
)
def test_slopes_are_those_of_alibi(heads: int, exponents: list[float]) -> None:
    """The paper's slopes, and those of its authors' code for numbers of heads between powers of two."""
    found = LinearBias(length=4, width=heads, heads=heads).mask(4)[0, :, 3, 2]
    torch.testing.assert_close(found, -(2.0 ** -torch.tensor(exponents)))


def test_a_table_has_no_positions_beyond_its_end() -> None:
    with pytest.raises(Unsupported, match=r"^the table has 32 positions, and the input has 33 tokens$"):
        gpt("learned")(synthetic_tokens(1, L + 1))


# ---- at poscli's sizes


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
def test_muon_trains_as_many_numbers_as_in_poscli(encoding: str) -> None:
    step = PeerStep(PEER.build(config(encoding), CPU).model, config(encoding), CPU)
    theirs = step.optimizers[0].param_groups[0]["params"]
    own = Optimizer(untrained_model(config(encoding), "auto", CPU), config(encoding).recipe, steps=1)
    ours = own.optimizers["muon"].param_groups[0]["params"]
    assert sum(p.numel() for p in theirs) == sum(p.numel() for p in ours)
    before = [p.detach().clone() for p in step.parameters]
    step()
    assert all(not torch.equal(p, old) for p, old in zip(step.parameters, before, strict=True))


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


def test_masks_count_in_the_estimate_of_the_memory() -> None:
    assert {name: PEER.build(config(name), CPU).needs for name in ("rope", "alibi", "t5")} == {
        "rope": Needs(),
        "alibi": Needs(at_once=1),
        "t5": Needs(at_once=1, kept=1.25),
    }


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bfloat16_is_torch_s_autocast(encoding: str) -> None:
    """Each of the two layers rounds to 8 bits a few times; the logits of untrained weights are about 0.2."""
    lower, full = (PEER.build(config(encoding, precision=p), CPU).model for p in ("bfloat16", "float32"))
    lower.load_state_dict(full.state_dict())
    found, expected = (model(synthetic_tokens(2, L)) for model in (lower, full))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=2**-4 * largest(expected))
    found.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in lower.parameters())


# ---- in a bench


def test_a_quick_bench_of_two_encodings_on_the_command_line(tmp_path: Path) -> None:
    shape = ("--preset", "nano", "--train-length", 32, "--lengths", "32,64", "--threads", 1, "--device", "cpu")
    given = ("--quick", "-e", "learned", "-e", "rope", "--what", "eval", "--seconds", 0.1)
    result = cli("bench", *given, *shape, "--against", "nanogpt-like", "--out", tmp_path)
    assert result.code == 0, result.err
    rows = read(tmp_path, "against.csv").set_index(["encoding", "what", "length"])
    assert len(rows) == 2 * 2
    refused = rows.loc[("learned", "eval", 64)]
    assert refused["status"] == "unsupported"
    assert "learned has 32 positions" in refused["message"]
    others = rows.drop([("learned", "eval", 64)])
    assert (others["status"] == "ok").all()
    assert (others["peer_seconds"] > 0).all()
    assert set(rows["peer"]) == {"nanogpt-like"}
    assert rows["peer_differs"].str.startswith("LayerNorm, and GELU").all()
    assert (rows["peer_parameters"] == rows["parameters"]).all()
    assert (tmp_path / "against-nanogpt-like.png").exists()


def test_every_workload_but_decoding_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = settings(encodings=("t5", "cope"), what=("train", "eval", "decode"), lengths=(32,), repeats=1)
    Bench(given, CPU, tmp_path, against="nanogpt-like", sizes=SMALL).run()
    assert "nanogpt-like has no version of cope: left out" in capsys.readouterr().err
    rows = read(tmp_path, "against.csv")
    assert list(rows["what"]) == ["forward+backward", "train", "eval"]
    assert list(rows["peer_attention"]) == ["eager", "eager", "fused"]
    assert set(rows["encoding"]) == {"t5"}
    assert set(rows["status"]) == {"ok"}


def test_two_peers_in_one_folder_are_shown_one_by_one(tmp_path: Path) -> None:
    """After --resume with another peer, the file has rows of both."""
    given = settings(encodings=("alibi",), what=("eval",), lengths=(32,), repeats=1)
    bench = Bench(given, CPU, tmp_path, against="nanogpt-like", sizes=SMALL)
    bench.run()
    first = bench.comparisons.table()
    table = pd.concat([first, first.assign(peer="others 1.0"), first.assign(peer="others 1.1", encoding="rope")])
    drawn = pictures.draw(pd.DataFrame(columns=bench.costs.table().columns), table, tmp_path)
    assert [path.name for path in drawn] == ["against-nanogpt-like.png", "against-others.png"]
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        show(pd.DataFrame(), pd.DataFrame(), table, console)
    titles = [line.strip() for line in capture.get().splitlines() if line.startswith("beside")]
    assert titles == ["beside nanogpt-like", "beside others 1.0", "beside others 1.1"]


def test_a_model_says_what_it_is() -> None:
    peer = PEER.build(config("rope"), CPU)
    assert isinstance(peer, PeerModel)
    assert peer.columns(training=True) == {
        "peer": "nanogpt-like",
        "peer_attention": "fused",
        "peer_differs": "LayerNorm, and GELU with 1.5 times as many hidden units as SwiGLU has; angles in float32",
        "peer_parameters": peer.size,
    }
