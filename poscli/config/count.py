"""Numbers of tokens as people write them: 4096, 500k, 2M."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field

MOST = 2**63 - 1  # of anything that a table holds as int64: tokens, seeds
LONGEST_WINDOW = 2**20  # tokens of a training window or of a memory
LARGEST_BATCH = 2**20  # windows
LONGEST_TEXT = 100  # characters of a number; Python refuses to print integers of more than 4300 digits
FACTORS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


def read_count(value: object) -> object:
    """The number that a text stands for; a value of another type is left to pydantic.

    >>> read_count("2M"), read_count("16.1k"), read_count("4096"), read_count(7)
    (2000000, 16100, 4096, 7)
    """
    if not isinstance(value, str):
        return value
    if len(value) > LONGEST_TEXT:
        raise ValueError("too long for a number of tokens; write 4096, 500k or 2M")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)", value.strip(), re.IGNORECASE)
    if not match:
        raise ValueError("no number of tokens; write 4096, 500k or 2M")
    number = Decimal(match[1]) * FACTORS[match[2].lower()]  # exact, where 16.1 * 1000 is 16100.000000000002
    if number < 1 or number != int(number):
        raise ValueError("not allowed; it must be a whole number of tokens, at least 1")
    return int(number)


def write_count(number: int) -> str:
    """The shortest way to write a number of tokens.

    >>> write_count(2_000_000), write_count(500_000), write_count(4096)
    ('2M', '500k', '4096')
    """
    factor, suffix = max((factor, suffix) for suffix, factor in FACTORS.items() if number % factor == 0)
    return f"{number // factor}{suffix.upper() if factor > FACTORS['k'] else suffix}"


TokenCount = Annotated[int, Field(ge=1, le=MOST), BeforeValidator(read_count)]
