"""What a picture shows, as text: titles, axes, ticks, lines and bands with their colours, labels and annotations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch


def drawn(figure: Figure) -> str:
    """A line for everything that a figure shows; numbers have four digits."""
    return "\n".join([*(f"text: {text.get_text()}" for text in figure.texts), *_axes(figure)]) + "\n"


def _axes(figure: Figure) -> Iterator[str]:
    for number, axes in enumerate(figure.axes):
        yield f"axes {number}: {axes.get_title()}"
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            ticks = [label.get_text() for label in axis.get_ticklabels() if label.get_visible()]
            limits = _numbers(axis.get_view_interval())
            yield f"  {name} ({axis.get_scale()}, {limits}): {axis.get_label_text()} | {' · '.join(ticks)}"
        yield from (f"  {line}" for line in _artists(axes))


def _artists(axes: Axes) -> Iterator[str]:
    for line in axes.lines:
        yield f"line {_look(line)} {line.get_linestyle()}{line.get_marker()}: {_points(line.get_xydata())}"
    for patch in axes.patches:
        yield f"patch {to_hex(patch.get_facecolor())}: {_points(_corners(patch))}"
    for collection in axes.collections:
        yield f"{type(collection).__name__} {_faces(collection)}: {_outlines(collection)}"
    for image in axes.images:
        yield f"image: {_image(image)}"
    for text in axes.texts:
        yield f"text {to_hex(text.get_color())}: {text.get_text()}"


def _look(line: Line2D) -> str:
    return to_hex(line.get_color())  # type: ignore[arg-type]


def _corners(patch: Patch) -> Any:
    return patch.get_path().transformed(patch.get_patch_transform()).get_extents().get_points()


def _faces(collection: Collection) -> str:
    colors = {to_hex(color) for color in (*collection.get_facecolor(), *collection.get_edgecolor())}
    return " ".join(sorted(colors))


def _outlines(collection: Collection) -> str:
    offsets = np.asarray(collection.get_offsets(), float)
    if len(collection.get_paths()) and not offsets.any():
        return " / ".join(_points(path.vertices) for path in collection.get_paths())
    return _points(offsets)


def _image(image: AxesImage) -> str:
    values = np.asarray(image.get_array(), float)
    return f"{values.shape}, mean {np.nanmean(values):.4g}, corners {_numbers(values[[0, -1]][:, [0, -1]].ravel())}"


def _points(points: Any) -> str:
    return " ".join(f"({_numbers(point)})" for point in np.asarray(points, float))


def _numbers(values: Any) -> str:
    return ", ".join(f"{value:.4g}" for value in np.asarray(values, float).ravel())
