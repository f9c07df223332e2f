"""Tokenizers in the format of tokenizer.json: reading the files, the bytes of each token, and encoding long texts."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poscli.data.hub import GRAMMAR, HubModel, open_repository
from poscli.system.errors import DataError, UsageError
from poscli.system.files import parse_object
from poscli.system.text import printable, printable_line

DESCRIPTION = "tokenizer.json"  # holds a whole tokenizer, in the format of the package `tokenizers`
SETTINGS, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"
CONFIG = "config.json"  # of the model
FETCH = "delete it and fetch it again"
LARGEST_NUMBER = 2**24  # of a token; the largest vocabularies have 2**18

_WHOLE = (DESCRIPTION, "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.txt")
_VOCABULARIES = (*({file} for file in _WHOLE), {"vocab.json", "merges.txt"})
TOKENIZER_FILES = frozenset({SETTINGS, SPECIAL, "added_tokens.json"}.union(*_VOCABULARIES))

# Tokenizers spell their tokens in one of two ways:
#
#     byte-level       every byte is a printable character: `Ġthe` is " the" (GPT-2, Llama 3, Qwen)
#     SentencePiece    a space is `▁`, and a byte that no other token covers is `<0x0A>` (Llama 2, Gemma)
SPACE = "▁"

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))  # bytes that are characters of their own in Latin-1

PIECE = 1 << 16  # characters of a long document that are encoded at once: pieces are encoded in parallel
BATCH = 64  # pieces whose tokens are held in memory as objects
CONTEXT = 64  # characters on either side of a cut on which it is tried
TRIALS = 16  # cuts that are tried before a piece is made longer

# Where most tokenizers begin a new token, whatever follows. What is white space beyond ASCII differs between them.
_CUT = re.compile(r"(?<=\w)(?=[ \t\n\r])|(?<=\S\n)(?=[^\s\x1c-\x1f])")


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer as it was read."""

    name: str  # for messages
    description: dict[str, Any]  # in the format of tokenizer.json
    settings: dict[str, Any]  # eos_token, bos_token, add_bos_token, eos_token_id, where they are stated
    digest: str  # a SHA-256 of the description and the settings


def holds_tokenizer(files: Collection[str]) -> bool:
    """Whether files of these names hold a tokenizer."""
    return any(vocabulary <= set(files) for vocabulary in _VOCABULARIES)


def read_tokenizer(argument: str) -> TokenizerFiles:
    """The tokenizer of a folder or of a repository of the hub.

    UsageError if the argument is neither, DataError if the folder is missing or holds no tokenizer that can be read.
    """
    folder = _folder(argument)
    settings = _settings(folder)
    path = folder / DESCRIPTION
    if path.is_file():
        content = path.read_bytes()
    else:
        content, named = _converted(argument, folder)
        settings = named | settings
    digest = hashlib.sha256(content)
    digest.update(json.dumps(settings, sort_keys=True).encode())
    return TokenizerFiles(f"hf:{argument}", parse_object(content, path, FETCH), settings, digest.hexdigest())


