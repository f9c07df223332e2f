"""Whether a compiled library computes what it should: small random cases of everything against the formula.

Some fit into a tile, others take several, with long and short queries and keys in every tile.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from poscli.native.attention import attention
from poscli.native.fields import QUERIES
from poscli.native.inputs import Block, Relative, Term, Visible
from poscli.native.proof_forms import difference, spread, wrong_form

# Largest difference from the formula in float64, as a share of the largest number: 64 roundings of float32. Sums of
# 100 numbers differ by about 10 roundings.
TOLERANCE = 64 * 2.0**-24
SCALE = 0.3


@dataclass(frozen=True, kw_only=True)
class _Case:
    """The sizes of a call. A case without a gradient also tells the kernels what they may leave out."""

    batch: int = 1
    heads: int = 2
    queries: int = 150
    keys: int = 600  # several tiles
    width: int = 5
    values: int = 6
    reach: int = 0
    sinks: int = 0
    constant: int = 0  # so many of the largest distances share one entry in terms and vectors
    steep: bool = False  # the first head gives keys far away no weight, and the kernels are told from where on
    spread: bool = True  # queries and keys are of different lengths

    @property
    def gradient(self) -> bool:
        """Whether gradients are compared, too."""
        return not (self.constant or self.steep)

    @property
    def distances(self) -> int:
        """The number of distances."""
        return self.queries + self.keys - 1

    def apart(self) -> Tensor:
        """The distance of every pair, `[T, S]`."""
        return torch.arange(self.keys - self.queries, self.keys)[:, None] - torch.arange(self.keys)

    def hidden(self) -> Tensor:
        """The pairs of which the query does not see the key."""
        d, j = self.apart(), torch.arange(self.keys)
        return (d < 0) | ((d >= self.reach) & (j >= self.sinks) if self.reach else d < 0)

    def first_key(self) -> Tensor | None:
        """The first key of each head and block of queries whose weight is not 0."""
        if not self.steep:
            return None
        first = torch.zeros(self.heads, -(-self.queries // QUERIES), dtype=torch.int32)
        first[0] = self.keys - self.queries + QUERIES * torch.arange(first.shape[1]) - STEEP_REACH
        return first


HIGH = 100  # what far keys of the last head have more, so that e^x would leave float32 without it
STEEP_REACH = 120  # keys; the table of a steep case falls by 1 per token, and e^-104 is 0 in float32
CASES = (
    _Case(batch=2, queries=70, keys=100, width=20, values=12, reach=40, sinks=2, spread=False),
    _Case(),
    _Case(reach=150, sinks=70),
    _Case(batch=2, queries=400, keys=400, constant=330),
    _Case(batch=2, steep=True),
)


def disagreement(library: ctypes.CDLL) -> str:
    """What the library computes wrongly, in words; '' if all is right."""
    with torch.inference_mode(False), torch.enable_grad():  # the first use may be an evaluation
        return next(filter(None, (_wrong_attention(library, case) for case in CASES)), "") or wrong_form(library)


def _wrong_attention(library: ctypes.CDLL, case: _Case) -> str:
    inputs, upstream = _inputs(case)
    given = {name: x.clone().requires_grad_(case.gradient) for name, x in inputs.items()}
    exact = {name: x.double().requires_grad_(case.gradient) for name, x in inputs.items()}
    rounded = {name: x.clone().requires_grad_(case.gradient) for name, x in inputs.items()}
    with torch.set_grad_enabled(case.gradient):
        results = [
            with_gradients(_by_kernels(library, case, given), given, upstream),
            with_gradients(_by_formula(case, exact), exact, upstream.double()),
            with_gradients(_by_formula(case, rounded), rounded, upstream),
        ]
    for name, *found in zip(results[0], *(each.values() for each in results), strict=True):
        if differs := difference(*found, least=TOLERANCE):
            return f"{f'the gradient of {name}' if name else 'the output'} differs {differs}"
    return ""


def with_gradients(out: Tensor, inputs: dict[str, Tensor], upstream: Tensor) -> dict[str, Tensor]:
    """The output under the name '', and the gradients of all inputs, if the output has one."""
    grads = torch.autograd.grad(out, list(inputs.values()), upstream) if out.requires_grad else ()
    return {"": out.detach()} | dict(zip(inputs, grads, strict=False))


def _inputs(case: _Case) -> tuple[dict[str, Tensor], Tensor]:
    """Random numbers of each name, and the gradient of the output."""
    draw = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    batch, heads = case.batch, case.heads
    inputs = {
        "q": random(batch, heads, case.queries, case.width),
        "k": random(batch, heads, case.keys, case.width),
        "v": random(batch, heads, case.keys, case.values),
        "a": random(heads, case.distances, 3),
        "p": random(batch, heads, case.queries, 3),
        "b": random(1, case.distances, 17),
        "r": random(batch, heads, case.keys, 17),
        "c": random(heads, case.distances, case.values),
        "table": random(1, heads, 1, case.distances),
        "keys": random(batch, heads, 1, case.keys),
        "pairs": random(1, 1, case.queries, case.keys),
    }
    upstream = random(batch, heads, case.queries, case.values)
    if case.spread:
        inputs |= {name: spread(inputs[name], draw) for name in ("q", "k")}
    for x in (inputs["a"], inputs["b"], inputs["c"], inputs["table"].mT):
        x[..., : case.constant, :] = x[..., :1, :]
    inputs["table"][:, -1, :, : case.constant] += HIGH
    if case.steep:
        # Far keys of the first head have no weight whatever else is added, of which nothing exceeds 10.
        inputs |= {name: inputs[name].clamp(-1, 1) / 10 for name in ("q", "a", "b", "keys", "pairs")}
        far = torch.arange(case.keys - 1, -case.queries, -1).clamp(min=0)
        inputs["table"][0, 0, 0] -= far
    return inputs, upstream


def _by_kernels(library: ctypes.CDLL, case: _Case, x: dict[str, Tensor]) -> Tensor:
    terms = (Term(x["table"], skewed=True), Term(x["keys"]), Term(x["pairs"]))
    block = Block(slice(0, case.queries), slice(0, case.keys), terms, case.first_key(), case.constant)
    return attention(
        library,
        (x["q"], x["k"], x["v"]),
        [block],
        scale=SCALE,
        visible=Visible(reach=case.reach, sinks=case.sinks),
        vectors=(Relative(x["a"], x["p"]), Relative(x["b"], x["r"]), Relative(x["c"])),
    )


def _by_formula(case: _Case, x: dict[str, Tensor]) -> Tensor:
    entry = case.keys - 1 - case.apart()
    s = SCALE * x["q"] @ x["k"].mT + x["table"][:, :, 0][..., entry] + x["keys"] + x["pairs"].flip(2)
    s = s + (x["p"] @ x["a"].mT)[..., torch.arange(case.queries)[:, None], entry]
    s = s + (x["r"] @ x["b"].mT)[..., torch.arange(case.keys), entry]
    p = s.masked_fill(case.hidden(), -math.inf).softmax(-1)
    return p @ x["v"] + torch.einsum("bhts,htse->bhte", p, x["c"][:, entry])
