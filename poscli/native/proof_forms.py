"""Every form of forms.py against its formula in float64: a small random case of each."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, softplus

from poscli.native.attention import attention
from poscli.native.forms import Costs, Factors, Form, Gates, Mixing, Pieces, Stick, has_gradient, tensors_of
from poscli.native.inputs import Block, Term, Visible

BATCH, HEADS, QUERIES, KEYS, WIDTH, VALUES = 2, 3, 70, 300, 10, 12
REACH = 200  # more than a tile of keys
# Largest difference from the formula, as a share of the largest number: 256 roundings of float32. A score is a sum over
# up to 200 keys.
TOLERANCE = 256 * 2.0**-24
# With it no position in a table comes so near to a whole number, and no hidden number to 0, that rounding decides the
# slope there: they stay 6e-5 and 8e-6 apart.
SEED = 29
BENDS, PROBE, POSITIONS, HIDDEN, LEAK = 5, 4, 21, 37, 0.125
DISTANCES = QUERIES + KEYS - 1
Formula = Callable[[Any, Tensor, Tensor], Tensor]  # a form in float64, scores, which keys are visible -> weights


def wrong_form(library: ctypes.CDLL) -> str:
    """The first form that the library computes wrongly, with the error; '' if all are right."""
    draw = torch.Generator().manual_seed(SEED)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    inputs = [
        random(BATCH, HEADS, QUERIES, WIDTH),
        random(BATCH, HEADS, KEYS, WIDTH),
        random(BATCH, HEADS, KEYS, VALUES),
        random(1, HEADS, 1, DISTANCES),
    ]
    upstream = random(BATCH, HEADS, QUERIES, VALUES)
    for form, weights in _cases(random):
        learned = has_gradient(form)
        with torch.set_grad_enabled(learned):
            ours = _by_kernels(library, form, [x.clone().requires_grad_(learned) for x in inputs], upstream)
            theirs = _by_formula(weights, form, [x.double().requires_grad_(learned) for x in inputs], upstream.double())
        for (what, found), wanted in zip(ours.items(), theirs.values(), strict=True):
            error = float((found - wanted).abs().max() / wanted.abs().max())
            if not error <= TOLERANCE:
                name = type(form).__name__.lower()
                differs = f"differs by {error:.1e} of its largest number, more than {TOLERANCE:.1e}"
                return f"{what} of the form {name} {differs}" if what else f"the form {name} {differs}"
    return ""


def _by_kernels(library: ctypes.CDLL, form: Form, inputs: list[Tensor], upstream: Tensor) -> dict[str, Tensor]:
    """The output under the name '', and the gradients of all inputs, if the form has gradients."""
    q, k, v, table = inputs
    form = _changed(form, lambda x: x.clone().requires_grad_(table.requires_grad))
    block = Block(slice(0, QUERIES), slice(0, KEYS), (Term(table, skewed=True),))
    found = attention(library, (q, k, v), [block], scale=0.3, visible=Visible(reach=REACH), form=form)
    return _with_gradients(found, form, inputs, upstream)


def _by_formula(weights: Formula, form: Form, inputs: list[Tensor], upstream: Tensor) -> dict[str, Tensor]:
    """As `_by_kernels`, in float64."""
    q, k, v, table = inputs
    form = _changed(form, lambda x: x.double().requires_grad_(table.requires_grad))
    scores = (0.3 * q @ k.mT + table[:, :, 0][..., _entry()]).masked_fill(~_visible(), -math.inf)
    return _with_gradients(weights(form, scores, _visible()) @ v, form, inputs, upstream)


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
        grads = torch.autograd.grad(out, list(of.values()), upstream)
        found |= {f"the gradient of {name}": x for name, x in zip(of, grads, strict=True)}
    return found


def _cases(random: Callable[..., Tensor]) -> Iterator[tuple[Form, Formula]]:
    """Every form with random numbers, and its formula."""
    u = random(DISTANCES).abs().sort(descending=True).values
    yield Pieces(u, random(QUERIES), random(HEADS), random(HEADS, BENDS), random(BENDS)), _pieces
    of_tokens = random(BATCH, HEADS, QUERIES, PROBE), random(BATCH, HEADS, KEYS, PROBE)
    yield Costs(*of_tokens, random(HEADS).abs() / 4), _costs
    yield Gates(random(BATCH, HEADS, QUERIES, POSITIONS)), _gates
    yield Stick(own=False), _stick
    yield Mixing(random(HIDDEN, HEADS) / 2, random(HIDDEN, DISTANCES), random(HEADS, HIDDEN) / 8, LEAK), _mixing
    yield Factors(random(HEADS, DISTANCES)), _factors


def _pieces(form: Pieces, s: Tensor, _: Tensor) -> Tensor:
    x = form.of_distance_N[_entry()] * form.of_query_T[:, None]
    terms = form.slopes_HM[..., None, None] * torch.maximum(x, form.bends_M[:, None, None])
    return torch.softmax(s + form.start_H[:, None, None] + terms.sum(1), -1)


def _costs(form: Costs, s: Tensor, visible: Tensor) -> Tensor:
    cost = softplus(form.of_queries_BHTP @ form.of_keys_BHSP.mT).masked_fill(~visible, 0)
    return torch.softmax(s - form.factor_H[:, None, None] * _later(cost), -1)


def _gates(form: Gates, s: Tensor, _: Tensor) -> Tensor:
    gate = torch.sigmoid(s)
    at = (_later(gate) + gate).clamp(max=POSITIONS - 1)
    low, high = (form.table_BHTP.gather(-1, x.long()) for x in (at.floor(), at.ceil()))
    return torch.softmax(s + low + at.frac() * (high - low), -1)


def _stick(_: Stick, s: Tensor, __: Tensor) -> Tensor:
    s = s.masked_fill(_apart() == 0, -math.inf)
    return torch.sigmoid(s) * torch.exp(-_later(softplus(s)))


def _mixing(form: Mixing, s: Tensor, visible: Tensor) -> Tensor:
    hidden = torch.einsum("gh,bhts->bgts", form.of_scores_GH, s.masked_fill(~visible, 0))
    hidden = leaky_relu(hidden + form.of_distance_GN[:, _entry()], form.leak)
    return torch.softmax(s + torch.einsum("hg,bgts->bhts", form.out_HG, hidden), -1)


def _factors(form: Factors, s: Tensor, _: Tensor) -> Tensor:
    return torch.softmax(s, -1) * form.factors_HN[:, _entry()]


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
