"""Options that several commands share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from poscli.errors import UsageError

Out = Annotated[Path, typer.Option("--out", help="Folder of runs and reports.", show_default=True)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
MaxLen = Annotated[
    int | None, typer.Option("--max-len", help="Longest evaluation window, in tokens. [16 x the training length]")
]
Budget = Annotated[
    str, typer.Option("--tokens", help="Tokens scored per length and protocol; 4k and 1M are understood.")
]
Stride = Annotated[int | None, typer.Option("--stride", help="Tokens between sliding windows. [128, or half of L]")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Score a few hundred tokens only: does it run at all?")]


def count(text: str | int, option: str) -> int:
    """A number of tokens as people write it.

    >>> count("2M", "--tokens"), count("500k", "--tokens"), count("4096", "--tokens")
    (2000000, 500000, 4096)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", str(text).strip())
    if not match:
        raise UsageError(f"{option} {text!r} is no number of tokens; write 4096, 500k or 2M")
    value = float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[match[2].lower()]
    if value < 1 or value != int(value):
        raise UsageError(f"{option} {text!r} must be a whole number of tokens, at least 1")
    return int(value)


def assignments(pairs: list[str], option: str) -> dict[str, float]:
    """`key=value` pairs with numbers.

    >>> assignments(["matrix_lr=0.02"], "--set")
    {'matrix_lr': 0.02}
    """
    values = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        try:
            values[key.strip()] = float(value)
        except ValueError as error:
            raise UsageError(f"{option} {pair!r}: write key=number, such as {option} matrix_lr=0.02") from error
        if not sign or not key.strip():
            raise UsageError(f"{option} {pair!r}: write key=number, such as {option} matrix_lr=0.02")
    return values
