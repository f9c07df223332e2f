"""Every fast form of a blank against the plain one, gradients included, and what only a fast form does: skip work.

The encodings come from the registry: a blank with a form named `fast_` is compared without a line here.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from toys import HEAD_WIDTH, HEADS, LENGTH, WIDTH, draw, make

from poscli.encodings import Encoding, names
from poscli.equation.blanks import FAST, Blanks
from poscli.equation.composed import Composed
from poscli.equation.operands import Operands, even_step

BATCH, UNIT = 2, 2.0**-52
# options that lead to other branches of a fast form
OPTIONS = [
    "cope(max_pos=3)", "dape(base=fox)", "rerope(window=5)", "self-extend(window=5, group=3)",
    "string(shift=7)", "dual-chunk(chunk=5)", "dual-chunk(chunk=4, local=2)", "stick-breaking(current=false)",
    "urpe(base=none)",
]  # fmt: skip
CHUNKS = (None, 1, 5, 100)  # the value of a fast form's keyword, if it has one; None: its default


@dataclass(frozen=True)
class Case:
    """The sizes of one call, its window, its positions, and the size of its scores."""

    queries: int
    keys: int
    window: int | None = None
    spacing: str = "even"  # of positions: even, quarters or squares
    size: float = 1.0

    def pos(self) -> Tensor:
        index = torch.arange(self.keys)
        return {"even": index, "quarters": index / 4, "squares": index**2}[self.spacing]


CASES = [
    Case(LENGTH, LENGTH),
    Case(9, 41),
    Case(1, 41),
    Case(30, 41, window=7),
    Case(9, 41, spacing="quarters"),
    Case(9, 41, spacing="squares"),
    Case(9, 41, size=300.0),  # gates and shares of 0 and 1
]


def fast_forms(spec: str) -> Iterator[tuple[Encoding, str]]:
    """The encodings within a spec, each with a blank of which it has a fast form of its own."""
    for part in make(spec, dtype=torch.float64).modules():
        for blank in FAST:
            form = f"fast_{blank}"
            if isinstance(part, Encoding) and getattr(type(part), form) not in (
                getattr(Blanks, form), getattr(Composed, form),
            ):  # fmt: skip
                yield part, blank


FORMS = [(spec, n) for spec in [*names(), *OPTIONS] for n in range(len(list(fast_forms(spec))))]


def inputs(part: Encoding, case: Case) -> dict[str, Tensor]:
    """Random numbers in float64: queries, keys, the layer's input, and scores or weights."""
    width = part.key(torch.zeros(1, HEADS, 1, HEAD_WIDTH, dtype=torch.float64), torch.zeros(1)).shape[-1]
    return {
        "q": draw(BATCH, HEADS, case.queries, width, seed=1, dtype=torch.float64),
        "k": draw(BATCH, HEADS, case.keys, width, seed=2, dtype=torch.float64),
        "x": draw(BATCH, case.keys, WIDTH, seed=3, dtype=torch.float64),
        "s": case.size * draw(BATCH, HEADS, case.queries, case.keys, seed=4, dtype=torch.float64),
    }


def operands(part: Encoding, case: Case, given: dict[str, Tensor]) -> Operands:
    pos = case.pos()
    return Operands(
        q_BHTD=given["q"], k_BHSD=given["k"], v_BHSE=given["k"], raw_q_BHTD=given["q"], raw_k_BHSD=given["k"],
        pos_S=pos, step=even_step(pos), reach=case.window,
        features_BHSF=part.features(given["x"]),
    )  # fmt: skip


def arguments(part: Encoding, blank: str, case: Case, given: dict[str, Tensor]) -> tuple[Any, ...]:
    """The arguments of a blank, in which hidden keys have the score -inf."""
    x = operands(part, case, given)
    masked = given["s"].masked_fill(~x.visible(), -torch.inf)
    return {
        "bias": (x.pos_T, x.pos_S, x.features_of_queries, x.features_BHSF),
        "similarity": (x,),
        "scores": (masked, x),
        "weights": (masked,),
        "reweight": (given["s"], x.distances()),
    }[blank]


def with_gradients(part: Encoding, blank: str, case: Case, call: Callable[..., Tensor], off: float = 0) -> list[Tensor]:
    """The result at visible pairs and all gradients of a random loss; `off`: the relative change of every input."""
    given = inputs(part, case)
    learned = dict(part.named_parameters())
    kept = {name: parameter.detach().clone() for name, parameter in learned.items()}
    with torch.no_grad():
        for n, number in enumerate([*given.values(), *learned.values()]):
            number *= 1 + off * draw(*number.shape, seed=50 + n, dtype=torch.float64).sign()
    for number in [*given.values(), *learned.values()]:
        number.requires_grad_().grad = None
    visible = operands(part, case, given).visible()
    out = call(*arguments(part, blank, case, given)).masked_fill(~visible, 0)
    (out * draw(*out.shape, seed=9, dtype=torch.float64)).sum().backward()
    grads = [torch.zeros(()) if n.grad is None else n.grad for n in [*given.values(), *learned.values()]]
    with torch.no_grad():
        for name, parameter in learned.items():
            parameter.copy_(kept[name])
    return [out.detach(), *grads]


