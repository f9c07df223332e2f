"""Attention: the reference against the equation by hand, every engine against the reference, the views, the memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from conftest import COMPOSITES, ENDS, HEAD_WIDTH, HEADS, LENGTH, TOYS, WIDTH, draw, make, perturbed, shape
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from poscli.attention import ENGINES, Engine, Place, Positions, able, attend, biases, choose, fused
from poscli.attention import tiles as tiling
from poscli.attention.operands import Operands, snapped
from poscli.attention.skew import descending, skew, skew_keys, unskew
from poscli.encodings import TIERS, Encoding, Shape, Unsupported, names
from poscli.errors import UsageError
from poscli.verify.noise import tolerances

SPECS = [*names(), *COMPOSITES, *TOYS]
# of which none says all that a tile may be made of
TILED = ["t5+fox", "fox+alibi", "window(7)+shaw(clip=3)", "deberta+alibi", "transformer-xl+fox", "alibi+window(5)"]

UNIT = 2**-23  # of rounding, in float32

CASES = {  # batch, queries, keys, BLOCK, ENTRIES: with ENTRIES of 1 a block that materialises has 16 rows
    "one block": (3, 41, 41, 512, 2**23),
    "several blocks": (1, 41, 41, 7, 1),
    "a block of one row": (2, 33, 33, 16, 1),
    "a longer past": (2, 20, 41, 6, 1),
    "one token": (3, 1, 41, 512, 2**23),
    "the first token": (1, 1, 1, 512, 2**23),
    "two tokens": (1, 2, 2, 1, 1),
}


def run(
    engine: Engine, encoding: Encoding, size: Sequence[int], dtype: torch.dtype, off: int | None = None
) -> dict[str, Tensor]:
    """Attention output on random input, and the gradient of everything under a random loss, in float64.

    `off`: the seed by which every number is moved by one unit of rounding of float32, up or down.
    """
    batch, queries, keys = size
    encoding, inputs, x_BSW = given(encoding, size, dtype, off)
    learned = inputs | dict(encoding.named_parameters())
    features = encoding.features(x_BSW) if "features" in encoding.blanks else None
    at = Positions.of(encoding, keys, torch.device("cpu"))
    out = attend(engine, encoding, *(x.requires_grad_() for x in inputs.values()), at, features)
    assert out.dtype == dtype
    assert out.shape == (batch, HEADS, queries, HEAD_WIDTH)
    (out * draw(*out.shape, seed=4, dtype=dtype)).sum().backward()
    found = {"output": out} | {f"d{n}": torch.zeros(()) if x.grad is None else x.grad for n, x in learned.items()}
    return {name: x.detach().double() for name, x in found.items()}


def given(
    encoding: Encoding, size: Sequence[int], dtype: torch.dtype, off: int | None
) -> tuple[Encoding, dict[str, Tensor], Tensor]:
    """The encoding in a dtype, and q, k, v and x drawn for it."""
    batch, queries, keys = size
    encoding = copy.deepcopy(encoding).to(dtype)
    tokens = {"q": queries, "k": keys, "v": keys}
    inputs = {n: draw(batch, HEADS, t, HEAD_WIDTH, seed=m, dtype=dtype) for m, (n, t) in enumerate(tokens.items())}
    x_BSW = draw(batch, keys, WIDTH, seed=3, dtype=dtype)
    if off is not None:
        with torch.no_grad():
            for n, x in enumerate([*inputs.values(), x_BSW, *encoding.parameters()]):
                x *= 1 + UNIT * draw(*x.shape, seed=100 * off + n, dtype=dtype).sign()
    return encoding, inputs, x_BSW


def make_for(spec: str, tokens: int, at: Shape | None = None) -> Encoding:
    """An encoding of a model as small as ever, or as long as the input where it ends at the training length."""
    at = at or shape()
    return make(spec, replace(at, length=tokens) if ENDS & set(spec.split("+")) else at)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize(
    ("spec", "engine"),
    [(s, e) for s in SPECS for e in able(make(s)) if e.name != "reference"],
    ids=lambda x: x.name if isinstance(x, Engine) else x,
)
def test_engines_equal_the_reference(
    spec: str, engine: Engine, case: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    *size, block, entries = case
    monkeypatch.setattr(biases, "BLOCK", block)
    monkeypatch.setattr(biases, "ENTRIES", entries)
    monkeypatch.setattr(fused, "CHUNK", 1)  # a chunk of the backward pass per row of the batch
    encoding, reference = make_for(spec, size[2]), ENGINES["reference"]
    exact = run(reference, encoding, size, torch.float64)
    moved = [run(reference, encoding, size, torch.float64, off) for off in (1, 2)]
    limits = tolerances(exact, moved, HEAD_WIDTH, size[2])
    for dtype in (torch.float32, torch.float64):
        for name, found in run(engine, encoding, size, dtype).items():
            error = float((found - exact[name]).abs().max())
            assert error <= limits[name] * torch.finfo(dtype).eps / UNIT, (name, dtype)


TILINGS = {  # batch, queries, keys, ROWS, KEYS, STEP
    "one tile": (2, 41, 41, 1024, 1024, 256),
    "several tiles": (2, 41, 41, 8, 8, 4),
    "keys by the few": (1, 41, 41, 16, 4, 1),
    "a longer past": (2, 20, 41, 16, 4, 2),
    "one token": (2, 1, 41, 16, 4, 2),
    "the first token": (1, 1, 1, 16, 4, 2),
}
EVALUATION = Place(gradient=False)


@pytest.mark.parametrize("case", TILINGS.values(), ids=TILINGS.keys())
@pytest.mark.parametrize("spec", [s for s in (*SPECS, *TILED) if ENGINES["tiles"] in able(make(s), EVALUATION)])
@torch.no_grad()
def test_tiles_equal_the_reference(spec: str, case: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    *size, rows, keys, step = case
    for name, value in {"ROWS": rows, "KEYS": keys, "STEP": step, "FEW": 5}.items():
        monkeypatch.setattr(tiling, name, value)
    encoding = make_for(spec, size[2])
    exact = output(ENGINES["reference"], encoding, size, torch.float64)
    moved = [{"output": output(ENGINES["reference"], encoding, size, torch.float64, off)} for off in (1, 2)]
    limit = tolerances({"output": exact}, moved, HEAD_WIDTH, size[2])["output"]
    for dtype in (torch.float32, torch.float64):
        error = float((output(ENGINES["tiles"], encoding, size, dtype) - exact).abs().max())
        # what 104 below the largest score weighs is left out: nothing in float32, e^-104 in float64
        assert error <= max(limit * torch.finfo(dtype).eps / UNIT, 1e-44), dtype


def output(
    engine: Engine, encoding: Encoding, size: Sequence[int], dtype: torch.dtype, off: int | None = None
) -> Tensor:
    """Attention output on random input in float64, everything moved by a unit of rounding by the seed `off`."""
    encoding, inputs, x_BSW = given(encoding, size, dtype, off)
    features = encoding.features(x_BSW) if "features" in encoding.blanks else None
    at = Positions.of(encoding, size[2], torch.device("cpu"))
    out = attend(engine, encoding, *inputs.values(), at, features)
    assert out.dtype == dtype
    return out.double()


@torch.no_grad()
def test_tiles_leave_out_what_has_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """ALiBi's steepest head has forgotten the first token after a few hundred; its gentlest has not."""
    seen: list[tuple[int, list[int]]] = []
    whole = tiling.Weight.begins

    def begins(self: tiling.Weight, rows: slice) -> list[tuple[int, list[int]]]:
        seen[:] = whole(self, rows)
        return list(seen)

    monkeypatch.setattr(tiling.Weight, "begins", begins)
    size = (1, 2048, 2048)
    encoding = make("alibi")
    exact = output(ENGINES["reference"], encoding, size, torch.float32)
    found = output(ENGINES["tiles"], encoding, size, torch.float32)
    assert seen[0][0] == 0
    assert seen[-1][0] >= 256
    assert float((found - exact).abs().max()) <= 64 * UNIT * float(exact.abs().max())


