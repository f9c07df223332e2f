"""Comparisons of the Triton kernels on any device: with the dense formula, and with the reference under an encoding.

And faults that are planted in them, which their trial must find.
"""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from toys import draw, make, shape

from poscli.attention import ENGINES, Engine, Place, attend, choose, selfcheck, triton
from poscli.encodings import Encoding
from poscli.native.proof import difference, first_difference
from poscli.system import console
from poscli.system.device import device_name
from poscli.system.errors import UsageError

CHILD = os.environ.get("POSCLI_TRITON_CHILD") == "1"  # the process in which test_triton.py runs its kernels

TRITON = Engine("triton", triton.run, triton.refuses, "")
LEARNED = ["t5", "kerple-log", "alibi(trainable=true)", "pope+t5", "tupe", "rope+clipped"]
# Batch, heads, queries, keys, widths of queries and of values; the smallest come first.
SIZES = [
    (2, 2, 33, 40, 16, 16),
    (1, 1, 2, 2, 16, 16),
    (1, 3, 1, 5, 24, 24),
    (1, 1, 33, 64, 24, 16),
    (1, 1, 64, 64, 16, 16),  # a whole number of tiles
    (2, 2, 41, 70, 16, 16),
]
NARROW = [
    ((1, 1, 40, 40, 256, 128), torch.float16),  # PoPE and TUPE widen queries and keys
    ((2, 1, 66, 70, 24, 24), torch.bfloat16),
    ((2, 1, 130, 150, 24, 24), torch.bfloat16),
    ((3, 1, 257, 257, 16, 16), torch.bfloat16),
]


