"""`panel[:CORPUS]`: code, prose, records and echo, all of one corpus of Python source, by default `code`.

A model that has seen exact copies at many distances (`echo`) learns to copy, and then uses the context of the other
three texts as well: docs/RECIPE.md has the measurements. Every module gives prose and records, every fourth its source
and every eighth its source with passages repeated, so that the four texts have sizes of the same order.

What is made of one module is all for training, all scored or all for tuning, as the module itself is in the corpus and
in `prose`, `records` and `echo` of it: a model that was trained on `panel` has seen nothing of what any of them holds
out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from poscli.data.corpora import CORPORA, Kind, derived_source
from poscli.data.corpora.echo import VERSION as ECHO
from poscli.data.corpora.echo import echoed
from poscli.data.corpora.prose import PYTHON, docstrings
from poscli.data.corpora.prose import VERSION as PROSE
from poscli.data.corpora.records import VERSION as RECORDS
from poscli.data.corpora.records import function_records
from poscli.data.source import Document, Source

# What is made of a module, and of every how manieth.
TEXTS: tuple[tuple[Callable[[bytes], bytes], int], ...] = (
    (docstrings, 1),
    (function_records, 1),
    (bytes, 4),
    (echoed, 8),
)


def source(argument: str = "") -> Source:
    """The corpus `panel[:CORPUS]`."""
    return derived_source("panel", argument, [ECHO, PROSE, RECORDS, *PYTHON, [every for _, every in TEXTS]], _made_of)


def _made_of(modules: Iterator[Document]) -> Iterator[Document]:
    for content, part in modules:
        drawn = int.from_bytes(hashlib.sha256(b"panel" + content).digest()[:4], "big")
        for change, every in TEXTS:
            if drawn % every == 0 and (text := change(content)):
                yield Document(text, part)


CORPORA.add("panel", Kind("panel[:CORPUS]", "code, prose, records and echo together, to learn to copy from", source))
