"""The length of the inputs that a model is meant for: 32k, 8192, or a multiple of its training length such as 4x."""

from __future__ import annotations

import re
from decimal import Decimal

from poscli.config.count import LONGEST_TEXT, LONGEST_WINDOW
from poscli.system.errors import UsageError

# Lengths of contexts are powers of two, and 32k is the name of 32,768. (Amounts of text, as in count.py, are decimal.)
UNITS = {"": 1, "k": 1024, "m": 1024**2}
FORM = re.compile(r"(\d+(?:\.\d+)?)([kmx]?)", re.IGNORECASE)


def read_target(text: str, train_length: int) -> int:
    """The number of tokens that a text stands for, more than `train_length`; else UsageError.

    >>> read_target("32k", 2048), read_target("10000", 2048), read_target("4x", 2048), read_target("1.5x", 2048)
    (32768, 10000, 8192, 3072)
    """
    match = FORM.fullmatch(text.strip()) if len(text) <= LONGEST_TEXT else None
    if match is None:
        raise UsageError(f"--target {text[:LONGEST_TEXT]!r} is no length; write 32k, 8192 or 4x")
    unit = match[2].lower()
    tokens = Decimal(match[1]) * (train_length if unit == "x" else UNITS[unit])
    if tokens != int(tokens):
        raise UsageError(f"--target {text} is {tokens:g} tokens, which is no whole number; give another length")
    if not train_length < tokens <= LONGEST_WINDOW:
        raise UsageError(
            f"--target {text} is {tokens:.0f} tokens, and must be above the {train_length} that the model was trained "
            f"on and at most {LONGEST_WINDOW}; a model reads shorter inputs as it is"
        )
    return int(tokens)
