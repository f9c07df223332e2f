"""What a kind of corpus provides: a canonical name, a stamp that changes with the contents, and documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

Part = Literal["train", "valid", "tune"]
PARTS: tuple[Part, ...] = get_args(Part)  # build.py says what each is for


class Document(NamedTuple):
    """The bytes of one document, and the split it belongs to if the source says so."""

    content: bytes
    part: Part | None = None


class Reading(NamedTuple):
    """The documents of a source, read one by one, and what identifies the version that is being read."""

    documents: Iterator[Document]
    origin: Mapping[str, str]  # such as {"revision": "0123abc"}; copied into the corpus


@dataclass(frozen=True)
class Source:
    """A corpus whose documents have not been read yet."""

    spec: str  # canonical: equal corpora have equal specs
    stamp: Any  # a JSON value that differs whenever the contents may differ, found without reading them
    read: Callable[[], Reading]  # each call reads anew; raises DataError, and so does iterating over the documents
    whole: bool = False  # nothing is set aside for training
    made_of: frozenset[str] = frozenset()  # the files or corpora that are read, if there is more to say than the spec
    split_of: str = ""  # the spec of the corpus that divides its documents; "" for itself

    def shows_held_out(self, trained_on: Source) -> bool:
        """Whether a model that was trained on another source may have seen what this one holds out for scoring.

        That is so where both read a common file, unless one corpus divides the documents of both, or a data set has a
        division of its own (`hf:`).
        """
        if not self.origins & trained_on.origins:
            return False
        both = [each.split_of or each.spec for each in (self, trained_on)]
        return self.whole or not (both[0] == both[1] or all(spec.startswith("hf:") for spec in both))

    @property
    def origins(self) -> frozenset[str]:
        """The files that are read, or the specs of corpora: two sources with a common one may share text."""
        return self.made_of or frozenset([self.spec.removeprefix("whole:")])