def check_flash(size: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    """Output and gradients against the formula in float64, for a table of each head and for one that all share."""
    from poscli.attention.triton_kernels import flash

    batch, heads, queries, keys, width, values = size
    q, k = draw(batch, heads, queries, width, seed=0), draw(batch, heads, keys, width, seed=1)
    v = draw(batch, keys, heads, values, seed=2).transpose(1, 2)
    inputs = {"q": q.to(dtype), "k": k.to(dtype), "v": v.to(dtype)}
    upstream = draw(batch, heads, queries, values, seed=4)
    apart = torch.arange(keys)[-queries:, None] - torch.arange(keys)

    def formula(x: dict[str, Tensor]) -> Tensor:
        s = 0.3 * (x["q"] @ x["k"].mT) + x["table"][:, apart.clamp(min=0)]
        return s.masked_fill(apart < 0, -math.inf).softmax(-1).to(x["v"].dtype) @ x["v"]

    def kernels(x: dict[str, Tensor]) -> Tensor:
        return flash(*(x[name].to(device) for name in ("q", "k", "v", "table")), 0.3).cpu()

    for tables, more in ((heads, 0), (1, 16)):  # the second with distances beyond those that are met
        given = inputs | {"table": draw(tables, keys + more, seed=3)}
        assert first_difference(kernels, formula, given, upstream, least=64 * torch.finfo(dtype).eps) == "", tables


def encoded(
    engine: Engine, encoding: Encoding, size: tuple[int, int, int], dtype: torch.dtype, device: str
) -> dict[str, Tensor]:
    """Output of an engine for random input, and all gradients, with an encoding in float64 if `dtype` is."""
    batch, queries, keys = size
    at = encoding.shape
    encoding = copy.deepcopy(encoding).to(torch.float64 if dtype == torch.float64 else torch.float32).to(device)
    leaves = {
        name: draw(batch, at.heads, tokens, at.head_width, seed=n).to(device, dtype).requires_grad_()
        for n, (name, tokens) in enumerate({"q": queries, "k": keys, "v": keys}.items())
    }
    x_BSW = draw(batch, keys, at.width, seed=3).to(device, next(encoding.parameters(), leaves["q"]).dtype)
    features = encoding.features(x_BSW) if "features" in encoding.blanks else None
    out = attend(engine, encoding, *leaves.values(), encoding.locate(keys, torch.device(device)), features)
    leaves |= dict(encoding.named_parameters())
    upstream = draw(*out.shape, seed=20).to(device, dtype)
    grads = torch.autograd.grad(out, list(leaves.values()), upstream, allow_unused=True)
    return {
        name: x.detach().double().cpu()
        for name, x in zip(["output", *leaves], (out, *grads), strict=True)
        if x is not None
    }


def check_encoding(spec: str, size: tuple[int, int, int], width: int, dtype: torch.dtype, device: str) -> None:
    """The engine `triton` against the reference in float64, gradients included, for an encoding with two heads."""
    assert_as_exact(TRITON, make(spec, shape(size[2], heads=2, width=2 * width)), size, dtype, device)


def assert_as_exact(
    engine: Engine, encoding: Encoding, size: tuple[int, int, int], dtype: torch.dtype, device: str
) -> None:
    """An engine against the reference in float64: no further off than 16 times the reference in this dtype.

    The gradients of an encoding's parameters are compared as one: the bias of a gate sums what cancels, and how far it
    is off is a share of what it sums.
    """
    exact = encoded(ENGINES["reference"], encoding, size, torch.float64, "cpu")
    rounded = encoded(ENGINES["reference"], encoding, size, dtype, "cpu")
    found = encoded(engine, encoding, size, dtype, device)
    assert found.keys() == exact.keys()
    for results in (exact, rounded, found):
        if own := [results.pop(name).flatten() for name, _ in encoding.named_parameters() if name in results]:
            results["parameters"] = torch.cat(own)
    for name, x in exact.items():
        assert difference(found[name], x, rounded[name], least=64 * torch.finfo(dtype).eps) == "", name


@pytest.fixture(autouse=True)
def nothing_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test begins as a process does: nothing was tried, and nothing was said."""
    monkeypatch.setattr(selfcheck, "_faults", {})
    monkeypatch.setattr(console, "_warned", set())
    if CHILD:  # the engine is chosen on CPU, where the interpreter runs it, and inputs are small
        monkeypatch.setenv("POSCLI_NATIVE", "0")
        monkeypatch.setitem(ENGINES, "triton", replace(ENGINES["triton"], devices=("cpu", "cuda")))
        monkeypatch.setattr(selfcheck, "BATCH", 1)
        monkeypatch.setattr(selfcheck, "HEADS", 1)


def check_proven(spec: str, place: Place) -> None:
    """The kernels are proven on a device and run in training; evaluation needs no gradient and runs on torch's own."""
    encoding = make(spec, shape(heads=2, width=2 * place.width)).to(place.here)
    assert choose(encoding, place=place).name == "triton"
    assert choose(encoding, place=replace(place, gradient=False)).name != "triton"


def scaled(patch: pytest.MonkeyPatch) -> None:
    """The output is 1.001 times what it should be."""
    from poscli.attention import triton_kernels

    whole = triton_kernels.flash
    patch.setattr(triton_kernels, "flash", lambda *given: 1.001 * whole(*given))


def shifted(patch: pytest.MonkeyPatch) -> None:
    """The gradient of the table is that of the next distance."""
    from poscli.attention import triton_kernels

    whole = triton_kernels._by_distances
    patch.setattr(triton_kernels, "_by_distances", lambda *given: whole(*given).roll(1, -1))


def uncompiled(patch: pytest.MonkeyPatch) -> None:
    """The forward kernel does not compile."""
    from triton.runtime.errors import OutOfResources

    from poscli.attention import triton_kernels

    class Kernel:
        def __getitem__(self, grid: object) -> None:
            raise OutOfResources(300000, 232448, "shared memory")

    patch.setattr(triton_kernels, "query_kernel", Kernel())


INJECTED: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (scaled, r"the (output|gradient of \w+) differs by .* of its largest number, more than \d"),
    (shifted, r"the gradient of table differs by .* of its largest number, more than \d"),
    (uncompiled, r"it fails with OutOfResources: out of resource: shared memory, Required: 300000"),
]


def check_injected(
    inject: Callable[[pytest.MonkeyPatch], None], said: str, place: Place, patch: pytest.MonkeyPatch
) -> None:
    """A wrong kernel is switched off with its reason, said once, and the next engine is chosen."""
    inject(patch)
    encoding = make("t5", shape(heads=2, width=2 * place.width)).to(place.here)
    choice = choose(encoding, place=place)
    assert choose(encoding, place=place) == choice
    assert choice.name == "sdpa"
    device = re.escape(device_name(place.here))
    assert re.search(rf"not triton: kernels in \w+ for {place.width} channels on {device}: {said}", choice.reason)
    assert console._warned == {choice.said_of(encoding)}
    with pytest.raises(UsageError, match=rf"the engine triton cannot run t5: kernels in .*; {choice.name} can"):
        choose(encoding, "triton", place)
