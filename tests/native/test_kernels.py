"""The compiled kernels: the formula on calls drawn at random, numbers that are lost nowhere, threads, and memory."""

from __future__ import annotations

import ctypes
import itertools
import math
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled import UNIT, Wrong, kernels, needs_kernels, randoms
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import leaky_relu, softplus
from toys import HEAD_WIDTH, HEADS, WIDTH, draw, make

from poscli.attention import ENGINES, attend
from poscli.encodings import Encoding, names
from poscli.model.transformer import RMSNorm, gated
from poscli.native import (
    QUERIES,
    Block,
    Costs,
    Factors,
    Form,
    Gates,
    Mixing,
    Part,
    Pieces,
    Relative,
    Stick,
    Term,
    Visible,
    attention_to_part,
    native_attention,
    proof,
)
from poscli.native.layers import rms_norm, swiglu
from poscli.system.memory import is_out_of_memory

pytestmark = needs_kernels
LEARNED = [name for name in names() if make(name).kernel_form_has_gradient]


class Drawn:
    """A call of the kernels with everything drawn at random, and the formula of it, query by query and key by key.

    T queries, S keys, N distances in descending order: query t and key j meet entry T - 1 - t + j.
    """

    SIZES = (1, 5, 16, 24, 33, 40, 72)

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        pick = self.random.choice
        self.form = pick([None, None, None, *FORMS])
        self.heads = pick([1, 2, 3, 9])
        self.batch = 1 if self.heads == 9 else pick([1, 2, 3])
        # Costs that leave most far keys no weight, but not those that are long or meet large vectors.
        self.steep = self.form is Costs and pick([True, False])
        self.queries, self.past = pick([1, 31, 33, 64, 100]), 300 if self.steep else pick([0, 1, 40, 130, 300])
        self.keys, self.distances = self.queries + self.past, 2 * self.queries + self.past - 1
        self.width, self.values = pick(self.SIZES), pick(self.SIZES)
        self.reach = pick([0, 0, 2, 30, 90, 200])
        self.sinks = pick([0, 3, 70]) if self.reach and self.form is None else 0
        self.gradient = self.form is not Pieces and pick([True, True, False])
        self.constant = 0 if self.gradient or self.form else self.equal_distances()
        self.entry = self.queries - 1 - torch.arange(self.queries)[:, None] + torch.arange(self.keys)
        apart = self.past + torch.arange(self.queries)[:, None] - torch.arange(self.keys)
        far = (apart >= self.reach) & (torch.arange(self.keys) >= self.sinks) if self.reach else apart < 0
        self.hidden, self.own = (apart < 0) | far, apart == 0
        self.x: dict[str, Tensor] = {}
        self._draw_tokens()
        self._draw_terms()
        self._draw_form()
        wanted = [name for name in self.x if self.gradient and pick([True, True, False])]
        self.wanted = wanted or (["v"] if self.gradient else [])

    def equal_distances(self) -> int:
        """How many of the largest distances share a number: none, some, about as many as a tile sees, or all."""
        tile = self.queries + 128 + self.random.choice([-3, -2, -1, 0])
        return min(self.random.choice([0, 60, tile, tile, tile, self.keys]), self.keys)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def _draw_tokens(self) -> None:
        """Queries, keys and values in several layouts, and vectors by distance with what meets them."""
        for name, count, width in (
            ("q", self.queries, self.width), ("k", self.keys, self.width), ("v", self.keys, self.values)
        ):  # fmt: skip
            self.x[name] = self.in_a_layout(count, width)
        for name, count in (("a", self.queries), ("b", self.keys), ("c", 0)):
            if self.random.random() < 0.4:
                width = self.random.choice(self.SIZES[:5]) if count else self.values
                self.x[name] = self.by_distance(self.random.choice([1, self.heads]), self.distances, width, dim=1)
                if count:
                    self.x[f"met by {name}"] = self.in_a_layout(count, width) / 2

    def in_a_layout(self, count: int, width: int) -> Tensor:
        """Random numbers `[B, H, count, width]`, with the strides that projections and others leave behind."""
        lengths = torch.tensor([0.1, 1.0, 2.0])[
            torch.randint(3, (self.batch, self.heads, count, 1), generator=self.generator)
        ]
        x = lengths * self.normal(self.batch, self.heads, count, width) / width**0.25
        layouts = [x, x.transpose(1, 2).contiguous().transpose(1, 2), x.mT.contiguous().mT]
        layouts.append(torch.cat([x, x], dim=-1)[..., :width])
        return self.random.choice(layouts)

    def by_distance(self, *shape: int, dim: int) -> Tensor:
        """Random numbers, the first of which along one dimension are equal where the call says so."""
        x = self.normal(*shape) / 2
        x.narrow(dim, 0, self.constant).copy_(x.narrow(dim, 0, 1).expand_as(x.narrow(dim, 0, self.constant)))
        if dim == 3:
            x[..., : self.constant] += 3
        return x

    def _draw_terms(self) -> None:
        pick = self.random.choice
        for n in range(pick([0, 1, 2, 4]) if self.form is None else pick([0, 1])):
            kind = "table" if self.form else pick(["table", "keys", "pairs"])
            of = pick([1, self.batch]), pick([1, self.heads])
            self.x[f"{kind} {n}"] = {
                "table": lambda of=of: self.by_distance(*of, 1, self.distances, dim=3),
                "keys": lambda of=of: 2 * self.normal(*of, 1, self.keys),
                "pairs": lambda of=of: self.normal(*of, self.keys, self.queries).mT,
            }[kind]()
        alone = not (self.form or self.constant or {"a", "b", "c"} & self.x.keys())
        self.skips = alone and not (self.gradient or self.reach) and pick([True, False])
        if self.skips:  # keys more than 50 tokens back have no weight in the last head
            far = torch.arange(self.keys - 1, self.past - self.keys, -1)
            self.x["table 9"] = torch.zeros(1, self.heads, 1, self.distances)
            self.x["table 9"][:, -1] = torch.where(far > 50, -1000.0, 0.0)
        self.cuts = [0, 32, self.queries] if alone and not self.skips and self.queries > 32 else [0, self.queries]

    def _draw_form(self) -> None:
        heads, queries, keys = self.heads, self.queries, self.keys
        if self.form is Pieces:
            self.x |= {
                "u": self.normal(self.distances).abs().sort(descending=True).values, "y": self.normal(queries).abs(),
                "start": self.normal(heads), "slopes": self.normal(heads, 7), "bends": self.normal(7),
            }  # fmt: skip
        if self.form is Costs:
            width = self.random.choice([1, 4, 17])
            for name, count in (("y", queries), ("z", keys)):
                self.x[name] = self.normal(self.batch, heads, count, width)
            self.x["factor"] = self.normal(heads).abs() / 8
            if self.steep:
                self.x["factor"] = self.normal(heads).abs() / 8 + 0.75
                self.x["q"][..., 0], self.x["k"][:, :, 3, 0] = 8, 40
                for name in self.x.keys() & {"a", "b"}:
                    self.x[name] *= 150
        if self.form is Gates:
            self.x["positions"] = self.normal(self.batch, heads, queries, self.random.choice([2, 4, 40]))
        if self.form is Mixing:  # no hidden number comes near to 0
            hidden = self.random.choice([3, 32, 40])
            away = self.normal(hidden, self.distances)
            self.x |= {
                "in": self.normal(hidden, heads) / 50,
                "away": away + 3 * away.sign(),
                "out": self.normal(heads, hidden) / 20,
            }
        if self.form is Factors:
            self.x["factors"] = self.normal(heads, self.distances)

    def of_form(self, x: dict[str, Tensor]) -> Form | None:
        """The form of the call, of these tensors."""
        if self.form is None or self.form is Stick:
            return self.form and Stick(own=self.keys % 2 == 0)
        names = [
            n
            for n in ("u", "y", "z", "start", "slopes", "bends", "factor", "positions", "in", "away", "out", "factors")
            if n in x
        ]
        return self.form(*(x[name] for name in names), *([0.25] if self.form is Mixing else []))

    def by_kernels(self, x: dict[str, Tensor]) -> Tensor:
        blocks = []
        for start, stop in itertools.pairwise(self.cuts):
            seen, first = self.past + stop, None
            if self.skips:
                first = torch.zeros(self.heads, -(-self.queries // QUERIES), dtype=torch.int32)
                first[-1] = (self.past - 50 + QUERIES * torch.arange(first.shape[1])).clamp(min=0)
            terms = []
            for name, y in x.items():
                if name.startswith("table"):
                    terms.append(Term(y[..., self.queries - stop :], skewed=True))
                elif name.startswith("keys"):
                    terms.append(Term(y[..., :seen]))
                elif name.startswith("pairs"):
                    terms.append(Term(y[:, :, start:stop, :seen].flip(2)))
            blocks.append(Block(slice(start, stop), slice(0, seen), tuple(terms), first, self.constant))
        vectors = tuple(Relative(x[n], x.get(f"met by {n}")) if n in x else None for n in "abc")
        visible = Visible(reach=self.reach, sinks=self.sinks)
        qkv = (x["q"], x["k"], x["v"])
        return native_attention(
            kernels(), qkv, blocks, scale=0.7, visible=visible, vectors=vectors, form=self.of_form(x)
        )  # type: ignore[arg-type]

    def by_formula(self, x: dict[str, Tensor]) -> Tensor:
        t, j, entry = torch.arange(self.queries)[:, None], torch.arange(self.keys), self.entry
        s = 0.7 * x["q"] @ x["k"].mT
        for name, y in x.items():
            if name.startswith("table"):
                s = s + y[:, :, 0][..., entry]
            elif name.startswith(("keys", "pairs")):
                s = s + y
        if "a" in x:
            s = s + (x["met by a"] @ x["a"].mT)[..., t, entry]
        if "b" in x:
            s = s + (x["met by b"] @ x["b"].mT)[..., j, entry]
        p = FORMULAS[self.form](self, x, s)
        out = p @ x["v"]
        if "c" not in x:
            return out
        at = entry.expand(p.shape)
        return out + p.new_zeros(*p.shape[:3], self.distances).scatter(-1, at, p) @ x["c"]

    def __str__(self) -> str:
        form = self.form and self.form.__name__
        sizes = f"{self.batch} x {self.heads} x {self.queries} of {self.keys}, {self.width}, {self.values}"
        return f"{form} {sizes} {sorted(self.x)} reach {self.reach} {self.sinks} constant {self.constant} {self.skips}"

    def seen(self, s: Tensor) -> Tensor:
        return s.masked_fill(self.hidden, -math.inf)

    def results(self, run: Callable[[dict[str, Tensor]], Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """The output, and the gradients of all that is wanted."""
        x = {name: y.to(dtype) for name, y in self.x.items()}
        with torch.set_grad_enabled(self.gradient):
            for name in self.wanted:
                x[name] = x[name].detach().requires_grad_()
            out = run(x)
            upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
            grads = torch.autograd.grad(out, [x[n] for n in self.wanted], upstream) if self.wanted else ()
        return {"the output": out.detach()} | {
            f"the gradient of {n}": g for n, g in zip(self.wanted, grads, strict=True)
        }


def after(x: Tensor) -> Tensor:
    """The sum of the entries after each one."""
    return x.flip(-1).cumsum(-1).flip(-1) - x


def weights_of_pieces(call: Drawn, x: dict[str, Tensor], s: Tensor) -> Tensor:
    u = x["u"][call.entry] * x["y"][:, None]
    bent = torch.maximum(u, x["bends"][:, None, None])
    return call.seen(s + x["start"][:, None, None] + (x["slopes"][..., None, None] * bent).sum(1)).softmax(-1)


def weights_of_costs(call: Drawn, x: dict[str, Tensor], s: Tensor) -> Tensor:
    between = after(softplus(x["y"] @ x["z"].mT).masked_fill(call.hidden, 0))
    return call.seen(s - x["factor"][:, None, None] * between).softmax(-1)


def weights_of_gates(call: Drawn, x: dict[str, Tensor], s: Tensor) -> Tensor:
    table, gate = x["positions"], call.seen(s).sigmoid()
    at = (after(gate) + gate).clamp(max=table.shape[-1] - 1)
    low, high = table.gather(-1, at.long()), table.gather(-1, at.ceil().long())
    return call.seen(s + low + at.frac() * (high - low)).softmax(-1)


def weights_of_a_stick(call: Drawn, _: dict[str, Tensor], s: Tensor) -> Tensor:
    s = call.seen(s) if call.keys % 2 == 0 else call.seen(s).masked_fill(call.own, -math.inf)
    return s.sigmoid() * (-after(softplus(s))).exp()


def weights_of_a_mixture(call: Drawn, x: dict[str, Tensor], s: Tensor) -> Tensor:
    hidden = torch.einsum("gh,bhts->bgts", x["in"], s) + x["away"][:, call.entry]
    return call.seen(s + torch.einsum("hg,bgts->bhts", x["out"], leaky_relu(hidden, 0.25))).softmax(-1)


def weights_by_factors(call: Drawn, x: dict[str, Tensor], s: Tensor) -> Tensor:
    return call.seen(s).softmax(-1) * x["factors"][:, call.entry]


FORMULAS: dict[Any, Callable[[Drawn, dict[str, Tensor], Tensor], Tensor]] = {
    None: lambda call, _, s: call.seen(s).softmax(-1),
    Pieces: weights_of_pieces,
    Costs: weights_of_costs,
    Gates: weights_of_gates,
    Stick: weights_of_a_stick,
    Mixing: weights_of_a_mixture,
    Factors: weights_by_factors,
}
FORMS = [form for form in FORMULAS if form]


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_kernels_equal_the_formula_on_anything(first: int) -> None:
    for seed in range(first, first + 50):
        call = Drawn(seed)
        found = call.results(call.by_kernels, torch.float32)
        exact, rounded = (call.results(call.by_formula, dtype) for dtype in (torch.float64, torch.float32))
        for name, x in exact.items():
            error, own = (float((y[name] - x).abs().max()) for y in (found, rounded))
            # Sixteen times what rounding does to the formula itself, and 256 units of the largest number or of 1.
            limit = 16 * max(own, 2.0**-20 * max(float(x.abs().max()), 1.0))
            assert error <= limit, f"{name} of call {seed} is {error:.3g} off, and rounding is {limit:.3g}: {call}"


@torch.no_grad()
def test_attention_to_parts_of_the_keys_equals_the_formula() -> None:
    """Output and log-sum-exp where queries see the keys up to their own, the last of these, or every key."""
    for seed in range(40):
        given = random.Random(seed)
        every, (batch, heads) = seed % 3 == 0, given.choice([(1, 1), (2, 3), (1, 9)])
        queries, reach = given.choice([1, 32, 45, 90]), 0 if every else given.choice([0, 7, 140])
        keys = given.choice([1, 20, 129, 300]) + (0 if every else queries)
        width, values = given.choice([3, 16, 33]), given.choice([5, 16])
        q, k, v = (
            draw(batch, heads, count, size, seed=seed + n).to(torch.float32)
            for n, (count, size) in enumerate(((queries, width), (keys, width), (keys, values)))
        )
        term = draw(given.choice([1, batch]), given.choice([1, heads]), queries, keys, seed=seed) if seed % 2 else None
        part = Part(q, k, every=every, reach=reach, term_BHTS=None if term is None else term.flip(2))
        found = attention_to_part(kernels(), part, v, 0.4)
        apart = keys - queries + torch.arange(queries)[:, None] - torch.arange(keys)
        hidden = torch.zeros_like(apart, dtype=torch.bool) if every else (apart < 0) | (apart >= (reach or keys))
        s = 0.4 * q.double() @ k.double().mT + (0 if term is None else term.double())
        s = s.masked_fill(hidden, -math.inf)
        for one, exact in zip(found, (s.softmax(-1) @ v.double(), s.logsumexp(-1)), strict=True):
            assert float((one - exact).abs().max()) <= 2.0**-17 * max(1.0, float(exact.abs().max())), seed


@torch.no_grad()
def test_functions_in_the_kernels_are_exact_to_some_units_of_rounding() -> None:
    """Weights and gates of a single number, which are its sigmoid: no sum over keys hides an error of a few units."""
    x = torch.cat([torch.linspace(-30, 30, 2000), torch.linspace(-1, 1, 2001), torch.tensor([-80.0, 80.0])])
    one, exact = torch.ones(len(x), 1, 1, 1), x.double().sigmoid()
    block = [Block(slice(0, 1), slice(0, 1))]
    stick = native_attention(kernels(), (x.view(-1, 1, 1, 1), one, one), block, scale=1.0, form=Stick()).flatten()
    ends = torch.tensor([1.0, 0.0]).view(1, 1, 2, 1).expand(len(x), -1, -1, -1)
    two = [Block(slice(0, 1), slice(0, 2))]
    of_two = native_attention(kernels(), (x.view(-1, 1, 1, 1), ends, ends), two, scale=1.0).flatten()
    factor, nothing = torch.ones(1), torch.zeros(len(x), 1, 1, 1)
    costs = Costs(x.view(-1, 1, 1, 1), torch.ones(len(x), 1, 2, 1), factor)
    other = native_attention(kernels(), (nothing, ends, 1 - ends), two, scale=1.0, form=costs).flatten()
    gated = swiglu(kernels(), x, torch.ones(len(x)))
    # Near 0 their logarithms are of the order of x, which is rounded, too.
    units = 6 + 2 * x.double().abs()
    for what, found, right in (
        ("stick", stick, exact),
        ("softmax", of_two, exact),
        ("costs", other, 1 / (1 + torch.exp(-softplus(x.double(), threshold=90)))),
        ("swiglu", gated, x * exact),
    ):
        off = ((found.double() - right).abs() / right.abs().clamp(min=1e-30) / 2.0**-24 / units).max()
        assert off <= 1, f"{what} is {off:.3g} times as far off as it may be"


# Numbers that are lost nowhere


def test_far_keys_without_weight_are_skipped_and_a_nan_among_them_is_not() -> None:
    q, k, v = (x.detach() for x in randoms((1, 1, 400, 8), (1, 1, 400, 8), (1, 1, 400, 8)))
    steep = -2.0 * torch.arange(399, -400, -1).clamp(min=0).float()[None, None, None]
    whole = [Block(slice(0, 400), slice(0, 400), (Term(steep, skewed=True),))]
    entry = 399 - (torch.arange(400)[:, None] - torch.arange(400))
    hidden = torch.ones(400, 400, dtype=torch.bool).triu(1)
    exact = (q.double() @ k.double().mT + steep[0, 0, 0][entry]).masked_fill(hidden, -math.inf).softmax(-1) @ v.double()
    found = native_attention(kernels(), (q, k, v), whole, scale=1.0)
    assert float((found - exact).abs().max()) <= 64 * UNIT * float(exact.abs().max())
    k[0, 0, 0] = math.nan
    assert native_attention(kernels(), (q, k, v), whole, scale=1.0).isnan().all()


def learned(encoding: Encoding) -> Encoding:
    """The encoding with random numbers in place of zeros."""
    for n, p in enumerate(encoding.parameters()):
        if not p.any():
            nn.init.normal_(p, generator=torch.Generator().manual_seed(n))
    return encoding


@pytest.mark.parametrize("spec", LEARNED)
def test_a_nan_is_not_lost(spec: str) -> None:
    """In a key, it reaches the gradients of all later queries, whose scores it enters."""
    q, k, v = randoms((1, HEADS, 40, HEAD_WIDTH), (1, HEADS, 40, HEAD_WIDTH), (1, HEADS, 40, HEAD_WIDTH))
    encoding = learned(make(spec))
    k.data[:, :, 20, 0] = torch.nan
    x = draw(1, 40, WIDTH, seed=5, dtype=torch.float32)
    features = encoding.features(x)
    out = attend(ENGINES["native"], encoding, q, k, v, encoding.locate(40, torch.device("cpu")), features)
    (grad,) = torch.autograd.grad(out.square().sum(), q)
    assert grad[:, :, 20:].isnan().any(-1).all()
    assert out[:, :, :20].isfinite().all()


def forms() -> list[tuple[list[Tensor], Callable[..., Form]]]:
    """The tensors of each form, and how it is made of them: 3 texts, 2 heads, 200 tokens."""
    y, z, factor, table, factors = randoms((3, 2, 200, 4), (3, 2, 200, 4), (2,), (3, 2, 200, 9), (2, 399), seed=1)
    network = randoms((5, 2), (5, 399), (2, 5), seed=2)
    mixing = partial(Mixing, leak=0.1)
    return [([], Stick), ([table], Gates), ([y, z, factor], Costs), ([factors], Factors), (network, mixing)]


def test_queries_whose_stick_is_used_up_read_no_further_keys() -> None:
    """NaN in the values of keys that have no weight would be seen."""
    q, k, v = (torch.ones(1, HEADS, 400, HEAD_WIDTH) for _ in "qkv")
    v[:, :, :64] = torch.nan
    at = make("none").locate(400, torch.device("cpu"))
    with torch.no_grad():
        out = attend(ENGINES["native"], make("stick-breaking"), q, k, v, at)
    assert out[:, :, 368:].isfinite().all()
    assert out[:, :, 64].isnan().all()


@pytest.mark.parametrize("spec", ["alibi", "shaw", "cope(max_pos=5)", "grape-additive", "dape(base=t5)"])
def test_the_weights_of_a_query_sum_to_one_however_large_its_scores_are(spec: str) -> None:
    """What all values gain is then what the outputs gain. Scores of 500 are rounded to 1 / 32,000."""
    q, k, v, upstream = (draw(1, HEADS, n, HEAD_WIDTH, seed=n) for n in (60, 140, 141, 61))
    k, v, upstream = k.requires_grad_(), v[:, :, :140].requires_grad_(), upstream[:, :, :60]
    encoding, at = learned(make(spec)), make(spec).locate(140, torch.device("cpu"))
    features = encoding.features(draw(1, 140, WIDTH, seed=5))
    (grad,) = torch.autograd.grad(attend(ENGINES["native"], encoding, 200 * q, k, v, at, features), v, upstream)
    gained, given = grad.double().sum(dim=2), upstream.double()
    assert ((gained - given.sum(dim=2)).abs() <= 16 * UNIT * given.abs().sum(dim=2)).all()


# Threads and memory


@pytest.mark.parametrize("form", range(-1, 5))
def test_results_have_the_same_bits_on_any_number_of_threads(form: int) -> None:
    """Attention with a table and vectors, or under a form, and the norm: outputs and gradients."""
    given, made = ([], lambda: None) if form < 0 else forms()[form]
    q, k, v = randoms((3, 2, 200, 16), (3, 2, 200, 16), (3, 2, 200, 16))
    table, a, x, weight = randoms((1, 2, 1, 399), (1, 399, 16), (7, 33, 20), (20,), seed=3)

    def run(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        terms = (Term(table, skewed=True),) if form < 0 else ()
        vectors = (Relative(a, q), None, None) if form < 0 else (None, None, None)
        whole = [Block(slice(0, 200), slice(0, 200), terms)]
        out = native_attention(kernels(), (q, k, v), whole, scale=0.25, vectors=vectors, form=made(*given))  # type: ignore[arg-type]
        normed = rms_norm(kernels(), x, weight, 1e-6)
        learned = [q, k, v, x, weight, *([table, a] if form < 0 else given)]
        return [out, normed, *torch.autograd.grad(out.square().sum() + normed.square().sum(), learned)]

    try:
        one, three = run(1), run(3)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(x, y) for x, y in zip(one, three, strict=True))


def no_memory(real: Callable, call: ctypes.Structure) -> bool:
    return False


@pytest.mark.parametrize("name", ["attention_forward", "attention_backward"])
def test_lack_of_memory_is_an_error_that_says_so(name: str) -> None:
    with pytest.raises(MemoryError) as caught:
        proof.disagreement(Wrong(name, no_memory))  # type: ignore[arg-type]
    assert is_out_of_memory(caught.value)


STARVED = """
import resource, torch
from poscli.native import Block, library, native_attention

torch.set_num_threads(1)  # the stacks of threads that start later would need room, too
tokens, width = 1_000_000, 32
q, k, v = (torch.randn(1, 1, *shape) for shape in ((1, width), (tokens, width), (tokens, 1)))
whole = [Block(slice(0, 1), slice(0, tokens))]
run = lambda: native_attention(library(), (q.requires_grad_(), k, v), whole, scale=1.0)
if {backward}:
    out = run()
    run = out.sum().backward
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + int({copies} * k.nbytes)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
run()
"""


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="Linux says how much a process has, and heeds a limit"
)
@pytest.mark.parametrize("backward", [False, True])
def test_kernels_that_find_too_little_memory_end_in_that_error(backward: bool) -> None:
    """They need copies of the keys, and there is room for half of one, beside the gradient that torch allocates."""
    code = STARVED.format(backward=backward, copies=0.5 + backward)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stderr.splitlines()[-1:] == ["MemoryError: the kernels of attention could not allocate memory"]


# The layers beside attention


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


def test_the_model_uses_them_for_float32_alone() -> None:
    norm = RMSNorm(8)
    assert "Norm" in str(norm(torch.ones(2, 8)).grad_fn)
    assert "_Norm" in str(norm(torch.ones(2, 8)).grad_fn)
    assert "_Norm" not in str(norm.double()(torch.ones(2, 8, dtype=torch.float64)).grad_fn)
    half = torch.ones(2, 8, dtype=torch.bfloat16, requires_grad=True)
    assert torch.equal(gated(half, half), F.silu(half) * half)
