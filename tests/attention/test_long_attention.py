"""Attention over several tiles of queries and keys equals the reference, with long and short vectors in every tile.

Tiles have 32 queries and 64 or 128 keys in our own kernels, and up to 1024 of either in other engines. Most other tests
have fewer tokens, or smaller tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toys import draw, first, make, shape

from poscli.attention import ENGINES, Engine, Place, attend, engines_for
from poscli.encodings import Encoding

UNIT = 2.0**-24
HEAD_WIDTH = 8
LENGTHS = torch.tensor([0.1, 1.0, 3.0])  # of queries and keys, in turn at random
# Encodings, queries and keys. Every path of the engine `native`, every tier, and every form of forms.py.
EVALUATED: list[Any] = [
    ("shaw(clip=8)", 1000, 1000),  # far keys share one vector
    ("fox+t5", 2049, 2049),  # several blocks of queries whose terms are their own, and a table that ends
    ("alibi", 2049, 2049),  # far keys that are left out
    ("sink(70)+window(300)+t5", 1000, 1000),
    ("transformer-xl+deberta(span=600)", 300, 600),
    ("sink(70)+window(300)+alibi-2d", 1000, 1000),
    ("swin-2d+window(300)", 1000, 1000),
    ("rope", 600, 1000),
    ("rope+window(300)", 1000, 1000),
    ("fire", 600, 600),
    ("grape-additive", 600, 1000),
    ("cope(max_pos=300)", 600, 600),
    ("stick-breaking", 600, 1000),
    ("dape", 600, 600),
    ("urpe", 600, 1000),
    ("rerope(window=300)", 600, 1000),
    ("fox+shaw(clip=8)", 600, 1000),
    ("fox+window(300)", 2049, 2049),
    ("alibi+rope+ssmax", 600, 1000),
    ("path", 600, 600),
    ("self-extend(window=300, group=3)", 1000, 1000),
    ("string(shift=300)", 600, 600),
    ("kerple-log+interpolated(3)", 1000, 1000),
    ("alibi", 1025, 2049),
    ("shaw(clip=8)", 600, 2049),
    ("t5+fox+deberta", 600, 1000),
]
TRAINED: list[Any] = [
    ("fox+t5", 300, 600),
    ("shaw(clip=8)", 300, 600),
    ("transformer-xl+deberta(span=300)+window(170)", 150, 300),
    ("sink(70)+window(300)+t5", 600, 600),
    ("grape-additive", 300, 600),
    ("stick-breaking", 300, 600),
    ("cope(max_pos=5)", 300, 600),
    ("urpe(base=t5)", 300, 600),
    ("sink(70)+window(300)+swin-2d", 600, 600),
    ("t5", 1000, 1000),
    ("rope", 600, 1000),
    ("shaw(clip=8)+urpe(base=none)", 600, 1000),
    ("fox+shaw(clip=8)", 600, 1000),
    ("deberta(span=600)", 600, 1000),
    ("alibi+ssmax", 600, 1000),
    ("fire", 600, 600),
]
MOST_FOR_ALL = 600  # keys up to which every engine is compared; the two fastest ones are compared with more


@dataclass(frozen=True)
class Call:
    """What is computed, with `gradient` also backwards; the queries are the last ones."""

    spec: str
    queries: int
    keys: int
    gradient: bool

    @property
    def heads(self) -> int:
        """The heads of a call; the longest calls have one."""
        return 2 if self.keys <= 1000 else 1


def drawn(call: Call, off: int = 0) -> tuple[Encoding, dict[str, Tensor]]:
    """An encoding without a zero among its parameters, and queries and keys of different lengths, in float64.

    With a seed `off`, every number is changed by a unit of rounding of float32.
    """
    heads, keys = call.heads, call.keys
    encoding = make(call.spec, shape(keys, heads=heads, width=heads * HEAD_WIDTH), torch.float64)
    for n, p in enumerate(encoding.parameters()):
        if not p.any():
            nn.init.normal_(p, generator=torch.Generator().manual_seed(n))
    x = {name: draw(1, heads, keys, HEAD_WIDTH, seed=n).double() for n, name in enumerate("qkv")}
    chosen = torch.randint(len(LENGTHS), (2, 1, heads, keys, 1), generator=torch.Generator().manual_seed(7))
    x["q"], x["k"] = x["q"] * LENGTHS[chosen[0]], x["k"] * LENGTHS[chosen[1]]
    x["x"] = draw(1, keys, heads * HEAD_WIDTH, seed=5).double()
    for n, numbers in enumerate([*x.values(), *encoding.parameters()] if off else []):
        numbers.data *= 1 + UNIT * draw(*numbers.shape, seed=off + n, dtype=torch.float64).sign()
    return encoding, x


def computed(engine: Engine, call: Call, dtype: torch.dtype, off: int = 0) -> dict[str, Tensor]:
    """The output and, if there is one, every gradient of a random loss."""
    encoding, inputs = drawn(call, off)
    encoding = encoding.to(dtype)
    given = {name: x.to(dtype).requires_grad_(call.gradient) for name, x in inputs.items()}
    with torch.set_grad_enabled(call.gradient):
        features = encoding.features(given["x"])
        positions = encoding.locate(call.keys, torch.device("cpu"))
        out = attend(engine, encoding, given["q"][:, :, -call.queries :], given["k"], given["v"], positions, features)
    found = {"output": out.detach()}
    if call.gradient:
        leaves = given | dict(encoding.named_parameters())
        grads = torch.autograd.grad(out, list(leaves.values()), draw(*out.shape, seed=9).to(dtype), allow_unused=True)
        found |= {f"the gradient of {name}": x for name, x in zip(leaves, grads, strict=True) if x is not None}
    return {name: x.double() for name, x in found.items()}


def assert_equal(call: Call) -> None:
    """Every engine against the reference in float64."""
    reference = ENGINES["reference"]
    exact = computed(reference, call, torch.float64)
    rounded = [computed(reference, call, torch.float32)]
    rounded += [computed(reference, call, torch.float64, off) for off in ((100, 200) if call.gradient else ())]
    encoding, _ = drawn(call)
    engines = [each for each in engines_for(encoding, Place(gradient=call.gradient)) if each.name != "reference"]
    for engine in engines if call.keys <= MOST_FOR_ALL else engines[:2]:
        found = computed(engine, call, torch.float32)
        assert found.keys() == exact.keys()
        for name, x in exact.items():
            # Sixteen times what rounding does to the reference, and sums over all keys, whose roundings differ in sign.
            limit = 16 * max(float((other[name] - x).abs().max()) for other in rounded)
            limit += UNIT * 4 * call.keys**0.5 * float(x.abs().max())
            error = float((found[name] - x).abs().max())
            assert error <= limit, f"{name} of {engine.name} is {error:.3g} off, and rounding is {limit:.3g}"


@pytest.mark.parametrize(("spec", "queries", "keys"), first(14, EVALUATED))
def test_outputs_over_several_tiles_equal_the_reference(spec: str, queries: int, keys: int) -> None:
    assert_equal(Call(spec, queries, keys, gradient=False))


@pytest.mark.parametrize(("spec", "queries", "keys"), first(9, TRAINED))
def test_gradients_over_several_tiles_equal_the_reference(spec: str, queries: int, keys: int) -> None:
    assert_equal(Call(spec, queries, keys, gradient=True))


@pytest.mark.parametrize("spec", ["fox", "cable", "cope(max_pos=300)", "kerple-log", "t5", "stick-breaking", "xpos"])
def test_positions_are_not_rounded_to_the_bfloat16_of_queries_and_keys(spec: str) -> None:
    """Rounding queries, keys, values and scores gives about as large an error under every encoding as under none."""
    assert error_in_bfloat16(spec) <= 2 * error_in_bfloat16("none")


def error_in_bfloat16(spec: str) -> float:
    """The root of the mean squared error of the reference, whose queries, keys and values are in bfloat16."""
    encoding, inputs = drawn(Call(spec, 600, 600, gradient=False))
    rounded = {name: x.bfloat16() for name, x in inputs.items()}
    outputs = []
    for exact in (True, False):
        encoding = encoding.float().to(torch.float64 if exact else torch.float32)
        q, k, v = (rounded[name].double() if exact else rounded[name] for name in "qkv")
        wide = rounded["x"].double() if exact else rounded["x"].float()
        with torch.no_grad():
            features = encoding.features(wide)
            positions = encoding.locate(600, torch.device("cpu"))
            outputs.append(attend(ENGINES["reference"], encoding, q, k, v, positions, features).double())
    return float((outputs[0] - outputs[1]).square().mean().sqrt())
