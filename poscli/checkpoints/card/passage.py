"""The passage that a probe reads: a fixed text in the checkpoint's own tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from poscli.checkpoints.architecture import Architecture
from poscli.system.errors import DataError

TOKENS = 64  # of the passage, or half of the trained length if that is shorter
TEXT = """\
The ferry left the island at six, an hour late, because the captain had waited for the doctor. Nobody on the quay knew
why the doctor was needed on the mainland, and the doctor did not say. The sea was calm, the passengers slept, and the
captain counted the lights of the coast: three red ones, then a white one, then the long dark stretch before the
harbour. When he had counted them twice and found one too few, he woke the doctor and asked what he had seen.
"""


def passage(folder: Path, architecture: Architecture) -> tuple[Tensor, str]:
    """Token ids `[1, T]`, and what they are in words.

    Without tokenizer.json the ids are spread over the vocabulary: a loss on them says nothing about language, and
    still must not move. DataError if the tokenizer has tokens that the model does not have.
    """
    count = min(TOKENS, max(2, architecture.length // 2))
    path = folder / "tokenizer.json"
    if not path.is_file():
        return torch.arange(count)[None] * 37 % architecture.vocab, f"{count} tokens spread over the vocabulary"
    from tokenizers import Tokenizer

    try:
        ids = Tokenizer.from_file(str(path)).encode(TEXT).ids[:count]
    except Exception as error:  # the package has no other class for whatever is wrong with the file
        raise DataError(f"{str(path)!r} is no tokenizer: {error}; download it again") from error
    if max(ids) >= architecture.vocab:
        raise DataError(
            f"{str(path)!r} has the token {max(ids)} and the model a vocabulary of {architecture.vocab}; use the "
            "tokenizer that belongs to the model"
        )
    return torch.tensor([ids]), f"{len(ids)} tokens of English"
