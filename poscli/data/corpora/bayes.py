"""`bayes:NAME(options)`: text of a random process whose best possible loss is known; known_limit/ has the processes.

Options are written in parentheses: `bigram`, `bigram(alpha=0.5)`, `recall(cues=16, values=4)`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from poscli.data.corpora import CORPORA, Kind
from poscli.data.known_limit import SOURCES, Draw, KnownLimit, Option
from poscli.data.source import Document, Part, Reading, Source
from poscli.system.errors import UsageError, near

TRAINING_DOCUMENTS = 512  # 8 million tokens of 16 KiB documents: more than a tiny model is trained on
HELD_OUT_DOCUMENTS = 64  # enough for a bootstrap over documents
TUNING_DOCUMENTS = 21  # a third of them
FORM = re.compile(r"\s*([\w.-]+)\s*(?:\(([^()]*)\)\s*)?")
TOO_LARGE = 2**63  # numbers are below it, as options of encodings are
LOOKS_LIKE = "a spec looks like bayes:bigram(symbols=8, alpha=0.1)"


def source(argument: str) -> Source:
    """The corpus `bayes:NAME(options)`."""
    name, process = parse_process(argument)
    spec = f"bayes:{name}"
    stamp = [process.version, TRAINING_DOCUMENTS, HELD_OUT_DOCUMENTS, TUNING_DOCUMENTS]
    return Source(spec, stamp, lambda: Reading(_documents(spec, process), {"version": str(process.version)}))


def periods(argument: str) -> list[int] | None:
    """The period of each held-out document of the corpus `bayes:NAME(options)`, in the order of the split.

    A document's place in the list is its number in units.csv. None if the documents have no period.
    """
    name, process = parse_process(argument)
    draws = [_draw(f"bayes:{name}", process, number) for number in range(HELD_OUT_DOCUMENTS)]
    known = [process.period(draw) for draw in draws]
    if None in known:
        return None
    contents = [process.document(_draw(f"bayes:{name}", process, number)) for number in range(HELD_OUT_DOCUMENTS)]
    digests = [hashlib.sha256(content).digest() for content in contents]  # by which splits are ordered
    return [period for _, period in sorted(zip(digests, known, strict=True)) if period is not None]


def _documents(spec: str, process: KnownLimit) -> Iterator[Document]:
    sizes: dict[Part, int] = {"valid": HELD_OUT_DOCUMENTS, "train": TRAINING_DOCUMENTS, "tune": TUNING_DOCUMENTS}
    parts = [part for part, size in sizes.items() for _ in range(size)]
    for number, part in enumerate(parts):
        yield Document(process.document(_draw(spec, process, number)), part)


def _draw(spec: str, process: KnownLimit, number: int) -> Draw:
    """The random numbers of a document of the corpus."""
    return Draw(f"{spec} version {process.version}", number)


def parse_process(text: str) -> tuple[str, KnownLimit]:
    """The canonical spec of a source, with all its options, and the source itself.

    The text of a spec never changes, also if a later version has other defaults, because defaults are written out.

    >>> parse_process("bigram(alpha=.50)")[0]
    'bigram(symbols=8, alpha=0.5)'
    """
    match = FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"cannot read the corpus 'bayes:{text}'; {LOOKS_LIKE}")
    name, inside = match.groups(default="")
    if name not in SOURCES.names():
        raise UsageError(f"there is no known-limit source {name!r}: {near(name, SOURCES.names())}; {LOOKS_LIKE}")
    cls = SOURCES.get(name)
    options = _options(cls, text, inside)
    spec = f"{name}({', '.join(f'{key}={value}' for key, value in options.items())})"
    try:
        return spec, cls(**options)
    except ValueError as error:
        raise UsageError(f"bayes:{spec}: {error}") from error


def _options(cls: type[KnownLimit], text: str, inside: str) -> dict[str, Option]:
    """All options in the order of the class: those between the parentheses, and the defaults of the others."""
    known, given = cls.options(), dict[str, Option]()
    for part in inside.split(",") if inside.strip() else []:
        key, sign, value = (word.strip() for word in part.partition("="))
        if not sign:
            raise UsageError(f"cannot read {part.strip()!r} in the corpus 'bayes:{text}'; {LOOKS_LIKE}")
        if key not in known:
            raise UsageError(f"bayes:{cls.name} has no option {key!r}: {near(key, known)}")
        if key in given:
            raise UsageError(f"the corpus 'bayes:{text}' gives the option {key} twice; give it once")
        given[key] = _number(cls, key, value, type(known[key]))
    return {key: given.get(key, default) for key, default in known.items()}


def _number(cls: type[KnownLimit], key: str, text: str, kind: type[Option]) -> Option:
    """The value of an option as the type of its default."""
    try:
        value = kind(text)
    except ValueError as error:
        wanted = "a whole number" if kind is int else "a number"
        raise UsageError(f"bayes:{cls.name}: {key} must be {wanted}, got {text!r}") from error
    if not abs(value) < TOO_LARGE:  # NaN is not
        raise UsageError(f"bayes:{cls.name}: {key} must be between -2^63 and 2^63, got {text!r}")
    return value


USABLE = [name for name in SOURCES.names() if not SOURCES.missing(name)]

CORPORA.add(
    "bayes",
    Kind(
        "bayes:NAME(options)",
        f"random text whose best possible loss is known: {', '.join(USABLE)}",
        source,
        examples=tuple(f"bayes:{name}" for name in USABLE),
        limit=lambda argument: parse_process(argument)[1],
        periods=periods,
    ),
)
