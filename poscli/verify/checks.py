"""The checks, each a function of the subject: what it found, `Failed` with what is wrong, or `Skipped` with why."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from poscli.attention import Place, Positions, able, attend
from poscli.cache import Cache
from poscli.encodings import Encoding, Unsupported
from poscli.verify.noise import FLOAT32, draw, tolerances
from poscli.verify.shapes import wrong_shapes
from poscli.verify.subject import BATCH, HEADS, LENGTH, REFERENCE, VOCAB, WIDTH, Subject

FAR = 16 * LENGTH
FARTHEST = 2**20  # tokens; beyond, "at least" is said
PATIENCE = 0.5  # seconds after which no longer input is tried


class Failed(Exception):
    """The check's finding: something is wrong."""


class Skipped(Exception):
    """The check does not apply, and why."""


@dataclass(frozen=True)
class Check:
    """One property: how it is measured, and where to look if it does not hold."""

    name: str
    run: Callable[[Subject], str]
    look: str


def shapes(subject: Subject) -> str:
    """Every filled blank returns what `blanks.py` says, in the dtype that it is given."""
    for encoding in subject.encodings:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            if wrong := wrong_shapes(encoding, subject, dtype):
                raise Failed(wrong)
            given = subject.inputs(LENGTH, LENGTH, dtype)
            out = _attend(encoding, given, torch.arange(LENGTH))
            if out.dtype != dtype or out.shape != given["v"].shape:
                raise Failed(f"attention on {dtype} gives {out.dtype} {list(out.shape)}, not {list(given['v'].shape)}")
    filled = sorted(set().union(*(encoding.blanks for encoding in subject.encodings)))
    return f"{', '.join(filled) or 'nothing'}, in float32, bfloat16 and float16"


@torch.no_grad()
def causality(subject: Subject) -> str:
    """Later tokens change nothing before them."""
    count = 2 * LENGTH if subject.takes(2 * LENGTH) else LENGTH
    before, half = subject.text(count), count // 2
    after = torch.cat([before[:, :half], (before[:, half:] + 1) % VOCAB], dim=1)
    logits, changed = subject.model(before), subject.model(after)
    if torch.equal(logits[:, half], changed[:, half]):
        raise Failed("other tokens do not change the output: attention has no effect")
    apart = float((logits - changed)[:, :half].abs().max())
    if not torch.equal(logits[:, :half], changed[:, :half]):
        raise Failed(f"changing tokens {half} to {count - 1} moves the logits before them by {apart:.1g}")
    return f"{half} tokens changed, the {half} before them to the last bit the same"


@torch.no_grad()
def decoding(subject: Subject) -> str:
    """Token by token through the cache equals the full forward over what is known at each step."""
    model, count = subject.model, LENGTH
    if subject.rescales:  # keys of deeper layers were made when the text was shorter: one layer must do
        if any("embed" in encoding.blanks for encoding in subject.encodings):
            raise Skipped("what is embedded depends on the total length, by declaration")
        model, count = subject.fresh(layers=1).eval(), 2 * LENGTH if subject.takes(2 * LENGTH) else LENGTH
    text, cache, worst = subject.text(count), Cache(), 0.0
    limit = subject.tolerance(text, model)
    full = None if subject.rescales else model(text)
    for t in range(count):
        step = model(text[:, t : t + 1], cache=cache)[:, -1]
        known = model(text[:, : t + 1])[:, -1] if full is None else full[:, t]
        worst = max(worst, float((step - known).abs().max()))
    if not worst <= limit:
        raise Failed(f"logits are {worst:.1g} away from the full forward, {limit:.1g} would be rounding")
    return f"{count} tokens, largest difference {worst:.1g} (limit {limit:.1g})"


