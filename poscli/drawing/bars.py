"""A page of horizontal bars for ratios, each with its spread and a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from poscli.drawing.axes import AXIS_NAME_POINTS
from poscli.drawing.page import WIDTH, Page, clip
from poscli.drawing.style import FAINT, INK, QUIET

TICKS = (
    *(0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2, 2.5, 3, 4, 5, 7),
    *(10, 15, 20, 30, 50, 100, 200),
)
ROUND_TICKS = (2, 5, 10, 0.5)  # shown before any other but 1
TICK_GAP = 0.4  # smallest distance of two ticks, in inches


@dataclass(frozen=True)
class Bar:
    """A ratio with its spread, its name at the left and a text at the right."""

    name: str
    value: float
    low: float
    high: float
    text: str
    color: str


class BarPage(Page):
    """Bars that begin at 1 on a log axis, so that a ratio of 2 is as long as one of 1/2."""

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
        ticks = self._ticks()
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_major_formatter(FixedFormatter([f"{tick:g}x" for tick in ticks]))
        axes.xaxis.set_minor_locator(NullLocator())

    def _ticks(self) -> list[float]:
        """Ticks inside the axis, at least TICK_GAP apart: 1 first, then round ones, then those closest to 1."""
        left, right = self.axes.get_xlim()
        inches = self.axes.get_position().width * WIDTH / np.log(right / left)  # of a factor e
        kept: list[float] = []
        for tick in sorted(TICKS, key=lambda tick: (tick != 1, tick not in ROUND_TICKS, abs(np.log(tick)))):
            if left <= tick <= right and all(abs(np.log(tick / other)) * inches > TICK_GAP for other in kept):
                kept.append(tick)
        return sorted(kept)

    def _frame(self) -> None:
        """Make room for the names at the left and the texts at the right, and draw a line at 1."""
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
        """Write what the bars measure below the axis."""
        self.axes.set_xlabel(text, fontsize=AXIS_NAME_POINTS)
