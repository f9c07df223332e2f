"""An encoding under test, in a small model and by itself at chosen positions of a text of any length, and its checks.

What is computed by itself is computed by the reference. Tokens at chosen positions stand for a text of any length, so
the last tokens of a million cost no more than those of a hundred. The checks are functions of a spec under test that
return what they measured, or raise `Failed` or `Skipped`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from poscli.attention import ENGINES, BlockSizes, Engine, Place, attend, engines_for
from poscli.config.run import ModelConfig
from poscli.equation import Encoding, Positions, Shape, Unsupported
from poscli.equation.operands import columns_of, raster
from poscli.equation.shapes import BlankInputs, wrong_shapes
from poscli.model.cache import Cache
from poscli.model.initialise import build_model, load_weights, weights_of
from poscli.model.transformer import Model
from poscli.specs import Spec, build, parse
from poscli.system.text import counted
from poscli.verify.noise import FLOAT32, draw, draw_inputs, draw_tokens, perturbed, rounding, tolerances

CPU = torch.device("cpu")
REFERENCE = ENGINES["reference"]
SHORTEST_TRIED, LONGEST_TRIED = 16, 2**20  # tokens
SECONDS_OF_SEARCH = 0.5  # after which the search tries no longer input
LENGTH, HEADS, WIDTH, VOCAB, BATCH = 16, 4, 32, 11, 2
CONFIG = ModelConfig(layers=2, width=WIDTH, heads=HEADS, mlp=48)
SHAPE = CONFIG.shape(LENGTH, VOCAB)
# Block sizes so small that a short input has several blocks of every kind.
SMALL = BlockSizes(
    block_queries=5, backward_queries=5, backward_entries=1,
    tile_queries=5, tile_keys=4, skip_multiple=2, weighted_queries=3, native_queries=1,
)  # fmt: skip
FAR = 16 * LENGTH  # tokens, or rows and columns
# Shifts of positions, of a number of tokens for one axis, of rows and of columns for two.
SHIFTS = {
    1: (torch.tensor(LENGTH // 2), torch.tensor(1), torch.tensor(FAR)),
    2: tuple(torch.tensor(shift) for shift in ((1, 0), (0, 1), (FAR, 0), (0, FAR))),
}


def shape_for(spec: Spec) -> Shape:
    """The shape of the smallest model with two layers or more in which every alternating layer of a spec is."""
    return replace(SHAPE, layers=max(SHAPE.layers, len(spec.layers)))


class SpecUnderTest:
    """A spec, with models and input drawn from a seed."""

    def __init__(self, spec: str, seed: int) -> None:
        self.spec, self.seed = spec, seed

    @cached_property
    def encodings(self) -> list[Encoding]:
        """The different encodings of the layers, their weights moved away from the initial values."""
        spec, different = parse(self.spec), dict[str, Encoding]()
        for layer in build(spec, shape_for(spec), self.seed)[: len(spec.layers)]:
            different.setdefault(layer.spec, layer)
        return [perturbed(encoding, self.seed).requires_grad_(False) for encoding in different.values()]

    @cached_property
    def model(self) -> Model:
        """A small model for evaluation, without gradients."""
        return self.fresh().eval().requires_grad_(False)

    def fresh(self, moved: int = 0, seed: int | None = None, layers: int = 0) -> Model:
        """A new model, of all layers by default, whose weights are drawn and then moved from their initial values."""
        config = CONFIG.model_copy(update={"layers": layers or shape_for(parse(self.spec)).layers})
        drawn = build_model(config, self.spec, vocab=VOCAB, length=LENGTH, seed=self.seed if seed is None else seed)
        return perturbed(drawn, self.seed + moved)

    def text(self, count: int, batch: int = BATCH) -> Tensor:
        """Random tokens."""
        return draw_tokens(VOCAB, batch, count, self.seed)

    @property
    def rescales(self) -> bool:
        """Whether the output depends on the total length."""
        return any(encoding.rescales for encoding in self.encodings)

    @property
    def axes(self) -> int:
        """The axes of positions, the most of any layer."""
        return max(encoding.axes for encoding in self.encodings)

    @property
    def composed(self) -> bool:
        """Whether the spec composes several encodings; no class declares properties of the composition."""
        return any(len(leaves) > 1 for leaves in parse(self.spec).layers)

    def takes(self, count: int) -> bool:
        """Whether the encoding has positions for `count` tokens."""
        try:
            with torch.no_grad():
                self.model(self.text(count, 1))
        except Unsupported:
            return False
        return True

    def tolerance(self, text: Tensor, model: Model | None = None) -> float:
        """The largest difference to allow between two correct computations of the logits."""
        return rounding(model or self.model, text)

    def inputs(self, queries: int, keys: int, dtype: torch.dtype, noise: int | None = None) -> dict[str, Tensor]:
        """q, k, v and the layer's input x; with a seed `noise`, each number is changed by one unit of rounding."""
        drawn = draw_inputs(SHAPE, queries, keys, dtype, seed=self.seed, batch=BATCH)
        return drawn if noise is None else {name: rounded(x, noise + n) for n, (name, x) in enumerate(drawn.items())}

    def attention(
        self, encoding: Encoding, engine: Engine, dtype: torch.dtype, queries: int, keys: int, noise: int | None = None
    ) -> dict[str, Tensor]:
        """The output and, where gradients are enabled and the engine has any, those of a random loss, as float64.

        With a seed `noise`, inputs and weights are changed by one unit of rounding.
        """
        encoding = copy.deepcopy(encoding).to(dtype).requires_grad_(True)
        if noise is not None:
            with torch.no_grad():
                for n, parameter in enumerate(encoding.parameters()):
                    parameter.copy_(rounded(parameter, noise + 10 + n))
        inputs = {name: x.requires_grad_() for name, x in self.inputs(queries, keys, dtype, noise).items()}
        features = encoding.features(inputs["x"])
        positions = encoding.locate(keys, torch.device("cpu"))
        differentiate = engine.gradient and torch.is_grad_enabled()
        with torch.set_grad_enabled(differentiate):
            out = attend(engine, encoding, inputs["q"], inputs["k"], inputs["v"], positions, features, SMALL)
        if not differentiate:
            return {"output": out.double()}
        (out * draw(*out.shape, seed=self.seed + 9, dtype=dtype)).sum().backward()
        learned = inputs | {f"encoding.{name}": p for name, p in encoding.named_parameters()}
        grads = {f"d{name}": torch.zeros(()) if p.grad is None else p.grad for name, p in learned.items()}
        return {name: value.detach().double() for name, value in ({"output": out} | grads).items()}


