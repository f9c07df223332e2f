"""The formula and the proof of every encoding in docs/ENCODINGS.md, and the table in README.md; a test checks both."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from oracles import Oracle, every
from poscli.report.catalogue import (
    FAMILIES,
    describe_encodings,
    describe_layouts,
    lengths_text,
    options_text,
)
from poscli.specs import parse

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "ENCODINGS.md"
# The lines around the table in README.md.
MARKS = ("<!-- encodings: written by `make table`, checked by the tests -->", "<!-- end -->")

HEAD = """# Encodings

Written by `make table` from the classes and from the oracles in `tests/oracles/`; the tests check it.

**Proof.** Every encoding is computed on every engine that takes it and compared, with all its gradients (`tiles` is
for evaluation and has none), with an oracle: the paper's formula written again in float64 without poscli's code, or
another library. `error` is the largest difference of an output of attention (or of the embedding) in float32, over all
engines and oracles, at positions up to the training length and up to 16 times it; `limit` is what was allowed there:
eight times what one unit of rounding in every input does to the oracle itself. In float64 it is 2^29 times smaller,
unless the oracle computes in float32.
Lengths are numbers of tokens, or of training lengths L: `t5(far=0.5L)`.
`parameters` are those of a `tiny` model (4 layers, width 128, 8 heads, L = 512) in all its layers.

"""


LAYOUTS = """## Layouts

A spec with `|` gives the layers of a model encodings in turns. Those of some known models have names, which stand for
their specs wherever one is read: `poscli train --enc rnope-swa`, suites, Python. What is joined to a name joins each of
its layers (`smollm3+ssmax`). A run has the spec itself in its configuration and in the name of its folder, so that it
is the same run under either; tables show the name, and a note of the report the spec. Windows are shares of L, as in
the models, and a model needs at least as many layers as the spec has.

"""


def document(largest: Callable[[Oracle], tuple[float, float]]) -> str:
    """The text of the document; `largest` gives the largest error of an oracle, and its limit."""
    proofs: dict[str, list] = {}
    for oracle in every():
        for name in {leaf.name for leaves in parse(oracle.spec).layers for leaf in leaves}:
            proofs.setdefault(name, []).append(oracle)
    parts = [HEAD]
    rows = describe_encodings()
    for family, title in FAMILIES.items():
        parts.append(f"## {title[0].upper() + title[1:]}\n\n")
        for row in (r for r in rows if r["family"] == family):
            parts.append(f"- **`{row['name']}`** {_escape(row['formula'])} ({row['paper']})\n")
            if row["options"]:
                parts.append(f"  {' '.join(filter(None, [f'Options: `{options_text(row)}`.', lengths_text(row)]))}\n")
        parts.append("\n| encoding | tier | parameters | engines | error | limit | oracle |\n")
        parts.append("| --- | --- | ---: | --- | ---: | ---: | --- |\n")
        for row in (r for r in rows if r["family"] == family):
            own = proofs[row["name"]]
            alone = [o for o in own if all(len(leaves) == 1 for leaves in parse(o.spec).layers)] or own
            error, limit = max((largest(o) for o in own), key=lambda pair: pair[0] / max(pair[1], 1e-300))
            against = "; ".join(dict.fromkeys(o.against for o in alone))
            engines = ", ".join(row["engines"])
            parts.append(
                f"| `{row['name']}` | {row['tier']} | {row['parameters']:,} | {engines} | {error:.0e} | {limit:.0e} | "
                f"{_escape(against)} |\n"
            )
        parts.append("\n")
    parts.append(LAYOUTS)
    for row in describe_layouts():
        parts.append(f"- **`{row['layout']}`** {_escape(row['note'])} ({row['paper']})\n")
        parts.append(f"  `{row['spec']}`\n" if not row["unavailable"] else f"  {row['unavailable']}\n")
    parts.append("\n## Equivalences\n\nEach is a test.\n\n")
    parts += [f"- `{row['name']}`: {_escape(fact)}\n" for row in rows for fact in row["facts"]]
    return "".join(parts)


def with_table(readme: str) -> str:
    """The README with a new table of encodings between MARKS, one row per family."""
    rows = describe_encodings()
    lines = ["| family | encodings |", "| --- | --- |"]
    for family, title in FAMILIES.items():
        members = [f"`{row['name']}`" for row in rows if row["family"] == family]
        lines.append(f"| {title} | {', '.join(members)} |")
    unknown = {row["family"] for row in rows if not row["unavailable"]} - set(FAMILIES)
    assert not unknown, f"families without a title: {unknown}"
    start, end = readme.index(MARKS[0]), readme.index(MARKS[1])
    return readme[:start] + "\n".join([MARKS[0], *lines]) + "\n" + readme[end:]


def without_errors(text: str) -> str:
    """The document without its measured errors, which differ between machines."""
    return re.sub(r"\| \d+e[-+]\d+ (?=\|)", "| # ", text)


def errors(text: str) -> dict[str, tuple[float, float]]:
    """(error, limit) by encoding, as a document states them."""
    rows = re.findall(r"^\| `([^`]+)` .*\| (\d+e[-+]\d+) \| (\d+e[-+]\d+) \|", text, re.MULTILINE)
    return {name: (float(error), float(limit)) for name, error, limit in rows}


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    import suite_document

    from oracles.measure import largest as measured

    suite_document.DOCUMENT.write_text(suite_document.document(), encoding="utf-8")
    DOCUMENT.write_text(document(measured), encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(with_table(readme.read_text(encoding="utf-8")), encoding="utf-8")
