"""What a spec asks of a checkpoint: the rope of its layers, in the names of transformers 5, and their window.

A configuration holds one factor for inputs of all lengths. So whoever asks what a configuration costs on short inputs
must measure the spec with the factor written out, and not the one that adapts itself to them: `fixed` writes it out.

Shapes: P pairs of channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poscli.checkpoints.architecture import GLOBAL, LOCAL, Architecture
from poscli.checkpoints.scalings import DEFAULT, ORIGINAL, Options, grown_by_longrope, grown_by_yarn
from poscli.checkpoints.values import Config
from poscli.drawing.text import named
from poscli.encodings import get
from poscli.specs.grammar import Leaf, Spec, parse

Keys = dict[str, Any]  # of a config.json; the value None removes a key that would contradict the others
BASE = DEFAULT.theta  # of rope, where the spec does not give it
EQUAL = 1e-9  # the largest relative difference of a given factor on cos and sin from the one that formulas have
EVERY_LAYER = ""  # stands for the type of layer in a model whose layers share one rope
Leaves = tuple[Leaf, ...]
WINDOW, SQUEEZED, ROPE, LINEAR, NOTHING = "window", "interpolated", "rope", "rope-linear", "none"
FACTOR = "factor"  # the option of a scaling: how many times longer inputs may be


class Inexpressible(Exception):
    """A program has no setting for what a spec asks; the message is one sentence that says what to do."""


def fixed(spec: str, trained: int, target: int, *, anew: bool = False) -> str:
    """The spec in which every factor that follows the length of the input is the one for inputs of `target` tokens.

    The factor is the target divided by the trained length, or by the option `original` of the scaling; with `anew` it
    replaces one that is written out. Lengths in units of the trained length become numbers of tokens, which is what
    configurations hold.
    """
    layers = parse(spec).at(trained).layers
    return str(Spec(tuple(tuple(_fixed(leaf, trained, target, anew) for leaf in leaves) for leaves in layers)))


def _fixed(leaf: Leaf, trained: int, target: int, anew: bool) -> Leaf:
    known = get(leaf.name).options()
    values: Options = dict(leaf.options)
    if FACTOR not in known or known[FACTOR].default is not None or (values.get(FACTOR) is not None and not anew):
        return leaf
    values[FACTOR] = max(1.0, target / int(values.get("original") or trained))
    return Leaf(leaf.name, tuple((key, values[key]) for key in known if key in values))


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A spec for a checkpoint, sorted by what configurations have keys for."""

    architecture: Architecture
    config: Config
    target: int  # tokens of the inputs
    ropes: Mapping[str, Leaf]  # by type of layer; empty for a model without rotations
    trained: Mapping[str, Leaf]  # what the model was trained with, likewise
    window: int | None  # on all layers, of a model that was trained without one

    @property
    def main(self) -> str:
        """The type of the layers that scalings are made for: those without a theta of their own, if there are any."""
        return next(type_ for type_ in (EVERY_LAYER, GLOBAL, LOCAL) if type_ in self.ropes)


def wanted_of(architecture: Architecture, config: Config, spec: str, target: int) -> Wanted:
    """Sort a spec; Inexpressible, with the reason, if no program has keys for it."""
    layers = parse(fixed(spec, architecture.length, target)).layers
    trained = [parse(layer.spec).layers[0] for layer in architecture.layers]
    wanted = [_as_scaling(layers[n % len(layers)]) for n in range(len(trained))]
    windows = {_new_window(*pair, architecture.length) for pair in zip(trained, wanted, strict=True)}
    if len(windows) > 1:
        raise Inexpressible("It puts a window on some layers only, for which there is no key.")
    ropes, (window,) = _ropes(architecture, trained, wanted), windows
    if not ropes:
        _refuse_other_biases(trained, wanted)
    return Wanted(
        architecture=architecture,
        config=config,
        target=target,
        ropes=ropes,
        trained=_ropes(architecture, trained, trained),
        window=window,
    )


def _as_scaling(leaves: Leaves) -> Leaves:
    """Rope at interpolated positions as the linear scaling that it is."""
    by_name = {leaf.name: leaf for leaf in leaves}
    if ROPE not in by_name or SQUEEZED not in by_name:
        return leaves
    factor = dict(by_name[SQUEEZED].options)[FACTOR]
    linear = Leaf(LINEAR, ((FACTOR, factor), *by_name[ROPE].options))
    return tuple(linear if leaf.name == ROPE else leaf for leaf in leaves if leaf.name != SQUEEZED)


