"""What a person pastes to run a checkpoint under another encoding, and the reason where a program has no such key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Keys = dict[str, Any]  # of a config.json; the value None removes a key that would contradict the others


class Inexpressible(Exception):
    """A program has no setting for what a spec asks; the message is one sentence that says what to do."""


@dataclass(frozen=True)
class Snippet:
    """What to paste for one program. Without a text, `reason` says why it cannot be done there."""

    runtime: str  # the program, such as "vLLM"
    action: str = ""  # what to do with the text
    text: str = ""
    notes: tuple[str, ...] = ()
    reason: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)  # of config.json, where the text consists of them

    def record(self) -> dict[str, Any]:
        """The snippet for a JSON document."""
        return asdict(self)


def merged(config: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json with the keys of a snippet put into it."""
    return {key: value for key, value in {**config, **keys}.items() if value is not None or key not in keys}


def json_lines(keys: Mapping[str, Any]) -> str:
    """Keys as JSON, one line for each, so that lists of many numbers stay short."""
    inside = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in keys.items())
    return f"{{\n{inside}\n}}"
