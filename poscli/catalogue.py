"""What each encoding is, read off its class: options, tier, engine, formula."""

from __future__ import annotations

import inspect
from typing import Any

from poscli.attention import choose
from poscli.config import PRESETS
from poscli.encodings import Encoding, get, names

LENGTH = 512


def describe_encodings() -> list[dict[str, Any]]:
    """One row per registered encoding, at the `tiny` shape."""
    return [_describe(get(name)) for name in names()]


def _describe(cls: type[Encoding]) -> dict[str, Any]:
    encoding = cls(PRESETS["tiny"].shape(LENGTH))
    choice = choose(encoding)
    return {
        "name": cls.name,
        "family": cls.family,
        "tier": encoding.tier,
        "acts_on": sorted(encoding.blanks),
        "shared": cls.shared,
        "parameters": sum(p.numel() for p in encoding.parameters()),
        "options": {key: _plain(option.default) for key, option in cls.options().items()},
        "engine": choice.name,
        "reason": choice.reason,
        "paper": cls.paper,
        "formula": formula(cls),
    }


def formula(cls: type[Encoding]) -> str:
    """The first sentence of the class' docstring, which states the formula."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


MARKS = ("<!-- encodings: written by `make table`, checked by the tests -->", "<!-- end -->")


def markdown_table() -> str:
    """The table of encodings in the README, between its marks."""
    lines = ["| encoding | options | tier | engine | paper |", "| --- | --- | --- | --- | --- |"]
    for row in describe_encodings():
        options = ", ".join(f"`{key}={value}`" for key, value in row["options"].items())
        lines.append(f"| `{row['name']}` | {options} | {row['tier']} | {row['engine']} | {row['paper']} |")
    return "\n".join([MARKS[0], *lines, MARKS[1]])


def with_table(document: str) -> str:
    """A document with the table between its marks renewed."""
    start, end = document.index(MARKS[0]), document.index(MARKS[1]) + len(MARKS[1])
    return document[:start] + markdown_table() + document[end:]


def _plain(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
