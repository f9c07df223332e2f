"""What the classes of registered encodings say: tables of them, and the description of one spec in a report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poscli.attention import Place, choose, engines_for
from poscli.config.run import PRESETS
from poscli.drawing.style import DASHES, PALETTE, Style
from poscli.encodings import get, names
from poscli.encodings.registry import broken, missing
from poscli.equation import Encoding
from poscli.equation.encoding import formula
from poscli.layouts import LAYOUTS
from poscli.runs.run import AS
from poscli.specs import names_in, parse, spec_of_layout
from poscli.specs.build import encoding_parameters
from poscli.system.errors import UsageError

TRAIN_LENGTH = 512  # tokens, of the model whose engine and parameters are shown

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


def describe_encodings(chosen: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One row per registered encoding, or per chosen one, at the `tiny` shape.

    If an encoding needs a package that is missing, `unavailable` says how to install it. If it comes from another
    package and cannot be loaded, `unavailable` says why, and the row says nothing else. UsageError for an unknown name.
    """
    rows = []
    for name in chosen or names():
        if broken(name):
            words = dict.fromkeys(("family", "tier", "engine", "paper", "formula"), "")
            lists: dict[str, Any] = {"options": {}, "lengths": [], "engines": [], "facts": []}
            rows.append({"name": name, **words, **lists, "in_proportion": "", "unavailable": missing(name)})
        else:
            rows.append(_describe(get(name)) | {"unavailable": missing(name)})
    return rows


def describe_layouts() -> list[dict[str, Any]]:
    """One row per named layout, with its spec as results show it; `unavailable` says why one cannot be used."""
    rows = []
    for name in LAYOUTS.names():
        row: dict[str, Any] = {"layout": name, "spec": "", "layers": None, "paper": "", "note": "", "unavailable": ""}
        try:
            layout = LAYOUTS.get(name)
            row |= {"spec": layout.spec, "paper": layout.paper, "note": layout.note}
            if name in names():
                raise UsageError(f"the name {name} belongs to an encoding")
            spec = spec_of_layout(name)
            row |= {"spec": str(spec), "layers": len(spec.layers)}
        except UsageError as error:
            row["unavailable"] = str(error)
        rows.append(row)
    return rows


def _describe(cls: type[Encoding]) -> dict[str, Any]:
    encoding = cls(PRESETS["tiny"].shape(TRAIN_LENGTH))
    choice = choose(encoding)
    defaults = {key: option.default for key, option in cls.options().items()}
    in_proportion = str(parse(cls.name).in_proportion())
    plain = {key: str(v).lower() if isinstance(v, bool) or v is None else v for key, v in defaults.items()}
    return {
        "name": cls.name,
        "family": cls.family,
        "tier": encoding.tier,
        "acts_on": sorted(encoding.blanks),
        "shared": cls.shared,
        "relative": encoding.relative,
        "rescales": encoding.rescales,
        "parameters": parameters(cls),
        "options": plain,
        "lengths": [key for key, option in cls.options().items() if option.is_length],
        "in_proportion": in_proportion if in_proportion != cls.name else "",
        "engine": choice.name,
        "engines": [engine.name for engine in engines_for(encoding, Place(gradient=False))],
        "reason": choice.reason,
        "after": list(cls.after),
        "facts": list(cls.facts),
        "paper": cls.paper,
        "formula": formula(cls),
        "unavailable": "",
    }


def parameters(cls: type[Encoding]) -> int:
    """The number of learned parameters in all layers of a `tiny` model; parameters shared by layers count once."""
    return encoding_parameters(parse(cls.name), PRESETS["tiny"].shape(TRAIN_LENGTH))


def options_text(row: dict[str, Any]) -> str:
    """Options with their defaults, in the syntax of a spec."""
    return ", ".join(f"{key}={value}" for key, value in row["options"].items())


def lengths_text(row: dict[str, Any]) -> str:
    """A sentence on the options that are lengths; empty if none is."""
    if not row["lengths"]:
        return ""
    paper = f"; in the paper's proportion {row['in_proportion']}" if row["in_proportion"] else ""
    return f"Lengths (8 or 0.5L): {', '.join(row['lengths'])}{paper}."


SEVERAL, OTHER = "several", "other"  # families of specs with several encodings, and of encodings that are not known
TITLES = FAMILIES | {
    SEVERAL: "combinations: several encodings in one model",
    OTHER: "other: not registered here",
}


@dataclass(frozen=True)
class Described:
    """One encoding of a results table. `parts` are its formulas by the names of the encodings that it consists of."""

    family: str
    acts: str
    parts: tuple[tuple[str, str, str], ...]  # (name, formula, paper)


def describe_spec(spec: str) -> Described:
    """Describe a spec by the registered names in it; it is not parsed, so that no file that it names is run.

    >>> [describe_spec(spec).family for spec in ("rope(base=500000.0)", "rope|none", "./mine.py:Mine")]
    ['rotary', 'several', 'other']
    """
    leaves = names_in(spec)
    known = [name for name in leaves if name in names() and not broken(name)]
    parts = tuple((name, formula(get(name)), get(name).paper) for name in known)
    if not known or len(known) < len(leaves):
        family = OTHER
    else:
        family = get(known[0]).family if len(leaves) == 1 else SEVERAL
    family = family if family in TITLES else OTHER
    return Described(family, TITLES[family], parts)


def spec_in_label(label: str) -> str:
    """The spec in the label of an encoding in a report: without the model, the memory and the marks in brackets.

    >>> spec_in_label("rope as yarn(factor=4.0) (recalibrated 200k)"), spec_in_label("none (memory 64) [3M] [a1b2c3]")
    ('yarn(factor=4.0)', 'none')
    """
    return re.sub(r" \((memory|recalibrated|tuned) .*\)|( \[[^\]]*\])+$", "", label).split(AS)[-1].strip()


@dataclass(frozen=True)
class Look:
    """The colour and the dash of an encoding as numbers in PALETTE and DASHES."""

    color: int
    dash: int
    strong: bool


def looks(families: Mapping[str, str], styles: Mapping[str, Style]) -> dict[str, Look]:
    """The look of every encoding: that of its style; in the background of the styles, the colour used least so far.

    First come colours that no other member of the family has, because they share a chart. No two encodings share both
    colour and dash, as long as there are pairs of them. `families` maps encodings to their families.
    """
    strong = {name: PALETTE.index(style.color) for name, style in styles.items() if style.strong}
    used = Counter(strong.values())
    pairs: Counter[tuple[int, int]] = Counter(
        (color, DASHES.index(styles[name].dash)) for name, color in strong.items()
    )
    look: dict[str, Look] = {}
    for family in dict.fromkeys(families.values()):
        members = [name for name in families if families[name] == family]
        taken = Counter(strong[name] for name in members if name in strong)
        for name in members:
            if name in strong:
                look[name] = Look(strong[name], DASHES.index(styles[name].dash), True)
                continue
            color = min(range(len(PALETTE)), key=lambda n: (taken[n], used[n], n))
            _, dash = min((pairs[color, n], n) for n in range(len(DASHES)))
            pairs[color, dash] += 1
            look[name] = Look(color, dash, False)
            taken[color] += 1
            used[color] += 1
    return look