@pytest.mark.parametrize("queries", [1, 6, 11])
@pytest.mark.parametrize("spec", SPECS)
def test_the_reference_is_the_equation(spec: str, queries: int) -> None:
    encoding, keys = make(spec, dtype=torch.float64), 11
    q, k, v = (draw(2, HEADS, t, HEAD_WIDTH, seed=n, dtype=torch.float64) for n, t in enumerate((queries, keys, keys)))
    x_BSW = draw(2, keys, WIDTH, seed=3, dtype=torch.float64)
    features = encoding.features(x_BSW) if "features" in encoding.blanks else None
    positions = Positions.of(encoding, keys, torch.device("cpu"))
    found = attend(ENGINES["reference"], encoding, q, k, v, positions, features)
    expected = by_hand(encoding, q, k, v, positions.pos, features)
    # sums of D, then of S terms of order 1: their count times the unit of rounding, and as much again for the softmax
    torch.testing.assert_close(found, expected, rtol=0, atol=2 * (keys + HEAD_WIDTH) * 2**-52 * float(v.abs().max()))


def by_hand(encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, pos: Tensor, features: Tensor | None) -> Tensor:
    """The equation in the docstring of `encodings/blanks.py`, a query at a time; what is hidden is not there at all."""
    has, queries, keys = encoding.blanks, q.shape[2], k.shape[2]
    pos_T = pos[keys - queries :]
    rotated, values = encoding.query(encoding.content_query(q), pos_T), encoding.value(v, pos)
    rotated_k, relative_q = encoding.key(k, pos), encoding.relative_query(q) if "relative_keys" in has else q
    rows = []
    for t in range(queries):
        seen = keys - queries + t + 1
        d, i = snapped(pos_T[t] - pos[:seen]), slice(t, t + 1)
        s = torch.einsum("bhtd,bhjd->bhtj", rotated[:, :, i], rotated_k[:, :, :seen])
        if "relative_keys" in has:
            s = s + torch.einsum("bhtd,hjd->bhtj", relative_q[:, :, i], _per_head(encoding.relative_keys(d)))
        if "relative_queries" in has:
            s = s + torch.einsum("bhjd,hjd->bhj", k[:, :, :seen], _per_head(encoding.relative_queries(d)))[:, :, None]
        x = at_query(
            encoding, rotated[:, :, i], rotated_k[:, :, :seen], q[:, :, i], k[:, :, :seen], pos[:seen], features
        )
        if "similarity" in has:
            s = encoding.similarity(x) + s - torch.einsum("bhtd,bhjd->bhtj", x.q_BHTD, x.k_BHSD)
        s = s * encoding.scale
        if "distance_bias" in has:
            s = s + encoding.distance_bias(d)[None, :, None]
        if "potential" in has:
            assert features is not None
            c = encoding.potential(features)[..., :seen]
            s = s + (c[..., -1:] - c)[:, :, None]
        if "bias" in has:
            f_j = None if features is None else features[:, :, :seen]
            s = s + encoding.bias(pos_T[i], pos[:seen], None if f_j is None else f_j[:, :, -1:], f_j)
        if "temperature" in has:
            s = s * encoding.temperature(torch.tensor([min(seen, encoding.reach or seen)]))[..., None]
        if encoding.reach is not None:
            s[..., : max(0, seen - encoding.reach)] = -math.inf
        if "scores" in has:
            s = encoding.scores(s, x).masked_fill(s == -math.inf, -math.inf)
        p = encoding.weights(s)
        if "mix" in has:
            p = encoding.mix(p, d[None])
        o = torch.einsum("bhtj,bhje->bhte", p, values[:, :, :seen])
        if "relative_values" in has:
            o = o + torch.einsum("bhtj,hje->bhte", p, _per_head(encoding.relative_values(d)))
        rows.append(o)
    return encoding.output(torch.cat(rows, dim=2), pos_T)


