"""The files that make up the tokenizer of a Hugging Face checkpoint."""

from __future__ import annotations

from collections.abc import Collection

# All of which transformers reads some; `tokenizer.json` alone holds a whole tokenizer.
TOKENIZER_FILES = frozenset(
    [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "vocab.txt",
        "tokenizer.model",
        "spiece.model",
        "sentencepiece.bpe.model",
    ]
)
_WHOLE = ("tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.txt")
_VOCABULARIES = (*({file} for file in _WHOLE), {"vocab.json", "merges.txt"})


def holds_tokenizer(files: Collection[str]) -> bool:
    """Whether files of these names hold a tokenizer."""
    return any(vocabulary <= set(files) for vocabulary in _VOCABULARIES)
