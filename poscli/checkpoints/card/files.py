"""What the JSON files of a checkpoint say about positions, as it stands there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from poscli.checkpoints.fields import Config
from poscli.checkpoints.weights import FETCH
from poscli.system.files import read_object

TOKENIZER = "tokenizer_config.json"
UNLIMITED = 10**15  # transformers writes 1e30 for a tokenizer without a limit


def tokenizer_limit(folder: Path) -> int | None:
    """`model_max_length` of tokenizer_config.json: the tokens that the tokenizer lets through; None for no limit."""
    if not (folder / TOKENIZER).is_file():
        return None
    limit = read_object(folder / TOKENIZER, FETCH).get("model_max_length")
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