def engines(subject: Subject) -> str:
    """Every engine that takes the encoding against the reference in float64, gradients included."""
    found: dict[str, float] = {}
    for encoding in subject.encodings:
        for queries, keys in ((LENGTH, LENGTH), (5, LENGTH), (1, LENGTH)):
            exact = subject.attention(encoding, REFERENCE, torch.float64, queries, keys)
            moved = [subject.attention(encoding, REFERENCE, torch.float64, queries, keys, off) for off in (100, 200)]
            limits = tolerances(exact, moved, WIDTH // HEADS, keys)
            for engine in able(encoding, Place(gradient=False)):
                name = engine.name
                values = subject.attention(encoding, engine, torch.float32, queries, keys)
                for what, value in values.items():
                    error = float((value - exact[what]).abs().max())
                    if not error <= limits[what]:
                        raise Failed(f"{name}: {what} is {error:.1g} off, {limits[what]:.1g} would be rounding")
                found[name] = max(found.get(name, 0.0), float((values["output"] - exact["output"]).abs().max()))
    return ", ".join(f"{name} {error:.1g}" for name, error in found.items()) + " off in float32; gradients too"


@torch.no_grad()
def shifts(subject: Subject) -> str:
    """The same tokens further into a text: the same attention, or declared otherwise."""
    if subject.rescales:
        raise Skipped("it depends on the total length, by declaration")
    moved, limit = 0.0, 0.0
    for encoding in subject.encodings:
        for shift in (LENGTH // 2, FAR):
            try:
                here, there = (_at(encoding, subject, index) for index in (0, shift))
            except Unsupported:
                continue
            apart = float((here - there).abs().max())
            # an angle is off by 2 units in the last place of the position, a score by the product of lengths
            limit = 4 * FLOAT32 * (LENGTH + shift) * WIDTH
            moved = max(moved, apart)
            if encoding.relative and not apart <= limit:
                raise Failed(f"{shift} tokens further on, attention moves by {apart:.1g}; declare `relative = False`")
    declared = all(encoding.relative for encoding in subject.encodings)
    if not declared and moved <= limit and not subject.joined:
        raise Failed("nothing moves with the position: `relative = False` is wrong")
    return f"same attention {FAR} tokens on" if declared else f"not relative, as declared: moves by {moved:.1g}"


def far(subject: Subject) -> str:
    """Finite logits and gradients at 16 times the training length."""
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
    """The largest length at which attention stays finite: a few tokens at both ends of a text of that length."""
    told = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        reach, ends = min(_longest(encoding, subject, dtype) for encoding in subject.encodings)
        promised = [n for encoding in subject.encodings if (n := encoding.longest(dtype)) is not None]
        if promised and ends and reach < min(promised) and not subject.joined:
            raise Failed(f"{dtype} is finite up to {reach:,} tokens only, `longest` says {min(promised):,}")
        told.append(f"{str(dtype).removeprefix('torch.')} {'' if ends else 'at least '}{reach:,}")
    return ", ".join(told) + " tokens"


@torch.no_grad()
def saving(subject: Subject) -> str:
    """Saved weights in another model give the same bits."""
    import safetensors.torch

    weights = safetensors.torch.load(safetensors.torch.save(subject.model.weights()))
    other = subject.fresh(moved=1, seed=subject.seed + 1).eval().requires_grad_(False)
    other.load_weights(weights)
    text = subject.text(LENGTH)
    if not torch.equal(other(text), subject.model(text)):
        raise Failed("a model with the saved weights gives other logits: some state is not saved")
    return f"{sum(w.numel() for w in weights.values()):,} numbers"


@torch.no_grad()
def batches(subject: Subject) -> str:
    """A row of a batch by itself."""
    text = subject.text(LENGTH, 4)
    whole, rows = subject.model(text), torch.cat([subject.model(row[None]) for row in text])
    apart, limit = float((whole - rows).abs().max()), subject.tolerance(text)
    if not apart <= limit:
        raise Failed(f"alone, a row's logits move by {apart:.1g}; {limit:.1g} would be rounding")
    return f"largest difference {apart:.1g} (limit {limit:.1g})"


@torch.no_grad()
def determinism(subject: Subject) -> str:
    """The same seed gives the same bits; another seed's state is left alone."""
    text, state = subject.text(LENGTH), torch.random.get_rng_state()
    first, again = subject.fresh().eval(), subject.fresh().eval()
    if not torch.equal(first(text), first(text)):
        raise Failed("two forwards of one model differ")
    if not torch.equal(first(text), again(text)):
        raise Failed("two models of one seed differ")
    if not torch.equal(state, torch.random.get_rng_state()):
        raise Failed("it draws from torch's global stream")
    return "same bits, twice built and twice run"


def learning(subject: Subject) -> str:
    """Every parameter is within reach of the loss."""
    model = subject.fresh()
    logits = model(subject.text(LENGTH))
    (logits * draw(*logits.shape, seed=subject.seed)).sum().backward()
    own = {name: p for name, p in model.named_parameters() if ".encoding." in name}
    for name, p in own.items():
        if p.grad is None or not p.grad.isfinite().all():
            raise Failed(f"{name} has {'no gradient' if p.grad is None else 'a gradient that is not finite'}")
    count = sum(p.numel() for p in own.values())
    idle = [name for name, p in own.items() if float(p.grad.abs().max()) <= 1e-6]  # type: ignore[union-attr]
    words = f"; {', '.join(idle)} changes nothing: the softmax cancels it" if idle else ""
    return f"{count:,} parameters, all with finite gradients{words}" if own else "it learns nothing"


def _attend(encoding: Encoding, given: dict[str, Tensor], pos: Tensor) -> Tensor:
    """Attention of the reference at positions, whatever they are."""
    with torch.no_grad():
        features = encoding.features(given["x"]) if "features" in encoding.blanks else None
        at = Positions(pos=pos, step=None)
        return attend(REFERENCE, encoding, given["q"], given["k"], given["v"], at, features)


def _at(encoding: Encoding, subject: Subject, start: int) -> Tensor:
    """Attention of a few tokens that begin `start` tokens into a text; what is embedded becomes q, k and v."""
    count = LENGTH // 2
    pos = encoding.positions(torch.arange(start + count))[start:]
    given = subject.inputs(count, count, torch.float32)
    if "embed" in encoding.blanks:
        x_BTW = encoding.embed(given["x"], pos, subject.text(count))
        heads = x_BTW.unflatten(2, (HEADS, -1)).transpose(1, 2)
        given |= {"q": heads, "k": heads, "v": heads}
    return _attend(encoding, given, pos)


def _longest(encoding: Encoding, subject: Subject, dtype: torch.dtype) -> tuple[int, bool]:
    """By doubling, then by halving the gap; and whether that is where it ends, or where the search did."""
    good, bad, start = LENGTH, 2 * LENGTH, time.monotonic()
    while bad <= FARTHEST and _finite_at(encoding, subject, dtype, bad):
        good, bad = bad, 2 * bad
        if time.monotonic() - start > PATIENCE:
            return good, False
    if bad > FARTHEST:
        return good, False
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if _finite_at(encoding, subject, dtype, middle) else (good, middle)
    return good, True


def _finite_at(encoding: Encoding, subject: Subject, dtype: torch.dtype, count: int) -> bool:
    index = torch.tensor([0, 1, count // 2, count - 2, count - 1])
    given = subject.inputs(len(index), len(index), dtype)
    try:
        pos = encoding.positions(torch.arange(count))[index] if "positions" in encoding.blanks else index
        embedded = encoding.embed(given["x"], pos, subject.text(len(index), BATCH))
        bounded = encoding.temperature(torch.tensor([count])).isfinite() if "temperature" in encoding.blanks else True
        return bool(
            torch.as_tensor(bounded).all()
            and embedded.isfinite().all()
            and _attend(encoding, given, pos).isfinite().all()
        )
    except Unsupported:
        return False


CHECKS = (
    Check(
        "shapes", shapes, "the docstrings of poscli/encodings/blanks.py state every shape; cast to the input's dtype"
    ),
    Check(
        "causality", causality, "a blank reads beyond its own token: sums, sorts and lengths run over keys up to i only"
    ),
    Check(
        "decoding",
        decoding,
        "a formula counts tokens itself instead of using the positions it is given, or keeps state",
    ),
    Check(
        "engines", engines, "a bias must depend on its arguments only, block by block; queries are the last T of S keys"
    ),
    Check("shift", shifts, "only differences of positions may enter, or the class says `relative = False`"),
    Check(
        "16x",
        far,
        "what grows with the position (exponentials, powers, products) must be bounded past the training length",
    ),
    Check(
        "range", range_of_dtypes, "compute in float32 or float64 and cast the result; `longest(dtype)` states a limit"
    ),
    Check("saving", saving, "everything learned is an nn.Parameter; what can be rebuilt is a non-persistent buffer"),
    Check("batches", batches, "nothing may be summed or normalised over the batch"),
    Check(
        "determinism", determinism, "draw with torch's default generator in the constructor only; fixed seeds elsewhere"
    ),
    Check("learning", learning, "use every parameter in a filled blank; avoid powers and roots of 0, and -inf times 0"),
)
