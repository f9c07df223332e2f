"""The checks. Each is a function of the subject that returns what it measured, or raises `Failed` or `Skipped`."""

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
from poscli.verify.probe import REFERENCE, attend_at, longest_finite
from poscli.verify.shifted import FAR, SHIFTS, shifted, shown
from poscli.verify.subject import HEADS, LENGTH, VOCAB, WIDTH, Subject

CPU = torch.device("cpu")


class Failed(Exception):
    """The property does not hold; the message says what was measured."""


class Skipped(Exception):
    """The check does not apply; the message says why."""


@dataclass(frozen=True)
class Check:
    """One property: its name, its measurement, and where to look if it does not hold."""

    name: str
    run: Callable[[Subject], str]
    look: str


def shapes(subject: Subject) -> str:
    """Every filled blank returns the shape that `blanks.py` states, in the dtype that it is given."""
    for encoding in subject.encodings:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            given = subject.inputs(LENGTH, LENGTH, dtype)
            if wrong := wrong_shapes(encoding, BlankInputs(given["x"], given["q"], subject.text(LENGTH))):
                raise Failed(wrong)
            out = attend_at(encoding, given, encoding.locate(LENGTH, CPU).pos)
            if out.dtype != dtype or out.shape != given["v"].shape:
                raise Failed(f"attention on {dtype} gives {out.dtype} {list(out.shape)}, not {list(given['v'].shape)}")
    filled = sorted(set().union(*(encoding.blanks for encoding in subject.encodings)))
    return f"{', '.join(filled) or 'nothing'}, in float32, bfloat16 and float16"


@torch.no_grad()
def causality(subject: Subject) -> str:
    """Later tokens do not change the output for earlier ones."""
    count = 2 * LENGTH if subject.takes(2 * LENGTH) else LENGTH
    before, half = subject.text(count), count // 2
    after = torch.cat([before[:, :half], (before[:, half:] + 1) % VOCAB], dim=1)
    logits, changed = subject.model(before), subject.model(after)
    # Rounding is allowed, because a kernel may compute a row differently if other rows change.
    change, limit = (logits - changed).abs(), subject.tolerance(before)
    if not float(change[:, half].max()) > limit:
        raise Failed("other tokens do not change the output: attention has no effect")
    apart = float(change[:, :half].max())
    if not apart <= limit:
        tokens = f"tokens {half} to {count - 1}"
        raise Failed(f"changing {tokens} changes the logits before them by {apart:.1g}, {limit:.1g} would be rounding")
    return f"changing {half} tokens changes the logits before them by {apart:.1g} (limit {limit:.1g})"


@torch.no_grad()
def decoding(subject: Subject) -> str:
    """Decoding token by token with the cache equals the full forward over the tokens of each step."""
    model, count = subject.model, LENGTH
    if subject.rescales:  # keys of deeper layers were computed when the text was shorter, so use one layer
        if any("embed" in encoding.blanks for encoding in subject.encodings):
            raise Skipped("the embedding depends on the total length, as declared")
        model, count = subject.fresh(layers=1).eval(), 2 * LENGTH if subject.takes(2 * LENGTH) else LENGTH
    text, cache, worst = subject.text(count), Cache(columns=columns_of(count)), 0.0
    limit = subject.tolerance(text, model)
    full = None if subject.rescales else model(text)
    for t in range(count):
        step = model(text[:, t : t + 1], cache=cache)[:, -1]
        whole = Cache(columns=cache.columns)
        known = model(text[:, : t + 1], cache=whole)[:, -1] if full is None else full[:, t]
        worst = max(worst, float((step - known).abs().max()))
    if not worst <= limit:
        raise Failed(f"logits are {worst:.1g} away from the full forward, {limit:.1g} would be rounding")
    return f"{count} tokens, largest difference {worst:.1g} (limit {limit:.1g})"


