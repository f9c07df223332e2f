"""`poscli verify` passes every encoding there is, and each of its checks refuses an encoding that breaks it.

This is the property test of all encodings: `make numerical` checks a new file in poscli/encodings/ here without a new
line.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runner import cli, in_new_process
from torch import Tensor, nn
from torch.nn import functional as F
from toys import EVERYWHERE, wide

from poscli.config.code import HOUSE
from poscli.encodings import Encoding, Shape, get
from poscli.equation import Unsupported
from poscli.report.catalogue import describe_spec
from poscli.specs import parse
from poscli.verify import CHECKS, Finding, Verdict, verify
from poscli.verify.checks import Failed, Skipped, SpecUnderTest
from poscli.verify.noise import tolerances

ALIBI = get("alibi")
RUN = {check.name: check.run for check in CHECKS}
FAULTS: list[tuple[type[Encoding], str, str]] = []  # an encoding, the check that it fails, and what that says


def fault(name: str, check: str, reason: str, base: type[Encoding] = Encoding, **members: Any) -> None:
    """Define an encoding in this module that breaks a check, by its blanks and attributes."""
    cls = type(name, (base,), members | {"__module__": __name__})
    globals()[name] = cls
    FAULTS.append((cls, check, reason))


def of(name: str) -> str:
    return f"{__name__}:{name}"


class Learning(Encoding):
    """Has a number for each head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.r = nn.Parameter(torch.ones(shape.heads))


class Penalty(Learning):
    """A right bias, r_h (i - j), whose fast form the faults get wrong."""

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return -self.r[:, None, None] * (i[:, None] - j)


