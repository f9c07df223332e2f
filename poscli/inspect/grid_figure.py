"""Pictures of encodings of two axes: maps of cells, one per head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle

from poscli.drawing.curves import RISING, SIGNED, color_bar
from poscli.drawing.style import INK, PALETTE, QUIET
from poscli.inspect.grid import CellMaps

LEAST = 1e-5  # of the largest weight: what is below has the colour of that
GAP = 0.06  # between two maps, as a share of the panel's width


def draw_maps(panels: Sequence[Axes], found: Sequence[CellMaps]) -> None:
    """Maps around zero in two colours, with one scale for all panels."""
    limit = max(float(np.nanmax(np.abs(each.values))) for each in found) or 1.0
    for axes, each in zip(panels, found, strict=True):
        for part, values in _parts(axes, each):
            image = part.imshow(values, cmap=SIGNED, vmin=-limit, vmax=limit, interpolation="nearest")
        color_bar(axes, image, (-limit, 0.0, limit))


def draw_weight_maps(panels: Sequence[Axes], found: Sequence[CellMaps]) -> None:
    """Attention weights on a logarithmic scale of colours, the same for all panels."""
    top = max(float(np.nanmax(each.values)) for each in found)
    low = top * LEAST
    norm = LogNorm(low, top)
    for axes, each in zip(panels, found, strict=True):
        for part, values in _parts(axes, each):
            image = part.imshow(np.maximum(values, low), cmap=RISING, norm=norm, interpolation="nearest")
        color_bar(axes, image, (low, top))


def _parts(axes: Axes, maps: CellMaps) -> list[tuple[Axes, np.ndarray]]:
    """An inset of the panel for each drawn head, with a mark on the query and a frame around the training grid."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    count = len(maps.values)
    chosen = [0, count - 1] if count > 1 else [0]  # the first and the last head
    width = (1 - GAP * (len(chosen) - 1)) / len(chosen)
    made = []
    for n, head in enumerate(chosen):
        part = axes.inset_axes((n * (width + GAP), 0, width, 1))
        rows, columns = maps.values.shape[1:]
        part.set(xticks=[], yticks=[])
        part.spines[:].set_color(QUIET)
        part.plot(maps.column, rows - 1, "o", color=PALETTE[1], markersize=3.5, markeredgecolor="white", zorder=5)
        high, wide = maps.trained
        if rows > high:
            corner = maps.column - wide // 2 - 0.5, rows - high - 0.5
            part.add_patch(Rectangle(corner, wide, high, fill=False, edgecolor=INK, linewidth=0.8, linestyle="--"))
        part.set_title(maps.names[head], fontsize=7, pad=2, color=QUIET)
        if n == 0:
            part.set_ylabel(f"{rows} rows", fontsize=7.5)
        part.set_xlabel(f"{columns} columns", fontsize=7.5)
        made.append((part, maps.values[head]))
    return made
