"""`poscli verify` passes every encoding there is, and each of its checks refuses an encoding that breaks it.

This is the property test of all encodings: `make numerical` checks a new file in poscli/encodings/ here without a new
line.
"""

from __future__ import annotations

import math
import sys

import pytest
import torch
from cli_runner import cli
from torch import Tensor, nn
from torch.nn import functional as F
from toys import EVERYWHERE, wide

from poscli.encodings import Encoding, Shape, get
from poscli.equation import Unsupported
from poscli.verify import CHECKS, verify
from poscli.verify.checks import Failed
from poscli.verify.noise import tolerances
from poscli.verify.probe import SpecUnderTest

ALIBI = get("alibi")


class WrongShape(ALIBI):
    def distance_bias(self, d: Tensor) -> Tensor:
        return super().distance_bias(d)[0]


class WrongDtype(Encoding):
    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        return v_BHSD.float()


class Unequal(Encoding):
    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return torch.cat([q_BHTD, q_BHTD], dim=-1)


class Miscounted(Encoding):
    """Features of another width than `feature_width` says."""

    feature_width = 2

    def features(self, x_BTW: Tensor) -> Tensor:
        return x_BTW.unflatten(-1, (self.shape.heads, -1))[..., :1].transpose(1, 2)


class Deaf(Encoding):
    """Gives the same output whatever the tokens are."""

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        return x_BTW * 0


class Blockwise(Encoding):
    """A bias that depends on the number of keys in the block."""

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return -(i[:, None] - j).float().expand(self.shape.heads, -1, -1) * len(j) / 8


class Overdeclared(ALIBI):
    relative = False


class Exploding(Encoding):
    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return q_BHTD * pos[:, None].float().exp().to(q_BHTD.dtype)


class Promising(Exploding):
    """Finite up to 16 times the training length only, and `longest` says more."""

    relative = False

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return q_BHTD * (pos[:, None].float() / 8).exp().to(q_BHTD.dtype)

    def longest(self, dtype: torch.dtype) -> int:
        return 10_000


class Forgetful(Encoding):
    """Draws numbers that are not saved."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.register_buffer("slope", torch.rand(shape.heads), persistent=False)

    def distance_bias(self, d: Tensor) -> Tensor:
        return -self.slope[:, None] * d / 1000


class Crowded(Encoding):
    """Normalises over the batch."""

    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        return v_BHSD - v_BHSD.mean(dim=0, keepdim=True) / 1000


class Random(Encoding):
    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        return v_BHSD * (1 + torch.rand(()))


class Unreached(Encoding):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.idle = nn.Parameter(torch.zeros(3))


class Rooted(Encoding):
    """Takes the root of distance 0, whose gradient is infinite."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.r = nn.Parameter(torch.ones(shape.heads))

    def distance_bias(self, d: Tensor) -> Tensor:
        return -(self.r[:, None] * 0 * d + d).sqrt() * self.r[:, None]


class Crashing(Encoding):
    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        raise KeyError("nothing here")


def of(cls: type) -> str:
    return f"{__name__}:{cls.__name__}"


class WideInBfloat16(Encoding):
    """Returns another dtype than it is given, for one of three."""

    wrong = torch.bfloat16

    def output(self, o_BHTD: Tensor, pos: Tensor) -> Tensor:
        return o_BHTD.float() if o_BHTD.dtype == self.wrong else o_BHTD


class WideInFloat16(WideInBfloat16):
    wrong = torch.float16


class PeekingByOne(Encoding):
    """Adds a thousandth of the next value."""

    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        return v_BHSD + F.pad(v_BHSD, (0, 0, 0, 1))[:, :, 1:] / 1000


class WrongAtOneStep(Encoding):
    """Differs where six tokens are known, which no forward over sixteen tokens shows."""

    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        return v_BHSD * (1.001 if v_BHSD.shape[2] == 6 else 1)


