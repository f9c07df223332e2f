"""Every engine against the reference in float64, with gradients, on input that is hard for it.

Encodings, sizes and inputs are drawn at random: sums of parts that no suite has, long and short vectors, texts unlike
each other in one batch, queries that dislike their own keys, several blocks and tiles, caches.
"""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import pytest
import torch
from compiled import UNIT
from flash_checks import assert_as_exact
from torch import Tensor
from toys import HEADS, WIDTH, draw, first, make, shape

from poscli.attention import ENGINES, BlockSizes, Engine, Place, attend, engines_for
from poscli.attention.place import DEFAULT_SIZES, GPU_SIZES
from poscli.attention.tiles import ScoreBounds, TileInputs
from poscli.encodings import Encoding
from poscli.equation.reference import operands
from poscli.model.cache import LayerCache
from poscli.system.errors import UsageError

CPU = torch.device("cpu")
FEW = BlockSizes(
    block_queries=48, block_entries=20_000, training_queries=32, training_tokens=150, backward_queries=40,
    backward_entries=9000, tile_queries=64, tile_keys=40, tile_entries=6000, skip_multiple=32, weighted_queries=24,
    native_queries=4,
)  # fmt: skip
PIECES = (
    ("", "rope", "toys:Carried", "toys:Wide"),
    ("", "", "ssmax", "logn(5)"),
    ("", "alibi", "t5(buckets=6, far=11)", "alibi(scale=40)", "clipped(clip=30)"),
    ("", "", "shaw(clip=4)", "shaw(clip=40, values=false)", "deberta(span=9)", "transformer-xl"),
    ("", "", "fox", "cable", "fire", "toys:Paced"),
    ("", "", "", "cope(max_pos=5)", "stick-breaking", "urpe(base=none)", "toys:Capped"),
    ("", "", "window(30)", "sink(3)+window(20)", "sink(40)+window(64)"),
    ("", "", "", "", "interpolated(3)", "toys:Squares"),
)
ON_A_GRID = ["swin-2d", "alibi-2d", "t5-2d+window(25)", "rope-2d", "swin-2d+fox", "alibi-2d+sink(3)+window(30)+ssmax"]
# Encodings that only one path of an engine serves, and inputs of several tiles of the usual sizes.
ALONE = [
    "fox", "cable", "alibi(trainable=true)", "t5+fox", "fox+ssmax", "fox+shaw(clip=4)", "fox+window(20)",
    "shaw(clip=4)+window(30)", "transformer-xl", "deberta(span=9)", "convolution(width=30)", "dape", "path",
    "urpe(base=t5)", "rerope(window=7)", "grape-additive", "alibi+randomized(400)", "fox+randomized(400)",
    "stick-breaking+alibi(trainable=true)", "cope(max_pos=5)+window(50)", "self-extend(window=20, group=3)",
    "rope-dynamic", "alibi(trainable=true)+interpolated(3)", "toys:Capped+window(9)", "sink(2)+window(9)+alibi",
    "rope-2d+fox", "rerope(window=7)+sink(9)+window(5)", "rerope(window=7)+sink(2)+window(20)",
    "wall+sink(2)+window(9)", "dual-chunk+sink(2)+window(9)", "dual-chunk(chunk=7)+window(3)",
    "jet-long+sink(1)+window(1)", "path+window(9)",
]  # fmt: skip
EVALUATED = [
    ("dual-chunk+sink(40)+window(200)", 300, 600), ("self-extend(window=130, group=3)+sink(70)+window(200)", 300, 600),
    ("alibi-2d+fox", 300, 600),
    ("shaw(clip=8)", 600, 1100), ("fox+t5", 1025, 2049), ("alibi", 1025, 2049), ("sink(70)+window(300)+t5", 600, 600),
    ("cope(max_pos=300)", 300, 300), ("stick-breaking", 300, 600), ("fire", 300, 300),
    ("self-extend(window=300, group=3)", 600, 600), ("string(shift=130)", 300, 300), ("alibi+rope+ssmax", 300, 600),
    ("swin-2d+window(300)", 600, 600), ("jet-long", 600, 600), ("fox+t5", 2049, 2049),
]  # fmt: skip
TRAINED = [
    ("swin-2d", 300, 600),
    ("fox+t5", 300, 600), ("transformer-xl+deberta(span=300)+window(170)", 150, 300), ("grape-additive", 300, 600),
    ("sink(70)+window(300)+t5", 600, 600), ("cope(max_pos=5)", 300, 600), ("urpe(base=t5)", 300, 600),
    ("dape(base=t5)", 170, 300), ("stick-breaking", 300, 600), ("alibi(trainable=true)", 1100, 1100),
]  # fmt: skip
SHAPES = [(HEADS, 8), (HEADS, 8), (1, 2), (2, 24), (9, 8), (HEADS, 40), (2, 72)]  # heads, and their widths
TOKENS = [(2, 33, 70), (1, 90, 120), (3, 20, 20), (2, 1, 50), (1, 130, 300), (2, 64, 64), (1, 9, 200)]


