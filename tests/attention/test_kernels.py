"""The Triton kernels on CPU: run by Triton's interpreter, and compiled for a GPU that need not be present.

Triton decides whether to interpret kernels when it is first imported, and other tests of this process import it. So
these tests run in a child process with TRITON_INTERPRET=1. The child runs this file too: classes with
`__test__ = CHILD` are tests in the child only.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kernel_checks import FLEX, SPECS, TRITON, Case, check, check_encoding
from torch import Tensor
from toys import draw, first, make, shape

from poscli.attention import ENGINES, Place, attend
from poscli.encodings.rope import RoPE

CHILD = os.environ.get("POSCLI_KERNELS_CHILD") == "1"
INTERPRETED = "TestFlash or TestEngine or TestDecode or TestRotary"


class TestParent:
    __test__ = not CHILD

    @pytest.mark.parametrize(
        ("tests", "marked"),
        [
            (INTERPRETED, "not wide"),
            pytest.param("TestFlash", "wide", marks=pytest.mark.wide),
            pytest.param(INTERPRETED.replace("TestFlash or ", ""), "wide", marks=pytest.mark.wide),
        ],
    )
    def test_kernels_under_the_interpreter(self, tests: str, marked: str) -> None:
        in_child(tests, "1", marked)

    @pytest.mark.slow
    def test_kernels_compile_for_a_gpu(self) -> None:
        in_child("TestCompiled", "0")

    def test_engines_import_no_triton(self) -> None:
        code = "import sys, poscli.attention.triton, poscli.attention.flex; sys.exit('triton' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def in_child(tests: str, interpret: str, marked: str = "") -> None:
    """Run the tests of this file whose names and marks match two expressions in a child process."""
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", marked, "-k", tests]
    env = os.environ | {"TRITON_INTERPRET": interpret, "POSCLI_KERNELS_CHILD": "1"}
    env = {name: value for name, value in env.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([*command, __file__], env=env, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr


class TestRefusals:
    """The reasons why engines refuse a place or an encoding."""

    __test__ = not CHILD

    @pytest.mark.parametrize(
        ("place", "reason"),
        [
            (Place("cpu", torch.float32, 64), "runs on CUDA devices, this is cpu"),
            (Place("cuda", torch.float64, 64), "takes float32, bfloat16 and float16, not float64"),
            (Place("cuda", torch.float32, 8), "takes heads of 16 to 128 numbers, not 8"),
            (Place("cuda", torch.float32, 144), "takes heads of 16 to 128 numbers, not 144"),
            (Place("cuda", torch.bfloat16, 128), ""),
        ],
    )
    def test_places(self, place: Place, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        assert TRITON.refuses(make("alibi"), place) == reason

    def test_without_triton(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("poscli.attention.selfcheck.find_spec", lambda _: None)
        assert TRITON.refuses(make("alibi"), Place("cuda", width=64)) == "triton is not installed"

    @pytest.mark.parametrize(
        ("spec", "reason"),
        [
            ("rope", "there is nothing to add to the scores, and torch's own kernel is as fast then"),
            ("none", "there is nothing to add to the scores, and torch's own kernel is as fast then"),
            ("cope", "needs whole rows of scores (scores)"),
            ("shaw", "needs whole rows of scores (relative_values)"),
            ("toys:Paced", "the bias of a pair is no function of its distance"),
            ("alibi+ssmax", "a temperature multiplies what is added to the scores"),
            ("toys:Squares", "distances may be uneven"),
            ("sink(2)+window(5)+alibi", "the first tokens stay visible beyond the reach (sinks)"),
            ("rope+logn(5)+window(9)", ""),
            *((spec, "") for spec in SPECS),
        ],
    )
    def test_encodings(self, spec: str, reason: str) -> None:
        assert TRITON.refuses(make(spec), Place("cuda", torch.bfloat16, 64)) == reason

    def test_flex(self) -> None:
        here, there = Place("cpu", width=64, gradient=False), Place("cuda", width=64)
        assert FLEX.refuses(make("t5"), here) == FLEX.refuses(make("t5"), there) == ""
        assert FLEX.refuses(make("t5"), Place("cpu", width=64)) == "has no backward pass on CPU"
        assert FLEX.refuses(make("t5"), Place("mps", width=64)).endswith("this is mps")
        assert FLEX.refuses(make("t5"), Place("cuda", width=8)).endswith("not 8")
        assert "(relative_keys)" in FLEX.refuses(make("transformer-xl"), there)
        assert "temperature" in FLEX.refuses(make("alibi+ssmax"), there)


class TestFlex:
    __test__ = not CHILD

    @pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # on CPU it is not compiled
    @pytest.mark.parametrize("queries", [1, 21, 37])
    @pytest.mark.parametrize("spec", [s for s in SPECS if not FLEX.refuses(make(s), Place(gradient=False))])
    @torch.no_grad()
    def test_flex_equals_the_reference(self, spec: str, queries: int) -> None:
        encoding = make(spec, shape(37, heads=2, width=32))
        q, k, v = (draw(2, 2, t, 16, seed=n) for n, t in enumerate((queries, 37, 37)))
        features = encoding.features(draw(2, 37, 32, seed=3))
        positions = encoding.locate(37, torch.device("cpu"))
        expected, found = (attend(e, encoding, q, k, v, positions, features) for e in (ENGINES["reference"], FLEX))
        # Errors of a few units of float32 in scores of the order of 10 change the weights by as much.
        torch.testing.assert_close(found, expected, rtol=0, atol=64 * 2**-23 * float(v.abs().max()))


FLASH = [
    *(Case(terms, batch=1, heads=2) for terms in ("t", "W")),
    Case("tabp", batch=1, heads=1, queries=1, keys=1),
    Case("tabpw", batch=1, heads=2, queries=33, keys=64, width=24, values=16, met=40, shared=True, more=16),
    Case("tabp", batch=1, queries=1, keys=5, width=24, values=24),
    *(Case(terms, batch=1, heads=2) for terms in ("", "a", "b", "p", "w")),
    *(Case(terms) for terms in ("tab", "tw", "tW", "abW", "tp")),
    Case("t", batch=1, queries=64, keys=64),  # a whole number of tiles
]
NARROW = [
    (Case("t", 1, 1, 40, 40, 256, 128), torch.float16),  # PoPE and TUPE widen queries and keys
    (Case("tp", 1, 2, 70, 70, 128, 128), torch.bfloat16),
    (Case("tW", queries=130, keys=150, width=24), torch.bfloat16),
    (Case("tab", 1, 1, 130, 150, 64, 64, 64), torch.float16),
    (Case("tab", 1, 1, 70, 90, 128, 128, 128), torch.bfloat16),
    (Case("t", 3, 1, 257, 257, 16, 16), torch.bfloat16),
]


class TestFlash:
    __test__ = CHILD

    @pytest.mark.parametrize("case", first(4, FLASH), ids=str)
    def test_float32(self, case: Case) -> None:
        from poscli.attention.kernels.flash import flash

        check(flash, case, torch.float32, "cpu")

    @pytest.mark.parametrize(("case", "dtype"), first(1, NARROW), ids=str)
    def test_narrow(self, case: Case, dtype: torch.dtype) -> None:
        from poscli.attention.kernels.flash import flash

        check(flash, case, dtype, "cpu")

    def test_any_strides_give_equal_results(self) -> None:
        """The heads of a token may be contiguous, and a gradient may be one expanded number."""
        from poscli.attention.kernels.flash import flash

        q, k, v = (draw(2, 19, 2, 16, seed=n).transpose(1, 2).requires_grad_() for n in range(3))
        out = flash(q, k, v, scale=0.25)
        again = flash(*(x.contiguous() for x in (q, k, v)), scale=0.25)
        assert torch.equal(out, again)
        for one, other in zip(*(torch.autograd.grad(o.sum(), (q, k, v)) for o in (out, again)), strict=True):
            assert torch.equal(one, other)

    @pytest.mark.parametrize("heads", [False, True], ids=["one reach", "a reach per head"])
    def test_tiles_out_of_reach_are_skipped(self, heads: bool) -> None:
        """Tiles beyond the reach are not read: a weight of 0 would turn a NaN into NaN.

        The queries are tokens 64 to 127. The first of them sees tokens from 32 on, and tiles have 32 keys.
        """
        from poscli.attention.kernels.flash import flash

        reach = torch.tensor([33], dtype=torch.int32) if heads else 33
        q, k, v = (draw(1, 1, t, 16, seed=n) for n, t in enumerate((64, 128, 128)))
        k[:, :, :32], v[:, :, :32] = torch.nan, torch.nan
        q, k, v, table = (x.requires_grad_() for x in (q, k, v, draw(1, 128, seed=5)))
        out = flash(q, k, v, table=table, scale=0.25, reach=reach)
        assert out.isfinite().all()
        assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v, table)))

    @pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from the queries that do see NaN
    def test_tiles_in_the_future_are_skipped(self) -> None:
        from poscli.attention.kernels.flash import flash

        q, k, v = (draw(1, 1, 128, 16, seed=n) for n in range(3))
        k[:, :, 96:], v[:, :, 96:] = torch.nan, torch.nan
        assert flash(q, k, v, table=draw(1, 128, seed=5), scale=0.25)[:, :, :96].isfinite().all()


COMPILED = [
    *((Case(terms, 1, 2, 100, 100, 64, 64, 64), torch.bfloat16) for terms in ("", "t", "ab", "tabpW")),
    *((Case(terms, 1, 2, 100, 100, 128, 128, 128), torch.float16) for terms in ("tp", "tab")),
    *((Case(terms, 1, 2, 100, 100, 256, 128, 256), torch.bfloat16) for terms in ("t", "tab")),
    (Case("tab", 1, 2, 100, 100, 384, 128, 384), torch.bfloat16),
    (Case("t", 1, 2, 100, 100, 24, 16), torch.float32),
    (Case("tabpw", 1, 1, 1, 1, 64, 64, 64), torch.bfloat16),
    (Case("tpW", 1, 1, 1, 50, 64, 64, 64), torch.bfloat16),
    (Case("", 1, 1, 1, 1), torch.bfloat16),
    (Case("t", 1, 2, 100, 100, 128, 128), torch.float32),
]
DECODE = [
    Case("", queries=1, keys=1),
    Case("tabp", queries=1, keys=1100, width=24, values=16, batch=1),
    Case("tw", queries=1, keys=1100, batch=1),
    Case("W", queries=1, keys=70),
]


class TestDecode:
    __test__ = CHILD

    @pytest.mark.parametrize("case", DECODE, ids=str)
    def test_float32(self, case: Case) -> None:
        from poscli.attention.kernels.decode import decode

        check(decode, case, torch.float32, "cpu", gradient=False)

    def test_bfloat16(self) -> None:
        from poscli.attention.kernels.decode import decode

        case = Case("tp", 1, 2, 1, 600, 64, 64)
        check(decode, case, torch.bfloat16, "cpu", gradient=False)


def check_rotation(rope: RoPE, dtype: torch.dtype, device: str) -> None:
    """The kernel, which rounds once, and its gradient against the rotation of the encoding in float64."""
    from poscli.attention.kernels.rotary import rotate

    x = draw(2, 37, 3, rope.shape.head_width).transpose(1, 2).to(dtype)
    angle = rope.angles(torch.arange(1000, 1037))
    g = draw(*x.shape, seed=1).to(dtype)

    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return y.detach().double().cpu(), torch.autograd.grad(y, x, g.to(y))[0].double().cpu()

    exact, here = x.double().requires_grad_(), x.to(device).requires_grad_()
    expected = both(exact, rope.rotate(exact, angle, 1.5))
    cos, sin = ((1.5 * f).float().to(device) for f in (angle.cos(), angle.sin()))
    for found, right in zip(both(here, rotate(here, cos, sin, rope.layout)), expected, strict=True):
        # Two products in float32 and the rounding of the result: less than two units of the largest number.
        limit = 2 * torch.finfo(dtype).eps * float(right.abs().max())
        torch.testing.assert_close(found, right, rtol=0, atol=limit)


# Tables, a potential, and vectors that queries meet.
FEW = ["alibi", "fox", "shaw(clip=4, values=false)"]
ENGINE = first(len(FEW), [*FEW, *(spec for spec in SPECS if spec not in FEW)])
ROPES = ["rope", "rope(layout=interleaved)", "rope(fraction=0.5)", "rope(layout=interleaved, fraction=0.25)"]


class TestRotary:
    __test__ = CHILD

    @pytest.mark.parametrize("dtype", first(2, [torch.float32, torch.bfloat16, torch.float16]), ids=str)
    @pytest.mark.parametrize("spec", ROPES)
    def test_the_rotation_kernel_equals_the_encoding(self, spec: str, dtype: torch.dtype) -> None:
        rope = make(spec, shape(heads=3, width=72))
        assert isinstance(rope, RoPE)
        check_rotation(rope, dtype, "cpu")


class TestEngine:
    __test__ = CHILD

    @pytest.mark.parametrize("spec", ENGINE)
    def test_the_engine_equals_the_reference(self, spec: str) -> None:
        assert TRITON.refuses(make(spec), Place("cpu", width=16)) == ""
        check_encoding(spec, (2, 21, 37), 16, torch.float32, "cpu")

    @pytest.mark.parametrize("spec", first(1, ["fox", "t5", "deberta"]))
    def test_in_bfloat16(self, spec: str) -> None:
        check_encoding(spec, (1, 37, 37), 16, torch.bfloat16, "cpu")

    @pytest.mark.parametrize("spec", ENGINE)
    @torch.no_grad()
    def test_one_token_at_a_time(self, spec: str) -> None:
        encoding = make(spec, shape(37, heads=2, width=32))
        q, k, v = (draw(2, 2, t, 16, seed=n) for n, t in enumerate((1, 37, 37)))
        features = encoding.features(draw(2, 37, 32, seed=3))
        positions = encoding.locate(37, torch.device("cpu"))
        expected, found = (attend(e, encoding, q, k, v, positions, features) for e in (ENGINES["reference"], TRITON))
        torch.testing.assert_close(found, expected, rtol=0, atol=64 * 2**-23 * float(v.abs().max()))


class TestCompiled:
    """Types, layouts and shared memory, which the interpreter does not check."""

    __test__ = CHILD

    @pytest.mark.parametrize(("case", "dtype"), COMPILED, ids=str)
    def test_for_a_hopper_chip(self, case: Case, dtype: torch.dtype) -> None:
        from poscli.attention.kernels.flash import flash

        needed = compiled_kernels(lambda: check(flash, case, dtype, "cpu"))
        assert len(needed) == 4 + bool({*"tab"} & {*case.terms})
        assert max(needed.values()) <= 227 * 1024, needed

    def test_decode_and_rotary(self) -> None:
        from poscli.attention.kernels.decode import decode

        case, rope = Case("tabpw", queries=1, keys=600, width=24), make("rope(fraction=0.5)", shape(heads=3, width=72))
        assert isinstance(rope, RoPE)
        for each in (case, Case("tabpw", 1, 1, 1, 1)):
            assert (
                len(compiled_kernels(lambda each=each: check(decode, each, torch.bfloat16, "cpu", gradient=False))) == 2
            )
        assert len(compiled_kernels(lambda: check_rotation(rope, torch.float16, "cpu"))) == 2


def compiled_kernels(run: Callable[[], None]) -> dict[str, int]:
    """Bytes of shared memory of every kernel that a function launches; kernels are compiled for sm_90, not run."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile
    from triton.runtime.jit import JITFunction

    needed: dict[str, int] = {}

    def launch(self: JITFunction, *args: object, grid: object, warmup: bool, **kwargs: object) -> None:
        named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        options = {name: named.pop(name) for name in ("num_warps", "num_stages") if name in named}
        special = {p.name for p in self.params if p.is_constexpr}
        special |= {name for name, x in named.items() if type(x) is int and x == 1}  # specialised, as at a launch
        constants = {name: named[name] for name in self.arg_names if name in special}
        signature = {name: "constexpr" if name in constants else kind(named[name]) for name in self.arg_names}
        aligned = {
            (n,): [["tt.divisibility", 16]]
            for n, name in enumerate(self.arg_names)
            if isinstance(x := named[name], Tensor) or (type(x) is int and name not in constants and x % 16 == 0)
        }
        source = ASTSource(fn=self, signature=signature, constexprs=constants, attrs=aligned)
        kernel = compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        key = f"{self.__name__} {sorted(constants.items())}"
        needed[key] = kernel.metadata.shared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", launch)
        with contextlib.suppress(AssertionError):  # no kernel ran, so the comparison fails
            run()
    return needed


def kind(x: object) -> str:
    """The type of a kernel's argument as triton spells it."""
    if isinstance(x, Tensor):
        names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int32: "i32"}
        return f"*{names[x.dtype]}"
    return "fp32" if isinstance(x, float) else "i32"
