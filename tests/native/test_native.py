"""The compiled kernels: the formula, the same bits on any number of threads, and machines that cannot have them."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from toys import make

from poscli.attention import Place, choose
from poscli.model.transformer import RMSNorm, gated
from poscli.native import Block, Relative, Term, Visible, attention, library, proof
from poscli.native import library as library_of
from poscli.native.layers import rms_norm, swiglu
from poscli.native.library import why_not
from poscli.system.memory import is_out_of_memory

UNIT = 2.0**-24
REAL = "" if (found := library()) is None else found._name  # the file of the kernels of this machine
needs_kernels = pytest.mark.skipif(library() is None, reason=f"no compiled kernels: {why_not()}")


def kernels() -> ctypes.CDLL:
    found = library()
    assert found is not None
    return found


def randoms(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=draw).requires_grad_() for shape in shapes]


def test_kernels_that_this_machine_compiles_are_right() -> None:
    """Without kernels the other tests of them are skipped, also if it is their own proof that refuses them."""
    assert "are wrong on this CPU" not in why_not()


@needs_kernels
def test_the_kernels_are_proven_and_the_proof_draws_nothing_from_the_global_generator() -> None:
    """Otherwise a process that compiles them would draw other numbers than one that finds them kept."""
    before = torch.get_rng_state()
    assert proof.disagreement(kernels()) == ""
    assert torch.equal(torch.get_rng_state(), before)


class Wrong:
    """The real library, but for one kernel, whose arguments are changed before the call."""

    def __init__(self, name: str, fault: Callable) -> None:
        self.name, self.fault = name, fault

    def __getattr__(self, name: str) -> Callable:
        real = getattr(kernels(), name)
        return (lambda *arguments: self.fault(real, *arguments)) if name == self.name else real


def shifted_scale(real: Callable, call: ctypes.Structure) -> bool:
    call._obj.scale *= 1.0001
    return real(call)


def one_key_less(real: Callable, call: ctypes.Structure) -> bool:
    call._obj.reach -= 1
    return real(call)


def another_table(real: Callable, call: ctypes.Structure) -> bool:
    call._obj.term[0].x += 4
    return real(call)


def another_gradient(real: Callable, call: ctypes.Structure) -> bool:
    call._obj.term[0].grad += 4
    return real(call)


def vectors_of_the_first_head(real: Callable, call: ctypes.Structure) -> bool:
    call._obj.a.head = 0
    return real(call)


@needs_kernels
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("attention_forward", shifted_scale),
        ("attention_forward", one_key_less),
        ("attention_forward", another_table),
        ("attention_backward", shifted_scale),
        ("attention_backward", another_gradient),
        ("attention_backward", vectors_of_the_first_head),
    ],
)
def test_a_wrong_kernel_is_found(name: str, fault: Callable) -> None:
    assert "differs" in proof.disagreement(Wrong(name, fault))  # type: ignore[arg-type]


def no_memory(real: Callable, call: ctypes.Structure) -> bool:
    return False


@needs_kernels
@pytest.mark.parametrize("name", ["attention_forward", "attention_backward"])
def test_lack_of_memory_is_an_error_that_says_so(name: str) -> None:
    with pytest.raises(MemoryError) as caught:
        proof.disagreement(Wrong(name, no_memory))  # type: ignore[arg-type]
    assert is_out_of_memory(caught.value)


STARVED = """
import resource, torch
from poscli.native import Block, attention, library