def limits(part: Encoding, blank: str, case: Case, plain: list[Tensor]) -> list[float]:
    """Sixteen times the change that one unit of rounding in every input makes, for each result.

    The change is measured with 2^20 units, where rounding does not show, and divided. Sums that cancel need more: one
    unit for each of up to T S products of D numbers of the size of the scores.
    """
    moved = with_gradients(part, blank, case, getattr(part, blank), 2**20 * UNIT)
    floor = UNIT * case.size * HEAD_WIDTH * case.keys * case.queries
    return [16 * max(float((m - p).abs().max()) / 2**20, floor) for m, p in zip(moved, plain, strict=True)]


def keyword(call: Callable[..., Tensor]) -> str | None:
    """The name of the keyword with which a fast form is told the size of its chunks."""
    parameters = inspect.signature(call).parameters.values()
    return next((p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY), None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, vars(case).values())))
@pytest.mark.parametrize(("spec", "n"), FORMS)
def test_a_fast_form_equals_the_plain_one(spec: str, n: int, case: Case) -> None:
    part, blank = next(itertools.islice(fast_forms(spec), n, None))
    plain = with_gradients(part, blank, case, getattr(part, blank))
    allowed = limits(part, blank, case, plain)
    fast = getattr(part, f"fast_{blank}")
    for chunk in CHUNKS if keyword(fast) else CHUNKS[:1]:
        options = {} if chunk is None else {keyword(fast): chunk}
        found = with_gradients(part, blank, case, lambda *given, o=options: fast(*given, **o))
        for number, (one, other, limit) in enumerate(zip(found, plain, allowed, strict=True)):
            assert float((one - other).abs().max()) <= limit, (chunk, number)


def test_the_registry_has_fast_forms_of_every_blank() -> None:
    assert {blank for spec in names() for _, blank in fast_forms(spec)} == set(FAST)


# what a fast form leaves out


class Counting(TorchDispatchMode):
    """Counts the numbers that an operator computes."""

    def __init__(self, operator: object) -> None:
        super().__init__()
        self.operator, self.computed = operator, []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function == self.operator:
            self.computed.append(result.numel())
        return result


def test_stick_breaking_stops_at_the_key_that_uses_up_the_stick() -> None:
    with Counting(torch.ops.aten.softplus.default) as count:
        weights = make("stick-breaking").fast_weights(torch.full((1, 1, 1, 41), 60.0), keys_per_chunk=4)
    assert count.computed == [1, 4]
    assert weights.count_nonzero() == 2  # the share of the last key, and e^-60 of it


def test_cope_stops_at_the_last_row_of_its_table() -> None:
    encoding, case = make("cope(max_pos=3)", dtype=torch.float64), Case(1, 41)
    x = operands(encoding, case, inputs(encoding, case))
    with Counting(torch.ops.aten.sigmoid.default) as count:
        encoding.fast_scores(torch.full((BATCH, HEADS, 1, 41), 60.0, dtype=torch.float64), x, keys_per_chunk=1)
    assert count.computed == [BATCH * HEADS] * 2  # gates of 1: the second key is at the last row already


@pytest.mark.parametrize("rows", [1, 100])
def test_fire_computed_by_linear_pieces_equals_its_network(rows: int) -> None:
    """Units that bend inside the unit interval, at its ends, outside it on either side, or not at all."""
    encoding = make("fire(hidden=13)", dtype=torch.float64)
    first = encoding.f[0]
    with torch.no_grad():
        first.weight[:, 0] = torch.tensor([2, -2, 1, -1, 1, -1, 0, 0, 3.0, 1, -1, 1, -1])
        first.bias[:] = torch.tensor([-1, 1, 2, -2, -2, 2, 1, -1, -0.5, 0, 0, -1, 1])
    assert sorted(encoding.pieces()[2].flatten().tolist()) == pytest.approx([0, 1 / 6, 0.5, 0.5])
    i, j = torch.arange(32, 41), torch.arange(41)
    fast = encoding.fast_bias(i, j, None, None, hidden_per_chunk=rows * 41 * 4)
    torch.testing.assert_close(fast, encoding.bias(i, j, None, None), rtol=0, atol=16 * 13 * UNIT)