def rounded(x: Tensor, seed: int) -> Tensor:
    """Change every number by one unit of rounding of float32, up or down at random."""
    return x * (1 + FLOAT32 * draw(*x.shape, seed=seed, dtype=x.dtype).sign())


@torch.no_grad()
def attend_at(encoding: Encoding, inputs: dict[str, Tensor], pos: Tensor) -> Tensor:
    """Attention output `[B, H, T, D]` for q, k, v and x at positions `[S]` of any spacing."""
    at, features = Positions(pos=pos, step=None), encoding.features(inputs["x"])
    return attend(REFERENCE, encoding, inputs["q"], inputs["k"], inputs["v"], at, features)


@torch.no_grad()
def longest_finite(encoding: Encoding, dtype: torch.dtype, seed: int = 0) -> tuple[int, bool]:
    """The longest input in tokens whose attention is finite in a dtype, and whether a longer one is known to fail.

    Found by doubling and bisection from SHORTEST_TRIED tokens on; 0 if not even these are finite. The search ends
    early, without a known failure, at 2**20 tokens or when its time is over. An input that the encoding refuses counts
    as a failure.
    """
    if not finite_at(encoding, dtype, SHORTEST_TRIED, seed):
        return 0, True
    good, bad, start = SHORTEST_TRIED, 2 * SHORTEST_TRIED, time.monotonic()
    while bad <= LONGEST_TRIED and finite_at(encoding, dtype, bad, seed):
        good, bad = bad, 2 * bad
        if time.monotonic() - start > SECONDS_OF_SEARCH:
            return good, False
    if bad > LONGEST_TRIED:
        return good, False
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if finite_at(encoding, dtype, middle, seed) else (good, middle)
    return good, True


