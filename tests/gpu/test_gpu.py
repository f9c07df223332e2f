"""The Triton kernels and engines on a CUDA device: the comparisons of test_kernels.py, determinism and memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernel_checks import FLEX, SPECS, TRITON, Case, assert_near, check, check_encoding, encoded
from test_kernels import DECODE, FLASH, NARROW, ROPES, check_rotation
from test_selfcheck import INJECTED, check_injected, check_proven, misrotated, nothing_tried  # noqa: F401 - a fixture
from torch import Tensor
from torch.nn import functional as F
from toys import VOCAB, draw, make, shape, tokens

from poscli.attention import ENGINES, Place, choose, selfcheck
from poscli.attention.trials import examples
from poscli.config.run import ModelConfig
from poscli.encodings.rope import RoPE
from poscli.model.initialise import build_model

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
def test_flash_equals_the_dense_formula(case: Case, dtype: torch.dtype) -> None:
    from poscli.attention.kernels.flash import flash

    check(flash, case, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "case", [*DECODE, Case("tabp", 2, 3, 1, 20000, 64, 64, 64), Case("tW", 1, 2, 1, 5000)], ids=str
)
def test_decode_equals_the_dense_formula(case: Case, dtype: torch.dtype) -> None:
    from poscli.attention.kernels.decode import decode

    check(decode, case, dtype, "cuda", gradient=False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spec", ROPES)
def test_the_rotation_kernel_equals_the_encoding(spec: str, dtype: torch.dtype) -> None:
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
    torch.compiler.reset()  # otherwise the limit on recompilations is reached, and it runs eagerly
    encoding, size = make(spec, shape(256, heads=2, width=128)), (2, 256, 256)
    exact, *away = (encoded(ENGINES["reference"], encoding, size, dtype, "cpu", seed) for seed in (0, 1, 2))
    assert_near(encoded(FLEX, encoding, size, dtype, "cuda"), exact, away, torch.finfo(dtype).eps, size[2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", range(len(examples(torch.float32))))
def test_trials_prove_the_kernels(number: int, dtype: torch.dtype) -> None:
    assert selfcheck.fault(examples(dtype)[number], torch.device("cuda")) == ""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spec", SPECS)
def test_a_proven_engine_is_chosen(spec: str, dtype: torch.dtype) -> None:
    check_proven(spec, Place("cuda", dtype, 64, here=torch.device("cuda", 0)))


@pytest.mark.parametrize(("inject", "said", "evaluation"), INJECTED, ids=lambda x: getattr(x, "__name__", ""))
def test_a_wrong_kernel_is_switched_off(
    inject: Callable[[pytest.MonkeyPatch], None], said: str, evaluation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Place("cuda", torch.float32, 64, here=torch.device("cuda", 0))
    check_injected(inject, said, evaluation, here, monkeypatch)


def test_a_wrong_rotation_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch rotates instead, and the choice of the engine says so."""
    misrotated(monkeypatch)
    rope = make("rope", shape(heads=2, width=128))
    choice = choose(rope, place=Place("cuda", torch.float32, 64, here=torch.device("cuda", 0)))
    assert choice.reason.startswith("torch rotates: rotation in float32, 32 half pairs of 64 channels on cuda:")
    q, pos = draw(1, 2, 9, 64, seed=0), torch.arange(9)
    found, right = rope.query(q.cuda(), pos.cuda()).cpu(), rope.query(q, pos)
    # Two products in float32 with a rounded cos and sin.
    torch.testing.assert_close(found, right, rtol=0, atol=4 * 2**-23 * float(q.abs().max()))


@pytest.mark.parametrize("terms", ["t", "tabpW"])
def test_gradients_are_deterministic(terms: str) -> None:
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
    """Forward and backward with a learned table need at most 2.5 times the memory at 16384 tokens as at 8192."""
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
def test_gradients_of_a_model_equal_those_of_the_reference(spec: str) -> None:
    """The loss and all gradients of a model in float32, by the kernels against the reference."""
    config = ModelConfig(layers=2, width=64, heads=4, mlp=128)
    model = build_model(config, spec, vocab=VOCAB, length=96, seed=0).cuda()
    with torch.no_grad():
        for n, parameter in enumerate(model.parameters()):
            parameter.add_(0.1 * draw(*parameter.shape, seed=n).cuda())
    text = tokens(3, 97).cuda()

    def step(engine: str) -> list[Tensor]:
        model.use_engine(engine)
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        return [loss, *torch.autograd.grad(loss, list(model.parameters()))]

    for found, expected in zip(step("triton"), step("reference"), strict=True):
        # Sums of some hundred products; errors are relative to the largest number of a tensor.
        limit = 512 * 2**-23 * max(float(expected.abs().max()), 1e-3)
        torch.testing.assert_close(found, expected, rtol=0, atol=limit)