def at_query(
    encoding: Encoding, q: Tensor, k: Tensor, raw_q: Tensor, raw_k: Tensor, pos: Tensor, features: Tensor | None
) -> Operands:
    """What a query sees, for the blanks that are given it."""
    f = None if features is None else features[:, :, : len(pos)]
    shared = {"raw_q_BHTD": raw_q, "raw_k_BHSD": raw_k, "pos_S": pos, "features_BHSF": f}
    return Operands(encoding=encoding, q_BHTD=q, k_BHSD=k, v_BHSE=raw_k, step=None, **shared)


def _per_head(x_HND: Tensor) -> Tensor:
    return x_HND.expand(HEADS, -1, -1)


@pytest.mark.parametrize("blank", ["scores", "weights"])
def test_what_a_window_hides_stays_hidden(blank: str) -> None:
    """A window on an encoding that remakes the scores: keys that it hides must have no weight."""
    encoding = make({"scores": "conftest:Capped", "weights": "conftest:Gated"}[blank] + "+window(3)")
    q, k, v = (draw(1, HEADS, 20, HEAD_WIDTH, seed=n) for n in range(3))
    for engine in (ENGINES["reference"], choose(encoding).engine):
        positions = Positions.of(encoding, 20, torch.device("cpu"))
        v_far = torch.cat([v[:, :, :17] + 100, v[:, :, 17:]], dim=2)
        before, after = (attend(engine, encoding, q, k, x, positions)[:, :, -1] for x in (v, v_far))
        torch.testing.assert_close(before, after, rtol=0, atol=0)