class Penalty(Encoding):
    """A right bias, r_h (i - j), whose fast form the subclasses get wrong."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.r = nn.Parameter(torch.ones(shape.heads))

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return -self.r[:, None, None] * (i[:, None] - j)


class FastButInexact(Penalty):
    def fast_bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return self.bias(i, j, f_i, f_j) * 1.001


class FastWithAWrongGradient(Penalty):
    """Right but for the gradient of r, which is a thousandth too large."""

    def fast_bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        right = self.bias(i, j, f_i, f_j)
        return right + (right - right.detach()) / 1000


class FastInTrainingOnly(Penalty):
    """Wrong where no gradient is wanted."""

    def fast_bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return self.bias(i, j, f_i, f_j) * (1 if torch.is_grad_enabled() else 1.001)


class FastForWholeTextsOnly(Penalty):
    """Wrong for the last five queries of sixteen, if they come by themselves."""

    last = 5

    def fast_bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return self.bias(i, j, f_i, f_j) * (1.001 if int(i[0]) == 16 - self.last and len(i) == self.last else 1)


class FastForManyQueriesOnly(FastForWholeTextsOnly):
    last = 1


class Slight(Encoding):
    """Adds a hundredth of a function of the position."""

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        return x_BTW + pos[:, None].cos() / 100


class Parity(Encoding):
    """Tells even positions from odd ones, which only an odd shift shows."""

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        return x_BTW + (pos % 2)[:, None]


class Border(Encoding):
    """Changes at position 200."""

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        return x_BTW + (pos >= 200)[:, None]


class Columns(Encoding):
    """Depends on the column of a cell."""

    axes, coordinate, least = 2, 1, 1

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        return x_BTW + pos[:, self.coordinate].clamp(min=self.least)[:, None].cos()


class Rows(Columns):
    coordinate = 0


class FarColumns(Columns):
    least = 100


class FarRows(Rows):
    least = 100


class SteepFarAway(Encoding):
    """A term that is 0, and whose gradient overflows at distances above 100."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.r = nn.Parameter(torch.ones(shape.heads))

    def distance_bias(self, d: Tensor) -> Tensor:
        zero = (self.r - self.r.detach())[:, None]
        return torch.where(d > 100, zero * 1e30 * 1e30, zero)


class Counted(ALIBI):
    """Every model differs from the one before."""

    made = 0

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        Counted.made += 1
        self.factor = Counted.made

    def distance_bias(self, d: Tensor) -> Tensor:
        return super().distance_bias(d) * self.factor


class Drawing(Encoding):
    """Draws a number and does not use it."""

    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        torch.rand(())
        return v_BHSD


FAULTS: list[tuple[type[Encoding], str, str]] = [
    (WrongShape, "shapes", r"distance_bias returns \[16\], not \[1, 16\] or \[4, 16\]"),
    (WrongDtype, "shapes", "value turns torch.bfloat16 into torch.float32"),
    (Unequal, "shapes", "query and key come back with 16 and 8 channels"),
    (Miscounted, "shapes", r"features returns \[2, 4, 16, 1\], not \[2, 4, 16, 2\]"),
    (Deaf, "causality", "attention has no effect"),
    (Blockwise, "engines", "output is .* off"),
    (WideInBfloat16, "shapes", "bfloat16"),
    (WideInFloat16, "shapes", "float16"),
    (Overdeclared, "shift", "nothing changes with the position: `relative = False` is wrong"),
    (Promising, "range", "is finite up to .* tokens only, `longest` says 10,000"),
    (Forgetful, "saving", "a model with the saved weights gives other logits"),
    (Crowded, "batches", "alone, a row's logits change by"),
    (PeekingByOne, "causality", "changing tokens 16 to 31 changes the logits before them"),
    (WrongAtOneStep, "decoding", "away from the full forward"),
    (FastButInexact, "engines", "output is .* off"),
    (FastWithAWrongGradient, "engines", r"dencoding\.r is .* off"),
    (FastInTrainingOnly, "engines", "output is .* off"),
    (FastForWholeTextsOnly, "engines", "output is .* off"),
    (FastForManyQueriesOnly, "engines", "output is .* off"),
    (Slight, "shift", "farther on, attention changes by"),
    (Parity, "shift", "^1 token farther on"),
    (Border, "shift", "^256 tokens farther on"),
    (Rows, "shift", "^1 rows farther on"),
    (Columns, "shift", "^1 columns farther on"),
    (FarRows, "shift", "^256 rows farther on"),
    (FarColumns, "shift", "^256 columns farther on"),
    (Exploding, "16x", "logits at 256 tokens, trained for 16, are not finite"),
    (SteepFarAway, "16x", r"the gradient of .*\.r at 256 tokens is not finite"),
    (Random, "determinism", "two forwards of one model differ"),
    (Counted, "determinism", "two models of one seed differ"),
    (Drawing, "determinism", "draws from torch's global stream"),
    (Unreached, "learning", "idle has no gradient"),
    (Rooted, "learning", r"\.r has a gradient that is not finite"),
]
RUN = {check.name: check.run for check in CHECKS}


