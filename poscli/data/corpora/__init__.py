"""The kinds of corpora: the registry behind `--corpus` and `poscli ls corpora`.

Each file of this package is one kind and registers it. Other packages offer theirs through the entry-point group
`poscli.data.corpora`, as an object of the class `Kind`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from poscli.data.build import divided
from poscli.data.known_limit import KnownLimit
from poscli.data.source import Document, Reading, Source
from poscli.system.errors import DataError, UsageError, near
from poscli.system.registry import Registry
from poscli.system.text import in_no_line

LONGEST_SPEC = 4096  # characters; longer paths cannot be opened on Linux
SHOWN_CHARACTERS = 60  # of a name that is refused

Change = Callable[[Iterator[Document]], Iterator[Document]]


@dataclass(frozen=True)
class Kind:
    """A kind of corpus: how its specs are written, what it reads, and how a spec becomes a source."""

    grammar: str  # a name, or also a colon and the form of the argument: "text:PATH", "images[:FOLDER]"
    about: str
    source: Callable[[str], Source]  # takes what follows the colon; raises UsageError or DataError
    available: Callable[[], str] = lambda: ""  # why the kind cannot be used on this machine; "" if it can
    examples: tuple[str, ...] = ()  # specs worth suggesting when an unknown corpus is asked for
    # What knows the best possible loss of the corpus with this argument; None where nothing does.
    limit: Callable[[str], KnownLimit | None] = lambda argument: None
    periods: Callable[[str], list[int] | None] = lambda argument: None  # of its held-out documents, if they have any
    unit: str = "byte"  # what losses are measured per, as reports call it
    explained: str = ""  # what a reader of a report must know about it, in Markdown


CORPORA: Registry[Kind] = Registry("corpus", __name__, lambda thing: isinstance(thing, Kind))


def source_of(spec: str) -> Source:
    """The source that a spec names; UsageError if the spec cannot be understood."""
    check_characters(spec)
    name, _, argument = spec.partition(":")
    if name not in CORPORA.names():
        raise UsageError(f"unknown corpus {spec!r}: {_suggestion(spec, name)}")
    kind = CORPORA.get(name)
    optional = kind.grammar.startswith(f"{name}[:")
    if not optional and bool(argument) != (":" in kind.grammar):
        raise UsageError(f"{spec!r} is not of the form {kind.grammar}")
    return kind.source(argument)


def derived_source(kind: str, argument: str, stamp: Any, change: Change, options: str = "") -> Source:
    """The source `KIND[:CORPUS]` of what `change` makes of the documents of another corpus, by default `code`.

    `change` gets them with the splits that they have there. Documents that it makes empty are left out. `stamp` changes
    with what it does.
    """
    base = source_of(argument or "code")
    if base.whole:
        return source_of(f"whole:{kind}:{base.spec.removeprefix('whole:')}{options}")
    spec = kind if base.spec == "code" and not options else f"{kind}:{base.spec}{options}"

    def read() -> Reading:
        documents, origin = divided(base)
        return Reading(change(documents), origin)

    stamps = [stamp, "splits of the base", base.stamp]
    return Source(spec, stamps, read, made_of=base.origins, split_of=base.split_of or base.spec)


def of_each(change: Callable[[bytes], bytes]) -> Change:
    """Makes one document of each."""
    return lambda documents: (Document(change(content), part) for content, part in documents)


def kind_of(spec: str) -> Kind | None:
    """The kind of a corpus; None if no usable kind has its name."""
    name = re.split(r"[:?]", spec)[0]
    return CORPORA.get(name) if name in CORPORA.names() and not CORPORA.missing(name) else None


def loss_unit(specs: Iterable[str]) -> str:
    """What reports say that losses on these corpora are measured per: `cell` if all hold images, else `byte`."""
    units = {kind.unit if (kind := kind_of(spec)) else "byte" for spec in specs}
    return units.pop() if len(units) == 1 else "byte"


def limit_of(spec: str) -> KnownLimit | None:
    """What knows the best possible loss of every byte of a corpus; None where nothing does, as of all human text."""
    kind = kind_of(spec)
    return kind.limit(spec.partition(":")[2]) if kind else None


def periods_of(spec: str) -> list[int] | None:
    """After how many tokens each held-out document of a corpus repeats itself, in their order; None without periods.

    Reports ask it of the corpora of results, whose plugins may be gone: what cannot be read has none.
    """
    kind = kind_of(spec)
    try:
        return kind.periods(spec.partition(":")[2]) if kind else None
    except (DataError, UsageError):
        return None


def check_characters(spec: str) -> None:
    """UsageError if a name cannot stand in a line of a report or of an error, or in a file of results."""
    shown = spec if len(spec) <= 2 * SHOWN_CHARACTERS else f"{spec[:SHOWN_CHARACTERS]}..."
    if len(spec) > LONGEST_SPEC:
        raise UsageError(f"the corpus {shown!r} has a name of {len(spec)} characters; {LONGEST_SPEC} are allowed")
    if wrong := in_no_line(spec):
        raise UsageError(f"the corpus {shown!r} has the character {wrong!r} in its name; rename the file or the folder")


def describe_corpora() -> list[dict[str, str]]:
    """The rows of `poscli ls corpora`: the grammar of each kind, what it reads, and why it is unavailable, if it is."""
    rows = []
    for name in CORPORA.names():
        if reason := CORPORA.missing(name):
            rows.append({"corpus": name, "what": "", "unavailable": reason})
            continue
        kind = CORPORA.get(name)
        rows.append({"corpus": kind.grammar, "what": kind.about, "unavailable": kind.available()})
    return rows


def _suggestion(spec: str, name: str) -> str:
    if os.path.exists(spec):  # noqa: PTH110 - unlike Path.exists, it takes any string
        return f"to read this path, write text:{spec}"
    usable = [kind for kind in CORPORA.names() if not CORPORA.missing(kind)]
    examples = [example for kind in usable for example in CORPORA.get(kind).examples]
    return f"{near(name, [*usable, *examples])}; `poscli ls corpora` shows all"
