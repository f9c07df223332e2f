"""`hf:DIR`, `hf:ORG/NAME@REVISION`: the tokenizer of a Hugging Face checkpoint.

It encodes as the checkpoint's own tokenizer does, with three exceptions, so that no byte of a text is lost:

    special tokens      that occur literally in a text are text, as any other characters are
    NFC                 a text that is not normalised is encoded as it stands; one that is, is encoded alike
    several parts       if the tokenizer cuts a text at tokens of its own, only the first part begins with a space

A document whose tokens would not stand for exactly its bytes is an error: one that is not UTF-8, or that the tokenizer
changes, such as a `▁` in a text, which SentencePiece takes for a space.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poscli.data.tokenizer_json import (
    FETCH,
    SPACE,
    TokenizerFiles,
    bytes_of_tokens,
    encoded,
    parts,
    read_tokenizer,
    token_text,
)
from poscli.data.tokenizers import TOKENIZERS, Tokenizer
from poscli.system.errors import CorruptError, DataError, UsageError
from poscli.system.text import printable_line

RULE = 1  # increase it when this file encodes differently


class HuggingFace(Tokenizer):
    """The tokenizer of a checkpoint.

    `end` is the token that the tokenizer itself puts in front of a text, and then `opens` is true; else it is the
    end-of-text token.
    """

    summary = "the tokenizer of a Hugging Face checkpoint: hf:DIR or hf:ORG/NAME@REVISION"
    argument = "DIR or ORG/NAME[@REVISION]"

    def __init__(self, argument: str) -> None:
        files = read_tokenizer(argument)
        self._source = files.name
        self._conditional = self._always = False  # whether a space leads a text that does not begin with one, or any
        self._backend = self._made(files)
        self.end, self.opens = _opening(files, self._backend)
        self._backend.encode_special_tokens = True
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        try:
            self._bytes = bytes_of_tokens(vocabulary, files.description)
        except DataError as error:
            raise DataError(f"{self._source}: {error}") from error
        self._bytes[self.end] = b""
        self.token_bytes = np.array([len(each) for each in self._bytes], np.int64)
        self.fingerprint = f"hf{RULE}-{files.digest[:16]}-{self.end}{'-opens' * self.opens}"

    def lead(self, content: bytes) -> bytes:
        leads = bool(content) and (self._always or (self._conditional and not content.startswith(b" ")))
        return b" " if leads else b""

    def encode(self, content: bytes) -> NDArray[np.uint32]:
        whole = self.lead(content) + content
        try:
            text = whole.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self._source} reads UTF-8 only, and a document of {len(content)} bytes is not: {error.reason} at "
                f"byte {error.start}; use --tokenizer bytes, or leave the document out"
            ) from error
        tokens = encoded(self._backend, text)
        self._check(tokens, whole, len(whole) - len(content))
        return tokens

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> bytes:
        return b"".join([self._bytes[number] for number in np.asarray(ids, np.int64).tolist()])

    def _made(self, files: TokenizerFiles) -> Any:
        """The tokenizer of the package `tokenizers`, without what would lose or add bytes or tokens."""
        from tokenizers import Tokenizer as Backend

        description = files.description | {"truncation": None, "padding": None}
        description["normalizer"] = self._lossless(description.get("normalizer"))
        for part in parts(description.get("pre_tokenizer")):
            if part["type"] == "Metaspace":
                older = "always" if part.pop("add_prefix_space", True) else "never"
                self._conditional |= part.get("prepend_scheme", older) != "never"
                part["prepend_scheme"] = "never"
            elif part["type"] == "ByteLevel":
                self._conditional |= part.get("add_prefix_space", True)
                part["add_prefix_space"] = False
        try:
            return Backend.from_str(json.dumps(description))
        except Exception as error:  # the package raises nothing more specific
            reason = printable_line(error)[:300]
            raise CorruptError(f"{files.name}: its tokenizer.json cannot be read ({reason}); {FETCH}") from error

    def _lossless(self, normalizer: Any) -> Any:
        """A normalizer without NFC, and without the space in front of texts, which `lead` puts there."""
        kept = []
        for part in parts(normalizer):
            if part["type"] == "Prepend" and part.get("prepend") == SPACE:
                self._always = True
            elif part["type"] != "NFC":
                kept.append(part)
        return {"type": "Sequence", "normalizers": kept} if kept else None

    def _check(self, tokens: NDArray[np.uint32], whole: bytes, lead: int) -> None:
        """DataError if tokens do not stand for a document with the `lead` bytes in front of it."""
        made = self.decode(tokens)
        if made != whole:
            at = next(
                (n for n, (a, b) in enumerate(zip(made, whole, strict=False)) if a != b), min(len(made), len(whole))
            )
            raise DataError(
                f"{self._source} changes a document of {len(whole) - lead} bytes: {whole[at : at + 12]!r} at byte "
                f"{max(at - lead, 0)} becomes {made[at : at + 12]!r}, and losses per byte would be wrong; use another "
                "corpus or tokenizer"
            )


def _opening(files: TokenizerFiles, backend: Any) -> tuple[int, bool]:
    """The token that opens documents, and whether the tokenizer itself puts it in front of every text."""
    plain, whole = (backend.encode("a", add_special_tokens=special).ids for special in (False, True))
    front: list[int] = next((whole[:at] for at in range(len(whole)) if whole[at : at + len(plain)] == plain), [])
    named = {key: backend.token_to_id(token_text(files.settings.get(key)) or "") for key in ("bos_token", "eos_token")}
    if files.settings.get("add_bos_token") is False:
        front = []
    elif files.settings.get("add_bos_token") and named["bos_token"] is not None:
        front = [named["bos_token"]]
    if len(front) > 1:
        raise DataError(
            f"{files.name} puts {len(front)} tokens in front of every text, and poscli has room for one; use a "
            "checkpoint with one or none"
        )
    if front:
        return front[0], True
    stated = files.settings.get("eos_token_id")
    ends = [named["eos_token"], *(stated if isinstance(stated, list) else [stated])]
    end = next((each for each in ends if isinstance(each, int) and backend.id_to_token(each) is not None), None)
    if end is None:
        raise UsageError(
            f"{files.name} states no token that opens or ends a text, and poscli opens documents with one; state "
            "eos_token in its tokenizer_config.json"
        )
    return end, False


TOKENIZERS.add("hf", HuggingFace, needs=("tokenizers", "hf"))