def token_text(token: Any) -> str | None:
    """The text of a token of the settings, which is a string or an object that holds it."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _folder(argument: str) -> Path:
    """The folder that holds the files, downloaded if need be."""
    try:
        folder = Path(argument).expanduser()
        if folder.is_dir():
            return folder.resolve()
        absolute = folder.is_absolute()
    except (OSError, RuntimeError, ValueError) as error:  # links that form a loop, ~USER without such a user, a NUL
        raise DataError(f"cannot find {printable(argument)}: {error}; check the path") from error
    if absolute:
        raise DataError(
            f"there is no folder {printable(argument)} with a tokenizer; check the path, or put back what was there"
        )
    try:
        name = HubModel.parse(argument)
    except UsageError as error:
        raise UsageError(f"'hf:{argument}' names no folder, and no repository as {GRAMMAR}; check the path") from error
    repository = open_repository(name)
    if not holds_tokenizer(repository.files):
        raise DataError(f"{repository.name} holds no tokenizer; name that of the model it was made from")
    return repository.fetch((TOKENIZER_FILES | {CONFIG}) & repository.files)


def _settings(folder: Path) -> dict[str, Any]:
    """What the files beside the vocabulary state about the tokens that open and close texts."""
    wanted = {CONFIG: ("eos_token_id",), SPECIAL: ("bos_token", "eos_token")}
    wanted[SETTINGS] = ("bos_token", "eos_token", "add_bos_token")  # the last one wins
    settings: dict[str, Any] = {}
    for name, keys in wanted.items():
        path = folder / name
        stated = parse_object(path.read_bytes(), path, FETCH) if path.is_file() else {}
        settings |= {key: stated[key] for key in keys if stated.get(key) is not None}
    return settings


def _converted(argument: str, folder: Path) -> tuple[bytes, dict[str, Any]]:
    """The tokenizer of a folder without tokenizer.json, as transformers converts it, and the tokens that it names."""
    if not holds_tokenizer({path.name for path in folder.iterdir()}):
        raise DataError(f"hf:{argument}: {folder} holds no {DESCRIPTION} and no other vocabulary; name a checkpoint")
    if importlib.util.find_spec("transformers") is None:
        raise UsageError(f"hf:{argument} has no {DESCRIPTION} and needs transformers: pip install 'poscli[hf]'")
    import transformers

    try:
        made: Any = transformers.AutoTokenizer.from_pretrained(
            folder, use_fast=True, trust_remote_code=False, local_files_only=True
        )
        content = made.backend_tokenizer.to_str().encode()
    except Exception as error:  # there are many kinds, and the package `tokenizers` raises no other
        raise DataError(
            f"hf:{argument} has no {DESCRIPTION}, and transformers {transformers.__version__} cannot convert its "
            f"vocabulary: {printable_line(error)[:300]}; save it once with a fast tokenizer's save_pretrained"
        ) from error
    return content, {"bos_token": made.bos_token, "eos_token": made.eos_token}


def parts(section: Any) -> Iterator[dict[str, Any]]:
    """The parts of a section of tokenizer.json, those inside sequences included."""
    if not isinstance(section, dict):
        return
    if section.get("type") == "Sequence":
        inside: Any = next((section[key] for key in ("normalizers", "pretokenizers", "decoders") if key in section), [])
        for inner in inside if isinstance(inside, list) else []:
            yield from parts(inner)
    elif isinstance(section.get("type"), str):  # the package `tokenizers` refuses a part that has none
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
    if (most := max(vocabulary.values())) > LARGEST_NUMBER:
        raise DataError(f"it gives a token the number {most}, and at most {LARGEST_NUMBER} is taken; {FETCH}")
    contents = [b""] * (most + 1)
    for token, number in vocabulary.items():
        if not byte_level:
            byte = _BYTE.fullmatch(token) if fallback else None
            contents[number] = bytes.fromhex(byte[1]) if byte else token.replace(SPACE, " ").encode()
        elif token in added or not alphabet.keys() >= set(token):
            contents[number] = token.encode()  # matched in the text as it stands
        else:
            contents[number] = bytes(alphabet[sign] for sign in token)
    return contents


def encoded(backend: Any, text: str) -> NDArray[np.uint32]:
    """The token ids of a text; `backend` is a tokenizer of the package `tokenizers`."""
    parts, ids = list(text_pieces(backend, text)), [np.zeros(0, np.uint32)]
    for first in range(0, len(parts), BATCH):
        batch = backend.encode_batch_fast(parts[first : first + BATCH], add_special_tokens=False)
        ids += [np.array(each.ids, np.uint32) for each in batch]
    return np.concatenate(ids)


def text_pieces(backend: Any, text: str) -> Iterator[str]:
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
