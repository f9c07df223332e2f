"""Trials of the Triton kernels: what is wrong on a device is switched off, named, and replaced by the next engine.

Kernels run on CPU by Triton's interpreter, in a child process, as in test_kernels.py: classes with `__test__ = CHILD`
are tests in the child only. `make gpu` runs the same checks on a device (test_gpu.py).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
import torch
from cli_runner import ALIBI, SHORT, cli
from kernel_checks import SPECS
from toys import make, shape

from poscli.attention import ENGINES, Place, choose, selfcheck, triton
from poscli.attention.rotation_trial import Rotation
from poscli.attention.rounding import difference
from poscli.attention.trials import Variant, variants
from poscli.cli.doctor import tried
from poscli.encodings.rope import RoPE
from poscli.system import console
from poscli.system.device import device_name
from poscli.system.errors import UsageError

CHILD = os.environ.get("POSCLI_SELFCHECK_CHILD") == "1"
CPU = torch.device("cpu")
HERE = Place("cpu", torch.float32, 16, here=CPU)
BARE = Variant(use="training", dtype=torch.float32, width=16, values=16)
TABLE = replace(BARE, table=True, learned=("table",))
ALL = replace(TABLE, a=16, b=16, potential=True, reach=True, learned=("table", "a", "b"))
ROTATION = Rotation(dtype=torch.float32, width=24, pairs=6, layout="half")
NARROW_ROTATION = Rotation(dtype=torch.bfloat16, width=16, pairs=8, layout="interleaved")


@pytest.fixture(autouse=True)
def nothing_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test begins as a process does: nothing was tried, and nothing was said."""
    monkeypatch.setattr(selfcheck, "_faults", {})
    monkeypatch.setattr(console, "_warned", set())
    if CHILD:  # the engine is chosen on CPU, where the interpreter runs it, and inputs are small
        monkeypatch.setitem(ENGINES, "triton", replace(ENGINES["triton"], devices=("cpu", "cuda")))
        monkeypatch.setattr("poscli.attention.trials.BATCH", 1)
        monkeypatch.setattr("poscli.attention.trials.HEADS", 1)


class TestParent:
    __test__ = not CHILD

    @pytest.mark.slow
    @pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
    def test_trials_under_the_interpreter(self) -> None:
        command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", __file__]
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        env |= {"TRITON_INTERPRET": "1", "POSCLI_SELFCHECK_CHILD": "1"}
        root = Path(__file__).parents[2]
        done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=root)
        assert done.returncode == 0, done.stdout + done.stderr


