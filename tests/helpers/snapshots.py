"""Snapshots: whole texts that poscli writes, kept beside the tests (test_X/NAME.txt) and compared letter by letter.

They notice what no single assertion looks for. Each was read line by line when it was recorded, and its numbers are
worked out by hand elsewhere or follow from those that are. `make snapshots` writes all anew; read the difference
before you commit it, and say in the message why it is right.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from pathlib import Path

NUMBER = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?")


def check_rounded(obtained: Path, expected: Path, *, share: float = 1e-6, least: float = 0.0) -> None:
    """Compare two texts whose decimal numbers may differ by one unit of the last digit, by a `share`, or by `least`.

    For numbers that CPUs round differently.
    """
    written, kept = obtained.read_text(encoding="utf-8"), expected.read_text(encoding="utf-8")
    lines = zip_longest(written.splitlines(), kept.splitlines(), fillvalue="")
    for number, (line, other) in enumerate(lines, 1):
        assert NUMBER.sub("#", line) == NUMBER.sub("#", other), f"line {number} is\n{line}\nand not\n{other}"
    for ours, theirs in zip(NUMBER.findall(written), NUMBER.findall(kept), strict=True):
        most = max(1.01 * _last_digit(theirs), share * abs(float(theirs)), least)
        assert abs(float(ours) - float(theirs)) <= most, f"{ours}, not {theirs}"


def check_trained(obtained: Path, expected: Path) -> None:
    """Compare two texts with numbers of short trainings, in which the rounding of a CPU grows to a thousandth."""
    check_rounded(obtained, expected, share=0.01, least=0.006)


def _last_digit(number: str) -> float:
    """1 at the place of the last digit of a number in decimal or scientific notation."""
    mantissa, _, exponent = number.partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
