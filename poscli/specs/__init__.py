"""Specs: grammar.py reads one, build.py makes the encodings of a model's layers and counts their parameters."""

from poscli.specs.build import build, check, plugins_among
from poscli.specs.grammar import Leaf, Spec, parse, refuse_twice

__all__ = ["Leaf", "Spec", "build", "check", "parse", "plugins_among", "refuse_twice"]