class Layer:
    """One call of attention under encodings drawn at random, on texts with long and short queries and keys."""

    def __init__(self, seed: int, spec: str = "", size: tuple[int, int, int] | None = None) -> None:
        self.random = random.Random(seed)
        self.spec = spec or (self.random.choice(ON_A_GRID) if seed % 8 == 0 else self._drawn_spec())
        self.batch, self.queries, self.keys = self.random.choice(TOKENS)
        self.sizes = self.random.choice([FEW, FEW, DEFAULT_SIZES])
        if size is not None:
            (self.batch, self.queries, self.keys), self.sizes = size, FEW if size[0] > 1 else DEFAULT_SIZES
        self.columns = (7, 16, 33)[seed % 3] if "2d" in self.spec else None
        heads, width = (HEADS, 8) if spec else self.random.choice(SHAPES)
        self.encoding = make(self.spec, shape(heads=heads, width=heads * width))
        lengths = torch.tensor([0.1, 1.0, 2.0])
        chosen = torch.randint(3, (3, self.batch, 1, self.keys, 1), generator=torch.Generator().manual_seed(seed))
        self.x = {}
        for n, name in enumerate(("q", "k", "v")):  # half of the time with the strides that projections leave
            x = draw(self.batch, heads, self.keys, width, seed=n) * lengths[chosen[n]] * (8 / width) ** 0.25
            x = x if seed % 2 else x.transpose(1, 2).contiguous().transpose(1, 2)
            self.x[name] = x if seed % 3 else x.mT.contiguous().mT  # and at times those that no projection leaves
        self.x["q"] = self.x["q"][:, :, -self.queries :]
        if seed % 4 == 1:  # queries that dislike their own keys, which are longer than those before
            self.x["k"][:, :, : -self.queries] /= 10
            self.x["q"] += 10
            self.x["k"][:, :, -self.queries :] -= 10
        if seed % 4 == 2 and self.batch > 1:  # a text of equal tokens, and one whose queries see their first keys alone
            self.x["k"][0], direction = self.x["k"][0, :, :1], 3 * draw(heads, 1, width, seed=4).sign()
            self.x["q"][-1], self.x["k"][-1], self.x["k"][-1, :, :6] = direction, -direction, direction
        if seed % 7 == 3:  # all numbers of a value are one number in memory
            self.x["v"] = self.x["v"][..., :1].expand(-1, -1, -1, width)
        self.x["x"] = draw(self.batch, self.keys, heads * width, seed=3)

    def _drawn_spec(self) -> str:
        while True:
            chosen = [piece for piece in map(self.random.choice, PIECES) if piece]
            try:
                make(spec := "+".join(chosen) or "none")
            except UsageError:
                continue
            if not {"alibi(scale=40)", "toys:Squares"} <= set(chosen):  # together they make scores of 100,000
                return spec

    def __str__(self) -> str:
        sizes = f"{list(self.x['q'].shape)} of {self.keys}, {'few' if self.sizes is FEW else 'usual'}"
        return f"{self.spec}, {sizes}"

    def given(self, dtype: torch.dtype) -> tuple[Encoding, dict[str, Tensor]]:
        return copy.deepcopy(self.encoding).to(dtype), {name: x.to(dtype) for name, x in self.x.items()}

    def attended(self, engine: Engine, dtype: torch.dtype = torch.float32) -> Tensor:
        """The output, without a gradient."""
        encoding, x = self.given(dtype)
        features = encoding.features(x["x"])
        at = encoding.locate(self.keys, CPU, self.columns)
        return attend(engine, encoding, x["q"], x["k"], x["v"], at, features, self.sizes)

    def trained(self, engine: Engine, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """The output, and the gradients of all that is learned or given."""
        encoding, x = self.given(dtype)
        leaves = {name: y.requires_grad_() for name, y in x.items()} | dict(encoding.named_parameters())
        features = encoding.features(x["x"])
        at = encoding.locate(self.keys, CPU, self.columns)
        out = attend(engine, encoding, x["q"], x["k"], x["v"], at, features, self.sizes)
        upstream = draw(*out.shape, seed=4).to(dtype)
        grads = torch.autograd.grad(out, list(leaves.values()), upstream, allow_unused=True)
        found = {f"the gradient of {n}": g for n, g in zip(leaves, grads, strict=True) if g is not None}
        return {"the output": out.detach()} | found

    def decoded(self, engine: Engine) -> Tensor:
        """The output of the queries where the tokens come in chunks, and a cache holds the earlier ones."""
        cache, past, found = LayerCache(), 0, []
        q = torch.cat([self.x["k"][:, :, : self.keys - self.queries], self.x["q"]], dim=2)
        while past < self.keys:
            end = min(self.keys, past + self.random.choice([1, 1, 9, 40]))
            new = [y[:, :, past:end] for y in (q, self.x["k"], self.x["v"])]
            features = None
            if "features" in self.encoding.blanks:
                features = self.encoding.features(self.x["x"][:, past:end])
            at = self.encoding.locate(end, CPU, self.columns)
            found.append(cache.attend(engine, self.encoding, new, features, at))
            past = end
        return torch.cat(found, dim=2)[:, :, -self.queries :]


def assert_near(found: Tensor, exact: Tensor, rounded: Tensor, what: str) -> None:
    """Sixteen times the error of the formula itself in float32, and 256 units of rounding, are allowed."""
    error, own = (float((y - exact).abs().max()) for y in (found, rounded))
    limit = 16 * max(own, 2.0**-20 * max(float(exact.abs().max()), 1.0))
    assert error <= limit, f"{what} is {error:.3g} off, and rounding is {limit:.3g}"


REFERENCE = ENGINES["reference"]


def assert_trained(layer: Layer) -> None:
    exact, rounded = layer.trained(REFERENCE, torch.float64), layer.trained(REFERENCE)
    for engine in engines_for(layer.encoding):
        found = layer.trained(engine)
        assert found.keys() == exact.keys()
        for name, x in exact.items():
            assert_near(found[name], x, rounded[name], f"{name} of {engine.name} under {layer}")


def assert_evaluated(layer: Layer, decoding: bool = True) -> None:
    place = Place(gradient=False)
    exact, rounded = layer.attended(REFERENCE, torch.float64), layer.attended(REFERENCE)
    engines = engines_for(layer.encoding, place)
    if not ENGINES["flex"].refuses(layer.encoding, place):
        engines.append(ENGINES["flex"])
    results = {engine.name: layer.attended(engine) for engine in engines}
    if decoding and not (layer.encoding.rescales or layer.encoding.axes == 2):  # then the last token changes the others
        results |= {f"{engine.name}, decoding": layer.decoded(engine) for engine in engines[:3]}
    for name, found in results.items():
        assert_near(found, exact, rounded, f"{name} under {layer}")


@pytest.mark.parametrize("start", first(1, range(0, 60, 20)))
def test_gradients_equal_those_of_the_reference_on_anything(start: int) -> None:
    for layer in map(Layer, range(start, start + 20)):
        assert_trained(layer)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # on CPU it is not compiled
@pytest.mark.parametrize("start", first(1, range(0, 60, 20)))
@torch.no_grad()
def test_outputs_equal_those_of_the_reference_on_anything(start: int) -> None:
    more = [Layer(start + n, "alibi(scale=40)") for n in (1, 5, 9)]  # whose far keys have a weight all the same
    more += [Layer(start + n, spec) for n, spec in enumerate(("rope+window(30)+t5", "fox+window(20)", "logn(5)"))]
    for layer in [*map(Layer, range(start, start + 20)), *more]:
        assert_evaluated(layer)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("spec", ALONE)
@pytest.mark.parametrize(("seed", "queries", "keys"), first(1, [(100, 33, 70), (101, 64, 64), (102, 90, 120)]))
def test_engines_equal_the_reference_under_encodings_with_a_path_of_their_own(
    spec: str, seed: int, queries: int, keys: int
) -> None:
    assert_trained(Layer(seed, spec, (2, queries, keys)))
    with torch.no_grad():
        assert_evaluated(Layer(seed, spec, (2, queries, keys)))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("spec", "queries", "keys"), first(11, EVALUATED))