def everywhere(cls: type[Encoding]) -> list[str]:
    """Specs that use a class in every layer, and, unless it acts on the embedding, in every second one."""
    return [of(cls)] + [f"none|{of(cls)}"] * (cls.embed is Encoding.embed)


@pytest.mark.parametrize(("cls", "check", "reason"), FAULTS, ids=lambda x: x.__name__ if isinstance(x, type) else "")
def test_a_fault_of_any_layer_fails_its_check_for_the_reason_it_has(
    cls: type[Encoding], check: str, reason: str
) -> None:
    for spec in everywhere(cls):
        with pytest.raises(Failed, match=reason):
            RUN[check](SpecUnderTest(spec, 0))


@pytest.mark.parametrize("check", RUN)
def test_a_fault_is_a_finding_with_a_hint(check: str) -> None:
    """Every check refuses some encoding."""
    cls = next(cls for cls, name, _ in FAULTS if name == check and cls.axes == 1)
    verdict = verify(of(cls))
    failed = {finding.check: finding for finding in verdict.findings if finding.status == "failed"}
    assert verdict.status == "failed"
    assert failed[check].detail
    assert failed[check].look


class Cliff(Encoding):
    """Not finite from position 300 on, by the blank that is named."""

    def cliff(self, pos: Tensor) -> Tensor:
        return torch.where(pos >= 300, math.inf, 1.0)


class CliffOfQueries(Cliff):
    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return q_BHTD * self.cliff(pos)[:, None].to(q_BHTD.dtype)


class CliffOfEmbeddings(Cliff):
    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        return x_BTW * self.cliff(pos)[:, None].to(x_BTW.dtype)


class CliffOfTemperatures(Cliff):
    def temperature(self, n: Tensor) -> Tensor:
        return self.cliff(n - 1)[None]


class Refusing(Encoding):
    def positions(self, index: Tensor) -> Tensor:
        if len(index) > 300:
            raise Unsupported("300 tokens at most")
        return index


@pytest.mark.parametrize("cls", [CliffOfQueries, CliffOfEmbeddings, CliffOfTemperatures, Refusing])
def test_the_longest_finite_text_is_found_to_the_token(cls: type[Encoding]) -> None:
    for spec in everywhere(cls):
        assert RUN["range"](SpecUnderTest(spec, 0)) == "float16 300, bfloat16 300, float32 300 tokens"


def test_a_crash_is_a_finding_with_its_line() -> None:
    result = cli("verify", of(Crashing))
    assert result.code == 1
    assert "KeyError: 'nothing here' (test_verify.py, line" in " ".join(result.out.split())
    assert "Traceback" not in result.out + result.err


@pytest.mark.parametrize("spec", wide(EVERYWHERE))
def test_every_encoding_passes(spec: str) -> None:
    verdict = verify(spec)
    assert [f for f in verdict.findings if f.status not in ("passed", "skipped")] == []
    assert [f.check for f in verdict.findings] == [check.name for check in CHECKS]