def test_terms_of_the_scores_are_added() -> None:
    """`a+b`: the scores of a and of b, each as it is alone, the content counted once."""
    q, k, v = (draw(1, HEADS, 9, HEAD_WIDTH, seed=n, dtype=torch.float64) for n in range(3))
    parts = ["conftest:Untied", "shaw(clip=4, values=false)", "alibi"]
    assert_scores_add_up(parts, q, k, v)


def test_every_relative_query_meets_its_own_keys() -> None:
    """Two encodings with relative vectors and a query of their own, as Transformer-XL has one."""
    q, k, v = (draw(1, HEADS, 9, HEAD_WIDTH, seed=n, dtype=torch.float64) for n in range(3))
    assert_scores_add_up(["conftest:Untied", "conftest:Untied"], q, k, v)


def assert_scores_add_up(parts: list[str], q: Tensor, k: Tensor, v: Tensor) -> None:
    from poscli.attention.reference import scores
    from poscli.encodings.compose import Both

    def of(encoding: Encoding) -> Tensor:
        pos = torch.arange(q.shape[2])
        return scores(
            Operands(encoding=encoding, q_BHTD=q, k_BHSD=k, v_BHSE=v, raw_q_BHTD=q, raw_k_BHSD=k, pos_S=pos, step=1)
        ).nan_to_num(neginf=0)

    alone = [perturbed(make(part, dtype=torch.float64), seed=n) for n, part in enumerate(parts)]
    content = of(make("none", dtype=torch.float64))
    expected = content + sum(of(encoding) - content for encoding in alone)
    torch.testing.assert_close(of(Both(alone)), expected, rtol=0, atol=64 * 2**-52)  # a few numbers of order 1


