"""What a kind of corpus provides: a name, a state that changes with its contents, and its documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Part = Literal["train", "valid"]


class Document(NamedTuple):
    """One document: its bytes, and the part it belongs to where the source has a split of its own."""

    content: bytes
    part: Part | None = None


class Reading(NamedTuple):
    """Documents about to be read, and what names their version."""

    documents: Iterator[Document]
    origin: Mapping[str, str]


@dataclass(frozen=True)
class Source:
    """A corpus that has been named and not yet read."""

    spec: str  # canonical
    state: Any  # JSON: differs whenever the contents may differ; found without reading them
    read: Callable[[], Reading]  # raises DataError, also while the documents are read