torch.set_num_threads(1)  # the stacks of threads that start later would need room, too
tokens, width = 1_000_000, 32
q, k, v = (torch.randn(1, 1, *shape) for shape in ((1, width), (tokens, width), (tokens, 1)))
whole = [Block(slice(0, 1), slice(0, tokens))]
run = lambda: attention(library(), (q.requires_grad_(), k, v), whole, scale=1.0)
if {backward}:
    out = run()
    run = out.sum().backward
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + int({copies} * k.nbytes)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
run()
"""


@needs_kernels
@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="Linux says how much a process has, and heeds a limit"
)
@pytest.mark.parametrize("backward", [False, True])
def test_kernels_that_find_too_little_memory_end_in_that_error(backward: bool) -> None:
    """They need copies of the keys, and there is room for half of one, beside the gradient that torch allocates."""
    code = STARVED.format(backward=backward, copies=0.5 + backward)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stderr.splitlines()[-1:] == ["MemoryError: the kernels of attention could not allocate memory"]


CASES = {  # batch, heads, queries, keys, width, width of values
    "one token": (1, 1, 1, 1, 4, 4),
    "one query": (2, 1, 1, 300, 16, 16),
    "odd sizes": (1, 3, 33, 161, 7, 13),
    "wide heads": (1, 1, 65, 129, 96, 160),
    "whole tiles": (1, 2, 256, 256, 16, 16),
}


@needs_kernels
@pytest.mark.parametrize("reach", [0, 1, 50])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_attention_equals_the_formula(case: tuple[int, ...], reach: int) -> None:
    batch, heads, queries, keys, width, values = case
    inputs = randoms((batch, queries, heads, width), (batch, keys, heads, width), (batch, keys, heads, values))
    upstream = torch.randn(batch, heads, queries, values)

    def run(attend: Callable, x: list[Tensor]) -> list[Tensor]:
        out = attend(*(each.transpose(1, 2) for each in x))
        return [out, *torch.autograd.grad(out, x, upstream.to(out.dtype))]

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        whole = [Block(slice(0, queries), slice(0, keys))]
        return attention(kernels(), (q, k, v), whole, scale=0.4, visible=Visible(reach=reach))

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        apart = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
        hidden = (apart < 0) | (apart >= reach if reach else apart < 0)
        return (0.4 * q @ k.mT).masked_fill(hidden, -math.inf).softmax(-1) @ v

    exact = run(formula, [x.detach().double().requires_grad_() for x in inputs])
    for found, wanted in zip(run(ours, inputs), exact, strict=True):
        # Scores of the order of 10, sums of up to 96 products, and sums over up to 300 keys. With one key seen, the
        # gradients of queries and keys are differences of equal numbers of the order of 1 to 10.
        assert float((found - wanted).detach().abs().max()) <= 256 * UNIT * max(1.0, float(wanted.detach().abs().max()))


@needs_kernels
@torch.no_grad()
def test_far_distances_that_are_all_equal_may_be_told() -> None:
    """Of 299 distances the 250 largest share one entry, as where a paper clips the distance."""
    q, k, v = randoms((1, 2, 300, 8), (1, 2, 300, 8), (1, 2, 300, 8))
    table, a, b, c = randoms((1, 2, 1, 599), (2, 599, 8), (1, 599, 8), (2, 599, 8), seed=1)
    table[..., :250] = table[..., :1]
    for vectors in (a, b, c):
        vectors[:, :250] = vectors[:, :1]

    def run(constant: int) -> Tensor:
        whole = [Block(slice(0, 300), slice(0, 300), (Term(table, skewed=True),), None, constant)]
        return attention(kernels(), (q, k, v), whole, scale=0.3, vectors=(Relative(a, q), Relative(b, k), Relative(c)))

    exact = run(0)
    assert float((run(250) - exact).abs().max()) <= 64 * UNIT * float(exact.abs().max())
    assert float((run(290) - exact).abs().max()) > 0.01  # more than are equal


@needs_kernels
def test_blocks_of_queries_with_terms_of_their_own_are_one_call() -> None:
    q, k, v, pairs = randoms((1, 2, 90, 8), (1, 2, 100, 8), (1, 2, 100, 8), (1, 2, 90, 100))
    upstream = torch.randn(1, 2, 90, 8)

    def run(blocks: list[Block]) -> list[Tensor]:
        out = attention(kernels(), (q, k, v), blocks, scale=1.0)
        return [out, *torch.autograd.grad(out, [q, k, v, pairs], upstream)]

    def block(start: int, stop: int) -> Block:
        return Block(slice(start, stop), slice(0, stop + 10), (Term(pairs[:, :, start:stop, : stop + 10].flip(2)),))

    for one, other in zip(run([block(0, 90)]), run([block(0, 40), block(40, 90)]), strict=True):
        assert float((one - other).detach().abs().max()) <= 64 * UNIT * float(one.detach().abs().max())


@needs_kernels
def test_results_have_the_same_bits_on_any_number_of_threads() -> None:
    q, k, v, table, a = randoms((3, 2, 200, 16), (3, 2, 200, 16), (3, 2, 200, 16), (1, 2, 1, 399), (1, 399, 16))
    x, weight = randoms((7, 33, 20), (20,))

    def run(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        whole = [Block(slice(0, 200), slice(0, 200), (Term(table, skewed=True),))]
        vectors = (Relative(a, q), None, None)
        out = attention(kernels(), (q, k, v), whole, scale=0.25, vectors=vectors)
        normed = rms_norm(kernels(), x, weight, 1e-6)
        grads = torch.autograd.grad(out.square().sum() + normed.square().sum(), [q, k, v, table, a, x, weight])
        return [out, normed, *grads]

    try:
        one, three = run(1), run(3)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(x, y) for x, y in zip(one, three, strict=True))


@needs_kernels
def test_far_keys_without_weight_are_skipped_and_a_nan_among_them_is_not() -> None:
    q, k, v = (x.detach() for x in randoms((1, 1, 400, 8), (1, 1, 400, 8), (1, 1, 400, 8)))
    steep = -2.0 * torch.arange(399, -400, -1).clamp(min=0).float()[None, None, None]
    whole = [Block(slice(0, 400), slice(0, 400), (Term(steep, skewed=True),))]
    entry = 399 - (torch.arange(400)[:, None] - torch.arange(400))
    hidden = torch.ones(400, 400, dtype=torch.bool).triu(1)
    exact = (q.double() @ k.double().mT + steep[0, 0, 0][entry]).masked_fill(hidden, -math.inf).softmax(-1) @ v.double()
    found = attention(kernels(), (q, k, v), whole, scale=1.0)
    assert float((found - exact).abs().max()) <= 64 * UNIT * float(exact.abs().max())
    k[0, 0, 0] = math.nan
    assert attention(kernels(), (q, k, v), whole, scale=1.0).isnan().all()


@needs_kernels
@pytest.mark.parametrize("same", [False, True])  # with True, all rows of the gradient are one row in memory
@pytest.mark.parametrize("shape", [(1, 1), (3, 37), (2, 70, 64)])
def test_layers_equal_their_formulas(shape: tuple[int, ...], same: bool) -> None:
    x, up, weight = randoms(shape, shape, shape[-1:])
    x = (30 * x).detach().requires_grad_()
    upstream = torch.randn(shape[-1:] if same else shape).expand(shape)
    pairs = [
        (lambda x, up, _: swiglu(kernels(), x, up), lambda x, up, _: F.silu(x) * up, [x, up, None]),
        (
            lambda x, _, w: rms_norm(kernels(), x, w, 1e-6),
            lambda x, _, w: F.rms_norm(x, w.shape, w, 1e-6),
            [x, None, weight],
        ),
    ]
    for ours, torchs, inputs in pairs:
        exact = [None if each is None else each.detach().double().requires_grad_() for each in inputs]
        found = run_with_gradients(ours, inputs, upstream)
        for one, other in zip(found, run_with_gradients(torchs, exact, upstream.double()), strict=True):
            assert float((one - other).abs().max()) <= 32 * UNIT * max(0.1, float(other.abs().max()))


def run_with_gradients(of: Callable, inputs: list, upstream: Tensor) -> list[Tensor]:
    out = of(*inputs)
    grads = torch.autograd.grad(out, [x for x in inputs if x is not None], upstream)
    return [x.detach() for x in (out, *grads)]


@needs_kernels
def test_the_model_uses_them_for_float32_alone() -> None:
    norm = RMSNorm(8)
    assert "Norm" in str(norm(torch.ones(2, 8)).grad_fn)
    assert "_Norm" in str(norm(torch.ones(2, 8)).grad_fn)
    assert "_Norm" not in str(norm.double()(torch.ones(2, 8, dtype=torch.float64)).grad_fn)
    half = torch.ones(2, 8, dtype=torch.bfloat16, requires_grad=True)
    assert torch.equal(gated(half, half), F.silu(half) * half)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder without kernels, and a process that has not loaded any."""
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("POSCLI_NATIVE", raising=False)
    # The kernels that this process has loaded come back afterwards: whoever had to load them again would say so.
    monkeypatch.setitem(library_of.__globals__, "_loaded", cache(library_of.__globals__["_loaded"].__wrapped__))
    return tmp_path / "native"