# views


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 5), (4, 4), (3, 7), (7, 3)])
@pytest.mark.parametrize("table", [True, False])
def test_skew_and_unskew_by_index(rows: int, keys: int, table: bool) -> None:
    columns = rows + keys + 1  # one more than is needed
    g = draw(2, HEADS, 1 if table else rows, columns)
    skewed = skew(g, rows, keys)
    spread = unskew(draw(2, HEADS, rows, keys, seed=1), columns)
    p = draw(2, HEADS, rows, keys, seed=1)
    assert skewed.data_ptr() == g.data_ptr()  # a view
    for r in range(rows):
        for j in range(keys):
            assert torch.equal(skewed[..., r, j], g[..., 0 if table else r, r + j])
        for c in range(columns):
            expected = p[..., r, c - r] if 0 <= c - r < keys else torch.zeros(2, HEADS)
            assert torch.equal(spread[..., r, c], expected)


def test_skew_keys_by_index() -> None:
    rows, keys = 4, 6
    g = draw(2, HEADS, keys, rows + keys)
    skewed = skew_keys(g, rows)
    for r in range(rows):
        for j in range(keys):
            assert torch.equal(skewed[..., r, j], g[..., j, r + j])


@pytest.mark.parametrize("start", [0, 3])
def test_a_skewed_table_holds_the_bias_of_each_distance(start: int) -> None:
    """Rows are queries in reverse; column j is key j; what lies in the future is filled."""
    by_distance, rows = draw(2, 9), 4
    keys = 9
    view = skew(descending(by_distance, rows, fill=-math.inf)[None, :, None], rows, keys)
    for r in range(rows):
        for j in range(keys):
            d = (keys - 1 - r) - j
            expected = by_distance[:, d] if d >= 0 else torch.full((2,), -math.inf)
            assert torch.equal(view[0, :, r, j], expected)


@pytest.mark.parametrize("table", [True, False])
def test_gradients_of_the_views(table: bool) -> None:
    g = draw(2, 1 if table else 3, 8, dtype=torch.float64).requires_grad_()
    p = draw(2, 3, 5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: skew(x, 3, 5) * draw(2, 3, 5, seed=2).double(), g)
    assert torch.autograd.gradcheck(lambda x: unskew(x, 8) * draw(2, 3, 8, seed=2).double(), p)
    if not table:
        keyed = draw(2, 5, 8, dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: skew_keys(x, 3) * draw(2, 3, 5, seed=2).double(), keyed)


@pytest.mark.parametrize("chunk", [1, 2**19])
@pytest.mark.parametrize("batch_heads", [(1, 1), (1, 2), (3, 1), (3, 2)])
def test_gradients_of_attention_with_a_learned_bias(
    batch_heads: tuple[int, int], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "CHUNK", chunk)
    q, k, v = (draw(3, 2, t, 4, seed=n, dtype=torch.float64).requires_grad_() for n, t in enumerate((3, 5, 5)))
    bias = draw(*batch_heads, 3, 5, seed=5, dtype=torch.float64).requires_grad_()
    future = torch.ones(3, 5, dtype=torch.bool).triu(3)

    def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return fused.biased_attention(q, k, v, bias.masked_fill(future, -math.inf), 0.3)

    assert torch.autograd.gradcheck(attention, (q, k, v, bias))