def _rotation(leaves: Leaves) -> Leaf | None:
    """The rotary encoding of a layer: the one that has a base."""
    return next((leaf for leaf in leaves if "base" in get(leaf.name).options()), None)


def scaled_rotation(spec: str, length: int) -> Leaf | None:
    """The rotation that scalings are made for: that of the layers without a window, or else of the others.

    `length` is the trained length. None without rope.
    """
    layers = sorted(parse(spec).at(length).layers, key=_has_window)
    return next(filter(None, map(_rotation, layers)), None)


def has_one_rope(architecture: Architecture) -> bool:
    """Whether layers with a window have the one rope of all layers that rotate, beside layers without a window."""
    layers = [parse(layer.spec).layers[0] for layer in architecture.layers]
    rotating = [leaves for leaves in layers if _rotation(leaves)]
    one = not architecture.kind.ropes_by_type and len(set(map(_rotation, rotating))) == 1
    return one and any(map(_has_window, rotating)) and not all(map(_has_window, layers))


def _ropes(architecture: Architecture, trained: Sequence[Leaves], wanted: Sequence[Leaves]) -> dict[str, Leaf]:
    """The rope that each type of layer is to have; Inexpressible if layers of one type would have several."""
    ropes: dict[str, Leaf] = {}
    for before, after in zip(trained, wanted, strict=True):
        if _rotation(before) is None:
            continue  # a layer that was trained without rotations keeps none
        leaf = _rotation(after)
        others = [each for each in after if each.name != WINDOW and (each is leaf or each not in before)]
        if leaf is None or len(others) > 1:
            raise Inexpressible(f"No configuration has a key for {_named(others)} on a model trained with rope.")
        type_ = EVERY_LAYER if not architecture.kind.ropes_by_type else LOCAL if _has_window(before) else GLOBAL
        if ropes.setdefault(type_, leaf) != leaf:
            raise Inexpressible(f"It has {ropes[type_]} and {leaf} on layers that share one configuration of rope.")
    return ropes


def _has_window(leaves: Leaves) -> bool:
    return any(leaf.name == WINDOW for leaf in leaves)


def _width(leaves: Leaves, length: int) -> int:
    """The width of a layer's window, which is the trained length unless it is given."""
    (window,) = (leaf for leaf in leaves if leaf.name == WINDOW)
    options: Options = dict(window.options)
    return int(options.get("width") or length)


def _new_window(before: Leaves, after: Leaves, length: int) -> int | None:
    """The width of a window that a layer gets; Inexpressible if the one that it was trained with changes."""
    if not _has_window(before):
        return _width(after, length) if _has_window(after) else None
    if not _has_window(after) or _width(before, length) != _width(after, length):
        raise Inexpressible(f"It changes the window of {_width(before, length)} tokens that layers were trained with.")
    return None


def _refuse_other_biases(trained: Sequence[Leaves], wanted: Sequence[Leaves]) -> None:
    """Refuse whatever is not the model's own, in a model whose positions are not rotations."""
    for before, after in zip(trained, wanted, strict=True):
        if set(before) != {leaf for leaf in after if leaf.name != WINDOW}:
            raise Inexpressible(
                f"No configuration has a key for {_named(after)} on a model trained with {_named(before)}."
            )


def _named(leaves: Sequence[Leaf]) -> str:
    return named("+".join(map(str, leaves)))


def rope_parameters(wanted: Wanted, type_: str) -> Keys:
    """The rope of one type of layer as transformers 5 writes it; Inexpressible if it has no such scaling."""
    leaf = wanted.ropes[type_]
    if leaf.name not in ROPE_KEYS:
        raise Inexpressible(f"No configuration has a key for {leaf.name}: it needs code of its own.")
    options: Options = dict(leaf.options)
    trained: Options = dict(wanted.trained[type_].options)
    for key, default in (("layout", DEFAULT.layout), ("fraction", DEFAULT.fraction)):
        if options.get(key, default) != trained.get(key, default):
            raise Inexpressible(f"The {key} of rope is fixed in the code of {wanted.architecture.model_type} models.")
    rope: Keys = {"rope_type": "default", "rope_theta": float(options.get("base", BASE))}
    rope |= ROPE_KEYS[leaf.name](leaf, options, wanted)
    if (fraction := options.get("fraction", 1.0)) != 1:
        rope["partial_rotary_factor"] = fraction
    return rope