class Stub:
    """A trial that ends as it is told, and counts how often it is made."""

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
        ],
        ids=repr,
    )
    def test_a_trial_is_made_once(self, end: str | BaseException, said: str) -> None:
        stub = Stub(end)
        assert [selfcheck.fault(stub, CPU) for _ in range(2)] == [said, said]
        assert stub.count == 1

    def test_the_errors_of_triton_switch_a_variant_off(self) -> None:
        errors = pytest.importorskip("triton.runtime.errors")
        stub = Stub(errors.OutOfResources(300000, 232448, "shared memory"))
        assert "OutOfResources: out of resource: shared memory, Required: 300000" in selfcheck.fault(stub, CPU)

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
            selfcheck.fault(stub, CPU)
        stub.end = ""
        assert selfcheck.fault(stub, CPU) == ""
        assert stub.count == 2

    def test_a_device_that_nothing_runs_on_any_more_ends_the_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def ones(*size: int, device: torch.device) -> None:
            raise RuntimeError("an illegal memory access was encountered")

        monkeypatch.setattr(torch, "ones", ones)
        with pytest.raises(selfcheck.BrokenDevice, match=r"a stub broke cpu .* set POSCLI_TRITON=0 in the environment"):
            selfcheck.fault(Stub(RuntimeError("an illegal memory access was encountered")), CPU)

    def test_doctor_says_what_was_found(self) -> None:
        stubs = [Stub(), Stub("the output is off"), Stub(torch.OutOfMemoryError("CUDA out of memory"))]
        assert list(tried(stubs, CPU)) == [
            {"check": "triton kernel 1", "state": "ok", "detail": "a stub: proven, it equals the reference"},
            {"check": "triton kernel 2", "state": "off", "detail": "a stub on cpu: the output is off"},
            {"check": "triton kernel 3", "state": "untried", "detail": "a stub: the device has no memory left"},
        ]

    def test_doctor_tries_nothing_after_a_breakdown(self) -> None:
        stubs = [Stub(selfcheck.BrokenDevice("broken")), Stub()]
        (check,) = tried(stubs, CPU)
        assert (check["state"], check["detail"], stubs[1].count) == ("broken", "broken", 0)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
    def test_doctor_says_why_nothing_was_tried(self) -> None:
        checks = {check["check"]: check for check in cli("doctor", "--json").json}
        detail = "none was tried: they run on CUDA devices, and torch finds none"
        assert checks["triton kernels"] == {"check": "triton kernels", "state": "missing", "detail": detail}

    def test_the_switch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POSCLI_TRITON", "0")
        assert triton.refuses(make("alibi"), Place("cuda", width=16)) == "POSCLI_TRITON=0 switches it off"

    def test_a_place_without_a_device_tries_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(selfcheck, "unavailable", lambda: "")
        monkeypatch.setattr(selfcheck, "fault", lambda *_: pytest.fail("a kernel was tried"))
        assert choose(make("rope+t5", shape(width=48)), place=Place("cuda", width=16)).name == "triton"

    def test_the_rotation_that_is_switched_off_is_recorded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The engine stays, and its reason says that torch rotates: on CUDA, which this test only names."""
        monkeypatch.setattr(selfcheck, "unavailable", lambda: "")
        monkeypatch.setattr(selfcheck, "fault", lambda trial, device: f"{trial} is off" * isinstance(trial, Rotation))
        encoding = make("rope(fraction=0.5)+alibi", shape(width=48))
        choice = choose(encoding, place=Place("cuda", width=16, here=torch.device("cuda", 0)))
        assert choice.name == "triton"
        assert choice.reason == "torch rotates: rotation in float32, 4 half pairs of 16 channels is off"
        assert choice.said_of(encoding) in console._warned

    def test_torch_rotates_where_the_kernel_is_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rope = make("rope")
        assert isinstance(rope, RoPE)
        monkeypatch.setattr(RoPE, "_kernel_fault", lambda *_: "off")
        x, angle = torch.ones(1, 3, 2, 8), rope.angles(torch.arange(2))
        assert torch.equal(rope.fast_rotate(x, angle), rope.rotate(x, angle))


class TestVariants:
    """Which variants an encoding needs."""

    __test__ = not CHILD

    @pytest.mark.parametrize(
        ("spec", "expected"),
        [
            ("t5", TABLE),
            ("alibi", replace(TABLE, learned=())),
            ("rope+t5", TABLE),
            ("pope+alibi", replace(TABLE, width=32, learned=())),
            ("deberta", replace(BARE, a=16, b=16, learned=("a", "b"))),
            ("fox", replace(BARE, potential=True)),
            (
                "transformer-xl+deberta+t5",
                replace(TABLE, a=32, b=16, learned=("table", "a", "b")),
            ),
        ],
    )  # fmt: skip
    def test_they_follow_from_what_it_returns(self, spec: str, expected: Variant) -> None:
        assert variants(make(spec, shape(heads=2, width=32)), Place(width=16)) == [expected]

    def test_a_window_is_tried_on_short_inputs_too(self) -> None:
        found = variants(make("window(9)+alibi", shape(heads=2, width=32)), Place(width=16, gradient=False))
        assert {(each.use, each.reach) for each in found} == {
            (use, reach) for use in ("evaluation", "decoding") for reach in (True, False)
        }
        assert not any(each.learned for each in found)

    @pytest.mark.parametrize("spec", SPECS)
    def test_every_encoding_of_the_engine_has_some(self, spec: str) -> None:
        encoding = make(spec, shape(heads=2, width=32))
        assert variants(encoding, Place(dtype=torch.bfloat16, width=16))

    def test_frozen_weights_need_no_gradient(self) -> None:
        encoding = make("t5", shape(heads=2, width=32))
        place = replace(HERE, here=None)
        assert [each.learned for each in triton._trials(encoding, place)] == [("table",)]
        encoding.requires_grad_(False)
        assert [each.learned for each in triton._trials(encoding, place)] == [()]

    def test_they_are_found_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        encoding = make("t5", shape(heads=2, width=32))
        first = triton._trials(encoding, HERE)
        monkeypatch.setattr("poscli.attention.trials.variants", lambda *_: pytest.fail("found again"))
        assert triton._trials(encoding, HERE) is first
        monkeypatch.setattr("poscli.attention.trials.variants", lambda *_: ["of another place"])
        assert triton._trials(encoding, replace(HERE, gradient=not HERE.gradient)) == ["of another place"]

    def test_the_largest_excess_is_said(self) -> None:
        exact = {"output": torch.ones(2), "gradient of q": torch.ones(2), "gradient of k": torch.ones(2)}
        found = {
            "output": torch.ones(2),
            "gradient of q": torch.full((2,), 1.5),
            "gradient of k": torch.full((2,), 3.0),
        }
        limit = 4 * 16 * 2**-23
        said = f"the gradient of k is off by 2, where rounding explains {limit:.2g}"
        assert difference(found, exact, [], torch.float32, 1) == said
        assert difference(found | {"output": torch.full((2,), torch.nan)}, exact, [], torch.float32, 1).startswith(
            "the output is off by nan"
        )
        assert difference(exact, exact, [], torch.float32, 1) == ""


class TestTrials:
    """Trials of the kernels on CPU."""

    __test__ = CHILD

    @pytest.mark.parametrize(
        "trial",
        [ALL, replace(ALL, use="decoding", learned=()), ROTATION, NARROW_ROTATION],
        ids=["all terms", "decoding", "rotation", "narrow rotation"],
    )
    def test_the_kernels_are_proven(self, trial: Variant | Rotation) -> None:
        assert selfcheck.fault(trial, CPU) == ""

    def test_a_proven_engine_is_chosen(self) -> None:
        check_proven("t5", HERE)


def check_proven(spec: str, place: Place) -> None:
    """The kernels that an encoding needs in training and in evaluation are proven, so the engine is chosen."""
    encoding = make(spec, shape(heads=2, width=2 * place.width)).to(place.here)
    for each in (place, replace(place, gradient=False)):
        choice = choose(encoding, place=each)
        assert (choice.name, choice.reason) == ("triton", "")


def scaled(patch: pytest.MonkeyPatch) -> None:
    """The output is 1.001 times what it should be."""
    from poscli.attention.kernels import flash

    whole = flash.flash
    patch.setattr(flash, "flash", lambda *inputs, **terms: 1.001 * whole(*inputs, **terms))


def shifted(patch: pytest.MonkeyPatch) -> None:
    """The gradient of the table is that of the next distance."""
    from poscli.attention.kernels import flash

    whole = flash._by_distances

    def by_distances(*inputs: object) -> tuple:
        table, *rest = whole(*inputs)
        return (None if table is None else table.roll(1, -1), *rest)

    patch.setattr(flash, "_by_distances", by_distances)


def uncompiled(patch: pytest.MonkeyPatch) -> None:
    """The forward kernel does not compile."""
    from triton.runtime.errors import OutOfResources

    from poscli.attention.kernels import flash

    class Kernel:
        def __getitem__(self, grid: object) -> None:
            raise OutOfResources(300000, 232448, "shared memory")

    patch.setattr(flash, "forward_kernel", Kernel())


def misrotated(patch: pytest.MonkeyPatch) -> None:
    """Rotations go the other way."""
    from poscli.attention.kernels import rotary

    whole = rotary.rotate
    patch.setattr(rotary, "rotate", lambda x, cos, sin, layout: whole(x, cos, -sin, layout))


INJECTED: list[tuple[Callable[[pytest.MonkeyPatch], None], str, bool]] = [  # and whether evaluation suffers, too
    (scaled, r"the (output|gradient of \w) is off by 0\.\d+, where rounding explains \d", True),
    (shifted, r"the gradient of table is off by [\d.]+, where rounding explains 0\.0", False),
    (uncompiled, r"it fails with OutOfResources: out of resource: shared memory, Required: 300000", True),
]


def check_injected(
    inject: Callable[[pytest.MonkeyPatch], None], said: str, evaluation: bool, place: Place, patch: pytest.MonkeyPatch
) -> None:
    """A wrong kernel is switched off with its reason, said once, and the next engine is chosen."""
    inject(patch)
    encoding = make("t5", shape(heads=2, width=2 * place.width)).to(place.here)
    for each, off in ((place, True), (replace(place, gradient=False), evaluation)):
        choice = choose(encoding, place=each)
        assert choose(encoding, place=each) == choice
        assert (choice.name != "triton") == off
        if off:
            use = "training" if each.gradient else "evaluation"
            device = re.escape(device_name(place.here))
            assert re.match(rf"not triton: {use} in \w+, {place.width} channels, .* on {device}: {said}", choice.reason)
            assert choice.said_of(encoding) in console._warned
            with pytest.raises(UsageError, match=rf"the engine triton cannot run t5: {use} .*; {choice.name} can"):
                choose(encoding, "triton", each)
    assert len(console._warned) == 1 + evaluation


class TestInjected:
    """Kernels that were made wrong."""

    __test__ = CHILD

    @pytest.mark.parametrize(("inject", "said", "evaluation"), INJECTED, ids=lambda x: getattr(x, "__name__", ""))
    def test_a_wrong_kernel_is_switched_off(
        self,
        inject: Callable[[pytest.MonkeyPatch], None],
        said: str,
        evaluation: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        check_injected(inject, said, evaluation, HERE, monkeypatch)

    def test_a_wrong_rotation_is_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        misrotated(monkeypatch)
        said = selfcheck.fault(ROTATION, CPU)
        assert said.startswith("rotation in float32, 6 half pairs of 24 channels on cpu: the ")

    def test_results_say_it(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """In env.json, and on every row of eval.csv."""
        scaled(monkeypatch)
        monkeypatch.setenv("POSCLI_NATIVE", "0")
        trained = cli(*ALIBI, "--out", tmp_path)
        assert trained.err.count("note: alibi runs on the engine sdpa (not triton: training in float32, ") == 1
        evaluated = cli("extrapolate", *SHORT, "--out", tmp_path)
        assert evaluated.err.count("note: alibi runs on the engine tiles (not triton: evaluation in float32, ") == 1
        (folder,) = (tmp_path / "runs").iterdir()
        env = json.loads((folder / "env.json").read_text())
        assert env["engine"] == "sdpa"
        assert env["engine_reason"].startswith("not triton: training in float32, ")
        rows = pd.read_csv(folder / "eval.csv", keep_default_na=False)
        assert set(rows["engine"]) == {"tiles"}
        assert rows["engine_reason"].str.startswith("not triton: evaluation in float32, ").all()
