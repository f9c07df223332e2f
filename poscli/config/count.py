"""Numbers of tokens as people write them: 4096, 500k, 2M, or 8x for a multiple of the training length."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field

from poscli.system.errors import UsageError

MOST = 2**63 - 1  # of anything that a table holds as int64: tokens, seeds
LONGEST_WINDOW = 2**20  # tokens of a training window or of a memory
LARGEST_BATCH = 2**20  # windows
LONGEST_TEXT = 100  # characters of a number; Python refuses to print integers of more than 4300 digits
LARGEST_MULTIPLE = MOST // LONGEST_WINDOW  # of the training length, so that the product is at most MOST
FACTORS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}  # of amounts of text
# Lengths of contexts are powers of two: 32k is the name of 32,768.
CONTEXT_FACTORS = {"": 1, "k": 1024, "m": 1024**2}


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


def read_longest(value: object) -> int | str:
    """The canonical form of a longest window: a number of tokens, or a multiple of the training length.

    >>> read_longest(4096), read_longest("4096"), read_longest("8x"), read_longest("1.50X")
    (4096, 4096, '8x', '1.5x')
    """
    text = str(value).strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x|(\d+)", text, re.IGNORECASE | re.ASCII)
    if isinstance(value, bool) or len(text) > LONGEST_TEXT or not match:
        raise ValueError("no length; write a number of tokens such as 4096, or 8x for 8 times the training length")
    if match[1]:
        multiple = Decimal(match[1])
        if not 1 <= multiple <= LARGEST_MULTIPLE:
            raise ValueError(f"the multiple must be greater than or equal to 1 and at most {LARGEST_MULTIPLE}")
        return f"{multiple.normalize():f}x"
    number = int(match[2])
    if not 1 <= number <= MOST:
        bound = "greater than or equal to 1" if number < 1 else f"less than or equal to {MOST}"
        raise ValueError(f"the number of tokens must be {bound}")
    return number


def longest_window(longest: int | str, length: int) -> int:
    """The tokens of a longest window, in its canonical form, for a training length.

    >>> longest_window(4096, 512), longest_window("8x", 512), longest_window("1.5x", 512)
    (4096, 4096, 768)
    """
    return longest if isinstance(longest, int) else round(Decimal(longest.removesuffix("x")) * length)


def read_target(text: str, train_length: int) -> int:
    """The number of tokens that a text stands for, more than `train_length`; else UsageError.

    >>> read_target("32k", 2048), read_target("10000", 2048), read_target("4x", 2048), read_target("1.5x", 2048)
    (32768, 10000, 8192, 3072)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmx]?)", text.strip(), re.IGNORECASE)
    if match is None or len(text) > LONGEST_TEXT:
        raise UsageError(f"--target {text[:LONGEST_TEXT]!r} is no length; write 32k, 8192 or 4x")
    unit = match[2].lower()
    tokens = Decimal(match[1]) * (train_length if unit == "x" else CONTEXT_FACTORS[unit])
    if tokens != int(tokens):
        raise UsageError(f"--target {text} is {tokens:g} tokens, which is no whole number; give another length")
    if not train_length < tokens <= LONGEST_WINDOW:
        raise UsageError(
            f"--target {text} is {tokens:.0f} tokens, and must be above the {train_length} that the model was trained "
            f"on and at most {LONGEST_WINDOW}; a model reads shorter inputs as it is"
        )
    return int(tokens)


Longest = Annotated[int | str, BeforeValidator(read_longest)]
TokenCount = Annotated[int, Field(ge=1, le=MOST), BeforeValidator(read_count)]
