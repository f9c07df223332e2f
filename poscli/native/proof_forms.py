"""Every form of forms.py against its formula in float64: a small random case of each, and one of several tiles."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, softplus

from poscli.native.attention import attention
from poscli.native.forms import Costs, Factors, Form, Gates, Mixing, Pieces, Stick, has_gradient, tensors_of
from poscli.native.inputs import Block, Term, Visible

# Largest difference from the formula, as a share of the largest number: 256 roundings of float32. A score is a sum over
# up to 200 keys.
TOLERANCE = 256 * 2.0**-24
# Where numbers are large or cancel, so often the error of the formula itself in float32.
OWN_ERRORS = 16
SCALE = 0.3
WIDTH, VALUES, BENDS, PROBE, LEAK = 10, 12, 5, 4, 0.125


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """The sizes of a call."""

    batch: int
    heads: int
    queries: int
    keys: int
    reach: int
    # With it no position in a table comes so near to a whole number, and no hidden number to 0, that rounding decides
    # the slope there: they stay 6e-5 and 8e-6 apart.
    seed: int
    positions: int
    hidden: int

    @property
    def long(self) -> bool:
        """Whether queries see several tiles, of which the farthest may have no weight."""
        return not self.reach

    @property
    def distances(self) -> int:
        """The number of distances."""
        return self.queries + self.keys - 1

    def apart(self) -> Tensor:
        """The distance of every pair, `[T, S]`."""
        return torch.arange(self.keys - self.queries, self.keys)[:, None] - torch.arange(self.keys)

    def entry(self) -> Tensor:
        """The entry of each pair in numbers by descending distance, `[T, S]`, and for hidden pairs the first key's."""
        return (self.keys - 1 - self.apart()).clamp(max=self.distances - 1)

    def visible(self) -> Tensor:
        """The pairs of which the query sees the key."""
        return (self.apart() >= 0) & (self.apart() < (self.reach or self.keys))


SIZES = (
    _Sizes(batch=2, heads=3, queries=70, keys=300, reach=200, seed=29, positions=21, hidden=37),
    _Sizes(batch=1, heads=2, queries=130, keys=600, reach=0, seed=2, positions=201, hidden=5),
)
# A form in float64, scores, and the sizes -> weights.
Formula = Callable[[Any, Tensor, _Sizes], Tensor]


def wrong_form(library: ctypes.CDLL) -> str:
    """The first form that the library computes wrongly, with the error; '' if all are right."""
    return next((wrong for size in SIZES for wrong in _wrong_forms(library, size)), "")


