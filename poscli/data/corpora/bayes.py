"""`bayes:NAME(options)`: text of a random process whose best possible loss is known; known_limit/ has the processes."""

from __future__ import annotations

from collections.abc import Iterator

from poscli.data.corpora import CORPORA, Kind, Optimum
from poscli.data.known_limit import SOURCES, KnownLimit
from poscli.data.known_limit.draw import Draw
from poscli.data.known_limit.spec import parse
from poscli.data.source import Document, Reading, Source

TRAINING_DOCUMENTS = 512  # 8 million tokens of 16 KiB documents: more than a tiny model is trained on
HELD_OUT_DOCUMENTS = 64  # enough for a bootstrap over documents


def source(argument: str) -> Source:
    """The corpus `bayes:NAME(options)`."""
    name, process = parse(argument)
    spec = f"bayes:{name}"
    stamp = [process.version, TRAINING_DOCUMENTS, HELD_OUT_DOCUMENTS]
    return Source(spec, stamp, lambda: Reading(_documents(spec, process), {"version": str(process.version)}))


def optimum(argument: str) -> Optimum:
    """The best possible loss of the corpus `bayes:NAME(options)`."""
    return parse(argument)[1].optimum


def _documents(spec: str, process: KnownLimit) -> Iterator[Document]:
    for number in range(HELD_OUT_DOCUMENTS + TRAINING_DOCUMENTS):
        draw = Draw(f"{spec} version {process.version}", number)
        yield Document(process.document(draw), "valid" if number < HELD_OUT_DOCUMENTS else "train")


USABLE = [name for name in SOURCES.names() if not SOURCES.missing(name)]

CORPORA.add(
    "bayes",
    Kind(
        "bayes:NAME(options)",
        f"random text whose best possible loss is known: {', '.join(USABLE)}",
        source,
        examples=tuple(f"bayes:{name}" for name in USABLE),
        optimum=optimum,
    ),
)
