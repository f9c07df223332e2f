"""Grey images side by side, enlarged cell by cell."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from poscli.drawing.page import DOTS_PER_INCH, clip, drawable
from poscli.drawing.style import INK, PALETTE, QUIET

PANEL_DOTS = 512  # of the longer side of an image, at least
LEFT, GAP, TOP, BOTTOM = 60, 60, 60, 110  # dots around and between the images
LINE = PALETTE[1]


def side_by_side(images: Sequence[NDArray[np.uint8]], names: Sequence[str], below: str, *, line: int) -> bytes:
    """A PNG of images of one shape, each cell a square, with their names above and a text below.

    A thin line above row `line` of every image, counted from 0, marks where what was given ends. The darkest cell of
    all images is drawn black and the lightest one white.
    """
    darkest, lightest = min(int(image.min()) for image in images), max(int(image.max()) for image in images)
    rows, columns = images[0].shape
    cell = -(-PANEL_DOTS // max(rows, columns))
    width, height = columns * cell, rows * cell
    size = (2 * LEFT + len(images) * width + (len(images) - 1) * GAP, TOP + height + BOTTOM)
    figure = Figure(figsize=(size[0] / DOTS_PER_INCH, size[1] / DOTS_PER_INCH), dpi=DOTS_PER_INCH, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    for n, (image, name) in enumerate(zip(images, names, strict=True)):
        left = LEFT + n * (width + GAP)
        axes = figure.add_axes((left / size[0], BOTTOM / size[1], width / size[0], height / size[1]))
        axes.imshow(image, cmap="gray", vmin=darkest, vmax=lightest, interpolation="nearest", aspect="auto")
        axes.plot([-0.03 * columns - 0.5, 1.03 * columns - 0.5], [line - 0.5] * 2, color=LINE, lw=1.2, clip_on=False)
        axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
        axes.set_axis_off()
        axes.set_title(clip(name), loc="left", fontsize=9, color=INK, parse_math=False)
    look = {"fontsize": 7.5, "color": QUIET, "va": "top", "linespacing": 1.4, "parse_math": False}
    figure.text(LEFT / size[0], (BOTTOM - 18) / size[1], drawable(below), **look)  # type: ignore[arg-type]
    canvas.print_png(buffer := io.BytesIO())
    return buffer.getvalue()
