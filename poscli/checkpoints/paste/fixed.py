"""A spec with the factor written out: what an encoding that follows the length of the input does at one length.

A configuration holds one factor for inputs of all lengths. So whoever asks what a configuration costs on short inputs
must measure the spec with the factor written out, and not the one that adapts itself to them.
"""

from __future__ import annotations

from poscli.encodings import get
from poscli.specs.grammar import Leaf, Spec, parse

FACTOR = "factor"  # the option of a scaling: how many times longer inputs may be


def fixed(spec: str, trained: int, target: int) -> str:
    """The spec in which every factor that follows the length of the input is the one for inputs of `target` tokens.

    The factor is the target divided by the trained length, or by the option `original` of the scaling.
    """
    layers = tuple(tuple(_fixed(leaf, trained, target) for leaf in leaves) for leaves in parse(spec).layers)
    return str(Spec(layers))


def _fixed(leaf: Leaf, trained: int, target: int) -> Leaf:
    options, given = get(leaf.name).options(), dict(leaf.options)
    follows = FACTOR in options and options[FACTOR].default is None and given.get(FACTOR) is None
    if not follows:
        return leaf
    original = given.get("original") or trained
    given[FACTOR] = max(1.0, target / int(original))
    return Leaf(leaf.name, tuple((key, given[key]) for key in options if key in given))
