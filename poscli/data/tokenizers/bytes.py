"""`bytes`: every byte is a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poscli.data.tokenizers import TOKENIZERS, Tokenizer

END = 256
VOCAB = 257


@TOKENIZERS.register("bytes")
class Bytes(Tokenizer):
    """Token n is byte n for n below 256, and token 256 opens documents.

    >>> Bytes().encode(b"Hi").tolist(), Bytes().decode([256, 72, 105])
    ([72, 105], b'Hi')
    """

    summary = "every byte is a token, so that no text is out of vocabulary"
    end = END
    fingerprint = ""
    token_bytes = np.array([1] * END + [0])

    def encode(self, content: bytes) -> NDArray[np.uint8]:
        return np.frombuffer(content, np.uint8)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> bytes:
        tokens = np.asarray(ids)
        return tokens[tokens != END].astype(np.uint8).tobytes()