def test_another_seed_passes_too() -> None:
    assert verify("toys:Forgetting+rope", seed=5).status == "passed"


def test_a_parameter_that_the_softmax_cancels_is_named() -> None:
    """Every score of a row gets U of query-bias, and the last bias of FIRE's network."""
    for spec, parameter in (("query-bias", "encoding.u"), ("fire", "f.2.bias")):
        (learning,) = [f for f in verify(spec).findings if f.check == "learning"]
        assert f"{parameter} changes nothing: the softmax cancels it" in learning.detail


def test_to_measure_rounding_leaves_the_weights_as_they_are() -> None:
    made, text = SpecUnderTest("rope", 0).fresh(), SpecUnderTest("rope", 0).text(16)
    before = {name: value.clone() for name, value in made.state_dict().items()}
    assert SpecUnderTest("rope", 0).tolerance(text, made) > 0
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())


@pytest.mark.parametrize(("most", "changed"), [(18, 8), (31, 8), (32, 16)])
def test_causality_is_checked_on_a_longer_text_where_the_encoding_takes_one(most: int, changed: int) -> None:
    ended = SpecUnderTest(f"randomized({most})+rope", 0)
    assert RUN["causality"](ended).startswith(f"changing {changed} tokens changes")
    assert RUN["16x"](ended).startswith("refused: 256 tokens need as many positions")


def test_json_is_one_document() -> None:
    result = cli("verify", "alibi", of(PeekingByOne), "--json")
    assert result.code == 1
    good, bad = result.json
    assert (good["encoding"], good["status"]) == ("alibi", "passed")
    assert bad["status"] == "failed"
    assert all(set(f) == {"check", "status", "detail", "look"} for f in bad["findings"])
    assert math.isfinite(good["seconds"])


def test_a_limit_of_a_dtype_is_found() -> None:
    """exp(pos / 8) leaves float16 where exp((n - 1) / 8) passes 65504."""
    (finding,) = [f for f in verify(of(Promising)).findings if f.check == "range"]
    assert "finite up to" in finding.detail


def test_a_missing_package_makes_an_encoding_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)  # as if it were not installed
    result = cli("verify", "floater", "alibi")
    assert result.code == 0
    assert "unavailable" in result.out
    assert "pip install 'poscli[ode]'" in " ".join(result.out.split())
    assert cli("verify", "floater", "--json").json[0]["status"] == "unavailable"
    refused = cli("train", "--enc", "floater")
    assert refused.code == 2
    assert "floater needs torchdiffeq: pip install 'poscli[ode]'" in refused.err
    listed = {row["name"]: row["unavailable"] for row in cli("ls", "encodings", "--json").json}
    assert listed["floater"].startswith("needs torchdiffeq")
    assert listed["alibi"] == ""
    assert "needs torchdiffeq" in cli("ls", "encodings", "--verbose").out
    assert "pip install 'poscli[ode]'" in " ".join(cli("doctor").out.split())


def test_the_table_shows_what_failed() -> None:
    result = cli("verify", "alibi", of(Random))
    assert "11 checks hold" in result.out
    assert "failed" in result.out
    assert "look at:" in result.out
    assert "1 of 2 encodings hold" in result.err


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


def test_a_tolerance_is_eight_times_the_error_or_the_rounding_of_a_sum_that_cancels() -> None:
    exact = {name: torch.zeros(2) for name in ("output", "dq", "dslope")}
    small = {name: torch.full((2,), 1e-12) for name in exact}
    large = small | {"output": torch.tensor([0.0, -0.5])}
    assert tolerances(exact, [small], width=8, keys=16) == {
        "output": 8 * 8 * 2**-23, "dq": 8 * 8 * 2**-23, "dslope": 8 * 8 * 16 * 2**-23,
    }  # fmt: skip
    assert tolerances(exact, [small, large], width=8, keys=16)["output"] == 4.0
