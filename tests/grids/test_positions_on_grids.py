"""Positions on a grid: distances by hand, the table behind a block's bias, cached decoding, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from toys import HEAD_WIDTH, HEADS, draw, make, perturbed, rounding, shape, tokens
from toys import model as initial

from poscli.attention import ENGINES, BlockSizes, Place, attend, choose
from poscli.attention.place import ON_GRID_REFUSED
from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.equation import Encoding, Positions, Unsupported
from poscli.equation.operands import raster
from poscli.equation.reference import operands
from poscli.model.cache import Cache
from poscli.model.transformer import Model
from poscli.specs import check
from poscli.system.errors import UsageError

GRIDS = ["sinusoidal-2d", "learned-2d", "t5-2d", "swin-2d", "alibi-2d", "rope-2d", "rope-2d(mixed=true)"]
BIASES = ["swin-2d(window=3)", "alibi-2d+ssmax", "alibi-2d+window(9)", "rope-2d+t5-2d"]
CPU = torch.device("cpu")


def model(spec: str) -> Model:
    return perturbed(initial(spec))


def test_positions_follow_the_columns_of_the_grid() -> None:
    at = make("alibi-2d").locate(6, CPU, columns=4)
    assert at.pos.tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1]]  # the cells that tokens predict
    assert at.of_keys.tolist() == [[-1, 3], [0, 0], [0, 1], [0, 2], [0, 3], [1, 0]]  # the cells that they show
    assert (at.columns, at.step) == (4, None)
    assert make("alibi-2d").locate(6, CPU).pos.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert make("alibi").locate(6, CPU, columns=4).pos.tolist() == [0, 1, 2, 3, 4, 5]


# The token that predicts the cell (1, 1) of a grid of 3 columns sees the 4 cells before it, and a first token.
DISTANCES = [[2, -1], [1, 1], [1, 0], [1, -1], [0, 1]]


def test_the_cells_of_the_bias_by_hand() -> None:
    seen: list[Tensor] = []

    class Recorded(type(make("alibi-2d"))):  # type: ignore[misc]
        def distance_bias(self, d: Tensor) -> Tensor:
            seen.append(d)
            return super().distance_bias(d)

    encoding = Recorded(shape())
    x = draw(1, HEADS, 5, HEAD_WIDTH)
    attend(ENGINES["reference"], encoding, x[:, :, 4:], x, x, encoding.locate(5, CPU, columns=3))
    assert seen[0].tolist() == DISTANCES


def test_rotations_turn_by_the_cell_that_a_query_predicts_and_the_cell_that_a_key_shows() -> None:
    """Products of equal vectors are sums of cosines of the distances."""
    encoding = make("rope-2d(base=50)")
    x = torch.ones(1, HEADS, 5, HEAD_WIDTH, dtype=torch.float64)
    turned = operands(encoding, x[:, :, 4:], x, x, encoding.locate(5, CPU, columns=3))
    theta = torch.tensor([1.0, 50**-0.5], dtype=torch.float64)
    expected = 2 * (torch.tensor(DISTANCES, dtype=torch.float64)[:, :, None] * theta).cos().sum((1, 2))
    torch.testing.assert_close((turned.q_BHTD @ turned.k_BHSD.mT)[0, 0, 0], expected, rtol=0, atol=1e-12)


def attention(engine: str, encoding: Encoding, queries: int, keys: int, columns: int, block: int) -> list[Tensor]:
    """The output on a grid, and the gradients of queries, keys, values and parameters."""
    sizes = BlockSizes(block_queries=block, training_queries=block, backward_queries=5, backward_entries=1)
    counts = enumerate((queries, keys, keys))
    qkv = [draw(2, HEADS, count, HEAD_WIDTH, seed=n).double().requires_grad_() for n, count in counts]
    encoding = encoding.double()
    encoding.zero_grad()
    out = attend(ENGINES[engine], encoding, *qkv, encoding.locate(keys, CPU, columns), None, sizes)
    (out * draw(*out.shape, seed=5).double()).sum().backward()
    return [out.detach(), *(x.grad for x in qkv), *(p.grad for p in encoding.parameters())]


@pytest.mark.parametrize(
    # one spec is enough for `blocks`: both engines take their bias from the same blocks of queries
    ("engine", "spec"),
    [*(("sdpa", spec) for spec in BIASES), ("blocks", "alibi-2d+ssmax")],
)
@pytest.mark.parametrize(
    ("queries", "keys", "columns", "block"),
    [(24, 24, 4, 8), (23, 23, 6, 12), (11, 23, 6, 6), (7, 22, 6, 13), (30, 30, 3, 12), (5, 5, 9, 4)],
)
def test_slices_of_one_matrix_equal_the_formula(
    engine: str, spec: str, queries: int, keys: int, columns: int, block: int
) -> None:
    """Blocks that begin in the middle of a row, grids whose last row is short, and grids higher than wide."""
    encoding = make(spec)
    found = attention(engine, encoding, queries, keys, columns, block)
    exact = attention("reference", encoding, queries, keys, columns, block)
    for one, other in zip(found, exact, strict=True):
        assert float((one - other).abs().max()) <= 1e-12 * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize("spec", [*GRIDS, "alibi-2d|alibi", "none"])
@torch.no_grad()
def test_decoding_with_the_width_of_the_grid_equals_the_full_forward(spec: str) -> None:
    text = tokens(2, 12)
    whole = model(spec)(text, cache=Cache(columns=4))
    assert torch.equal(whole, model(spec)(text)), "12 tokens are a grid of 3 x 4"
    cache, steps = Cache(columns=4), model(spec)
    parts = [steps(text[:, :7], cache=cache), *(steps(text[:, t : t + 1], cache=cache) for t in range(7, 12))]
    assert float((torch.cat(parts, dim=1) - whole).abs().max()) <= rounding(steps, text)


# ---- what is refused


def test_decoding_on_a_grid_needs_its_width_and_interpolation_the_whole_grid_at_once() -> None:
    with pytest.raises(ValueError, match=r"Cache\(columns="):
        model("rope-2d")(tokens(1, 4), cache=Cache())
    cache, grid = Cache(columns=4), model("learned-2d(beyond=interpolate)")
    grid(tokens(1, 8), cache=cache)
    with pytest.raises(Unsupported, match="size of the whole grid"):
        grid(tokens(1, 1), cache=cache)


@pytest.mark.parametrize("name", ["triton", "tiles", "flex"])
def test_engines_of_distances_along_a_line_refuse_a_grid(name: str) -> None:
    place = Place("cuda" if name == "triton" else "cpu", width=16, gradient=False)
    assert ENGINES[name].refuses(make("alibi-2d"), place) == ON_GRID_REFUSED
    assert choose(make("alibi-2d"), place=Place(gradient=False)).name in ("native", "sdpa")
    if name != "triton":
        assert not ENGINES[name].refuses(make("rope-2d"), place)


def test_a_line_and_a_grid_share_no_layer_and_no_positions() -> None:
    x = draw(1, HEADS, 4, HEAD_WIDTH)
    grid, line = Positions(pos=raster(torch.arange(4), 2), step=None), Positions(pos=torch.arange(4))
    for spec, at, takes in (("alibi", grid, "along a line"), ("alibi-2d", line, "rows and columns")):
        with pytest.raises(UsageError, match=f"{spec} takes .*{takes}.* was given"):
            attend(ENGINES["reference"], make(spec), x, x, x, at)
    attend(ENGINES["reference"], make("none"), x, x, x, grid)
    with pytest.raises(UsageError, match="alibi counts positions along a line and rope-2d on a grid; alternate them"):
        check("alibi+rope-2d", shape())
    check("alibi|rope-2d", shape())
    assert [make(spec).axes for spec in ("rope-2d+window(9)", "ssmax+rope-2d", "rope+window(9)")] == [2, 2, 1]
    with pytest.raises(UsageError, match="rope-2d encodes rows and columns, and the tokens of this task stand on a"):
        resolve(TrainRequest(), "none|rope-2d", 0, CPU)
    with pytest.raises(UsageError, match="rope-2d cannot be trained with a memory: a grid does not go on"):
        check("rope-2d", shape(), memory=True)
