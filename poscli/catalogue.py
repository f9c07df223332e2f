"""What each encoding is, read off its class: options, tier, engines, formula. `poscli ls`, README and docs show it."""

from __future__ import annotations

import inspect
from typing import Any

from poscli.attention import Place, able, choose
from poscli.config import PRESETS
from poscli.encodings import Encoding, get, names
from poscli.encodings.registry import missing

LENGTH = 512

# in the order in which they were thought of
FAMILIES = {
    "none": "no encoding",
    "absolute": "absolute: act on the embedding",
    "bias": "distance biases: a term of the scores",
    "relative": "relative vectors: one per distance",
    "rotary": "rotary: act on queries and keys",
    "content": "content-dependent: what lies between decides",
    "wrapper": "wrappers: join any of the others",
}


def describe_encodings() -> list[dict[str, Any]]:
    """One row per registered encoding, at the `tiny` shape; one that misses a package says how to get it."""
    return [_unavailable(name, why) if (why := missing(name)) else _describe(get(name)) for name in names()]


def _describe(cls: type[Encoding]) -> dict[str, Any]:
    encoding = cls(PRESETS["tiny"].shape(LENGTH))
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
        "engines": [engine.name for engine in able(encoding, Place(gradient=False))],
        "reason": choice.reason,
        "after": list(cls.after),
        "facts": list(cls.facts),
        "paper": cls.paper,
        "formula": formula(cls),
        "unavailable": "",
    }


def _unavailable(name: str, why: str) -> dict[str, Any]:
    empty = {
        "family": "",
        "tier": "",
        "options": {},
        "engine": "",
        "engines": [],
        "facts": [],
        "paper": "",
        "formula": "",
    }
    return {"name": name, **empty, "unavailable": why}


def parameters(cls: type[Encoding]) -> int:
    """Numbers learned in a `tiny` model, over all its layers."""
    from poscli.spec import build, parse

    layers = build(parse(cls.name), PRESETS["tiny"].shape(LENGTH), seed=0)
    return sum(p.numel() for p in {id(p): p for layer in layers for p in layer.parameters()}.values())


def formula(cls: type[Encoding]) -> str:
    """The first paragraph of the class' docstring, which states the formula."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


MARKS = ("<!-- encodings: written by `make table`, checked by the tests -->", "<!-- end -->")


def readme_table() -> str:
    """The encodings in the README, a line per family."""
    rows = describe_encodings()
    lines = ["| family | encodings |", "| --- | --- |"]
    for family, title in FAMILIES.items():
        members = [f"`{row['name']}`" for row in rows if row["family"] == family]
        lines.append(f"| {title} | {', '.join(members)} |")
    unknown = {row["family"] for row in rows if not row["unavailable"]} - set(FAMILIES)
    assert not unknown, f"families without a title: {unknown}"
    return "\n".join([MARKS[0], *lines, MARKS[1]])


def with_table(document: str) -> str:
    """A document with the table between its marks renewed."""
    start, end = document.index(MARKS[0]), document.index(MARKS[1]) + len(MARKS[1])
    return document[:start] + readme_table() + document[end:]


def options_text(row: dict[str, Any]) -> str:
    """Options and their defaults, as a spec writes them."""
    return ", ".join(f"{key}={value}" for key, value in row["options"].items())


def _plain(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) or value is None else value