def original_of(options: Options, wanted: Wanted) -> int:
    """L of the scaling's formula: the trained length, or that of an earlier training."""
    return int(options.get("original") or wanted.architecture.length)


def _linear(leaf: Leaf, options: Options, wanted: Wanted) -> Keys:
    return {"rope_type": "linear", "factor": float(options["factor"])}


def _ntk(leaf: Leaf, options: Options, wanted: Wanted) -> Keys:
    """NTK-aware scaling with one factor is rope with another base."""
    width = int(wanted.architecture.head_width * options.get("fraction", 1.0))
    return {"rope_theta": options.get("base", BASE) * options["factor"] ** (width / max(width - 2, 1))}


def _dynamic(leaf: Leaf, options: Options, wanted: Wanted) -> Keys:
    return {"rope_type": "dynamic", "factor": float(options.get("factor", 2.0))}


def _yarn(leaf: Leaf, options: Options, wanted: Wanted) -> Keys:
    if options.get("ramp", "pairs") != "pairs":
        raise Inexpressible("Configurations have YaRN with the ramp of its authors' code, and none with ramp=turns.")
    factor = float(options["factor"])
    keys = {"rope_type": "yarn", "factor": factor, ORIGINAL: original_of(options, wanted)}
    keys |= _attention(options, grown_by_yarn(factor))
    for key, default in (("beta_fast", 32.0), ("beta_slow", 1.0)):
        if (value := options.get(key, default)) != default:
            keys[key] = value
    return keys | ({"truncate": False} if options.get("truncate") is False else {})


def _llama3(leaf: Leaf, options: Options, wanted: Wanted) -> Keys:
    low, high = float(options.get("low", 1.0)), float(options.get("high", 4.0))
    keys = {"rope_type": "llama3", "factor": float(options["factor"]), "low_freq_factor": low}
    return keys | {"high_freq_factor": high, ORIGINAL: original_of(options, wanted)}


def _longrope(leaf: Leaf, options: Options, wanted: Wanted) -> Keys:
    """Two lists of P factors: those of the checkpoint, or else one list that the spec's `start` gives."""
    if options.get("search") or options.get("keep_first"):
        raise Inexpressible("A spec does not hold the factors that a search finds, and keep_first has no key.")
    original, factor = original_of(options, wanted), float(options["factor"])
    keys: Keys = {"rope_type": "longrope", "factor": factor, ORIGINAL: original}
    keys |= _attention(options, grown_by_longrope(factor, original))
    numbers = next((layer.numbers for layer in wanted.architecture.layers if layer.numbers), None)
    lists = {name: list(numbers[name]) for name in ("short_factor", "long_factor")} if numbers else None
    return keys | (lists or dict.fromkeys(("short_factor", "long_factor"), _divisors(leaf, options, wanted)))


def _divisors(leaf: Leaf, options: Options, wanted: Wanted) -> list[float]:
    """By how much a scaling divides the angle of each pair of plain rope, `[P]`."""
    import torch

    kept = tuple((key, options[key]) for key in ("base", "fraction") if key in options)
    plain: Any = Leaf(ROPE, kept).make(wanted.architecture.shape)
    scaled: Any = leaf.make(wanted.architecture.shape)
    last = torch.tensor([wanted.target - 1])
    return [float(x) for x in plain.theta(last) / scaled.theta(last)]


def _attention(options: Options, formula: float) -> Keys:
    """The factor on cos and sin, where it is given and is not the one that programs compute themselves."""
    attention = options.get("attention")
    if attention is None or math.isclose(attention, formula, rel_tol=EQUAL):
        return {}
    return {"attention_factor": float(attention)}


# By the name of the encoding: the keys that differ from those of plain rope.
ROPE_KEYS: dict[str, Callable[[Leaf, Options, Wanted], Keys]] = {
    "rope": lambda leaf, options, wanted: {},
    "rope-linear": _linear,
    "rope-ntk": _ntk,
    "rope-dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
