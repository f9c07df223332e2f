"""The kinds of corpora: the one table behind `--corpus` and `poscli ls corpora`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from poscli.data import hub, hubspec, rows, stdlib, text
from poscli.data.source import Source
from poscli.errors import UsageError, near


def _always() -> str:
    return ""


@dataclass(frozen=True)
class Kind:
    """A kind of corpus: how it is spelt, what it is, and how to name its source."""

    grammar: str
    about: str
    source: Callable[[str], Source]  # of what follows the colon
    available: Callable[[], str] = _always  # '' if it can be used here, else why not


CORPORA: dict[str, Kind] = {
    "stdlib": Kind("stdlib", "the running Python's own library source, about 7 MB", stdlib.source, stdlib.available),
    "text": Kind("text:PATH", "UTF-8 text: a file, a folder or a pattern; one document per file", text.source),
    "jsonl": Kind("jsonl:PATH[#FIELD]", "one JSON object per line; one document per line", rows.jsonl),
    "parquet": Kind("parquet:PATH[#COLUMN]", "parquet files; one document per row", rows.parquet),
    "hf": Kind(hubspec.GRAMMAR, "a data set of the Hugging Face hub; streamed with ?bytes=", hub.source, hub.available),
}


def named(spec: str) -> Source:
    """The source that a spec names; UsageError if it is not a spec."""
    name, _, argument = spec.partition(":")
    if name not in CORPORA:
        raise UsageError(f"unknown corpus {spec!r}: {_meant(spec, name)}")
    kind = CORPORA[name]
    if bool(argument) != (":" in kind.grammar):
        raise UsageError(f"{spec!r} is not of the form {kind.grammar}")
    return kind.source(argument)


def _meant(spec: str, name: str) -> str:
    if os.path.exists(spec):  # noqa: PTH110 - unlike Path.exists, it takes any string
        return f"to read this path, write text:{spec}"
    return near(name, [*CORPORA, *(f"hf:{alias}" for alias in hubspec.ALIASES)])
