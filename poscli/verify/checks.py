"""The checks: functions of a spec under test that return what they measured, or raise `Failed` or `Skipped`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from poscli.attention import Place, engines_for
from poscli.equation import Unsupported
from poscli.equation.operands import columns_of
from poscli.equation.shapes import BlankInputs, wrong_shapes
from poscli.model.cache import Cache
from poscli.model.initialise import load_weights, weights_of
from poscli.verify.noise import FLOAT32, draw, tolerances
from poscli.verify.probe import (
    FAR,
    HEADS,
    LENGTH,
    REFERENCE,
    SHIFTS,
    VOCAB,
    WIDTH,
    SpecUnderTest,
    attend_at,
    longest_finite,
    shift_in_words,
    shifted,
)

CPU = torch.device("cpu")


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
    """Later tokens do not change the output for earlier ones."""
    count = 2 * LENGTH if tested.takes(2 * LENGTH) else LENGTH
    before, half = tested.text(count), count // 2
    after = torch.cat([before[:, :half], (before[:, half:] + 1) % VOCAB], dim=1)
    logits, changed = tested.model(before), tested.model(after)
    # Rounding is allowed, because a kernel may compute a row differently if other rows change.
    change, limit = (logits - changed).abs(), tested.tolerance(before)
    if not float(change[:, half].max()) > limit:
        raise Failed("other tokens do not change the output: attention has no effect")
    apart = float(change[:, :half].max())
    if not apart <= limit:
        tokens = f"tokens {half} to {count - 1}"
        raise Failed(f"changing {tokens} changes the logits before them by {apart:.1g}, {limit:.1g} would be rounding")
    return f"changing {half} tokens changes the logits before them by {apart:.1g} (limit {limit:.1g})"


@torch.no_grad()
def decoding(tested: SpecUnderTest) -> str:
    """Decoding token by token with the cache equals the full forward over the tokens of each step."""
    model, count = tested.model, LENGTH
    if tested.rescales:  # keys of deeper layers were computed when the text was shorter, so use one layer
        if any("embed" in encoding.blanks for encoding in tested.encodings):
            raise Skipped("the embedding depends on the total length, as declared")
        model, count = tested.fresh(layers=1).eval(), 2 * LENGTH if tested.takes(2 * LENGTH) else LENGTH
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
    moved, limit = 0.0, 0.0
    for encoding in tested.encodings:
        for shift in SHIFTS[encoding.axes]:
            try:
                here, there = (shifted(encoding, tested, by) for by in (torch.zeros_like(shift), shift))
            except Unsupported:
                continue
            apart = float((here - there).abs().max())
            # An angle is off by 2 units in the last place of the position; a score sums WIDTH such products.
            limit = 4 * FLOAT32 * (LENGTH + int(shift.max())) * WIDTH
            moved = max(moved, apart)
            if encoding.relative and not apart <= limit:
                words = f"{shift_in_words(shift)} farther on"
                raise Failed(f"{words}, attention changes by {apart:.1g}; declare `relative = False`")
    declared = all(encoding.relative for encoding in tested.encodings)
    if not declared and moved <= limit and not tested.composed:
        raise Failed("nothing changes with the position: `relative = False` is wrong")
    same = " and ".join(shift_in_words(shift) for shift in SHIFTS[tested.axes][-tested.axes :])
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
    causality: "a blank reads beyond its own token: sums, sorts and lengths may use keys up to i only",
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