def fake_compiler(folder: Path, script: str) -> str:
    path = folder / "c++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def copying_compiler(folder: Path) -> str:
    """A compiler that needs no time: it copies the kernels of this machine to where they are asked for."""
    if not Path(REAL).exists():
        pytest.skip("the kernels of this process are not kept")
    return fake_compiler(folder, f'while [ "$1" != -o ]; do shift; done; cp "{REAL}" "$2"')


def assert_torch_takes_over(reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert library() is None
    assert reason in why_not()
    choice = choose(make("alibi"))
    assert choice.name == "sdpa"
    assert reason in choice.reason
    assert reason in " ".join(capsys.readouterr().err.split())
    norm = RMSNorm(8)
    assert torch.equal(norm(torch.ones(2, 8)), F.rms_norm(torch.ones(2, 8), (8,), norm.weight, 1e-6))


def test_without_a_compiler_torch_takes_over(fresh, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PATH", str(fresh))
    assert_torch_takes_over("no C++ compiler (c++, g++, clang++) is found", capsys)


def test_a_compiler_that_is_asked_for_must_exist(fresh, monkeypatch, capsys) -> None:
    monkeypatch.setenv("CXX", "c+++")
    assert_torch_takes_over("CXX=c+++ is not found", capsys)


def test_a_compiler_that_fails_is_quoted(fresh, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv(
        "CXX", fake_compiler(tmp_path, "printf 'In x.cpp:\\nx.cpp:1: error: no such thing\\n' >&2; exit 1")
    )
    assert_torch_takes_over("cannot compile them: x.cpp:1: error: no such thing", capsys)


def test_what_is_no_library_is_not_loaded(fresh, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, 'while [ "$1" != -o ]; do shift; done; echo no > "$2"'))
    assert_torch_takes_over("the compiled kernels cannot be loaded", capsys)
    assert not list(fresh.glob("*"))


@needs_kernels
def test_kernels_that_are_wrong_are_not_used(fresh, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("CXX", copying_compiler(tmp_path))
    monkeypatch.setitem(library_of.__globals__, "disagreement", lambda _: "the output differs by 1.0")
    assert_torch_takes_over("wrong on this CPU: the output differs by 1.0", capsys)
    assert not list(fresh.glob("*"))


def test_they_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSCLI_NATIVE", "0")
    assert choose(make("none")).name == "sdpa"
    assert choose(make("none")).reason == "not native: POSCLI_NATIVE=0 switches compiled kernels off"
    assert choose(make("none"), place=Place(gradient=False)).name == "tiles"


@needs_kernels
def test_kernels_are_compiled_once_and_damaged_ones_again(fresh, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("CXX", copying_compiler(tmp_path))
    assert library() is not None
    assert "compiling kernels for this CPU, once" in capsys.readouterr().err
    (kept,) = fresh.iterdir()
    whole = kept.read_bytes()
    library_of.__globals__["_loaded"].cache_clear()
    assert library() is not None
    assert capsys.readouterr().err == ""
    kept.unlink()  # the loaded file stays as it is
    kept.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    library_of.__globals__["_loaded"].cache_clear()
    assert library() is not None
    assert "is damaged: its kernels are compiled again" in " ".join(capsys.readouterr().err.split())
    assert [path.read_bytes() for path in fresh.iterdir()] == [whole]


@needs_kernels
def test_kernels_that_another_user_could_have_written_are_not_run(fresh, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("CXX", copying_compiler(tmp_path))
    assert library() is not None
    (kept,) = fresh.iterdir()
    kept.chmod(0o777)
    capsys.readouterr()
    library_of.__globals__["_loaded"].cache_clear()
    assert library() is not None
    assert "could have been written by another user" in " ".join(capsys.readouterr().err.split())
    (again,) = fresh.iterdir()
    assert again.stat().st_mode & 0o777 == 0o755


@needs_kernels
def test_a_folder_that_cannot_be_written_costs_a_compilation_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    code = "from poscli.native import library, why_not; print(library() is not None, why_not())"
    environment = os.environ | {"POSCLI_CACHE": str(tmp_path / "cache"), "CXX": copying_compiler(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["True"]
    assert "cannot be kept" in " ".join(done.stderr.split())