@torch.inference_mode()
def test_outputs_over_several_tiles_equal_those_of_the_reference(spec: str, queries: int, keys: int) -> None:
    assert_evaluated(Layer(103, spec, (1, queries, keys)), decoding=False)


@pytest.mark.parametrize(("spec", "queries", "keys"), first(7, TRAINED))
def test_gradients_over_several_tiles_equal_those_of_the_reference(spec: str, queries: int, keys: int) -> None:
    assert_trained(Layer(103, spec, (1, queries, keys)))


@torch.no_grad()
def test_keys_without_weight_are_skipped_for_each_head_alone_and_no_others() -> None:
    """The outer heads forget fast, the one between them slowly. Heads that begin at one key need not be neighbours.

    In the first text, whose numbers are small, keys are skipped. In the second one, queries dislike all keys but the
    first six so much that these have all the weight of a head that forgets slowly.
    """
    encoding, at = make("alibi(trainable=true)"), make("alibi").locate(72, CPU)
    encoding.slope.copy_(torch.tensor([30.0, 5.0, 30.0]))
    q, k, v = (draw(2, HEADS, 72, 8, seed=n) for n in range(3))
    direction = 8 * draw(HEADS, 1, 8, seed=4).sign()
    q[1], k[1], k[1, :, :6] = direction, -direction, direction
    x = operands(encoding, q[:1], k[:1], v[:1], at)
    firsts = ScoreBounds.of(TileInputs.of(encoding, x)).first_keys(slice(64, 72), 4)
    assert [heads for _, heads in firsts] == [[1], [0, 2]]
    assert all(first > 0 for first, _ in firsts)
    sizes = replace(FEW, tile_queries=8, tile_keys=12, skip_multiple=4)
    exact = attend(REFERENCE, copy.deepcopy(encoding).double(), q.double(), k.double(), v.double(), at)
    later = torch.cat([torch.zeros_like(v[:, :, :6]), v[:, :, 6:]], dim=2)
    without = attend(REFERENCE, encoding, q, k, later, at)
    assert float(without[1, 1, 64:].abs().max()) < 0.01 < float(exact[1, 1, 64:].abs().max())
    for engine in engines_for(encoding, Place(gradient=False)):
        for texts in (slice(0, 1), slice(1, 2), slice(0, 2)):
            found = attend(engine, encoding, q[texts], k[texts], v[texts], at, None, sizes)
            # Units of the largest score, 181, and as many of the largest term of the distance.
            assert float((found - exact[texts]).abs().max()) <= 16 * UNIT * 2200, engine.name


