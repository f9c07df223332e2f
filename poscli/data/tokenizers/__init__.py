"""Tokenizers: how the bytes of a document become token ids, and back.

Each file of this package is one tokenizer and registers its class. Other packages offer theirs through the entry-point
group `poscli.data.tokenizers`. A spec is a name (`bytes`), a name with an argument (`NAME:ARGUMENT`), or, for a class
that is registered nowhere, `package.module:Class`. A `TrainedTokenizer` learns its tokens from the training text of a
corpus.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from poscli.system.errors import UsageError
from poscli.system.registry import Registry, subclass_of

TRAINED = "tokenizer.json"  # the file of what a trained tokenizer has learned, in the cache and in a run's folder


class Tokenizer(ABC):
    """A lossless mapping from bytes to token ids.

    For every document x, `decode(encode(x)) == lead(x) + x` and `token_bytes[encode(x)].sum() == len(lead(x) + x)`;
    building a corpus checks the second, because losses per byte depend on it.
    """

    name: str = ""  # the spec, argument included; the function `tokenizer` sets it
    summary: ClassVar[str] = ""  # one line for `poscli ls tokenizers`
    argument: ClassVar[str] = ""  # what a spec must hold after the colon, such as "PATH"; "" if it takes no argument
    end: int  # id of the token that opens every document
    opens: bool = False  # whether models were trained with `end` in front of every text, wherever it was cut
    fingerprint: str  # hash of everything that decides the encoding; "" for the tokenizer `bytes` only
    token_bytes: NDArray[np.int64]  # [vocab]: bytes of the original text that each token stands for; 0 for `end`

    def __init__(self, argument: str = "") -> None:  # noqa: B027 - without an argument there is nothing to construct
        """`argument` is what follows the colon in the spec."""

    def __eq__(self, other: object) -> bool:
        """Equal tokenizers encode every document alike, so that a corpus is opened once for the models of a suite."""
        return isinstance(other, Tokenizer) and (type(self), self.fingerprint) == (type(other), other.fingerprint)

    def __hash__(self) -> int:
        return hash((type(self), self.fingerprint))

    @property
    def vocab(self) -> int:
        """Number of tokens, `end` included."""
        return len(self.token_bytes)

    def lead(self, content: bytes) -> bytes:
        """What `encode` puts in front of a document before it looks for tokens, usually nothing.

        SentencePiece's tokenizers put a space there. It is not a part of the text, so that the size of a document, and
        with it every loss per byte, leaves it out; only the document's first token is taken for a byte longer.
        """
        return b""

    @abstractmethod
    def encode(self, content: bytes) -> NDArray[Any]:
        """Token ids `[tokens]` of a document, of any integer type, without `end`."""

    @abstractmethod
    def decode(self, ids: Sequence[int] | NDArray[Any]) -> bytes:
        """The bytes that token ids stand for; `end` stands for none."""


class TrainedTokenizer(Tokenizer):
    """A tokenizer whose tokens are learned from the training split of a corpus.

    The function `tokenizer` returns it untrained: it can only `train`, and its fingerprint is that of how it is
    trained. Of a trained one the fingerprint is that of `content`.
    """

    content: bytes = b""  # of the file that holds what it has learned; empty before training

    @abstractmethod
    def train(self, documents: Iterable[bytes]) -> bytes:
        """The content of the file that holds what is learned from documents; equal documents give equal bytes."""

    @abstractmethod
    def trained(self, content: bytes) -> Self:
        """A copy that has learned what `train` returned; ValueError if that did not return the content."""

    @property
    def shortage(self) -> str:
        """Why a trained tokenizer has fewer tokens than were asked for, in one line; "" if it has all of them."""
        return ""


TOKENIZERS: Registry[type[Tokenizer]] = Registry("tokenizer", __name__, subclass_of(Tokenizer))


def tokenizer(spec: str) -> Tokenizer:
    """The tokenizer that a spec names; UsageError if there is none, or if its argument is missing or unwanted."""
    cls, (name, colon, argument) = tokenizer_class(spec), spec.partition(":")
    if name not in TOKENIZERS.names():
        made = cls()
    else:
        if not argument if cls.argument else colon:
            raise UsageError(f"{spec!r} is not of the form {name}{cls.argument and ':' + cls.argument}")
        made = cls(argument) if argument else cls()
    made.name = spec
    return made


def tokenizer_class(spec: str) -> type[Tokenizer]:
    """The class of the tokenizer that a spec names; UsageError if there is none, which suggests similar names."""
    name = spec.partition(":")[0]
    if name in TOKENIZERS.names():
        return TOKENIZERS.get(name)
    try:
        return TOKENIZERS.get(spec)
    except UsageError as error:
        if ":" in spec and (close := difflib.get_close_matches(name.lower(), TOKENIZERS.names(), n=1)):
            form = close[0] + spec[len(name) :]
            raise UsageError(f"there is no tokenizer {spec!r}: did you mean {form}? ({error})") from error
        raise
