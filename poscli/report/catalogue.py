"""A table of the registered encodings, read from their classes, for `poscli ls encodings`, the README and the docs."""

from __future__ import annotations

from typing import Any

from poscli.attention import Place, choose, engines_for
from poscli.config.run import PRESETS
from poscli.encodings import get, names
from poscli.encodings.registry import missing
from poscli.equation import Encoding
from poscli.equation.encoding import formula
from poscli.specs import build, parse

TRAIN_LENGTH = 512  # tokens, of the model whose engine and parameters are shown
# The lines around the table in README.md.
MARKS = ("<!-- encodings: written by `make table`, checked by the tests -->", "<!-- end -->")

# family -> title, in historical order
FAMILIES = {
    "none": "no encoding",
    "absolute": "absolute: act on the embedding",
    "bias": "distance biases: a term of the scores",
    "relative": "relative vectors: one per distance",
    "rotary": "rotary: act on queries and keys",
    "content": "content-dependent: depend on the tokens between query and key",
    "grid": "grids: rows and columns of an image",
    "wrapper": "wrappers: combine with any other encoding",
}


def describe_encodings() -> list[dict[str, Any]]:
    """One row per registered encoding, at the `tiny` shape; if its package is missing, only how to install that."""
    return [_unavailable(name, why) if (why := missing(name)) else _describe(get(name)) for name in names()]


def _describe(cls: type[Encoding]) -> dict[str, Any]:
    encoding = cls(PRESETS["tiny"].shape(TRAIN_LENGTH))
    choice = choose(encoding)
    return {
        "name": cls.name,
        "family": cls.family,
        "tier": encoding.tier,
        "acts_on": sorted(encoding.blanks),
        "shared": cls.shared,
        "relative": encoding.relative,
        "rescales": encoding.rescales,
        "parameters": parameters(cls),
        "options": {key: _plain(option.default) for key, option in cls.options().items()},
        "engine": choice.name,
        "engines": [engine.name for engine in engines_for(encoding, Place(gradient=False))],
        "reason": choice.reason,
        "after": list(cls.after),
        "facts": list(cls.facts),
        "paper": cls.paper,
        "formula": formula(cls),
        "unavailable": "",
    }


def _unavailable(name: str, why: str) -> dict[str, Any]:
    words = dict.fromkeys(("family", "tier", "engine", "paper", "formula"), "")
    return {"name": name, **words, "options": {}, "engines": [], "facts": [], "unavailable": why}


def parameters(cls: type[Encoding]) -> int:
    """The number of learned parameters in all layers of a `tiny` model; parameters shared by layers count once."""
    layers = build(parse(cls.name), PRESETS["tiny"].shape(TRAIN_LENGTH), seed=0)
    return sum(p.numel() for p in {id(p): p for layer in layers for p in layer.parameters()}.values())


def readme_table() -> str:
    """The README's table of encodings, one row per family."""
    rows = describe_encodings()
    lines = ["| family | encodings |", "| --- | --- |"]
    for family, title in FAMILIES.items():
        members = [f"`{row['name']}`" for row in rows if row["family"] == family]
        lines.append(f"| {title} | {', '.join(members)} |")
    unknown = {row["family"] for row in rows if not row["unavailable"]} - set(FAMILIES)
    assert not unknown, f"families without a title: {unknown}"
    return "\n".join([MARKS[0], *lines, MARKS[1]])


def with_table(document: str) -> str:
    """The README with a new table between MARKS."""
    start, end = document.index(MARKS[0]), document.index(MARKS[1]) + len(MARKS[1])
    return document[:start] + readme_table() + document[end:]


def options_text(row: dict[str, Any]) -> str:
    """Options with their defaults, in the syntax of a spec."""
    return ", ".join(f"{key}={value}" for key, value in row["options"].items())


def _plain(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) or value is None else value
