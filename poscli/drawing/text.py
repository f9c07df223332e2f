"""How lists and numbers are written in figures, tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache

import pandas as pd


def named(name: str) -> str:
    """The name of an encoding inside a sentence: `none` in quotes, because "none is best" says that nothing is.

    >>> named("none"), named("rope")
    ('"none"', 'rope')
    """
    return f'"{name}"' if name == "none" else name


def listed(items: Sequence[str], most: int = 5) -> str:
    """Join names into an English list; past `most` names, count the rest.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    >>> listed(list("abcdefgh"), most=3)
    'a, b, c and 5 more'
    """
    items = [named(item) for item in items]
    if len(items) > most:
        return f"{', '.join(items[:most])} and {len(items) - most} more"
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def number(value: float) -> str:
    """Write a number with two decimals, from 10 on one, from 100 on none, from 100,000 on as 2.5e+07; NaN as a dash.

    >>> [number(x) for x in (3.9512, 43.19, 1234.5, 2.5e7, -0.001, float("inf"), float("nan"))]
    ['3.95', '43.2', '1234', '2.5e+07', '0.00', 'inf', '-']
    """
    if math.isnan(value):
        return "-"
    if math.isinf(value) or value >= 1e5:
        return f"{value:.2g}"
    places = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 2
    return f"{value:z.{min(places, 2)}f}"


def signed(value: float) -> str:
    """Write a difference with its sign: three decimals below 1, two from 1 on; NaN as a dash.

    >>> [signed(x) for x in (0.0231, -2.531, 0.0, float("nan"))]
    ['+0.023', '-2.53', '0.000', '-']
    """
    if math.isnan(value):
        return "-"
    if abs(value) < 5e-4:
        return "0.000"
    return f"{value:+.3f}" if abs(value) < 1 else f"{value:+.2f}"


def amount(value: float) -> str:
    """Write a count, from 10,000 on in thousands, millions or billions.

    >>> [amount(x) for x in (512, 131072, 2_100_000)]
    ['512', '131k', '2.1M']
    """
    for least, size, unit in ((999.5e6, 1e9, "B"), (999.5e3, 1e6, "M"), (1e4, 1e3, "k")):  # 999,500 rounds to 1M
        if value >= least:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"


def low_to_high(values: Iterable[float]) -> str:
    """Write the smallest and the largest of some counts, or only one if they read the same.

    >>> low_to_high([64, 128]), low_to_high([869_760, 870_016]), low_to_high([])
    ('64 to 128', '870k', '')
    """
    known = sorted(values)
    return " to ".join(dict.fromkeys(amount(value) for value in (*known[:1], *known[-1:])))


def distinct(values: pd.Series) -> list[str]:
    """The distinct texts of a column in alphabetical order, without missing and empty ones."""
    return sorted(set(values.dropna()) - {""})


@cache
def _glyphs() -> frozenset[int]:
    """The code points that the font of figures has."""
    from matplotlib.font_manager import FontProperties, findfont, get_font  # slow to import

    return frozenset(get_font(findfont(FontProperties())).get_charmap())


def drawable(text: str) -> str:
    """The text with an escape in the place of each character that the font lacks, such as an emoji.

    matplotlib would draw all these as the same empty box, and warn.
    """
    known = _glyphs() | {ord("\n")}
    return "".join(c if ord(c) in known else c.encode("unicode_escape").decode() for c in text)
