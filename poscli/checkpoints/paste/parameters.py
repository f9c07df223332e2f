"""Scalings of rope in the names of transformers 5 (`rope_parameters`): the inverse of kinds/scaling.py.

Shapes: P pairs of channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from poscli.checkpoints.paste.asked import ROPE, Asked
from poscli.checkpoints.paste.snippet import Inexpressible, Keys
from poscli.specs.grammar import Leaf, parse

Options = dict[str, Any]  # of a spec
BASE = 10000.0  # of rope, where the spec does not give it
EQUAL = 1e-9  # the largest relative difference of a given factor on cos and sin from the one that formulas have


def parameters(asked: Asked, type_: str) -> Keys:
    """The rope of one type of layer as transformers 5 writes it; Inexpressible if it has no such scaling."""
    leaf = asked.ropes[type_]
    if leaf.name not in SCALINGS:
        raise Inexpressible(f"No configuration has a key for {leaf.name}: it needs code of its own.")
    options: Options = dict(leaf.options)
    own: Options = dict(asked.own[type_].options)
    for key, default in (("layout", "half"), ("fraction", 1.0)):
        if options.get(key, default) != own.get(key, default):
            raise Inexpressible(f"The {key} of rope is fixed in the code of {asked.architecture.model_type} models.")
    found: Keys = {"rope_type": "default", "rope_theta": float(options.get("base", BASE))}
    found |= SCALINGS[leaf.name](leaf, options, asked)
    if (fraction := options.get("fraction", 1.0)) != 1:
        found["partial_rotary_factor"] = fraction
    return found


def original_of(options: Options, asked: Asked) -> int:
    """L of the scaling's formula: the trained length, or that of an earlier training."""
    return int(options.get("original") or asked.architecture.length)


def _default(leaf: Leaf, options: Options, asked: Asked) -> Keys:
    return {}


def _linear(leaf: Leaf, options: Options, asked: Asked) -> Keys:
    return {"rope_type": "linear", "factor": float(options["factor"])}


def _ntk(leaf: Leaf, options: Options, asked: Asked) -> Keys:
    """NTK-aware scaling with one factor is rope with another base."""
    width = int(asked.architecture.head_width * options.get("fraction", 1.0))
    return {"rope_theta": options.get("base", BASE) * options["factor"] ** (width / max(width - 2, 1))}


def _dynamic(leaf: Leaf, options: Options, asked: Asked) -> Keys:
    return {"rope_type": "dynamic", "factor": float(options.get("factor", 2.0))}


def _yarn(leaf: Leaf, options: Options, asked: Asked) -> Keys:
    if options.get("ramp", "pairs") != "pairs":
        raise Inexpressible("Configurations have YaRN with the ramp of its authors' code, and none with ramp=turns.")
    factor = float(options["factor"])
    found = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original_of(options, asked)}
    found |= _attention(options, 0.1 * math.log(factor) + 1)
    for key, default in (("beta_fast", 32.0), ("beta_slow", 1.0)):
        if (value := options.get(key, default)) != default:
            found[key] = value
    return found | ({"truncate": False} if options.get("truncate") is False else {})


def _llama3(leaf: Leaf, options: Options, asked: Asked) -> Keys:
    low, high = float(options.get("low", 1.0)), float(options.get("high", 4.0))
    found = {"rope_type": "llama3", "factor": float(options["factor"]), "low_freq_factor": low}
    return found | {"high_freq_factor": high, "original_max_position_embeddings": original_of(options, asked)}


def _longrope(leaf: Leaf, options: Options, asked: Asked) -> Keys:
    """Two lists of P factors: those of the checkpoint, or else one list that the spec's `start` gives."""
    if options.get("search") or options.get("keep_first"):
        raise Inexpressible("A spec does not hold the factors that a search finds, and keep_first has no key.")
    original, factor = original_of(options, asked), float(options["factor"])
    found: Keys = {"rope_type": "longrope", "factor": factor, "original_max_position_embeddings": original}
    found |= _attention(options, math.sqrt(1 + math.log(factor) / math.log(original)))
    numbers = next((layer.numbers for layer in asked.architecture.layers if layer.numbers), None)
    lists = {name: list(numbers[name]) for name in ("short_factor", "long_factor")} if numbers else None
    return found | (lists or dict.fromkeys(("short_factor", "long_factor"), _divisors(leaf, options, asked)))


def _divisors(leaf: Leaf, options: Options, asked: Asked) -> list[float]:
    """By how much a scaling divides the angle of each pair of plain rope, `[P]`."""
    import torch

    kept = [f"{key}={options[key]}" for key in ("base", "fraction") if key in options]
    plain: Any = parse(f"{ROPE}({', '.join(kept)})").layers[0][0].make(asked.shape)
    scaled: Any = leaf.make(asked.shape)
    last = torch.tensor([asked.target - 1])
    return [float(x) for x in plain.theta(last) / scaled.theta(last)]


def _attention(options: Options, formula: float) -> Keys:
    """The factor on cos and sin, where it is given and is not the one that programs compute themselves."""
    given = options.get("attention")
    if given is None or math.isclose(given, formula, rel_tol=EQUAL):
        return {}
    return {"attention_factor": float(given)}


# By the name of the encoding: the keys that differ from those of plain rope.
SCALINGS: dict[str, Callable[[Leaf, Options, Asked], Keys]] = {
    "rope": _default,
    "rope-linear": _linear,
    "rope-ntk": _ntk,
    "rope-dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
