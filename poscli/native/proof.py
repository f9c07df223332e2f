"""Whether kernels compute what they should: small random cases against the formula in float64, gradients included.

`first_difference` compares any kernels with any formula. `disagreement` compares a compiled library: attention with
terms and vectors, and every form. Some cases fit into a tile, others take several, with long and short queries and keys
in every tile.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, pad, softplus

from poscli.native.attention import native_attention
from poscli.native.call import (
    QUERIES,
    Block,
    Costs,
    Factors,
    Form,
    Gates,
    Mixing,
    Passage,
    Pieces,
    Relative,
    Stick,
    Term,
    Visible,
    line_of_cells,
)

UNIT = 2.0**-24  # of rounding of float32
# Largest difference from the formula, as a share of the largest number. Sums of 100 numbers differ by about 10
# roundings; the scores of forms are sums over up to 600 keys.
TOLERANCE, TOLERANCE_OF_FORMS = 64 * UNIT, 256 * UNIT
# Where numbers are large or cancel, so many times the error of the formula itself, in the kernels' dtype, is allowed.
OWN_ERRORS = 16
SCALE = 0.3

Inputs = dict[str, Tensor]


def first_difference(
    kernels: Callable[[Inputs], Tensor],
    formula: Callable[[Inputs], Tensor],
    inputs: Inputs,
    upstream: Tensor,
    *,
    least: float,
    gradient: bool = True,
) -> str:
    """The first result in which kernels differ from a formula, in words with the error; '' if only rounding differs.

    The results are the output and, with `gradient`, the gradients of all inputs for the gradient `upstream` of the
    output. A difference of `least`, as a share of the largest number, is always allowed.
    """

    def results(run: Callable[[Inputs], Tensor], dtype: torch.dtype | None = None) -> Inputs:
        x = {name: y.detach().clone().to(dtype or y.dtype).requires_grad_(gradient) for name, y in inputs.items()}
        with torch.set_grad_enabled(gradient):
            named = {"the output": run(x)}
            if gradient:
                (out,) = named.values()
                grads = torch.autograd.grad(out, list(x.values()), upstream.to(out.dtype), allow_unused=True)
                named |= {f"the gradient of {name}": y for name, y in zip(x, grads, strict=True) if y is not None}
        return {name: y.detach().double() for name, y in named.items()}

    found, exact, rounded = results(kernels), results(formula, torch.float64), results(formula)
    for name, x in exact.items():
        if differs := difference(found[name], x, rounded[name], least=least):
            return f"{name} differs {differs}"
    return ""


def difference(computed: Tensor, exact: Tensor, rounded: Tensor, *, least: float) -> str:
    """By how much a result differs from the exact one, if it is more than rounding: '' otherwise.

    `rounded` is the formula in the dtype of the kernels. `least` is a difference, as a share of the largest number,
    that is always allowed.
    """
    largest = exact.abs().max()
    error, rounding = (float((x - exact).abs().max() / largest) for x in (computed, rounded))
    limit = max(least, OWN_ERRORS * rounding)
    return "" if error <= limit else f"by {error:.1e} of its largest number, more than {limit:.1e}"


def disagreement(library: ctypes.CDLL) -> str:
    """What a compiled library computes wrongly, in words; '' if all is right."""
    with torch.inference_mode(False), torch.enable_grad():  # the first use may be an evaluation
        wrong = chain(
            (_wrong_attention(library, case) for case in CASES),
            (_wrong_form(library, size) for size in SIZES),
            (_wrong_passage(library, size) for size in PASSAGES),
        )
        return next(filter(None, wrong), "")


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """The sizes of a call."""

    batch: int
    heads: int
    queries: int
    keys: int
    reach: int = 0
    null: bool = False  # a null key takes part

    @property
    def distances(self) -> int:
        """The number of distances."""
        return self.queries + self.keys - 1

    def apart(self) -> Tensor:
        """The distance of every pair, `[T, S]`."""
        return torch.arange(self.keys - self.queries, self.keys)[:, None] - torch.arange(self.keys)

    def entry(self) -> Tensor:
        """The entry of each pair in numbers by descending distance, `[T, S]`; hidden keys have negative distances."""
        return (self.keys - 1 - self.apart()).clamp(max=self.distances - 1)

    def visible(self) -> Tensor:
        """The pairs of which the query sees the key."""
        return (self.apart() >= 0) & (self.apart() < (self.reach or self.keys))


@dataclass(frozen=True, kw_only=True)
class _Case(_Sizes):
    """A call with all terms and vectors. One without a gradient also tells the kernels what they may leave out."""

    batch: int = 1
    heads: int = 2
    queries: int = 150
    keys: int = 600  # several tiles
    width: int = 5
    values: int = 6
    sinks: int = 0
    columns: int = 64  # of the grid of one of the terms
    constant: int = 0  # so many of the largest distances share one entry in terms and vectors
    steep: bool = False  # the first head gives keys far away no weight, and the kernels are told from where on

    def visible(self) -> Tensor:
        sinks = (self.apart() >= 0) & (torch.arange(self.keys) < self.sinks)
        return super().visible() | sinks

    def line(self) -> int:
        """The number of distances of cells on the grid between which a query and a key it sees can lie."""
        return (-(-self.keys // self.columns) + 1) * (2 * self.columns - 1) - self.columns

    def entry_of_cells(self) -> Tensor:
        """The entry of each pair in the numbers of these distances, `[T, S]`; the last one if the key is hidden."""
        query, key = torch.arange(self.keys - self.queries, self.keys)[:, None], torch.arange(self.keys) - 1
        down, right = query // self.columns - key // self.columns, query % self.columns - key % self.columns
        descending = (-(-self.keys // self.columns) - down) * (2 * self.columns - 1) + self.columns - 1 - right
        return descending.clamp(max=self.line() - 1)

    def first_key(self) -> Tensor | None:
        """The first key of each head and block of queries whose weight is not 0."""
        if not self.steep:
            return None
        first = torch.zeros(self.heads, -(-self.queries // QUERIES), dtype=torch.int32)
        first[0] = self.keys - self.queries + QUERIES * torch.arange(first.shape[1]) - STEEP_REACH
        return first


NULL = "the null score"
HIGH = 100  # what far keys of the last head have more, so that e^x would leave float32 without it
STEEP_REACH = 120  # keys; the table of a steep case falls by 1 per token, and e^-104 is 0 in float32
CASES = (
    _Case(batch=2, queries=70, keys=100, width=20, values=12, reach=40, sinks=2, columns=7, null=True),
    _Case(columns=16),
    _Case(reach=150, sinks=70, null=True),
    _Case(batch=2, queries=400, keys=400, constant=330, columns=400, null=True),
    _Case(batch=2, steep=True),
)


def _wrong_attention(library: ctypes.CDLL, case: _Case) -> str:
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
        "cells": random(heads, case.line()),
    }
    upstream = random(batch, heads, case.queries, case.values)
    inputs |= _null(case, HIGH)
    inputs |= {name: _spread(inputs[name], draw) for name in ("q", "k")}
    for x in (inputs["a"], inputs["b"], inputs["c"], inputs["table"].mT):
        x[..., : case.constant, :] = x[..., :1, :]
    inputs["table"][:, -1, :, : case.constant] += HIGH
    if case.steep:
        # Far keys of the first head have no weight whatever else is added, of which nothing exceeds 10.
        inputs |= {name: inputs[name].clamp(-1, 1) / 10 for name in ("q", "a", "b", "keys", "pairs", "cells")}
        inputs["table"][0, 0, 0] -= torch.arange(case.keys - 1, -case.queries, -1).clamp(min=0)

    def by_kernels(x: Inputs) -> Tensor:
        cells = Term(line_of_cells(x["cells"], case.columns), columns=case.columns)
        terms = (Term(x["table"], skewed=True), Term(x["keys"]), Term(x["pairs"]), cells)
        block = Block(slice(0, case.queries), slice(0, case.keys), terms, case.first_key(), case.constant)
        visible = Visible(reach=case.reach, sinks=case.sinks)
        vectors = (Relative(x["a"], x["p"]), Relative(x["b"], x["r"]), Relative(x["c"]))
        qkv, null = (x["q"], x["k"], x["v"]), x.get(NULL)
        return native_attention(library, qkv, [block], scale=SCALE, visible=visible, vectors=vectors, null=null)

    def by_formula(x: Inputs) -> Tensor:
        entry = case.keys - 1 - case.apart()
        s = SCALE * x["q"] @ x["k"].mT + x["table"][:, :, 0][..., entry] + x["keys"] + x["pairs"].flip(2)
        s = s + x["cells"][:, case.entry_of_cells()]
        s = s + (x["p"] @ x["a"].mT)[..., torch.arange(case.queries)[:, None], entry]
        s = s + (x["r"] @ x["b"].mT)[..., torch.arange(case.keys), entry]
        p = _softmax(s.masked_fill(~case.visible(), -math.inf), x)
        return p @ x["v"] + torch.einsum("bhts,htse->bhte", p, x["c"][:, entry])

    gradient = not (case.constant or case.steep)
    return first_difference(by_kernels, by_formula, inputs, upstream, least=TOLERANCE, gradient=gradient)


def _null(size: _Sizes, largest: float) -> Inputs:
    """The score of a null key for every query, of 0 to `largest` by the head, if it takes part."""
    shape, draw = (size.batch, size.heads, size.queries, 1), torch.Generator().manual_seed(0)
    by_head = torch.linspace(0, largest, size.heads)[:, None, None]
    return {NULL: torch.randn(*shape, generator=draw) + by_head} if size.null else {}


def _softmax(s: Tensor, x: Inputs) -> Tensor:
    """Attention weights from scores, beside a null key if the inputs hold its score."""
    return torch.cat([s, x[NULL]], dim=-1).softmax(-1)[..., :-1] if NULL in x else s.softmax(-1)


def _spread(x_BHTD: Tensor, draw: torch.Generator) -> Tensor:
    """Vectors of different lengths: a third of them a tenth as long, and a third three times."""
    lengths = torch.tensor([0.1, 1.0, 3.0])
    return x_BHTD * lengths[torch.randint(len(lengths), (*x_BHTD.shape[:3], 1), generator=draw)]


@dataclass(frozen=True, kw_only=True)
class _FormSizes(_Sizes):
    """The sizes of a call with a form."""

    # With it no position in a table comes so near to a whole number, and no hidden number to 0, that rounding decides
    # the slope there: they stay 6e-5 and 8e-6 apart.
    seed: int
    positions: int
    hidden: int

    @property
    def long(self) -> bool:
        """Whether queries see several tiles, of which the farthest may have no weight."""
        return not self.reach


SIZES = (
    _FormSizes(batch=2, heads=3, queries=70, keys=300, reach=200, seed=29, positions=21, hidden=37, null=True),
    _FormSizes(batch=1, heads=2, queries=130, keys=600, seed=2, positions=201, hidden=5),
)
WIDTH, VALUES, BENDS, PROBE, LEAK = 10, 12, 5, 4, 0.125
FAR_KEY, LONG_SCORE, LOW_SCORE = 3, 172.0, -3.0
LONG_FACTORS = (0.3, 0.01)  # of costs; a key costs about 1
Softmax = Callable[[Tensor], Tensor]
# A form with its tensors, scores (-inf where a key is hidden), the sizes, and a softmax -> weights.
Weights = Callable[[Any, Tensor, _FormSizes, Softmax], Tensor]


def _wrong_form(library: ctypes.CDLL, size: _FormSizes) -> str:
    draw = torch.Generator().manual_seed(size.seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    tokens = {
        "q": random(size.batch, size.heads, size.queries, WIDTH),
        "k": random(size.batch, size.heads, size.keys, WIDTH),
        "v": random(size.batch, size.heads, size.keys, VALUES),
        "the table": random(1, size.heads, 1, size.distances),
    } | _null(size, 1)
    upstream = random(size.batch, size.heads, size.queries, VALUES)
    if size.long:
        tokens |= {name: _spread(tokens[name], draw) for name in ("q", "k")}
    for form, weights, tabled in _forms(random, size):
        given = _made_hard(tokens, form, size, tabled) if size.long else tokens
        given = given | {field.name: x for field in fields(form) if isinstance(x := getattr(form, field.name), Tensor)}

        def with_tensors(x: Inputs, form: Form = form) -> Form:
            return replace(form, **{name: y for name, y in x.items() if name not in tokens})  # type: ignore[arg-type]

        def by_kernels(x: Inputs, tabled: bool = tabled) -> Tensor:
            terms = (Term(x["the table"], skewed=True),) if tabled else ()
            block, qkv = Block(slice(0, size.queries), slice(0, size.keys), terms), (x["q"], x["k"], x["v"])
            visible, null = Visible(reach=size.reach), x.get(NULL)
            return native_attention(
                library, qkv, [block], scale=SCALE, visible=visible, null=null, form=with_tensors(x)
            )

        def by_formula(x: Inputs, tabled: bool = tabled, weights: Weights = weights) -> Tensor:
            s = SCALE * x["q"] @ x["k"].mT
            s = s + x["the table"][:, :, 0][..., size.entry()] if tabled else s
            s = s.masked_fill(~size.visible(), -math.inf)
            return weights(with_tensors(x), s, size, partial(_softmax, x=x)) @ x["v"]

        if wrong := first_difference(by_kernels, by_formula, given, upstream, least=TOLERANCE_OF_FORMS):
            what, differs, error = wrong.partition(" differs ")
            return f"{what} of the form {type(form).__name__.lower()}{differs}{error}"
    return ""


def _made_hard(tokens: Inputs, form: Form, size: _FormSizes, tabled: bool) -> Inputs:
    """Queries, keys and a table with which far keys of the first head have a weight where one could take none."""
    x = {name: y.clone() for name, y in tokens.items()}
    if tabled:  # the table adds about as much to the scores of the first head as the keys between cost
        far = torch.arange(size.distances - 1, -1, -1) - (size.queries - 1)
        x["the table"] = torch.zeros_like(x["the table"])
        x["the table"][:, 0] = far.clamp(min=0) * LONG_FACTORS[0]
    elif isinstance(form, Costs):  # one far key has a weight in spite of its cost
        x["q"][:, 0, :, 0] = LONG_SCORE / SCALE
        x["k"][:, 0] /= LONG_SCORE
        x["k"][:, 0, FAR_KEY] = torch.eye(WIDTH)[0]
        x["q"][:, 1:] /= 10
    elif isinstance(form, Gates | Stick):  # scores so low that keys of all tiles have a weight
        x["q"][:, 0, :, 0] = LOW_SCORE / SCALE
        x["k"][:, 0, :, 0] = 1
    return x


def _forms(random: Callable[..., Tensor], size: _FormSizes) -> Iterator[tuple[Form, Weights, bool]]:
    """Every form with random numbers, its formula, and whether a table by distance is added to the scores."""
    batch, heads, queries, keys = size.batch, size.heads, size.queries, size.keys
    u, bends = random(heads, size.distances).abs().sort(descending=True).values, random(BENDS).sort().values
    lines = random(heads, BENDS + 1), random(heads, BENDS + 1)
    yield Pieces(u, random(heads, queries), *lines, bends), _pieces, not size.long
    of_tokens = random(batch, heads, queries, PROBE), random(batch, heads, keys, PROBE)
    factor = torch.tensor(LONG_FACTORS) if size.long else random(heads).abs() / 4
    for tabled in (True, False) if size.long else (True,):  # beside a table, no key may be left out
        yield Costs(*of_tokens, factor), _costs, tabled
    table = random(batch, heads, queries, 1 if size.long else size.positions)
    yield Gates(table * torch.arange(size.positions) / 20 if size.long else table), _gates, not size.long
    yield Stick(current=size.long), _stick, not size.long
    network = random(size.hidden, heads) / 2, random(size.hidden, size.distances), random(heads, size.hidden) / 8
    if size.long:  # no hidden number comes near to 0
        network = network[0] / 20, network[1] + 20 * network[1].sign(), network[2]
    yield Mixing(*network, LEAK), _mixing, not size.long
    yield Factors(random(heads, size.distances)), _factors, not size.long


PASSAGES = (
    _Sizes(batch=2, heads=3, queries=76, keys=300, null=True),
    _Sizes(batch=1, heads=2, queries=600, keys=600),
)


def _wrong_passage(library: ctypes.CDLL, size: _Sizes) -> str:
    draw = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(size.batch, size.heads, *shape, generator=draw)

    chunks = -(-size.keys // QUERIES)
    inputs = {
        "q": random(size.queries, WIDTH),
        "k": random(size.keys, WIDTH),
        "v": random(size.keys, VALUES),
        "products within chunks": random(size.queries, QUERIES),
        "matrices of chunks": random(chunks * WIDTH, WIDTH) / WIDTH**0.5,
    } | _null(size, 1)

    def by_kernels(x: Inputs) -> Tensor:
        block, passage = Block(slice(0, size.queries), slice(0, size.keys)), Passage(*list(x.values())[3:5])
        qkv = (x["q"], x["k"], x["v"])
        return native_attention(library, qkv, [block], scale=SCALE, null=x.get(NULL), form=passage)

    def by_formula(x: Inputs) -> Tensor:
        keys = x["k"].split(QUERIES, 2)
        through = x["matrices of chunks"].split(WIDTH, 2)
        within, rows = x["products within chunks"].split(QUERIES, 2), []
        for q, own, n in zip(x["q"].split(QUERIES, 2), within, range(chunks - len(within), chunks), strict=True):
            products = [own[..., : keys[n].shape[2]]]
            for m in range(n - 1, -1, -1):
                products.insert(0, q @ keys[m].mT)
                q = q @ through[m]
            rows.append(pad(torch.cat(products, -1), (0, size.keys - sum(y.shape[3] for y in products))))
        return _softmax((SCALE * torch.cat(rows, 2)).masked_fill(~size.visible(), -math.inf), x) @ x["v"]

    upstream = random(size.queries, VALUES)
    return first_difference(by_kernels, by_formula, inputs, upstream, least=TOLERANCE_OF_FORMS)


def _pieces(form: Pieces, s: Tensor, size: _FormSizes, softmax: Softmax) -> Tensor:
    z = form.of_distance_HN[:, size.entry()] * form.of_query_HT[..., None]
    line = torch.searchsorted(form.bends_M, z.detach()).flatten(1)
    constant, slope = (x.gather(1, line).view_as(z) for x in (form.constant_HK, form.slope_HK))
    return softmax(s + constant + slope * z)


def _costs(form: Costs, s: Tensor, size: _FormSizes, softmax: Softmax) -> Tensor:
    cost = softplus(form.of_queries_BHTP @ form.of_keys_BHSP.mT).masked_fill(~size.visible(), 0)
    return softmax(s - form.factor_H[:, None, None] * _later(cost))


def _gates(form: Gates, s: Tensor, _: _FormSizes, softmax: Softmax) -> Tensor:
    gate = torch.sigmoid(s)
    at = (_later(gate) + gate).clamp(max=form.table_BHTP.shape[-1] - 1)
    low, high = (form.table_BHTP.gather(-1, x.long()) for x in (at.floor(), at.ceil()))
    return softmax(s + low + at.frac() * (high - low))


def _stick(form: Stick, s: Tensor, size: _FormSizes, _: Softmax) -> Tensor:
    if not form.current:
        s = s.masked_fill(size.apart() == 0, -math.inf)
    return torch.sigmoid(s) * torch.exp(-_later(softplus(s)))


def _mixing(form: Mixing, s: Tensor, size: _FormSizes, softmax: Softmax) -> Tensor:
    hidden = torch.einsum("gh,bhts->bgts", form.of_scores_GH, s.masked_fill(~size.visible(), 0))
    hidden = leaky_relu(hidden + form.of_distance_GN[:, size.entry()], form.leak)
    return softmax(s + torch.einsum("hg,bgts->bhts", form.out_HG, hidden))


def _factors(form: Factors, s: Tensor, size: _FormSizes, softmax: Softmax) -> Tensor:
    return softmax(s) * form.factors_HN[:, size.entry()]


def _later(x: Tensor) -> Tensor:
    """The sum of the entries after each one, along the keys."""
    return x.flip(-1).cumsum(-1).flip(-1) - x
