"""A sheet: one figure of many panels in rows and columns, each with a title, above a table of texts and a footnote.

Lengths are in inches.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from poscli.drawing.page import DOTS_PER_INCH, plain_frame
from poscli.drawing.style import INK, QUIET
from poscli.drawing.text import drawable

SLOT_WIDTH, SLOT_HEIGHT = 4.9, 3.3  # of a panel with its title and its labels
LEFT, RIGHT, ABOVE, BELOW = 0.72, 0.78, 0.6, 0.62  # margins of the axes in a slot
HEAD, LINE, MARGIN = 0.42, 0.155, 0.2  # height of the sheet's title; of a line of small text; around the sheet
TEXT_SIZE, TITLE_SIZE = 7.4, 8.6  # points
CHARACTERS = 92  # of small text in a slot's width
TITLE_CHARACTERS, TITLE_LINES = 66, 2
NAME_WIDTH = 0.064  # of a bold character of small text


@dataclass(frozen=True)
class Contents:
    """The texts of a sheet around its panels."""

    title: str
    headings: Sequence[str]  # one above each column, or none
    explained: Sequence[str]  # a few lines below each heading
    table: Sequence[tuple[str, Sequence[str]]]  # below the panels: a name, and a text for each column
    footnote: str


class Sheet:
    """A figure whose height follows from its rows of panels and from its texts; `body` replaces the rows' height."""

    def __init__(self, rows: int, columns: int, contents: Contents, body: float | None = None) -> None:
        body = rows * SLOT_HEIGHT if body is None else body
        width = columns * SLOT_WIDTH + 2 * MARGIN
        texts = max(1, len(contents.headings))
        share = int(CHARACTERS * columns / texts)
        explained = [textwrap.wrap(drawable(text), share, max_lines=4, placeholder=" …") for text in contents.explained]
        lines = max((len(text) for text in explained), default=0)
        self._head = MARGIN + HEAD + (0.24 if any(contents.headings) else 0) + lines * LINE + 0.12
        name_width = max((len(name) for name, _ in contents.table), default=0) * NAME_WIDTH
        beside = CHARACTERS * columns - name_width * CHARACTERS / SLOT_WIDTH  # characters beside the names
        table = []
        for name, values in contents.table:
            part = max(20, int(beside / len(values)) - 2)
            folded = [textwrap.wrap(drawable(text), part, max_lines=3, placeholder=" …") or [""] for text in values]
            table.append((name, folded, max(map(len, folded)) * LINE + 0.03))
        footnote = textwrap.wrap(drawable(contents.footnote), int(CHARACTERS * 1.08 * columns))
        below = sum(height for *_, height in table) + (0.3 if table else 0) + len(footnote) * LINE + MARGIN
        self.height = self._head + body + below
        self.width = width
        self.figure = Figure(figsize=(width, self.height), dpi=DOTS_PER_INCH, facecolor="white")
        FigureCanvasAgg(self.figure)
        self._text(MARGIN, MARGIN, contents.title, size=13, weight="bold")
        for n, heading in enumerate(contents.headings):
            x = MARGIN + n * (width - 2 * MARGIN) / texts
            if heading:
                self._text(x, MARGIN + HEAD - 0.14, heading, size=10, weight="bold")
            top = MARGIN + HEAD - 0.14 + (0.24 if any(contents.headings) else 0)
            self._text(x, top, "\n".join(explained[n]), size=TEXT_SIZE, color=QUIET, linespacing=1.3)
        top, names = self._head + body + 0.1, name_width + 0.15
        for name, folded, height in table:
            self._text(MARGIN, top, name, size=TEXT_SIZE, weight="bold")
            share_of_width = (self.width - 2 * MARGIN - names) / len(folded)
            for n, value in enumerate(folded):
                x = MARGIN + names + n * share_of_width
                self._text(x, top, "\n".join(value), size=TEXT_SIZE, linespacing=1.25)
            top += height
        at = self.height - MARGIN - len(footnote) * LINE
        self._text(MARGIN, at, "\n".join(footnote), size=6.8, color=QUIET, linespacing=1.3)

    def panel(self, row: int, column: int, caption: str, title: str) -> Axes:
        """The axes of a slot, under a caption that says what is drawn and a title that says what can be seen."""
        x, top = MARGIN + column * SLOT_WIDTH, row * SLOT_HEIGHT
        axes = self.box(x + LEFT, top + ABOVE, SLOT_WIDTH - LEFT - RIGHT, SLOT_HEIGHT - ABOVE - BELOW)
        folded = textwrap.wrap(drawable(title), TITLE_CHARACTERS, max_lines=TITLE_LINES, placeholder=" …")
        at = top + ABOVE - 0.11
        self.write(x + 0.12, at, "\n".join(folded), size=TITLE_SIZE, weight="bold", linespacing=1.2, va="bottom")
        self.write(x + 0.12, at - len(folded) * 0.148 - 0.02, caption, size=6.8, color=QUIET, va="bottom")
        return axes

    def box(self, x: float, top: float, width: float, height: float) -> Axes:
        """Axes at a place on the sheet, measured from its left edge and from the end of its head."""
        bottom = self.height - self._head - top - height
        axes = self.figure.add_axes((x / self.width, bottom / self.height, width / self.width, height / self.height))
        plain_frame(axes)
        return axes

    def write(self, x: float, top: float, text: str, **look: object) -> Text:
        """Write a text whose upper left corner is at this place, measured as in `box`; returns it."""
        return self._text(x, self._head + top, text, **look)

    def say(self, axes: Axes, text: str) -> None:
        """Write a text into a panel that has nothing to draw."""
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
        folded = "\n".join(textwrap.wrap(drawable(text), 52))
        axes.text(
            0.5, 0.5, folded, transform=axes.transAxes, ha="center", va="center", fontsize=8, color=QUIET,
            parse_math=False,
        )  # fmt: skip

    def _text(self, x: float, top: float, text: str, **look: object) -> Text:
        """Write a text whose upper left corner is at these distances from that of the sheet."""
        look = {"color": INK, "va": "top", "ha": "left"} | look
        place = x / self.width, 1 - top / self.height
        return self.figure.text(*place, drawable(text), parse_math=False, **look)  # type: ignore[arg-type]