def _wrong_forms(library: ctypes.CDLL, size: _Sizes) -> Iterator[str]:
    draw = torch.Generator().manual_seed(size.seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    inputs = [
        random(size.batch, size.heads, size.queries, WIDTH),
        random(size.batch, size.heads, size.keys, WIDTH),
        random(size.batch, size.heads, size.keys, VALUES),
        random(1, size.heads, 1, size.distances),
    ]
    upstream = random(size.batch, size.heads, size.queries, VALUES)
    if size.long:
        inputs = [*(spread(x, draw) for x in inputs[:2]), *inputs[2:]]
    for form, weights, tabled in _cases(random, size):
        given = inputs
        if size.long:
            given = [*inputs[:3], _compensating(inputs[3])] if tabled else CHANGED.get(type(form), list)(inputs)
        with torch.set_grad_enabled(has_gradient(form)):
            results = [
                _results(form, given, upstream, partial(_by_kernels, library, size, tabled)),
                _results(form, given, upstream, partial(_by_formula, weights, size, tabled), torch.float64),
                _results(form, given, upstream, partial(_by_formula, weights, size, tabled)),
            ]
        for what, *found in zip(results[0], *(each.values() for each in results), strict=True):
            if differs := difference(*found, least=TOLERANCE):
                name = type(form).__name__.lower()
                yield f"{what} of the form {name} differs {differs}" if what else f"the form {name} differs {differs}"


def difference(found: Tensor, exact: Tensor, rounded: Tensor, *, least: float) -> str:
    """By how much a result differs from the exact one, if it is more than rounding: '' otherwise.

    `rounded` is the formula in float32. `least` is a difference, as a share of the largest number, that is always
    allowed.
    """
    largest = exact.abs().max()
    error, own = (float((x - exact).abs().max() / largest) for x in (found, rounded))
    limit = max(least, OWN_ERRORS * own)
    return "" if error <= limit else f"by {error:.1e} of its largest number, more than {limit:.1e}"


def spread(x_BHTD: Tensor, draw: torch.Generator) -> Tensor:
    """Vectors of different lengths: a third of them a tenth as long, and a third three times."""
    lengths = torch.tensor([0.1, 1.0, 3.0])
    return x_BHTD * lengths[torch.randint(len(lengths), (*x_BHTD.shape[:3], 1), generator=draw)]


def _with_a_long_key(inputs: list[Tensor]) -> list[Tensor]:
    """Queries and keys that are short, but for one far key of the first head that has a weight in spite of its cost."""
    q, k, *rest = (x.clone() for x in inputs)
    q[:, 0, :, 0] = LONG_SCORE / SCALE
    k[:, 0] /= LONG_SCORE
    k[:, 0, FAR_KEY] = torch.eye(WIDTH)[0]
    q[:, 1:] /= 10
    return [q, k, *rest]


def _compensating(table: Tensor) -> Tensor:
    """A table that adds about as much to the scores of the first head as the keys between cost."""
    far = torch.arange(table.shape[-1] - 1, -1, -1) - torch.tensor(SIZES[-1].queries - 1)
    added = torch.zeros_like(table)
    added[:, 0] = far.clamp(min=0) * LONG_FACTORS[0]
    return table + added


def _with_low_scores(inputs: list[Tensor]) -> list[Tensor]:
    """Queries and keys whose scores are so low in the first head that keys of all tiles have a weight."""
    q, k, *rest = (x.clone() for x in inputs)
    q[:, 0, :, 0] = LOW_SCORE / SCALE
    k[:, 0, :, 0] = 1
    return [q, k, *rest]


FAR_KEY, LONG_SCORE, LOW_SCORE = 3, 172.0, -3.0
LONG_FACTORS = (0.3, 0.01)  # of costs; a key costs about 1
CHANGED = {Costs: _with_a_long_key, Gates: _with_low_scores, Stick: _with_low_scores}


def _by_kernels(library: ctypes.CDLL, size: _Sizes, tabled: bool, form: Form, inputs: list[Tensor]) -> Tensor:
    q, k, v, table = inputs
    terms = (Term(table, skewed=True),) if tabled else ()
    block = Block(slice(0, size.queries), slice(0, size.keys), terms)
    return attention(library, (q, k, v), [block], scale=SCALE, visible=Visible(reach=size.reach), form=form)


def _by_formula(weights: Formula, size: _Sizes, tabled: bool, form: Form, inputs: list[Tensor]) -> Tensor:
    q, k, v, table = inputs
    scores = SCALE * q @ k.mT
    if tabled:
        scores = scores + table[:, :, 0][..., size.entry()]
    return weights(form, scores.masked_fill(~size.visible(), -math.inf), size) @ v


def _results(
    form: Form,
    inputs: list[Tensor],
    upstream: Tensor,
    run: Callable[[Form, list[Tensor]], Tensor],
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """The output under the name '', and the gradients of all inputs, if the form has gradients."""

    def leaf(x: Tensor) -> Tensor:
        return x.to(dtype, copy=True).requires_grad_(torch.is_grad_enabled())

    form, inputs = _changed(form, leaf), [leaf(x) for x in inputs]
    return _with_gradients(run(form, inputs), form, inputs, upstream.to(dtype))


def _changed(form: Form, by: Callable[[Tensor], Tensor]) -> Form:
    """The form with every tensor changed."""
    values = {field.name: getattr(form, field.name) for field in fields(form)}
    changed: dict[str, Any] = {name: by(x) for name, x in values.items() if isinstance(x, Tensor)}
    return replace(form, **changed)


def _with_gradients(out: Tensor, form: Form, inputs: list[Tensor], upstream: Tensor) -> dict[str, Tensor]:
    found = {"": out.detach()}
    if out.requires_grad:
        of = dict(zip(("q", "k", "v", "the table"), inputs, strict=True))
        of |= {field.name: x for field, x in zip(fields(form), tensors_of(form), strict=False)}
        grads = torch.autograd.grad(out, list(of.values()), upstream, allow_unused=True)
        found |= {f"the gradient of {name}": x for name, x in zip(of, grads, strict=True) if x is not None}
    return found


def _cases(random: Callable[..., Tensor], size: _Sizes) -> Iterator[tuple[Form, Formula, bool]]:
    """Every form with random numbers, its formula, and whether a table by distance is added to the scores."""
    batch, heads, queries, keys = size.batch, size.heads, size.queries, size.keys
    u = random(size.distances).abs().sort(descending=True).values
    yield Pieces(u, random(queries), random(heads), random(heads, BENDS), random(BENDS)), _pieces, not size.long
    of_tokens = random(batch, heads, queries, PROBE), random(batch, heads, keys, PROBE)
    factor = torch.tensor(LONG_FACTORS) if size.long else random(heads).abs() / 4
    for tabled in (True, False) if size.long else (True,):  # beside a table, no key may be left out
        yield Costs(*of_tokens, factor), _costs, tabled
    table = random(batch, heads, queries, 1 if size.long else size.positions)
    yield Gates(table * torch.arange(size.positions) / 20 if size.long else table), _gates, not size.long
    yield Stick(own=size.long), _stick, not size.long
    network = random(size.hidden, heads) / 2, random(size.hidden, size.distances), random(heads, size.hidden) / 8
    if size.long:  # no hidden number comes near to 0
        network = network[0] / 20, network[1] + 20 * network[1].sign(), network[2]
    yield Mixing(*network, LEAK), _mixing, not size.long
    yield Factors(random(heads, size.distances)), _factors, not size.long


def _pieces(form: Pieces, s: Tensor, size: _Sizes) -> Tensor:
    x = form.of_distance_N[size.entry()] * form.of_query_T[:, None]
    terms = form.slopes_HM[..., None, None] * torch.maximum(x, form.bends_M[:, None, None])
    return torch.softmax(s + form.start_H[:, None, None] + terms.sum(1), -1)


def _costs(form: Costs, s: Tensor, size: _Sizes) -> Tensor:
    cost = softplus(form.of_queries_BHTP @ form.of_keys_BHSP.mT).masked_fill(~size.visible(), 0)
    return torch.softmax(s - form.factor_H[:, None, None] * _later(cost), -1)


def _gates(form: Gates, s: Tensor, _: _Sizes) -> Tensor:
    gate = torch.sigmoid(s)
    at = (_later(gate) + gate).clamp(max=form.table_BHTP.shape[-1] - 1)
    low, high = (form.table_BHTP.gather(-1, x.long()) for x in (at.floor(), at.ceil()))
    return torch.softmax(s + low + at.frac() * (high - low), -1)


def _stick(form: Stick, s: Tensor, size: _Sizes) -> Tensor:
    if not form.own:
        s = s.masked_fill(size.apart() == 0, -math.inf)
    return torch.sigmoid(s) * torch.exp(-_later(softplus(s)))


def _mixing(form: Mixing, s: Tensor, size: _Sizes) -> Tensor:
    hidden = torch.einsum("gh,bhts->bgts", form.of_scores_GH, s.masked_fill(~size.visible(), 0))
    hidden = leaky_relu(hidden + form.of_distance_GN[:, size.entry()], form.leak)
    return torch.softmax(s + torch.einsum("hg,bgts->bhts", form.out_HG, hidden), -1)


def _factors(form: Factors, s: Tensor, size: _Sizes) -> Tensor:
    return torch.softmax(s, -1) * form.factors_HN[:, size.entry()]


def _later(x: Tensor) -> Tensor:
    """The sum of the entries after each one, along the keys."""
    return x.flip(-1).cumsum(-1).flip(-1) - x
