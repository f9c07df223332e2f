"""The engines on a CUDA device: the Triton kernels as in test_triton.py, torch's own, determinism and memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from flash_checks import (
    INJECTED,
    LEARNED,
    NARROW,
    SIZES,
    assert_as_exact,
    check_encoding,
    check_flash,
    check_injected,
    check_proven,
    encoded,
    nothing_tried,  # noqa: F401 - a fixture
)
from torch import Tensor
from torch.nn import functional as F
from toys import VOCAB, draw, make, shape, tokens

from poscli.attention import ENGINES, Place, choose, selfcheck
from poscli.config.run import ModelConfig
from poscli.model.initialise import build_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LARGE = [(2, 3, 260, 300, 64, 64), (2, 3, 129, 129, 128, 128), (2, 3, 1, 300, 80, 80)]
SPECS = [
    "rope", "alibi", "t5", "window(9)", "transformer-xl", "shaw", "deberta", "fox", "fox(start=0)", "cable", "cope",
    "alibi+ssmax", "rope+sink-logit", "carope", "finite-span", "path", "wall", "selective",
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [*SIZES, *(size for size, _ in NARROW), *LARGE], ids=str)
def test_the_triton_kernels_equal_the_formula(size: tuple[int, ...], dtype: torch.dtype) -> None:
    check_flash(size, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(2, 150, 150), (2, 20, 150)], ids=str)
@pytest.mark.parametrize("spec", LEARNED)
def test_the_engine_triton_equals_the_reference(spec: str, size: tuple[int, int, int], dtype: torch.dtype) -> None:
    check_encoding(spec, size, 64, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("engine", ["sdpa", "blocks", "flex"])
@pytest.mark.parametrize("spec", SPECS)
def test_other_engines_equal_the_reference(spec: str, engine: str, dtype: torch.dtype) -> None:
    encoding, size = make(spec, shape(256, heads=2, width=128)), (2, 256, 256)
    if reason := ENGINES[engine].refuses(encoding, Place("cuda", dtype, 64)):
        pytest.skip(reason)
    torch.compiler.reset()  # otherwise flex reaches the limit on recompilations, and runs eagerly
    assert_as_exact(ENGINES[engine], encoding, size, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_trials_prove_the_kernels_and_the_engine_is_chosen(dtype: torch.dtype) -> None:
    assert [selfcheck.trial_fault(variant, torch.device("cuda")) for variant in selfcheck.examples(dtype)] == ["", ""]
    for spec in LEARNED:
        check_proven(spec, Place("cuda", dtype, 64, here=torch.device("cuda", 0)))
    assert choose(make("alibi"), place=Place("cuda", dtype, 64, here=torch.device("cuda", 0))).name == "sdpa"


@pytest.mark.parametrize(("inject", "said"), INJECTED, ids=lambda x: getattr(x, "__name__", ""))
def test_a_wrong_kernel_is_switched_off(
    inject: Callable[[pytest.MonkeyPatch], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_injected(inject, said, Place("cuda", torch.float32, 64, here=torch.device("cuda", 0)), monkeypatch)


def test_gradients_are_deterministic() -> None:
    encoding, size = make("t5", shape(1000, heads=4, width=256)), (4, 1000, 1000)
    one, other = (encoded(ENGINES["triton"], encoding, size, torch.bfloat16, "cuda") for _ in range(2))
    assert all(torch.equal(x, other[name]) for name, x in one.items())


def test_memory_grows_with_the_length_not_its_square() -> None:
    """Forward and backward with a learned table need at most 2.5 times the memory at 16384 tokens as at 8192."""
    from poscli.attention.triton_kernels import flash

    def peak(length: int) -> int:
        q, k, v = (draw(1, 2, length, 64, seed=n).cuda().bfloat16().requires_grad_() for n in range(3))
        table = torch.zeros(2, length, device="cuda", requires_grad=True)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        flash(q, k, v, table, 0.125).float().sum().backward()
        return torch.cuda.max_memory_allocated() - before

    peak(8192)
    assert peak(16384) <= 2.5 * peak(8192)


@pytest.mark.parametrize(("spec", "engine"), [("t5", "triton"), ("fox", "sdpa"), ("deberta", "sdpa")])
def test_gradients_of_a_model_equal_those_of_the_reference(spec: str, engine: str) -> None:
    """The loss and all gradients of a model in float32, by the engine that is chosen against the reference."""
    config = ModelConfig(layers=2, width=64, heads=4, mlp=128)
    model = build_model(config, spec, vocab=VOCAB, length=96, seed=0).cuda()
    assert model.layers[0].attention.choice.name == engine
    with torch.no_grad():
        for n, parameter in enumerate(model.parameters()):
            parameter.add_(0.1 * draw(*parameter.shape, seed=n).cuda())
    text = tokens(3, 97).cuda()

    def step(engine: str) -> list[Tensor]:
        model.use_engine(engine)
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        return [loss, *torch.autograd.grad(loss, list(model.parameters()))]

    for found, expected in zip(step(engine), step("reference"), strict=True):
        # Sums of some hundred products; errors are relative to the largest number of a tensor.
        limit = 512 * 2**-23 * max(float(expected.detach().abs().max()), 1e-3)
        torch.testing.assert_close(found, expected, rtol=0, atol=limit)
