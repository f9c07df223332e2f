"""Every form of forms.py against its formula in float64: a small random case of each."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, softplus

from poscli.native.attention import Block, Term, Visible, attention
from poscli.native.forms import Costs, Factors, Form, Gates, Mixing, Pieces, Stick

BATCH, HEADS, QUERIES, KEYS, WIDTH, VALUES = 2, 3, 70, 300, 10, 12
REACH = 200  # more than a tile of keys
# Largest difference from the formula, as a share of the largest number: 256 roundings of float32. A score is a sum over
# up to 200 keys.
TOLERANCE = 256 * 2.0**-24
BENDS, PROBE, POSITIONS, HIDDEN, LEAK = 5, 4, 21, 37, 0.125
DISTANCES = QUERIES + KEYS - 1
Formula = Callable[[Tensor, Tensor], Tensor]  # scores and which keys are visible -> weights


def wrong_form(library: ctypes.CDLL) -> str:
    """The first form that the library computes wrongly, with the error; '' if all are right."""
    draw = torch.Generator().manual_seed(2)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    q, k, v = (
        random(BATCH, HEADS, QUERIES, WIDTH),
        random(BATCH, HEADS, KEYS, WIDTH),
        random(BATCH, HEADS, KEYS, VALUES),
    )
    table = random(1, HEADS, 1, DISTANCES)
    for form, weights in _cases(random):
        terms = (Term(table, skewed=True),) if isinstance(form, Mixing) else ()
        block = Block(slice(0, QUERIES), slice(0, KEYS), terms)
        found = attention(library, (q, k, v), [block], scale=0.3, visible=Visible(reach=REACH), form=form)
        scores = 0.3 * q.double() @ k.double().mT
        for term in terms:
            scores = scores + term.x.double()[:, :, 0][..., _entry()]
        wanted = weights(scores.masked_fill(~_visible(), -math.inf), _visible()) @ v.double()
        error = float((found - wanted).abs().max() / wanted.abs().max())
        if not error <= TOLERANCE:
            name = type(form).__name__.lower()
            return f"the form {name} differs by {error:.1e} of its largest number, more than {TOLERANCE:.1e}"
    return ""


def _cases(random: Callable[..., Tensor]) -> Iterator[tuple[Form, Formula]]:
    """Every form with random numbers, and its formula."""
    u = random(DISTANCES).abs().sort(descending=True).values
    pieces = Pieces(u, random(QUERIES), random(HEADS), random(HEADS, BENDS), random(BENDS))
    yield pieces, partial(_pieces, pieces)
    of_tokens = random(BATCH, HEADS, QUERIES, PROBE), random(BATCH, HEADS, KEYS, PROBE)
    costs = Costs(*of_tokens, random(HEADS).abs() / 4)
    yield costs, partial(_costs, costs)
    gates = Gates(random(BATCH, HEADS, QUERIES, POSITIONS))
    yield gates, partial(_gates, gates)
    yield Stick(own=False), _stick
    mixing = Mixing(random(HIDDEN, HEADS) / 2, random(HIDDEN, DISTANCES), random(HEADS, HIDDEN) / 8, LEAK)
    yield mixing, partial(_mixing, mixing)
    factors = Factors(random(HEADS, DISTANCES))
    yield factors, partial(_factors, factors)


def _pieces(form: Pieces, s: Tensor, _: Tensor) -> Tensor:
    x = form.of_distance_N.double()[_entry()] * form.of_query_T.double()[:, None]
    terms = form.slopes_HM.double()[..., None, None] * torch.maximum(x, form.bends_M.double()[:, None, None])
    return torch.softmax(s + form.start_H.double()[:, None, None] + terms.sum(1), -1)


def _costs(form: Costs, s: Tensor, visible: Tensor) -> Tensor:
    cost = softplus(form.of_queries_BHTP.double() @ form.of_keys_BHSP.double().mT).masked_fill(~visible, 0)
    return torch.softmax(s - form.factor_H.double()[:, None, None] * _later(cost), -1)


def _gates(form: Gates, s: Tensor, _: Tensor) -> Tensor:
    gate = torch.sigmoid(s)
    at = (_later(gate) + gate).clamp(max=POSITIONS - 1)
    low, high = (form.table_BHTP.double().gather(-1, x.long()) for x in (at.floor(), at.ceil()))
    return torch.softmax(s + low + at.frac() * (high - low), -1)


def _stick(s: Tensor, _: Tensor) -> Tensor:
    s = s.masked_fill(_apart() == 0, -math.inf)
    return torch.sigmoid(s) * torch.exp(-_later(softplus(s)))


def _mixing(form: Mixing, s: Tensor, visible: Tensor) -> Tensor:
    hidden = torch.einsum("gh,bhts->bgts", form.of_scores_GH.double(), s.masked_fill(~visible, 0))
    hidden = leaky_relu(hidden + form.of_distance_GN.double()[:, _entry()], form.leak)
    return torch.softmax(s + torch.einsum("hg,bgts->bhts", form.out_HG.double(), hidden), -1)


def _factors(form: Factors, s: Tensor, _: Tensor) -> Tensor:
    return torch.softmax(s, -1) * form.factors_HN.double()[:, _entry()]


def _later(x: Tensor) -> Tensor:
    """The sum of the entries after each one, along the keys."""
    return x.flip(-1).cumsum(-1).flip(-1) - x


def _apart() -> Tensor:
    return torch.arange(KEYS - QUERIES, KEYS)[:, None] - torch.arange(KEYS)


def _entry() -> Tensor:
    """The entry of each pair in numbers by descending distance, `[T, S]`; that of the first key for hidden pairs."""
    return (KEYS - 1 - _apart()).clamp(max=DISTANCES - 1)


def _visible() -> Tensor:
    return (_apart() >= 0) & (_apart() < REACH)