def engines(subject: Subject) -> str:
    """Every engine that can run the encoding equals the reference in float64, with gradients and without."""
    found: dict[str, float] = {}
    for encoding in subject.encodings:
        for queries, keys in ((LENGTH, LENGTH), (5, LENGTH), (1, LENGTH)):
            exact = subject.attention(encoding, REFERENCE, torch.float64, queries, keys)
            moved = [subject.attention(encoding, REFERENCE, torch.float64, queries, keys, seed) for seed in (100, 200)]
            limits = tolerances(exact, moved, WIDTH // HEADS, keys)
            for engine in engines_for(encoding, Place(gradient=False)):
                name = engine.name
                for gradient in (True, False):  # an engine may run other code without
                    with torch.set_grad_enabled(gradient):
                        values = subject.attention(encoding, engine, torch.float32, queries, keys)
                    for what, value in values.items():
                        error = float((value - exact[what]).abs().max())
                        if not error <= limits[what]:
                            raise Failed(f"{name}: {what} is {error:.1g} off, {limits[what]:.1g} would be rounding")
                    found[name] = max(found.get(name, 0.0), float((values["output"] - exact["output"]).abs().max()))
    return ", ".join(f"{name} {error:.1g}" for name, error in found.items()) + " off in float32; gradients too"


@torch.no_grad()
def shifts(subject: Subject) -> str:
    """Tokens farther into a text get the same attention, unless the class declares `relative = False`."""
    if subject.rescales:
        raise Skipped("it depends on the total length, as declared")
    moved, limit = 0.0, 0.0
    for encoding in subject.encodings:
        for shift in SHIFTS[encoding.axes]:
            try:
                here, there = (shifted(encoding, subject, by) for by in (torch.zeros_like(shift), shift))
            except Unsupported:
                continue
            apart = float((here - there).abs().max())
            # An angle is off by 2 units in the last place of the position; a score sums WIDTH such products.
            limit = 4 * FLOAT32 * (LENGTH + int(shift.max())) * WIDTH
            moved = max(moved, apart)
            if encoding.relative and not apart <= limit:
                far_ = f"{shown(shift)} farther on"
                raise Failed(f"{far_}, attention changes by {apart:.1g}; declare `relative = False`")
    declared = all(encoding.relative for encoding in subject.encodings)
    if not declared and moved <= limit and not subject.composed:
        raise Failed("nothing changes with the position: `relative = False` is wrong")
    same = " and ".join(shown(shift) for shift in SHIFTS[subject.axes][-subject.axes :])
    return f"same attention {same} on" if declared else f"not relative, as declared: changes by {moved:.1g}"


def far(subject: Subject) -> str:
    """Logits and gradients are finite at 16 times the training length."""
    model = subject.fresh()
    try:
        logits = model(subject.text(FAR, 1))
    except Unsupported as reason:
        return f"refused: {reason}"
    (logits * draw(*logits.shape, seed=subject.seed)).sum().backward()
    bad = [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    if not logits.isfinite().all():
        raise Failed(f"logits at {FAR} tokens, trained for {LENGTH}, are not finite")
    if bad:
        raise Failed(f"the gradient of {bad[0]} at {FAR} tokens is not finite")
    return f"logits and gradients finite at {FAR} tokens"


@torch.no_grad()
def range_of_dtypes(subject: Subject) -> str:
    """Attention is finite up to the length that `longest` states; returns the length found in each dtype."""
    limits = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        longest, ended = min(longest_finite(encoding, dtype, subject.seed) for encoding in subject.encodings)
        promised = [n for encoding in subject.encodings if (n := encoding.longest(dtype)) is not None]
        if promised and ended and longest < min(promised) and not subject.composed:
            raise Failed(f"{dtype} is finite up to {longest:,} tokens only, `longest` says {min(promised):,}")
        limits.append(f"{str(dtype).removeprefix('torch.')} {'' if ended else 'at least '}{longest:,}")
    return ", ".join(limits) + " tokens"


@torch.no_grad()
def saving(subject: Subject) -> str:
    """A model that loads the saved weights gives the same bits."""
    import safetensors.torch

    weights = safetensors.torch.load(safetensors.torch.save(weights_of(subject.model)))
    other = subject.fresh(moved=1, seed=subject.seed + 1).eval().requires_grad_(False)
    load_weights(other, weights)
    text = subject.text(LENGTH)
    if not torch.equal(other(text), subject.model(text)):
        raise Failed("a model with the saved weights gives other logits: some state is not saved")
    return f"{sum(w.numel() for w in weights.values()):,} numbers"


@torch.no_grad()
def batches(subject: Subject) -> str:
    """Every row of a batch gives the same logits by itself."""
    text = subject.text(LENGTH, 4)
    whole, rows = subject.model(text), torch.cat([subject.model(row[None]) for row in text])
    apart, limit = float((whole - rows).abs().max()), subject.tolerance(text)
    if not apart <= limit:
        raise Failed(f"alone, a row's logits change by {apart:.1g}; {limit:.1g} would be rounding")
    return f"largest difference {apart:.1g} (limit {limit:.1g})"


@torch.no_grad()
def determinism(subject: Subject) -> str:
    """Equal seeds give equal bits, and the global random state is not touched."""
    text, state = subject.text(LENGTH), torch.random.get_rng_state()
    first, again = subject.fresh().eval(), subject.fresh().eval()
    if not torch.equal(first(text), first(text)):
        raise Failed("two forwards of one model differ")
    if not torch.equal(first(text), again(text)):
        raise Failed("two models of one seed differ")
    if not torch.equal(state, torch.random.get_rng_state()):
        raise Failed("it draws from torch's global stream")
    return "two models of one seed, and two runs of one model, give the same bits"


def learning(subject: Subject) -> str:
    """Every parameter of the encoding gets a finite gradient."""
    model = subject.fresh()
    logits = model(subject.text(LENGTH))
    (logits * draw(*logits.shape, seed=subject.seed)).sum().backward()
    own = {name: p for name, p in model.named_parameters() if ".encoding." in name}
    for name, p in own.items():
        if p.grad is None or not p.grad.isfinite().all():
            raise Failed(f"{name} has {'no gradient' if p.grad is None else 'a gradient that is not finite'}")
    count = sum(p.numel() for p in own.values())
    sizes = {name: float(p.grad.abs().max()) for name, p in model.named_parameters() if p.grad is not None}
    # Terms of the size of other gradients cancel in a parameter that changes nothing, up to some units of rounding.
    idle = [name for name in own if sizes[name] <= 16 * torch.finfo(torch.float32).eps * max(sizes.values())]
    words = f"; {', '.join(idle)} changes nothing: the softmax cancels it" if idle else ""
    return f"{count:,} parameters, all with finite gradients{words}" if own else "it learns nothing"


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
