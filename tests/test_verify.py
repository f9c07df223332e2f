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
from toys import EVERYWHERE, wide

from poscli.encodings import Encoding, Shape, get
from poscli.verify import CHECKS, verify

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


class Peeking(Encoding):
    """Adds the mean of all values, including later ones."""

    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        return v_BHSD + v_BHSD.mean(dim=2, keepdim=True)


class Deaf(Encoding):
    """Gives the same output whatever the tokens are."""

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        return x_BTW * 0


class Counting(Encoding):
    """Counts the tokens that it is given instead of using their positions, which is wrong with a cache."""

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return q_BHTD * (1 + torch.arange(q_BHTD.shape[2])[:, None] / 8)


class Blockwise(Encoding):
    """A bias that depends on the number of keys in the block."""

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return -(i[:, None] - j).float().expand(self.shape.heads, -1, -1) * len(j) / 8


class Undeclared(Encoding):
    """Adds a function of the position and does not declare `relative = False`."""

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        return x_BTW + pos[:, None].cos()


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
        return -self.slope[:, None] * d


class Crowded(Encoding):
    """Normalises over the batch."""

    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        return v_BHSD - v_BHSD.mean(dim=0, keepdim=True)


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


BROKEN = {
    WrongShape: "shapes",
    WrongDtype: "shapes",
    Unequal: "shapes",
    Miscounted: "shapes",
    Peeking: "causality",
    Deaf: "causality",
    Counting: "decoding",
    Blockwise: "engines",
    Undeclared: "shift",
    Overdeclared: "shift",
    Exploding: "16x",
    Promising: "range",
    Forgetful: "saving",
    Crowded: "batches",
    Random: "determinism",
    Unreached: "learning",
    Rooted: "learning",
}


def of(cls: type) -> str:
    return f"{__name__}:{cls.__name__}"


@pytest.mark.parametrize(("cls", "check"), BROKEN.items(), ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_a_broken_encoding_fails_its_check_with_a_hint(cls: type, check: str) -> None:
    verdict = verify(of(cls))
    failed = {finding.check: finding for finding in verdict.findings if finding.status == "failed"}
    assert verdict.status == "failed"
    assert check in failed
    assert failed[check].detail
    assert failed[check].look


def test_every_check_refuses_some_encoding() -> None:
    assert {check.name for check in CHECKS} == set(BROKEN.values())


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


def test_json_is_one_document() -> None:
    result = cli("verify", "alibi", of(Peeking), "--json")
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
