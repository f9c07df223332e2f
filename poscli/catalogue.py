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


def _plain(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