@pytest.mark.parametrize("spec", ["alibi(trainable=true)", "fox", "alibi(trainable=true)+fox"])
@torch.no_grad()
def test_first_keys_of_blocks_leave_out_keys_without_weight_alone(spec: str) -> None:
    """Of two texts, 150 queries after 10 other tokens; NaN in a query hides no key from the other queries."""
    encoding, at = make(spec), make(spec).locate(160, CPU)
    for name, p in encoding.named_parameters():
        p.copy_(
            {"slope": torch.tensor([1.5, 0.01, 6.0]), "b": torch.tensor([-1.0, 5.0, -3.0])}.get(name.split(".")[-1], p)
        )
    q, k, x = draw(2, HEADS, 160, 8, seed=0), draw(2, HEADS, 160, 8, seed=1), draw(2, 160, WIDTH, seed=2)
    inputs = operands(encoding, q[:, :, 10:], k, k, at, encoding.features(x))
    firsts = ScoreBounds.of(TileInputs.of(encoding, inputs)).first_keys_of_blocks(32)
    assert firsts.shape == (HEADS, 5)
    assert int(firsts[2, -1]) > 64
    later = (torch.arange(160) >= firsts[:, :, None]).repeat_interleave(32, dim=1)[:, :150]
    weights = attend(
        REFERENCE, encoding, q[:, :, 10:], k, torch.eye(160).expand(2, HEADS, 160, 160), at, encoding.features(x)
    )
    assert float(weights[:, ~later].abs().max()) == 0
    q[0, 2, 50] = float("nan")
    inputs = operands(encoding, q[:, :, 10:], k, k, at, encoding.features(x))
    assert ScoreBounds.of(TileInputs.of(encoding, inputs)).first_keys_of_blocks(32)[2].tolist() == [0] * 5


