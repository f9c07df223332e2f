"""The files that make up the tokenizer of a Hugging Face checkpoint, and reading them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poscli.data.hub import GRAMMAR, HubModel, open_repository
from poscli.system.errors import DataError, UsageError
from poscli.system.files import parse_object
from poscli.system.text import printable, printable_line

DESCRIPTION = "tokenizer.json"  # holds a whole tokenizer, in the format of the package `tokenizers`
SETTINGS, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"
CONFIG = "config.json"  # of the model
FETCH = "delete it and fetch it again"

_WHOLE = (DESCRIPTION, "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.txt")
_VOCABULARIES = (*({file} for file in _WHOLE), {"vocab.json", "merges.txt"})
TOKENIZER_FILES = frozenset({SETTINGS, SPECIAL, "added_tokens.json"}.union(*_VOCABULARIES))


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
        content, own = _converted(argument, folder)
        settings = own | settings
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
    found: dict[str, Any] = {}
    for name, keys in wanted.items():
        path = folder / name
        stated = parse_object(path.read_bytes(), path, FETCH) if path.is_file() else {}
        found |= {key: stated[key] for key in keys if stated.get(key) is not None}
    return found


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
