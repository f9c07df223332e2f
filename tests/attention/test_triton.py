"""The Triton kernels on CPU: run by Triton's interpreter, tried and switched off, and compiled for an absent GPU.

Triton decides whether to interpret kernels when it is first imported, and other tests of this process import it. So the
kernels run in a child process with TRITON_INTERPRET=1, which runs this file too: classes with `__test__ = CHILD` are
tests in the child only. tests/gpu runs the same checks on a device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from cli_runner import NANO, cli, run_of
from flash_checks import (
    CHILD,
    INJECTED,
    LEARNED,
    NARROW,
    SIZES,
    check_encoding,
    check_flash,
    check_injected,
    check_proven,
    nothing_tried,  # noqa: F401 - a fixture
    scaled,
)
from torch import Tensor
from toys import draw, first

from poscli.attention import Place, selfcheck
from poscli.attention.selfcheck import Variant
from poscli.cli.commands.doctor import tried

CPU = torch.device("cpu")
HERE = Place("cpu", torch.float32, 16, here=CPU)


def in_child(tests: str, interpret: str, folder: Path, marks: str = "not wide") -> None:
    """Run the tests of this file whose names and marks match expressions in a child process."""
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", marks, "-k", tests]
    command += ["--basetemp", str(folder / "child")]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"TRITON_INTERPRET": interpret, "POSCLI_TRITON_CHILD": "1"}
    done = subprocess.run([*command, __file__], env=env, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
class TestParent:
    __test__ = not CHILD

    def test_kernels_under_the_interpreter(self, tmp_path: Path) -> None:
        in_child("TestKernels or TestTrials", "1", tmp_path)

    @pytest.mark.wide
    def test_kernels_under_the_interpreter_in_further_cases(self, tmp_path: Path) -> None:
        in_child("TestKernels", "1", tmp_path, "wide")

    @pytest.mark.slow
    def test_kernels_compile_for_a_gpu(self, tmp_path: Path) -> None:
        in_child("TestCompiled", "0", tmp_path)

    def test_engines_import_no_triton(self) -> None:
        code = "import sys, poscli.attention.triton, poscli.attention.flex; sys.exit('triton' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code]).returncode == 0


class TestKernels:
    __test__ = CHILD

    @pytest.mark.parametrize("size", first(5, [(size,) for size in SIZES]), ids=str)
    def test_kernels_equal_the_formula(self, size: tuple[int, ...]) -> None:
        check_flash(size, torch.float32, "cpu")

    @pytest.mark.parametrize(("size", "dtype"), first(2, NARROW), ids=str)
    def test_kernels_in_narrow_formats_equal_the_formula(self, size: tuple[int, ...], dtype: torch.dtype) -> None:
        check_flash(size, dtype, "cpu")

    @pytest.mark.parametrize("spec", first(2, LEARNED))
    def test_the_engine_equals_the_reference(self, spec: str) -> None:
        check_encoding(spec, (2, 21, 37), 16, torch.float32, "cpu")

    @pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from the queries that do see NaN
    def test_tiles_in_the_future_are_skipped(self) -> None:
        """They are not read: a weight of 0 would turn a NaN into NaN."""
        from poscli.attention.triton_kernels import flash

        q, k, v = (draw(1, 1, 128, 16, seed=n) for n in range(3))
        k[:, :, 96:], v[:, :, 96:] = torch.nan, torch.nan
        assert flash(q, k, v, draw(1, 128, seed=5), 0.25)[:, :, :96].isfinite().all()


class TestTrials:
    """Trials of the kernels on CPU."""

    __test__ = CHILD

    def test_a_proven_engine_is_chosen(self) -> None:
        check_proven("t5", HERE)

    @pytest.mark.parametrize("variant", [Variant(torch.bfloat16, 24, 16), Variant(torch.float16, 64, 64)], ids=str)
    def test_the_kernels_are_proven(self, variant: Variant) -> None:
        assert selfcheck.trial_fault(variant, CPU) == ""

    @pytest.mark.parametrize(("inject", "said"), INJECTED, ids=lambda x: getattr(x, "__name__", ""))
    def test_a_wrong_kernel_is_switched_off(
        self, inject: Callable[[pytest.MonkeyPatch], None], said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        check_injected(inject, said, HERE, monkeypatch)

    def test_results_say_it(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        scaled(monkeypatch)
        trained = cli("train", "--enc", "t5", *NANO, "--out", tmp_path)
        assert trained.err.count("; not triton: kernels in float32 for ") == 1
        env = json.loads((run_of(tmp_path, "t5").folder / "env.json").read_text())
        assert env["engine"] == "sdpa"
        assert "not triton: kernels in float32 for 16 channels on " in env["engine_reason"]


class Stub:
    """A variant whose trial ends as it is told, and that counts how often it is tried."""

    def __init__(self, end: str | BaseException = "") -> None:
        self.end, self.count = end, 0

    def __str__(self) -> str:
        return "a stub"

    def fault(self, device: torch.device) -> str:
        self.count += 1
        if isinstance(self.end, BaseException):
            raise self.end
        return self.end


class TestVerdicts:
    """What becomes of the end of a trial; no kernel runs."""

    __test__ = not CHILD

    @pytest.mark.parametrize(
        ("end", "said"),
        [
            ("", ""),
            ("the output is off", "a stub on cpu: the output is off"),
            (RuntimeError("no\nlaunch"), "a stub on cpu: it fails with RuntimeError: no launch"),
            (FileNotFoundError("gcc"), "a stub on cpu: it fails with FileNotFoundError: gcc"),
            (TypeError("x" * 400), f"a stub on cpu: it fails with TypeError: {'x' * 185} ..."),
        ],
        ids=lambda x: repr(x)[:30],
    )
    def test_a_trial_is_made_once(self, end: str | BaseException, said: str) -> None:
        stub = Stub(end)
        assert [selfcheck.trial_fault(stub, CPU) for _ in range(2)] == [said, said]
        assert stub.count == 1

    @pytest.mark.parametrize(
        ("end", "raised"),
        [
            (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError),
            (RuntimeError("Triton Error [CUDA]: out of memory"), torch.OutOfMemoryError),
            (KeyboardInterrupt(), KeyboardInterrupt),
            (ZeroDivisionError(), ZeroDivisionError),
        ],
        ids=repr,
    )
    def test_other_errors_say_nothing_of_a_kernel(self, end: BaseException, raised: type[BaseException]) -> None:
        stub = Stub(end)
        with pytest.raises(raised):
            selfcheck.trial_fault(stub, CPU)
        stub.end = ""
        assert selfcheck.trial_fault(stub, CPU) == ""

    def test_a_device_that_nothing_runs_on_any_more_ends_the_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def ones(*size: int, device: torch.device) -> None:
            raise RuntimeError("an illegal memory access was encountered")

        monkeypatch.setattr(torch, "ones", ones)
        with pytest.raises(selfcheck.BrokenDevice, match=r"a stub broke cpu .* set POSCLI_TRITON=0 in the environment"):
            selfcheck.trial_fault(Stub(RuntimeError("an illegal memory access was encountered")), CPU)

    def test_doctor_says_what_was_found(self) -> None:
        stubs = [Stub(), Stub("the output is off"), Stub(torch.OutOfMemoryError("CUDA out of memory"))]
        assert list(tried(stubs, CPU)) == [
            {"check": "triton kernel 1", "state": "ok", "detail": "a stub: proven, it equals the formula"},
            {"check": "triton kernel 2", "state": "off", "detail": "a stub on cpu: the output is off"},
            {"check": "triton kernel 3", "state": "untried", "detail": "a stub: the device has no memory left"},
        ]
        stubs = [Stub(selfcheck.BrokenDevice("broken")), Stub()]
        (check,) = tried(stubs, CPU)
        assert (check["state"], check["detail"], stubs[1].count) == ("broken", "broken", 0)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
    def test_doctor_says_why_nothing_was_tried(self) -> None:
        checks = {check["check"]: check for check in cli("doctor", "--json").json}
        detail = "none was tried: they run on CUDA devices, and torch finds none"
        assert checks["triton kernels"] == {"check": "triton kernels", "state": "missing", "detail": detail}


class TestCompiled:
    """Types, layouts and shared memory, which the interpreter does not check."""

    __test__ = CHILD

    @pytest.mark.parametrize(
        ("width", "values", "dtype"),
        [
            (64, 64, torch.bfloat16),
            (128, 128, torch.float16),
            (256, 128, torch.bfloat16),
            (384, 128, torch.bfloat16),
            (24, 16, torch.float32),
            (128, 128, torch.float32),
        ],
    )
    def test_for_a_hopper_chip(self, width: int, values: int, dtype: torch.dtype) -> None:
        needed = compiled_kernels(lambda: check_flash((1, 2, 100, 100, width, values), dtype, "cpu"))
        assert len(needed) == 4  # forward, and backward by queries, by keys and by distances
        assert max(needed.values()) <= 227 * 1024, needed


def compiled_kernels(run: Callable[[], None]) -> dict[str, int]:
    """Bytes of shared memory of every kernel that a function launches; kernels are compiled for sm_90, not run."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile
    from triton.runtime.jit import JITFunction

    needed: dict[str, int] = {}

    def launch(self: JITFunction, *given: object, grid: object, warmup: bool, **kwargs: object) -> None:
        named = {**dict(zip(self.arg_names, given, strict=False)), **kwargs}
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
        needed[f"{self.__name__} {sorted(constants.items())}"] = kernel.metadata.shared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", launch)
        with pytest.raises(AssertionError):  # no kernel ran, so the comparison fails
            run()
    return needed


def kind(x: object) -> str:
    """The type of a kernel's argument as triton spells it."""
    if isinstance(x, Tensor):
        names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int32: "i32"}
        return f"*{names[x.dtype]}"
    return "fp32" if isinstance(x, float) else "i32"
