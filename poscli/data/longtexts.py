"""Encoding of long texts with the package `tokenizers`: in pieces, which together give the tokens of the whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE = 1 << 16  # characters of a long document that are encoded at once: pieces are encoded in parallel
BATCH = 64  # pieces whose tokens are held in memory as objects
CONTEXT = 64  # characters on either side of a cut on which it is tried
TRIALS = 16  # cuts that are tried before a piece is made longer

# Where most tokenizers begin a new token, whatever follows. What is white space beyond ASCII differs between them.
_CUT = re.compile(r"(?<=\w)(?=[ \t\n\r])|(?<=\S\n)(?=[^\s\x1c-\x1f])")


def encoded(backend: Any, text: str) -> NDArray[np.uint32]:
    """The token ids of a text; `backend` is a tokenizer of the package `tokenizers`."""
    parts, ids = list(pieces(backend, text)), [np.zeros(0, np.uint32)]
    for first in range(0, len(parts), BATCH):
        batch = backend.encode_batch_fast(parts[first : first + BATCH], add_special_tokens=False)
        ids += [np.array(each.ids, np.uint32) for each in batch]
    return np.concatenate(ids)


def pieces(backend: Any, text: str) -> Iterator[str]:
    """A text in pieces that together are encoded as the whole would be."""
    begin = 0
    while len(text) - begin > 2 * PIECE:
        end = _cut(backend, text, begin + PIECE)
        yield text[begin:end]
        begin = end
    yield text[begin:]


def _cut(backend: Any, text: str, first: int) -> int:
    """The first place from `first` on where the text can be cut, tried on the characters around it."""
    for begin in range(first, len(text), PIECE):
        for _, match in zip(range(TRIALS), _CUT.finditer(text, begin, begin + PIECE), strict=False):
            at = match.end()
            before, after = text[at - CONTEXT : at], text[at : at + CONTEXT]
            whole, left, right = backend.encode_batch_fast([before + after, before, after], add_special_tokens=False)
            if whole.ids == left.ids + right.ids:
                return at
    return len(text)
