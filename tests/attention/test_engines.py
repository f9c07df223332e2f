"""The choice of an engine, what engines refuse, and the memory that they need."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from toys import ENDS, EVERYWHERE, LENGTH, NARROW, TOYS, WIDTH, draw, make, shape, wide

from poscli.attention import ENGINES, BlockSizes, Engine, Place, attend, choose
from poscli.attention.biases import biases
from poscli.attention.place import SINKS_REFUSED
from poscli.encodings import Encoding, names
from poscli.equation import Positions, Unsupported
from poscli.equation.blanks import of_tier
from poscli.equation.reference import operands
from poscli.specs import build, parse
from poscli.system.errors import UsageError


def test_the_fastest_possible_engine_is_chosen() -> None:
    for name in names():
        encoding = make(name)
        rows = of_tier(encoding.blanks, "row")
        choice = choose(encoding)
        first = choose(make("none")).name  # "sdpa" where there is no C++ compiler
        assert first in ("native", "sdpa")
        known = first == "native" and encoding.kernel_form_has_gradient
        whole = rows and not known
        assert choice.name == (
            "blocks" if whole or (first == "sdpa" and "relative_values" in encoding.blanks) else first
        )
        assert known or all(blank in choice.reason for blank in rows)
        assert ("not sdpa: needs whole rows of scores" in choice.reason) == (choice.name == "blocks")
        assert choice.reason or choice.name == "native"


def test_a_named_engine_is_used_or_refused() -> None:
    assert choose(make("rope"), "blocks").name == "blocks"
    assert choose(make("rope"), "reference").reason == "asked for"
    with pytest.raises(UsageError, match=r"there is no engine 'sdpaa': did you mean sdpa\?"):
        choose(make("rope"), "sdpaa")
    with pytest.raises(UsageError, match=r"the engine sdpa cannot run cope\+fox: .*\(scores\); blocks can"):
        choose(make("cope+fox"), "sdpa")


def test_the_step_between_positions_is_measured() -> None:
    def step(spec: str, tokens: int = 9) -> float | None:
        return make(spec).locate(tokens, torch.device("cpu")).step

    assert step("rope") == 1
    assert step("toys:Quarters") == 0.25
    assert step("toys:Squares") is None
    assert step("toys:SquaredVectors") is None


def test_positions_are_even_only_if_each_of_them_is() -> None:
    line = torch.arange(16, dtype=torch.float64)
    assert Positions.spaced(line).step == 1
    assert Positions.spaced(line / 3).step == pytest.approx(1 / 3)
    for token, off in ((7, 1e-3), (1, -1e-3), (14, 1e-2)):
        moved = line.clone()
        moved[token] += off
        assert Positions.spaced(moved).step is None


@pytest.mark.parametrize("factor", [1, 3, 8])
def test_distances_are_those_of_positions_and_never_negative(factor: int) -> None:
    """Tenths of a token are not rounded to whole ones; 5/3 - 2/3 is 1, and the distance of a hidden key is 0."""
    encoding = make(f"alibi+interpolated({factor})")
    q, k = draw(1, 3, 5, 8), draw(1, 3, LENGTH, 8)
    x = operands(encoding, q, k, k, encoding.locate(LENGTH, torch.device("cpu")))
    apart = torch.arange(LENGTH - 5, LENGTH)[:, None] - torch.arange(LENGTH)
    found, expected = x.distances().double(), (apart.double() / factor).clamp(min=0)
    assert float((found - expected).abs().max()) <= LENGTH * 2.0**-22
    assert torch.equal(found[apart % factor == 0], expected[apart % factor == 0])


def test_a_position_without_a_row_is_unsupported() -> None:
    encoding = make("learned")
    x = draw(1, LENGTH + 1, WIDTH)
    with pytest.raises(Unsupported, match=f"learned has {LENGTH} positions; position {LENGTH} "):
        encoding.embed(x, torch.arange(LENGTH + 1), torch.zeros(1, LENGTH + 1, dtype=torch.long))


@pytest.mark.parametrize("engine", ["sdpa", "flex"])
def test_engines_that_hide_every_key_beyond_the_reach_refuse_sinks(engine: str) -> None:
    place = Place(gradient=False)
    assert ENGINES[engine].refuses(make("sink(2)+window(5)+alibi"), place) == SINKS_REFUSED


def test_the_narrow_specs_fill_every_blank_and_run_on_every_engine() -> None:
    """A new blank, or a new engine, needs a spec in `toys.NARROW`."""

    def reached(specs: list[str]) -> set[str]:
        layers = [encoding for spec in specs for encoding in build(parse(spec), shape(), seed=0)]
        chosen = {
            (choose(e, place=Place(gradient=gradient)).name, gradient) for e in layers for gradient in (True, False)
        }
        return set().union(chosen, *(encoding.blanks for encoding in layers))

    assert set(NARROW) <= set(EVERYWHERE)
    assert reached(NARROW) == reached(EVERYWHERE)


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor in numbers; a view counts as the memory behind it."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, Tensor):
                self.numbers = max(self.numbers, x.untyped_storage().nbytes() // x.element_size())
        return out


def largest(engine: Engine, encoding: Encoding, tokens: int, sizes: BlockSizes) -> int:
    """The numbers of the largest tensor of one call of attention."""
    q, k, v = (draw(1, 1, tokens, 8, seed=n) for n in range(3))
    x = draw(1, tokens, 8, seed=3)
    with torch.no_grad(), Largest() as watch:  # inference mode would hide the parts of composite operators
        features = encoding.features(x)
        positions = encoding.locate(tokens, torch.device("cpu"))
        assert attend(engine, encoding, q, k, v, positions, features, sizes).isfinite().all()
    return watch.numbers


@pytest.mark.parametrize("spec", wide([*names(), "rope+window(9)", "rope+shaw(clip=4, values=false)", *TOYS]))
def test_no_engine_makes_a_matrix_of_all_pairs(spec: str) -> None:
    """Functions of the distance hold O(L) numbers, and terms per pair a block of at most `block_entries`."""
    at = shape(8192 if ENDS & set(spec.split("+")) else 512, heads=1, width=8)
    encoding = make(spec, at)
    engine = choose(encoding).engine
    per_pair = {blank for tier in ("row", "relative", "pair") for blank in of_tier(encoding.blanks, tier)}
    per_pair |= {"temperature"} & encoding.blanks if biases(encoding) else set()
    per_pair |= {"sinks"} & encoding.blanks  # the visible distances differ from query to query
    uneven = "distance_bias" in encoding.blanks and encoding.locate(9, torch.device("cpu")).step is None
    tokens, entries = (4096, 2**20) if per_pair or uneven else (8192, 2**20)
    sizes = BlockSizes(block_entries=entries)
    vector = 8 * tokens * 8  # a few vectors of width D per token
    block = max(entries, 16 * tokens * 32) if per_pair or uneven else 0  # 16 rows of 32 hidden numbers, at the least
    assert largest(engine, encoding, tokens, sizes) <= max(vector, block)
    assert max(vector, block) <= tokens**2 / 4


def test_the_meter_sees_a_matrix_of_all_pairs() -> None:
    assert largest(ENGINES["reference"], make("none", shape(heads=1, width=8)), 512, BlockSizes()) >= 512**2
