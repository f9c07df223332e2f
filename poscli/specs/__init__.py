"""Specs such as rope+window(128), or the name of a layout: how they are read and built."""

from poscli.specs.build import build, check, plugins_among
from poscli.specs.grammar import Leaf, Spec, names_in, parse, refuse_twice, spec_of_layout, with_layouts

__all__ = [
    "Leaf",
    "Spec",
    "build",
    "check",
    "names_in",
    "parse",
    "plugins_among",
    "refuse_twice",
    "spec_of_layout",
    "with_layouts",
]