@torch.no_grad()
def finite_at(encoding: Encoding, dtype: torch.dtype, tokens: int, seed: int = 0) -> bool:
    """Whether tokens at the start, middle and end of a text of `tokens` tokens get finite attention in a dtype."""
    index = torch.tensor([0, 1, tokens // 2, tokens - 2, tokens - 1])
    inputs = draw_inputs(encoding.shape, len(index), len(index), dtype, seed=seed)
    ids_BT = draw_tokens(encoding.shape.vocab, 2, len(index), seed)
    try:
        pos = encoding.locate(tokens, torch.device("cpu")).pos[index]
        results = [encoding.embed(inputs["x"], pos, ids_BT), attend_at(encoding, inputs, pos)]
        if "temperature" in encoding.blanks:
            results.append(encoding.temperature(torch.tensor([tokens])))
    except Unsupported:
        return False
    return all(bool(x.isfinite().all()) for x in results)


def shift_in_words(shift: Tensor) -> str:
    """A shift in words."""
    if shift.ndim == 0:
        return counted(int(shift), "token")
    rows, columns = shift.tolist()
    return f"{rows} rows" if rows else f"{columns} columns"


def shifted(encoding: Encoding, tested: SpecUnderTest, shift: Tensor) -> Tensor:
    """Attention of a few tokens that begin `shift` tokens, or rows and columns, after the first position.

    On a line they are every second of the last tokens of a text, so that a border within a training window lies between
    some of them; on a grid they are a grid of their own. An embedding is used as q, k and v.
    """
    count = LENGTH // 2
    if encoding.axes == 2:
        pos = encoding.positions(raster(torch.arange(count), columns_of(count)) + shift)
    else:
        pos = encoding.locate(int(shift) + 2 * count, shift.device).pos[int(shift) :: 2]
    inputs = tested.inputs(count, count, torch.float32)
    if "embed" in encoding.blanks:
        x_BTW = encoding.embed(inputs["x"], pos, tested.text(count))
        inputs |= dict.fromkeys("qkv", x_BTW.unflatten(2, (encoding.shape.heads, -1)).transpose(1, 2))
    return attend_at(encoding, inputs, pos)


class Failed(Exception):
    """The property does not hold; the message says what was measured."""


class Skipped(Exception):
    """The check does not apply; the message says why."""


@dataclass(frozen=True)
class Check:
    """One property: its name, its measurement, and where to look if it does not hold."""

    name: str
    run: Callable[[SpecUnderTest], str]
    look: str


def shapes(tested: SpecUnderTest) -> str:
    """Every filled blank returns the shape that `blanks.py` states, in the dtype that it is given."""
    for encoding in tested.encodings:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            inputs = tested.inputs(LENGTH, LENGTH, dtype)
            if wrong := wrong_shapes(encoding, BlankInputs(inputs["x"], inputs["q"], tested.text(LENGTH))):
                raise Failed(wrong)
            out = attend_at(encoding, inputs, encoding.locate(LENGTH, CPU).pos)
            if out.dtype != dtype or out.shape != inputs["v"].shape:
                raise Failed(f"attention on {dtype} gives {out.dtype} {list(out.shape)}, not {list(inputs['v'].shape)}")
    filled = sorted(set().union(*(encoding.blanks for encoding in tested.encodings)))
    return f"{', '.join(filled) or 'nothing'}, in float32, bfloat16 and float16"


@torch.no_grad()
def causality(tested: SpecUnderTest) -> str:
    """The output for a token is the same whatever tokens follow it, and if none follow."""
    count = 2 * LENGTH if tested.takes(2 * LENGTH) else LENGTH
    before, half = tested.text(count), count // 2
    after = torch.cat([before[:, :half], (before[:, half:] + 1) % VOCAB], dim=1)
    logits, others = tested.model(before), {"changing": tested.model(after)}
    # Rounding is allowed, because a kernel may compute a row differently if other rows change.
    limit = tested.tolerance(before)
    if not float((logits - others["changing"])[:, half].abs().max()) > limit:
        raise Failed("other tokens do not change the output: attention has no effect")
    if not tested.rescales:  # else it depends on the total length, as declared
        others["leaving out"] = tested.model(before[:, :half], cache=Cache(columns=columns_of(count)))
    apart = {what: float((logits[:, :half] - other[:, :half]).abs().max()) for what, other in others.items()}
    for what, change in apart.items():
        if not change <= limit:
            rest = f"tokens {half} to {count - 1} changes the logits before them by {change:.1g}"
            raise Failed(f"{what} {rest}, {limit:.1g} would be rounding")
    moved = f"{' or '.join(apart)} {half} tokens changes the logits before them by {max(apart.values()):.1g}"
    return f"{moved} (limit {limit:.1g})"


@torch.no_grad()
def decoding(tested: SpecUnderTest) -> str:
    """Decoding token by token with the cache equals the full forward over the tokens of each step."""
    models, count = [tested.model], LENGTH
    if tested.rescales:  # keys of deeper layers were computed when the text was shorter, so each layer is a model
        if any("embed" in encoding.blanks for encoding in tested.encodings):
            raise Skipped("the embedding depends on the total length, as declared")
        layers = [
            SpecUnderTest(str(Spec((leaves,))), tested.seed) for leaves in dict.fromkeys(parse(tested.spec).layers)
        ]
        models = [each.fresh(layers=1).eval() for each in layers]
        count = 2 * LENGTH if tested.takes(2 * LENGTH) else LENGTH
    found = []
    for model in models:
        text, cache, worst = tested.text(count), Cache(columns=columns_of(count)), 0.0
        limit = tested.tolerance(text, model)
        full = None if tested.rescales else model(text)
        for t in range(count):
            step = model(text[:, t : t + 1], cache=cache)[:, -1]
            whole = Cache(columns=cache.columns)
            known = model(text[:, : t + 1], cache=whole)[:, -1] if full is None else full[:, t]
            worst = max(worst, float((step - known).abs().max()))
        if not worst <= limit:
            raise Failed(f"logits are {worst:.1g} away from the full forward, {limit:.1g} would be rounding")
        found.append((worst, limit))
    worst, limit = max(found)
    return f"{count} tokens, largest difference {worst:.1g} (limit {limit:.1g})"


def engines(tested: SpecUnderTest) -> str:
    """Every engine that can run the encoding equals the reference in float64, with gradients and without."""
    errors: dict[str, float] = {}
    for encoding in tested.encodings:
        for queries, keys in ((LENGTH, LENGTH), (5, LENGTH), (1, LENGTH)):
            exact = tested.attention(encoding, REFERENCE, torch.float64, queries, keys)
            moved = [tested.attention(encoding, REFERENCE, torch.float64, queries, keys, seed) for seed in (100, 200)]
            limits = tolerances(exact, moved, WIDTH // HEADS, keys)
            for engine in engines_for(encoding, Place(gradient=False)):
                name = engine.name
                for gradient in (True, False):  # an engine may run other code without
                    with torch.set_grad_enabled(gradient):
                        values = tested.attention(encoding, engine, torch.float32, queries, keys)
                    for what, value in values.items():
                        error = float((value - exact[what]).abs().max())
                        if not error <= limits[what]:
                            raise Failed(f"{name}: {what} is {error:.1g} off, {limits[what]:.1g} would be rounding")
                    errors[name] = max(errors.get(name, 0.0), float((values["output"] - exact["output"]).abs().max()))
    return ", ".join(f"{name} {error:.1g}" for name, error in errors.items()) + " off in float32; gradients too"


@torch.no_grad()
def shifts(tested: SpecUnderTest) -> str:
    """Tokens farther into a text get the same attention, unless the class declares `relative = False`."""
    if tested.rescales:
        raise Skipped("it depends on the total length, as declared")
    moved, limit, tried = 0.0, 0.0, dict[str, None]()
    for encoding in tested.encodings:
        for shift in SHIFTS[encoding.axes]:
            try:
                here, there = (shifted(encoding, tested, by) for by in (torch.zeros_like(shift), shift))
            except Unsupported:
                continue
            tried[shift_in_words(shift)] = None
            apart = float((here - there).abs().max())
            # An angle is off by 2 units in the last place of the position; a score sums fewer than WIDTH such products.
            limit = 4 * FLOAT32 * (LENGTH + int(shift.max())) * WIDTH
            moved = max(moved, apart)
            if encoding.relative and not apart <= limit:
                words = f"{shift_in_words(shift)} farther on"
                raise Failed(f"{words}, attention changes by {apart:.1g}; declare `relative = False`")
    if not tried:
        raise Skipped("it has no positions farther on")
    declared = all(encoding.relative for encoding in tested.encodings)
    if not declared and moved <= limit and not tested.composed:
        raise Failed("nothing changes with the position: `relative = False` is wrong")
    same = " and ".join(list(tried)[-tested.axes :])
    return f"same attention {same} on" if declared else f"not relative, as declared: changes by {moved:.1g}"


def far(tested: SpecUnderTest) -> str:
    """Logits and gradients are finite at 16 times the training length."""
    model = tested.fresh()
    try:
        logits = model(tested.text(FAR, 1))
    except Unsupported as reason:
        return f"refused: {reason}"
    (logits * draw(*logits.shape, seed=tested.seed)).sum().backward()
    bad = [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    if not logits.isfinite().all():
        raise Failed(f"logits at {FAR} tokens, trained for {LENGTH}, are not finite")
    if bad:
        raise Failed(f"the gradient of {bad[0]} at {FAR} tokens is not finite")
    return f"logits and gradients finite at {FAR} tokens"


@torch.no_grad()
def range_of_dtypes(tested: SpecUnderTest) -> str:
    """Attention is finite up to the length that `longest` states; returns the length found in each dtype."""
    limits = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        longest, ended = min(longest_finite(encoding, dtype, tested.seed) for encoding in tested.encodings)
        if not longest:
            raise Failed(f"{dtype} is not finite for as few as {SHORTEST_TRIED} tokens")
        promised = [n for encoding in tested.encodings if (n := encoding.longest(dtype)) is not None]
        if promised and ended and longest < min(promised) and not tested.composed:
            raise Failed(f"{dtype} is finite up to {longest:,} tokens only, `longest` says {min(promised):,}")
        limits.append(f"{str(dtype).removeprefix('torch.')} {'' if ended else 'at least '}{longest:,}")
    return ", ".join(limits) + " tokens"


@torch.no_grad()
def saving(tested: SpecUnderTest) -> str:
    """A model that loads the saved weights gives the same bits."""
    import safetensors.torch

    weights = safetensors.torch.load(safetensors.torch.save(weights_of(tested.model)))
    other = tested.fresh(moved=1, seed=tested.seed + 1).eval().requires_grad_(False)
    load_weights(other, weights)
    text = tested.text(LENGTH)
    if not torch.equal(other(text), tested.model(text)):
        raise Failed("a model with the saved weights gives other logits: some state is not saved")
    return f"{sum(w.numel() for w in weights.values()):,} numbers"


@torch.no_grad()
def batches(tested: SpecUnderTest) -> str:
    """Every row of a batch gives the same logits by itself."""
    text = tested.text(LENGTH, 4)
    whole, rows = tested.model(text), torch.cat([tested.model(row[None]) for row in text])
    apart, limit = float((whole - rows).abs().max()), tested.tolerance(text)
    if not apart <= limit:
        raise Failed(f"alone, a row's logits change by {apart:.1g}; {limit:.1g} would be rounding")
    return f"largest difference {apart:.1g} (limit {limit:.1g})"


@torch.no_grad()
def determinism(tested: SpecUnderTest) -> str:
    """Equal seeds give equal bits, and the global random state is not touched."""
    text, state = tested.text(LENGTH), torch.random.get_rng_state()
    first, again = tested.fresh().eval(), tested.fresh().eval()
    if not torch.equal(first(text), first(text)):
        raise Failed("two forwards of one model differ")
    if not torch.equal(first(text), again(text)):
        raise Failed("two models of one seed differ")
    if not torch.equal(state, torch.random.get_rng_state()):
        raise Failed("it draws from torch's global stream")
    return "two models of one seed, and two runs of one model, give the same bits"


def learning(tested: SpecUnderTest) -> str:
    """Every parameter of the encoding gets a finite gradient."""
    model = tested.fresh()
    logits = model(tested.text(LENGTH))
    (logits * draw(*logits.shape, seed=tested.seed)).sum().backward()
    learned = {name: p for name, p in model.named_parameters() if ".encoding." in name}
    for name, p in learned.items():
        if p.grad is None or not p.grad.isfinite().all():
            raise Failed(f"{name} has {'no gradient' if p.grad is None else 'a gradient that is not finite'}")
    count = sum(p.numel() for p in learned.values())
    sizes = {name: float(p.grad.abs().max()) for name, p in model.named_parameters() if p.grad is not None}
    # Terms of the size of other gradients cancel in a parameter that changes nothing, up to some units of rounding.
    idle = [name for name in learned if sizes[name] <= 16 * torch.finfo(torch.float32).eps * max(sizes.values())]
    words = f"; {', '.join(idle)} changes nothing: the softmax cancels it" if idle else ""
    return f"{count:,} parameters, all with finite gradients{words}" if learned else "it learns nothing"


LOOK = {
    shapes: "the docstrings of poscli/equation/blanks.py state every shape; cast results to the dtype of the input",
    causality: "sums, sorts and lengths may use keys up to i only; one that needs the length says `rescales = True`",
    decoding: "a formula counts tokens itself instead of using the positions it is given, or keeps state",
    engines: "a bias must depend on its arguments only, in blocks of any size; queries are the last T of S tokens",
    shifts: "only differences of positions may be used, or the class says `relative = False`",
    far: "anything that grows with the position (exponentials, powers, products) must be bounded past L",
    range_of_dtypes: "compute in float32 or float64 and cast the result; `longest(dtype)` states a limit",
    saving: "make everything learned an nn.Parameter, and constants non-persistent buffers",
    batches: "do not sum or normalise over the batch",
    determinism: "draw from torch's default generator in the constructor only; use fixed seeds elsewhere",
    learning: "use every parameter in a filled blank; avoid powers and roots of 0, and -inf times 0",
}
NAMES = {shifts: "shift", far: "16x", range_of_dtypes: "range"}  # the other checks are named like their function
CHECKS = tuple(Check(NAMES.get(run, run.__name__), run, look) for run, look in LOOK.items())
