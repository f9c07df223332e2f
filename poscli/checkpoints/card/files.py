"""The files of a checkpoint that say something about its positions: config.json, and one number of the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from poscli.checkpoints.fields import Config
from poscli.system.errors import DataError

CONFIG, TOKENIZER = "config.json", "tokenizer_config.json"
UNLIMITED = 10**15  # transformers writes 1e30 for a tokenizer without a limit


def read_config(folder: Path) -> dict[str, Any]:
    """The content of a checkpoint's config.json; DataError, in one line, if there is none or it is no object."""
    if not folder.is_dir():
        raise DataError(f"{str(folder)!r} is no folder; give the folder of a checkpoint, which has a {CONFIG}")
    if not (folder / CONFIG).is_file():
        raise DataError(f"{str(folder)!r} has no {CONFIG}, so it is no checkpoint; give a folder that has one")
    return _object(folder / CONFIG)


def tokenizer_limit(folder: Path) -> int | None:
    """`model_max_length` of tokenizer_config.json: the tokens that the tokenizer lets through; None for no limit."""
    if not (folder / TOKENIZER).is_file():
        return None
    limit = _object(folder / TOKENIZER).get("model_max_length")
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 1 <= limit < UNLIMITED:
        return None
    return int(limit)


def rope_dictionaries(config: Config) -> dict[str, dict[str, Any]]:
    """Every object with parameters of rope in config.json, by the name under which it stands.

    transformers 4 has `rope_scaling`, version 5 `rope_parameters`, which may hold one object for each type of layer.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in ("rope_scaling", "rope_parameters"):
        given = config.get(name)
        if not isinstance(given, dict):
            continue
        nested = {key: value for key, value in given.items() if isinstance(value, dict)}
        found |= {f"{name}.{key}": value for key, value in nested.items()}
        if flat := {key: value for key, value in given.items() if key not in nested}:
            found[name] = flat
    return found


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{str(path)!r} cannot be read as JSON: {error}; download it again") from error
    if not isinstance(content, dict):
        raise DataError(
            f"{str(path)!r} holds a {type(content).__name__}, and it must hold an object; download it again"
        )
    return content
