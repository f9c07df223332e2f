"""The Triton kernels and the engines on a CUDA device: what `test_kernels.py` compares, and what only a GPU shows."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
import torch
from conftest import VOCAB, draw, make, shape, tokens
from kernel_checks import FLEX, SPECS, TRITON, Case, assert_near, check, check_encoding, encoded
from test_kernels import DECODE, FLASH, NARROW, ROPES, check_rotation
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from poscli.attention import ENGINES, Place
from poscli.config import ModelConfig
from poscli.encodings.rope import RoPE
from poscli.model import Model, Precision

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LARGE = [
    Case(terms, 2, 3, queries, keys, width, width, width)
    for terms in ("", "t", "tW", "tp", "ab", "tabpw")
    for queries, keys, width in ((260, 300, 64), (129, 129, 128), (1, 300, 80))
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [*FLASH, *(case for case, _ in NARROW), *LARGE], ids=str)
def test_flash(case: Case, dtype: torch.dtype) -> None:
    from poscli.attention.kernels.flash import flash

    check(flash, case, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "case", [*DECODE, Case("tabp", 2, 3, 1, 20000, 64, 64, 64), Case("tW", 1, 2, 1, 5000)], ids=str
)
def test_decode(case: Case, dtype: torch.dtype) -> None:
    from poscli.attention.kernels.decode import decode

    check(decode, case, dtype, "cuda", gradient=False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spec", ROPES)
def test_rotation(spec: str, dtype: torch.dtype) -> None:
    rope = make(spec, shape(heads=3, width=72))
    assert isinstance(rope, RoPE)
    check_rotation(rope, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(2, 150, 150), (2, 20, 150), (1, 1, 150)], ids=str)
@pytest.mark.parametrize("spec", SPECS)
def test_the_engine_equals_the_reference(spec: str, size: tuple[int, int, int], dtype: torch.dtype) -> None:
    assert TRITON.refuses(make(spec), Place("cuda", dtype, 64)) == ""
    check_encoding(spec, size, 64, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spec", [s for s in SPECS if not FLEX.refuses(make(s), Place("cuda", width=64))])
def test_flex_equals_the_reference(spec: str, dtype: torch.dtype) -> None:
    torch.compiler.reset()  # or the limit on recompilations is met, and what runs is eager
    encoding, size = make(spec, shape(256, heads=2, width=128)), (2, 256, 256)
    exact, *away = (encoded(ENGINES["reference"], encoding, size, dtype, "cpu", seed) for seed in (0, 1, 2))
    assert_near(encoded(FLEX, encoding, size, dtype, "cuda"), exact, away, torch.finfo(dtype).eps, size[2])


@pytest.mark.parametrize("terms", ["t", "tabpW"])
def test_gradients_are_the_same_in_every_run(terms: str) -> None:
    from poscli.attention.kernels.flash import flash

    case = Case(terms, 4, 4, 1000, 1000, 64, 64, 64, shared=True)
    inputs = {
        name: x.to(
            "cuda", torch.float32 if name == "table" else torch.float64 if name == "potential" else torch.bfloat16
        )
        for name, x in case.inputs().items()
    }

    def run() -> list[Tensor]:
        x = {name: value.detach().requires_grad_() for name, value in inputs.items()}
        q, k, v = (x.pop(name) for name in "qkv")
        out = flash(q, k, v, **x, scale=case.scale, reach=case.reach("cuda"))
        return [out, *torch.autograd.grad(out.float().square().sum(), (q, k, v, *x.values()))]

    first = run()
    for _ in range(3):
        assert all(torch.equal(one, other) for one, other in zip(first, run(), strict=True))


def test_memory_grows_with_the_length_not_its_square() -> None:
    """Forward and backward with a learned table, at 8192 and twice that."""
    from poscli.attention.kernels.flash import flash

    def peak(length: int) -> int:
        q, k, v = (draw(1, 2, length, 64, seed=n).cuda().bfloat16().requires_grad_() for n in range(3))
        table = torch.zeros(2, length, device="cuda", requires_grad=True)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        flash(q, k, v, table=table, scale=0.125).float().sum().backward()
        return torch.cuda.max_memory_allocated() - before

    peak(8192)
    assert peak(16384) <= 2.5 * peak(8192)


@pytest.mark.parametrize("spec", ["t5", "alibi", "fox", "rope+clipped", "deberta", "window(40)"])
def test_a_training_step(spec: str) -> None:
    """Loss, and the gradient of every weight, of a model on the kernels and on the reference, in float32."""
    config = ModelConfig(layers=2, width=64, heads=4, mlp=128)
    model = Model(config, encoding=spec, vocab=VOCAB, length=96, seed=0, precision=Precision()).cuda()
    with torch.no_grad():
        for n, parameter in enumerate(model.parameters()):
            parameter.add_(0.1 * draw(*parameter.shape, seed=n).cuda())
    text = tokens(3, 97).cuda()

    def step(engine: str) -> list[Tensor]:
        model.use_engine(engine)
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        return [loss, *torch.autograd.grad(loss, list(model.parameters()))]

    for found, expected in zip(step("triton"), step("reference"), strict=True):
        # sums of some hundred products, their errors relative to the largest of a tensor
        limit = 512 * 2**-23 * max(float(expected.abs().max()), 1e-3)
        torch.testing.assert_close(found, expected, rtol=0, atol=limit)


def test_times(capsys: pytest.CaptureFixture[str]) -> None:
    """Forward and backward at B=4, H=16, D=64, L=16384 in bfloat16: printed, and no test of anything."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from poscli.attention.kernels.flash import flash

    batch, heads, length, width = 4, 16, 16384, 64
    q, k, v, g = (torch.randn(batch, heads, length, width, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    table = torch.randn(heads, length, device="cuda")
    for x in (q, k, v, table):
        x.requires_grad_()
    torch.compiler.reset()
    compiled = torch.compile(flex_attention)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cuda")

    def unbiased() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def flexible() -> Tensor:
        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + table[h, (i - j).clamp(min=0)]

        return compiled(q, k, v, score_mod=score, block_mask=mask, scale=width**-0.5)

    ways: dict[str, Callable[[], Tensor]] = {
        "flash SDPA, no bias": unbiased,
        "kernels, no bias": lambda: flash(q, k, v, scale=width**-0.5),
        "kernels, fixed table": lambda: flash(q, k, v, table=table.detach(), scale=width**-0.5),
        "kernels, learned table": lambda: flash(q, k, v, table=table, scale=width**-0.5),
        "FlexAttention, learned table": flexible,
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for repeat in range(8):  # interleaved; the first three to compile and warm up
        for name, way in ways.items():
            both = _timed(way, g)
            if repeat >= 3:
                times[name].append(both)
    base = sum(statistics.median(t) for t in zip(*times["flash SDPA, no bias"], strict=True))
    with capsys.disabled():
        print(f"\n{torch.cuda.get_device_name()}, medians of 5, ms\n{'':30} forward backward  ratio")
        for name, found in times.items():
            forward, backward = (statistics.median(t) for t in zip(*found, strict=True))
            print(f"{name:30} {forward:7.2f} {backward:8.2f} {(forward + backward) / base:6.2f}")


def _timed(way: Callable[[], Tensor], g: Tensor) -> tuple[float, float]:
    """Milliseconds of a forward and a backward pass."""
    start, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    start.record()
    out = way()
    middle.record()
    out.backward(g)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(middle), middle.elapsed_time(end)
