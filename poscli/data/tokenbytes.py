"""Which bytes of the original text each token of a Hugging Face tokenizer stands for.

Tokenizers spell their tokens in one of two ways:

    byte-level       every byte is a printable character: `Ġthe` is " the" (GPT-2, Llama 3, Qwen)
    SentencePiece    a space is `▁`, and a byte that no other token covers is `<0x0A>` (Llama 2, Gemma)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from poscli.system.errors import DataError

SPACE = "▁"

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))  # bytes that are characters of their own in Latin-1


def parts(section: Any) -> Iterator[dict[str, Any]]:
    """The parts of a section of tokenizer.json, those inside sequences included."""
    if not isinstance(section, dict):
        return
    if section.get("type") == "Sequence":
        for inner in next((section[key] for key in ("normalizers", "pretokenizers", "decoders") if key in section), []):
            yield from parts(inner)
    else:
        yield section


def byte_alphabet() -> dict[str, int]:
    """The character of every byte in byte-level tokenizers (Radford et al., 2019: the encoder of GPT-2).

    Bytes that are printable in Latin-1 are their own characters; the others, in their order, are those from U+0100 on.

    >>> byte_alphabet()["Ġ"], byte_alphabet()["A"]
    (32, 65)
    """
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    return {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(others)}


def is_byte_level(description: Mapping[str, Any]) -> bool:
    """Whether tokens are spelled in bytes; DataError if they are spelled in neither of the two ways."""
    kinds = {part["type"]: part for section in ("pre_tokenizer", "decoder") for part in parts(description.get(section))}
    if "ByteLevel" in kinds:
        return True
    replaced = [part.get("pattern", {}).get("String") for part in parts(description.get("decoder"))]
    if "Metaspace" in kinds or "ByteFallback" in kinds or SPACE in replaced:
        return False
    raise DataError(
        f"its tokens are neither byte-level nor SentencePiece's (decoder: {', '.join(kinds) or 'none'}), and do not "
        "say which bytes they stand for; poscli cannot count losses per byte with it"
    )


def bytes_of_tokens(vocabulary: Mapping[str, int], description: Mapping[str, Any]) -> list[bytes]:
    """The bytes of each token, by its id; b"" for ids without a token."""
    byte_level, alphabet = is_byte_level(description), byte_alphabet()
    added = {token["content"] for token in description.get("added_tokens", [])}
    fallback = bool(description["model"].get("byte_fallback"))
    found = [b""] * (max(vocabulary.values()) + 1)
    for token, number in vocabulary.items():
        if not byte_level:
            byte = _BYTE.fullmatch(token) if fallback else None
            found[number] = bytes.fromhex(byte[1]) if byte else token.replace(SPACE, " ").encode()
        elif token in added or not alphabet.keys() >= set(token):
            found[number] = token.encode()  # matched in the text as it stands
        else:
            found[number] = bytes(alphabet[sign] for sign in token)
    return found
