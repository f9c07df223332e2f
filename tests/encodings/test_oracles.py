"""Every encoding equals its oracles: values and gradients, on every engine, in float64 and in float32."""

from __future__ import annotations

import math

import pytest
import torch
from oracles import FLOAT32, Oracle, biases, dots, every
from oracles.measure import engines_of, expected, found, limits, strides_of
from toys import NARROW

from poscli.encodings import names
from poscli.equation import Unsupported
from poscli.specs import parse


@pytest.mark.parametrize(
    ("oracle", "stride"),
    [
        pytest.param(oracle, stride, marks=[pytest.mark.wide] if stride > 1 and oracle.spec not in NARROW else [])
        for oracle in every()
        for stride in strides_of(oracle)
    ],
    ids=str,
)
def test_every_engine_equals_the_oracle(oracle: Oracle, stride: int) -> None:
    try:
        exact = expected(oracle, stride)
        limit = limits(oracle, stride, exact)
    except Unsupported:
        with pytest.raises(Unsupported):
            found(oracle, stride, engines_of(oracle)[0], torch.float64)
        assert stride > 1
        return
    for dtype, unit in ((torch.float64, oracle.unit), (torch.float32, FLOAT32)):
        for engine in engines_of(oracle, dtype):
            for name, value in found(oracle, stride, engine, dtype).items():
                error = float((value - exact[name]).abs().max())
                assert error <= limit[name] * max(unit, torch.finfo(dtype).eps) / FLOAT32, (engine, dtype, name)


def test_every_encoding_has_an_oracle() -> None:
    proven = {leaf.name for oracle in every() for leaves in parse(oracle.spec).layers for leaf in leaves}
    assert proven >= set(names())


def test_an_oracle_refuses_a_wrong_formula() -> None:
    """A slope that is off by one part in a thousand is more than the limit allows."""
    wrong = Oracle("alibi", "", "scores", lambda e, c: dots(c) + 1.001 * biases.alibi(e, c))
    exact = expected(wrong, 1)
    error = float((found(wrong, 1, "sdpa", torch.float32)["result"] - exact["result"]).abs().max())
    assert error > limits(wrong, 1, exact)["result"]
    assert not math.isclose(error, 0)
