"""Sorted horizontal bars of ratios, each with its spread and its number in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from poscli.report.axes import SMALL
from poscli.report.canvas import WIDTH, Page, clip
from poscli.report.style import FAINT, INK, QUIET

TICKS = (
    0.1,
    0.2,
    0.5,
    0.7,
    0.8,
    0.9,
    1,
    1.1,
    1.2,
    1.3,
    1.4,
    1.5,
    1.7,
    2,
    2.5,
    3,
    4,
    5,
    7,
    10,
    15,
    20,
    30,
    50,
    100,
    200,
)
APART = 0.4  # inches between ticks that are named


@dataclass(frozen=True)
class Bar:
    """A ratio, its spread, and what stands before and behind it."""

    name: str
    value: float
    low: float
    high: float
    text: str
    color: str


class BarPage(Page):
    """Bars that begin at 1 on a log axis, so that twice and half are equally far from it."""

    def __init__(self, bars: Sequence[Bar]) -> None:
        super().__init__(int(1.25 * len(bars)) + 1)
        self.size = 7.2
        self.bars = bars
        self._frame()
        self._scale()
        for row, bar in enumerate(bars):
            self._draw(row, bar)

    def _scale(self) -> None:
        axes, ends = self.axes, [end for bar in self.bars for end in (bar.low, bar.high, bar.value)]
        low, high = min(0.97, *ends), max(1.1, *ends)
        axes.set_xscale("log")
        axes.set_xlim(low / 1.02, high * (high / low) ** 0.03)
        axes.set_ylim(len(self.bars) - 0.4, -0.6)
        kept: list[float] = []
        inches = axes.get_position().width * WIDTH / np.log(axes.get_xlim()[1] / axes.get_xlim()[0])  # of a factor e
        for tick in sorted(TICKS, key=lambda tick: (tick != 1, tick not in (2, 5, 10, 0.5), abs(np.log(tick)))):
            inside = axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]
            if inside and all(abs(np.log(tick / other)) * inches > APART for other in kept):
                kept.append(tick)
        axes.xaxis.set_major_locator(FixedLocator(sorted(kept)))
        axes.xaxis.set_major_formatter(FixedFormatter([f"{tick:g}x" for tick in sorted(kept)]))
        axes.xaxis.set_minor_locator(NullLocator())

    def _frame(self) -> None:
        """Room for the names at the left and the words at the right."""
        left = 0.3 + self._width([clip(bar.name) for bar in self.bars], self.size)
        right = 0.35 + self._width([bar.text for bar in self.bars], self.size)
        box = self.axes.get_position()
        self.axes.set_position((left / WIDTH, box.y0, (WIDTH - left - right) / WIDTH, box.height))
        self.axes.set_yticks([])
        self.axes.grid(visible=False)
        self.axes.grid(visible=True, axis="x", color="#e6e6e6", linewidth=0.7)
        self.axes.spines["left"].set_visible(False)
        self.axes.axvline(1, color=INK, linewidth=1.0, zorder=3)

    def _draw(self, row: int, bar: Bar) -> None:
        self.axes.barh(row, bar.value - 1, left=1, height=0.66, color=bar.color, zorder=2)
        self.axes.hlines(row, bar.low, bar.high, color=INK, linewidth=1.0, zorder=4)
        look: dict[str, Any] = {"fontsize": self.size, "va": "center", "annotation_clip": False, "parse_math": False}
        beside = self.axes.get_yaxis_transform()
        for x, shift, side, color, text in (
            (0, -5, "right", INK, clip(bar.name)),
            (1, 6, "left", QUIET if bar.color == FAINT else INK, bar.text),
        ):
            self.axes.annotate(
                text,
                (x, row),
                xycoords=beside,
                xytext=(shift, 0),
                textcoords="offset points",
                ha=side,
                color=color,
                **look,
            )

    def name_axis(self, text: str) -> None:
        """What the bars measure."""
        self.axes.set_xlabel(text, fontsize=SMALL)
