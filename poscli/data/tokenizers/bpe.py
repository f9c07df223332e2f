"""`bpe:SIZE`: byte pair encoding, trained on the training text of the corpus.

Training begins with the 256 bytes and joins, again and again, the two neighbouring tokens that occur most often
together into a new token (Sennrich et al., 2016, arXiv:1508.07909). Tokens are joined within words only, which are cut
out as GPT-2 does (Radford et al., 2019). Every sequence of bytes can be encoded, as at worst each byte is a token.

    token n below 256       byte n
    tokens from 256 on      joined tokens, in the order in which they were learned
    the last token          `end`, which opens documents; it is not counted in SIZE

What was learned is kept as a tokenizer.json of the package `tokenizers`, which does the training and the encoding.
Bytes that are not UTF-8 are a token each, because that package takes only text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from poscli.data.tokenizer_json import PIECE, byte_alphabet, encoded
from poscli.data.tokenizers import TOKENIZERS, TrainedTokenizer
from poscli.system.errors import UsageError

RULE = 1  # increase it when this file trains or encodes differently
BYTES = 256
LARGEST = 2**18  # the largest vocabularies that are published have this many tokens (Gemma)
FEWEST = 2  # times that two tokens must occur together to be joined
MOST_BYTES = 2**26  # of text that are read in training: half a minute; documents come in the order of their SHA-256
END = "<|endoftext|>"

_NOT_UTF8 = re.compile("([\udc80-\udcff]+)")  # how `surrogateescape` decodes bytes that are not UTF-8
_WORDS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


class BytePairs(TrainedTokenizer):
    """Byte pair encoding with a vocabulary of `argument` tokens, fewer if the text has fewer pairs."""

    summary = "byte pair encoding, trained on the corpus's training text: bpe:4096 has 4096 tokens"
    argument = "SIZE"

    def __init__(self, argument: str) -> None:
        if not re.fullmatch("[1-9][0-9]*", argument) or not BYTES <= int(argument[:9]) <= LARGEST:
            raise UsageError(
                f"'bpe:{argument}': the size of the vocabulary is a whole number from {BYTES}, which are the bytes, to "
                f"{LARGEST}; give bpe:4096"
            )
        self.size = int(argument)
        self._bytes: list[bytes] = []  # of every token, once it is trained
        self.fingerprint = f"bpe{RULE} {self.size}"

    def train(self, documents: Iterable[bytes]) -> bytes:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=self.size, min_frequency=FEWEST, show_progress=False, initial_alphabet=list(byte_alphabet())
        )
        backend.train_from_iterator(_texts(documents), trainer)
        learned = json.loads(backend.to_str())["model"]
        alphabet = byte_alphabet()
        joined = sorted((number, token) for token, number in learned["vocab"].items() if token not in alphabet)
        numbers = alphabet | {token: BYTES + n for n, (_, token) in enumerate(joined)}
        return json.dumps(_description(numbers, learned["merges"]), separators=(",", ":")).encode()

    def trained(self, content: bytes) -> Self:
        numbers, alphabet = json.loads(content)["model"]["vocab"], byte_alphabet()
        made = type(self)(str(self.size))
        made.name = self.name
        made.content, made.end = content, len(numbers)
        made.fingerprint = f"bpe{RULE}-{hashlib.sha256(content).hexdigest()[:16]}"
        made._bytes = [b""] * (len(numbers) + 1)
        for token, number in numbers.items():
            made._bytes[number] = bytes(alphabet[sign] for sign in token)
        made.token_bytes = np.array([len(each) for each in made._bytes], np.int64)
        return made

    @property
    def shortage(self) -> str:
        if (tokens := self.vocab - 1) == self.size:
            return ""
        return (
            f"{self.name} has only {tokens} tokens: no further pair occurs {FEWEST} times in the training text; add "
            f"text, or give bpe:{tokens}"
        )

    def encode(self, content: bytes) -> NDArray[np.uint32]:
        ids = [np.zeros(0, np.uint32)]
        for n, part in enumerate(_NOT_UTF8.split(content.decode("utf-8", "surrogateescape"))):
            if n % 2:  # every second part is what separates the others
                ids.append(np.frombuffer(part.encode("utf-8", "surrogateescape"), np.uint8).astype(np.uint32))
            elif part:
                ids.append(encoded(self._backend, part))
        return np.concatenate(ids)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> bytes:
        return b"".join([self._bytes[number] for number in np.asarray(ids, np.int64).tolist()])

    @cached_property
    def _backend(self) -> Any:
        from tokenizers import Tokenizer

        backend = Tokenizer.from_str(self.content.decode())
        backend.encode_special_tokens = True  # END in a text is text
        return backend


def _texts(documents: Iterable[bytes]) -> Iterator[str]:
    """Documents as texts of at most PIECE characters, cut at bytes that are not UTF-8, up to MOST_BYTES in all."""
    left = MOST_BYTES
    for document in documents:
        for text in _NOT_UTF8.split(document[:left].decode("utf-8", "surrogateescape"))[::2]:
            yield from (text[first : first + PIECE] for first in range(0, len(text), PIECE))
        left -= len(document)
        if left <= 0:
            return


def _description(numbers: dict[str, int], merges: list[Any]) -> dict[str, Any]:
    """A tokenizer.json, from the number of each token, and from the pairs that are joined, the first one first."""
    kinds = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    end = {"id": len(numbers), "content": END, **kinds, "special": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "vocab": numbers, "merges": merges}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end],
        "normalizer": None,
        "pre_tokenizer": _WORDS,
        "post_processor": None,
        "decoder": _WORDS,
        "model": model,
    }


TOKENIZERS.add("bpe", BytePairs, needs=("tokenizers", "bpe"))