class Forgetful(Encoding):
    """Draws numbers that are not saved."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.register_buffer("slope", torch.rand(shape.heads), persistent=False)

    def distance_bias(self, d: Tensor) -> Tensor:
        return -self.slope[:, None] * d / 1000


class Counted(ALIBI):
    """Every model differs from the one before."""

    made = 0

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        Counted.made += 1
        self.factor = Counted.made


def drawing(_: Encoding, v: Tensor, pos: Tensor) -> Tensor:
    """The values; a number is drawn and not used."""
    torch.rand(())
    return v


def right_with_a_wrong_gradient(self: Penalty, *arguments: Any) -> Tensor:
    """The gradient of r is a thousandth too large."""
    right = self.bias(*arguments)
    return right + (right - right.detach()) / 1000


def steep_far_away(self: Learning, d: Tensor) -> Tensor:
    """A term that is 0, and whose gradient overflows at distances above 100."""
    zero = (self.r - self.r.detach())[:, None]
    return torch.where(d > 100, zero * 1e30 * 1e30, zero)


fault(
    *("WrongShape", "shapes", r"distance_bias returns \[16\], not \[1, 16\] or \[4, 16\]"),
    distance_bias=lambda self, d: -d.float(),
)
fault("WrongDtype", "shapes", "value turns torch.bfloat16 into torch.float32", value=lambda self, v, pos: v.float())
fault(
    *("Unequal", "shapes", "query and key come back with 16 and 8 channels"),
    query=lambda self, q, pos: torch.cat([q, q], dim=-1),
)
fault(
    *("Miscounted", "shapes", r"features returns \[2, 4, 16, 1\], not \[2, 4, 16, 2\]"),
    feature_width=2,
    features=lambda self, x: x.unflatten(-1, (self.shape.heads, -1))[..., :1].transpose(1, 2),
)
for dtype in (torch.bfloat16, torch.float16):  # another dtype than the given one, for one of three
    fault(
        *(f"Wide{dtype}".replace("torch.", ""), "shapes", str(dtype)),
        output=lambda self, o, pos, wrong=dtype: o.float() if o.dtype == wrong else o,
    )
# the same output whatever the tokens are
fault("Deaf", "causality", "attention has no effect", embed=lambda self, x, pos, ids: x * 0)
fault(  # adds a thousandth of the next value
    *("PeekingByOne", "causality", "changing tokens 16 to 31 changes the logits before them"),
    value=lambda self, v, pos: v + F.pad(v, (0, 0, 0, 1))[:, :, 1:] / 1000,
)
fault(
    *("Lengthwise", "causality", "leaving out tokens 16 to 31 changes the logits before them"),
    value=lambda self, v, pos: v * (1 + v.shape[2] / 1000),
)
fault(  # where six tokens are known, which no forward over sixteen tokens shows
    *("WrongAtOneStep", "decoding", "away from the full forward"),
    value=lambda self, v, pos: v * (1.001 if v.shape[2] == 6 else 1),
)
fault(  # depends on the number of keys in the block
    *("Blockwise", "engines", "output is .* off"),
    bias=lambda self, i, j, *_: -(i[:, None] - j).float().expand(self.shape.heads, -1, -1) * len(j) / 8,
)
for name, wrong in {  # where a fast bias is a thousandth off
    "Inexact": lambda i: True,
    "InexactWithoutGradient": lambda i: not torch.is_grad_enabled(),
    "InexactForTheLastFiveQueries": lambda i: int(i[0]) == 11 and len(i) == 5,
    "InexactForOneQuery": lambda i: int(i[0]) == 15 and len(i) == 1,
}.items():
    fault(
        *(name, "engines", "output is .* off", Penalty),
        fast_bias=lambda self, i, *rest, wrong=wrong: self.bias(i, *rest) * (1.001 if wrong(i) else 1),
    )
fault("WrongGradient", "engines", r"dencoding\.r is .* off", Penalty, fast_bias=right_with_a_wrong_gradient)
fault("Overdeclared", "shift", "nothing changes with the position: `relative = False` is wrong", ALIBI, relative=False)
for name, reason, term in (
    ("Slight", "farther on, attention changes by", lambda pos: pos.cos() / 100),
    ("Parity", "^1 token farther on", lambda pos: pos % 2),
    ("Border", "^256 tokens farther on", lambda pos: pos >= 200),
):
    fault(name, "shift", reason, embed=lambda self, x, pos, ids, term=term: x + term(pos)[:, None])
for name, axis, least, reason in (
    ("Rows", 0, 1, "^1 rows farther on"),
    ("Columns", 1, 1, "^1 columns farther on"),
    ("FarRows", 0, 100, "^256 rows farther on"),
    ("FarColumns", 1, 100, "^256 columns farther on"),
):
    fault(
        *(name, "shift", reason),
        axes=2,
        embed=lambda self, x, pos, ids, axis=axis, least=least: x + pos[:, axis].clamp(min=least)[:, None].cos(),
    )
fault(
    *("Exploding", "16x", "logits at 256 tokens, trained for 16, are not finite"),
    query=lambda self, q, pos: q * pos[:, None].float().exp().to(q.dtype),
)
fault("Steep", "16x", r"the gradient of .*\.r at 256 tokens is not finite", Learning, distance_bias=steep_far_away)
fault(  # exp(pos / 8) leaves float16 where exp((n - 1) / 8) passes 65504
    *("Promising", "range", "is finite up to .* tokens only, `longest` says 10,000"),
    relative=False,
    query=lambda self, q, pos: q * (pos[:, None].float() / 8).exp().to(q.dtype),
    longest=lambda self, dtype: 10_000,
)
fault(
    *("Narrow", "range", "torch.float16 is not finite for as few as 16 tokens"),
    distance_bias=lambda self, d: -d.float()[None] * 0,
    value=lambda self, v, pos: v * math.nan if v.dtype == torch.float16 else v,
)
FAULTS.append((Forgetful, "saving", "a model with the saved weights gives other logits"))
fault(  # normalises over the batch
    *("Crowded", "batches", "alone, a row's logits change by"),
    value=lambda self, v, pos: v - v.mean(dim=0, keepdim=True) / 1000,
)
fault("Random", "determinism", "two forwards of one model differ", value=lambda self, v, pos: v * (1 + torch.rand(())))
FAULTS.append((Counted, "determinism", "two models of one seed differ"))
fault("Drawing", "determinism", "draws from torch's global stream", value=drawing)
fault("Unreached", "learning", "r has no gradient", Learning)
fault(  # the root of distance 0, whose gradient is infinite
    *("Rooted", "learning", r"\.r has a gradient that is not finite", Learning),
    distance_bias=lambda self, d: -(self.r[:, None] * 0 * d + d).sqrt() * self.r[:, None],
)


def everywhere(cls: type[Encoding]) -> list[str]:
    """Specs that use a class in every layer, and, unless it acts on the embedding, in every second one."""
    return [of(cls.__name__)] + [f"none|{of(cls.__name__)}"] * (cls.embed is Encoding.embed)


@pytest.mark.parametrize(("cls", "check", "reason"), FAULTS, ids=lambda x: x.__name__ if isinstance(x, type) else "")
def test_a_fault_of_any_layer_fails_its_check_for_the_reason_it_has(
    cls: type[Encoding], check: str, reason: str
) -> None:
    for spec in everywhere(cls):
        with pytest.raises(Failed, match=reason):
            RUN[check](SpecUnderTest(spec, 0))


def test_every_check_refuses_some_encoding() -> None:
    assert {check for _, check, _ in FAULTS} == set(RUN)


class Ending(Encoding):
    """Absolute, which it does not declare, and without positions from L on."""

    def positions(self, index: Tensor) -> Tensor:
        if len(index) > self.shape.length:
            raise Unsupported("positions end at L")
        return index

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        return k_BHSD * (1 + pos[:, None].to(k_BHSD.dtype) / self.shape.length)


def test_shifts_that_cannot_be_made_prove_nothing() -> None:
    with pytest.raises(Skipped, match="no positions farther on"):
        RUN["shift"](SpecUnderTest(of("Ending"), 0))


def cliff(pos: Tensor) -> Tensor:
    """Infinite from position 300 on."""
    return torch.where(pos >= 300, math.inf, 1.0)


class CliffOfQueries(Encoding):
    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return q_BHTD * cliff(pos)[:, None].to(q_BHTD.dtype)


class CliffOfEmbeddings(Encoding):
    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        return x_BTW * cliff(pos)[:, None].to(x_BTW.dtype)


class CliffOfTemperatures(Encoding):
    def temperature(self, n: Tensor) -> Tensor:
        return cliff(n - 1)[None]


class Refusing(Encoding):
    def positions(self, index: Tensor) -> Tensor:
        if len(index) > 300:
            raise Unsupported("300 tokens at most")
        return index


@pytest.mark.parametrize("cls", [CliffOfQueries, CliffOfEmbeddings, CliffOfTemperatures, Refusing])
def test_the_longest_finite_text_is_found_to_the_token(cls: type[Encoding]) -> None:
    for spec in everywhere(cls):
        assert RUN["range"](SpecUnderTest(spec, 0)) == "float16 300, bfloat16 300, float32 300 tokens"


@pytest.mark.parametrize("spec", wide(EVERYWHERE))
def test_every_encoding_passes(spec: str) -> None:
    verdict = verify(spec)
    assert [f for f in verdict.findings if f.status not in ("passed", "skipped")] == []
    assert [f.check for f in verdict.findings] == [check.name for check in CHECKS]


@pytest.mark.parametrize(("spec", "parameter"), [("query-bias", "encoding.u"), ("fire", "f.2.bias")])
def test_a_parameter_that_the_softmax_cancels_is_named(spec: str, parameter: str) -> None:
    """Every score of a row gets U of query-bias, and the last bias of FIRE's network."""
    assert f"{parameter} changes nothing: the softmax cancels it" in RUN["learning"](SpecUnderTest(spec, 0))