@pytest.mark.parametrize("heads", [1, 2])
def test_gradients_of_a_learned_table_through_its_view(heads: int) -> None:
    """A table of distances, skewed into the bias of a block, as engines use it."""
    q, k, v = (draw(2, 2, t, 4, seed=n, dtype=torch.float64).requires_grad_() for n, t in enumerate((4, 6, 6)))
    table = draw(heads, 6, seed=5, dtype=torch.float64).requires_grad_()

    def attention(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        bias = skew(descending(table, 4, fill=-math.inf)[None, :, None], 4, 6)
        return fused.biased_attention(q.flip(2), k, v, bias, 0.3)

    assert torch.autograd.gradcheck(attention, (q, k, v, table))


# memory


class Largest(TorchDispatchMode):
    """The most numbers that any tensor holds in memory (a view counts as what it looks at)."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, Tensor):
                self.numbers = max(self.numbers, x.untyped_storage().nbytes() // x.element_size())
        return out


def largest(engine: Engine, encoding: Encoding, tokens: int) -> int:
    q, k, v = (draw(1, 1, tokens, 8, seed=n) for n in range(3))
    x = draw(1, tokens, 8, seed=3)
    with torch.no_grad(), Largest() as watch:  # inference mode would hide what composite operators are made of
        features = encoding.features(x) if "features" in encoding.blanks else None
        positions = Positions.of(encoding, tokens, torch.device("cpu"))
        assert attend(engine, encoding, q, k, v, positions, features).isfinite().all()
    return watch.numbers


@pytest.mark.parametrize("spec", [*names(), "rope+window(9)", "rope+shaw(clip=4, values=false)", *TOYS])
def test_no_engine_makes_a_matrix_of_all_pairs(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of the distance hold O(L) numbers; whatever must be made per pair, a block of at most ENTRIES."""
    encoding = make_for(spec, 8192, shape(512, heads=1, width=8))
    engine = choose(encoding).engine
    per_pair = encoding.blanks & {*TIERS["row"], *TIERS["relative"], *TIERS["pair"]}
    per_pair |= {"temperature"} & encoding.blanks if encoding.blanks & biases.BIASES else set()
    uneven = "distance_bias" in encoding.blanks and Positions.of(encoding, 9, torch.device("cpu")).step is None
    tokens, entries = (4096, 2**20) if per_pair or uneven else (8192, 2**20)
    monkeypatch.setattr(biases, "ENTRIES", entries)
    vector = 8 * tokens * 8  # a few vectors of width D per token
    block = max(entries, 16 * tokens * 32) if per_pair or uneven else 0  # 16 rows of 32 hidden numbers, at the least
    assert largest(engine, encoding, tokens) <= max(vector, block)
    assert max(vector, block) <= tokens**2 / 4


def test_the_meter_sees_a_matrix_of_all_pairs() -> None:
    assert largest(ENGINES["reference"], make("none", shape(heads=1, width=8)), 512) >= 512**2


# the choice


def test_the_fastest_engine_that_can_is_chosen() -> None:
    for name in names():
        encoding = make(name)
        rows = encoding.blanks & {*TIERS["row"], "relative_values"}
        choice = choose(encoding)
        assert choice.name == ("blocks" if rows else "sdpa")
        assert all(blank in choice.reason for blank in rows)
        assert ("not sdpa: needs whole rows of scores" in choice.reason) == bool(rows)
        assert choice.reason or choice.name == "sdpa"


def test_an_engine_may_be_asked_for() -> None:
    assert choose(make("rope"), "blocks").name == "blocks"
    assert choose(make("rope"), "reference").reason == "asked for"
    with pytest.raises(UsageError, match=r"there is no engine 'sdpaa': did you mean sdpa\?"):
        choose(make("rope"), "sdpaa")
    with pytest.raises(UsageError, match=r"the engine sdpa cannot run cope: .*\(scores\); blocks can"):
        choose(make("cope"), "sdpa")


def test_positions_are_measured() -> None:
    def step(spec: str, tokens: int = 9) -> float | None:
        return Positions.of(make(spec), tokens, torch.device("cpu")).step

    assert step("rope") == 1
    assert step("conftest:Quarters") == 0.25
    assert step("conftest:Squares") is None
    assert step("conftest:SquaredVectors") is None


def test_unsupported_is_no_accident() -> None:
    encoding = make("learned")
    x = draw(1, LENGTH + 1, WIDTH)
    with pytest.raises(Unsupported, match=f"learned has {LENGTH} positions; position {LENGTH} "):
        encoding.embed(x, torch.arange(LENGTH + 1), torch.zeros(1, LENGTH + 1, dtype=torch.long))