@pytest.mark.parametrize("spec", ["alibi(trainable=true)", "fox"])
@torch.no_grad()
def test_keys_with_a_small_weight_are_not_skipped(spec: str) -> None:
    """Where queries and keys are 0, the table or what is forgotten, 1.6 per token, alone decides the weights."""
    encoding = make(spec)
    for name, p in encoding.named_parameters():
        p.copy_({"slope": torch.tensor([0.2, 0.8, 1.6]), "w": torch.zeros_like(p), "b": torch.tensor(-1.376)}[name])
    nothing, v, at = torch.zeros(1, HEADS, 160, 8), draw(1, HEADS, 160, 8, seed=2), encoding.locate(160, CPU)
    features = encoding.features(torch.zeros(1, 160, WIDTH))
    exact = attend(REFERENCE, encoding, nothing, nothing, v, at, features)
    for engine in engines_for(encoding, Place(gradient=False)):
        found = attend(engine, encoding, nothing, nothing, v, at, features, replace(FEW, skip_multiple=1))
        assert float((found - exact).abs().max()) <= 32 * UNIT * 1.6 * 160, engine.name


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
@torch.no_grad()
def test_a_text_that_forgets_everything_takes_no_keys_from_one_that_forgets_nothing(order: list[int]) -> None:
    encoding = make("fox")
    for name, p in encoding.named_parameters():
        p.fill_(2.0 if name == "b" else 0.3)
    q, k, v = (draw(2, HEADS, 72, 8, seed=n) for n in range(3))
    features = encoding.features(torch.tensor([-1.0, 1.0])[order][:, None, None].expand(2, 72, WIDTH))
    at = encoding.locate(72, CPU)
    exact = attend(REFERENCE, encoding, q, k, v, at, features)
    for engine in engines_for(encoding, Place(gradient=False)):
        for sizes in (FEW, DEFAULT_SIZES, replace(FEW, tile_queries=8, tile_keys=12, skip_multiple=4)):
            found = attend(engine, encoding, q, k, v, at, features, sizes)
            # Units of the largest score, 5 per token of the text that forgets.
            assert float((found - exact).abs().max()) <= 32 * UNIT * 5 * 72, engine.name


@pytest.mark.parametrize("spec", ["fox", "cable"])
def test_strong_gates_cost_no_digits_however_long_the_text(spec: str) -> None:
    """A thousand tokens forget 220 to 1,600 in all, and float32 rounds a number of up to 128 by at most 2^-18.

    A weight is off by as large a share of it, and so is a sum of weights; a gradient has differences of two such sums.
    """
    layer = Layer(103, spec, (1, 1000, 1000))
    for name, p in layer.encoding.named_parameters():
        torch.nn.init.constant_(p, {"b": -1.4}.get(name, 0.0))
    exact, inputs = layer.trained(REFERENCE, torch.float64), ("q", "k", "v")
    paths = {f"{each.name}, trained": layer.trained(each) for each in engines_for(layer.encoding, Place(gradient=True))}
    with torch.no_grad():
        for each in engines_for(layer.encoding, Place(gradient=False)):
            paths[f"{each.name}, evaluated"] = {"the output": layer.attended(each)}
    for path, found in paths.items():
        for name in {"the output", *(f"the gradient of {each}" for each in inputs)} & set(found):
            error = (found[name] - exact[name]).square().mean().sqrt() / exact[name].square().mean().sqrt()
            assert error <= 2.0 ** (-18 if name == "the output" else -17), f"{name} by {path}: {error:.1e}"


@pytest.mark.parametrize("name", ["sdpa", "blocks"])
@pytest.mark.parametrize("spec", ["cable", "fox(start=0)"])
def test_a_potential_that_changes_much_costs_no_digits_in_the_large_blocks_of_a_gpu(spec: str, name: str) -> None:
    engine = ENGINES[name]
    as_on_a_gpu = replace(engine, run=lambda encoding, x, _: engine.run(encoding, x, GPU_SIZES))
    encoding = make(spec, shape(256, heads=2, width=128))
    assert_as_exact(as_on_a_gpu, encoding, (2, 256, 256), torch.float32, "cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "spec", ["fox", "fox(start=0)", "cable", "cope(max_pos=300)", "kerple-log", "t5", "stick-breaking", "xpos"]
)
def test_positions_are_not_rounded_to_the_dtype_of_queries_and_keys(spec: str, dtype: torch.dtype) -> None:
    """Rounding queries, keys, values and scores gives about as large an error under every encoding as under none.

    By every engine, with and without a gradient, and over blocks and tiles of 256 tokens.
    """

    def error(spec: str, engine: Engine) -> float:
        layer = Layer(103, spec, (1, 600, 600))
        layer.x = {name: x.to(dtype).double() for name, x in layer.x.items()}
        exact = layer.attended(REFERENCE, torch.float64)
        encoding, x = layer.encoding, {name: y.to(dtype) for name, y in layer.x.items()}
        features, at = encoding.features(x["x"].float()), encoding.locate(600, CPU)
        sizes = replace(DEFAULT_SIZES, tile_keys=256)
        rounded = attend(engine, encoding, x["q"], x["k"], x["v"], at, features, sizes)
        return float((rounded - exact).detach().square().mean().sqrt())

    for gradient in (False, True):
        with torch.set_grad_enabled(gradient):
            for engine in engines_for(make(spec), Place(dtype=dtype, gradient=gradient)):
                assert error(spec, engine) <= 2 * error("none", REFERENCE), engine.name