def test_to_measure_rounding_leaves_the_weights_as_they_are() -> None:
    made, text = SpecUnderTest("rope", 0).fresh(), SpecUnderTest("rope", 0).text(16)
    before = {name: value.clone() for name, value in made.state_dict().items()}
    assert SpecUnderTest("rope", 0).tolerance(text, made) > 0
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())


@pytest.mark.parametrize(("most", "changed"), [(31, 8), (32, 16)])
def test_causality_is_checked_on_a_longer_text_where_the_encoding_takes_one(most: int, changed: int) -> None:
    ended = SpecUnderTest(f"randomized({most})+rope", 0)
    assert RUN["causality"](ended).startswith(f"changing {changed} tokens changes")
    assert RUN["causality"](SpecUnderTest("rope", 0)).startswith("changing or leaving out 16 tokens changes")
    assert RUN["16x"](ended).startswith("refused: 256 tokens need as many positions")


def test_keys_of_the_future_stay_hidden_from_the_second_part_that_changes_scores() -> None:
    """DAPE's network gives hidden keys scores as large as it likes, which CoPE would count as gates."""
    assert "reference" in RUN["engines"](SpecUnderTest("dape+cope", 0))


def test_a_tolerance_is_eight_times_the_error_or_the_rounding_of_a_sum_that_cancels() -> None:
    exact = {name: torch.zeros(2) for name in ("output", "dq", "dslope")}
    small = {name: torch.full((2,), 1e-12) for name in exact}
    large = small | {"output": torch.tensor([0.0, -0.5])}
    assert tolerances(exact, [small], width=8, keys=16) == {
        "output": 8 * 8 * 2**-23, "dq": 8 * 8 * 2**-23, "dslope": 8 * 8 * 16 * 2**-23,
    }  # fmt: skip
    assert tolerances(exact, [small, large], width=8, keys=16)["output"] == 4.0


def test_a_verdict_in_words_and_as_data() -> None:
    findings = [Finding("a", "passed", "fine"), Finding("b", "skipped", "no"), Finding("c", "failed", "bad", "there")]
    verdict = Verdict("rope", findings, 1.2345)
    assert repr(verdict) == "rope: failed, 1 checks hold, 1 do not apply; c: bad"
    assert repr(Verdict("rope", findings[:1])) == "rope: passed, 1 checks hold"
    assert repr(Verdict("x", [Finding("d", "unavailable", "why")])) == "x: unavailable, 0 checks hold; d: why"
    assert verdict.record()["seconds"] == 1.23
    assert verdict._repr_html_().count("look at: ") == verdict._repr_html_().count("look at: there") == 1


# The command


class Crashing(Encoding):
    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        raise KeyError("nothing here")


def test_what_the_command_says_of_a_fault_and_of_a_crash() -> None:
    result = cli("verify", "alibi", of("Random"), of("Crashing"))
    said = " ".join(result.out.split())
    assert result.code == 1
    assert "11 checks hold" in said
    assert "look at: " in said
    assert said.count("KeyError: 'nothing here' (test_verify.py, line") == 1  # one error is told once
    assert "Traceback" not in said + result.err
    assert "1 of 3 encodings hold" in result.err


def test_a_crash_is_told_where_poscli_is_an_installed_package(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "poscli").symlink_to(HOUSE)
    crash = "class Crash(Encoding):\n    def key(self, k, pos):\n        raise KeyError\n"
    (installed / "crash.py").write_text(f"from poscli.encodings import Encoding\n{crash}")
    (result,) = in_new_process(tmp_path, [["verify", "crash:Crash"]], str(installed))
    assert result.code == 1
    assert "KeyError: no message (crash.py, line 4)" in " ".join(result.out.split())


def test_json_is_one_document() -> None:
    result = cli("verify", "alibi", of("PeekingByOne"), "--json")
    assert result.code == 1
    good, bad = result.json
    assert (good["encoding"], good["status"], bad["status"]) == ("alibi", "passed", "failed")
    assert all(set(f) == {"check", "status", "detail", "look"} for f in bad["findings"])
    assert all(bool(f["look"]) == (f["status"] == "failed") for f in bad["findings"])
    assert math.isfinite(good["seconds"])


def test_a_missing_package_makes_an_encoding_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)  # as if it were not installed
    result = cli("verify", "floater", "alibi")
    assert result.code == 0
    assert "unavailable" in result.out
    assert "1 of 2 encodings hold, 1 could not be checked" in result.err
    assert "pip install 'poscli[ode]'" in " ".join(result.out.split())
    refused = cli("train", "--enc", "floater")
    assert refused.code == 2
    assert "floater needs torchdiffeq: pip install 'poscli[ode]'" in refused.err
    listed = {row["name"]: row["unavailable"] for row in cli("ls", "encodings", "--json").json}
    assert listed["floater"].startswith("needs torchdiffeq")
    assert listed["alibi"] == ""
    assert "pip install 'poscli[ode]'" in " ".join(cli("doctor").out.split())


def test_what_an_encoding_is_can_be_told_without_the_package_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and pages are the same on every machine, and a suite may name an encoding that another one trains."""
    here = describe_spec("floater"), str(parse("floater(hidden=4)+alibi"))
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    assert (describe_spec("floater"), str(parse("floater(hidden=4)+alibi"))) == here


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name encodings to verify, or give --all"),
        (("alibi", "--all"), "name encodings to verify, or give --all"),
        (("alibbi",), "did you mean alibi or alibi-2d?"),
        (("torch.nn:Linear",), "is no encoding"),
        (("rope(base=0.5)",), "base must be above 1, got 0.5"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], message: str) -> None:
    result = cli("verify", *arguments)
    assert result.code == 2
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1
