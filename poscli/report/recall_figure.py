"""The picture of recall by distance: the gain on tokens that could be copied, by how far back they were read."""

from __future__ import annotations

import numpy as np
import pandas as pd

from poscli.drawing.axes import draw_line, length_axis, mark_training, name_axes, remark, signed_axis
from poscli.drawing.page import End, Page, clip_name
from poscli.drawing.style import Styles
from poscli.drawing.text import signed
from poscli.report.figures import MIN_GAIN_AXIS_BPB, Drawing
from poscli.report.recalled import answer, hits, points_of


def recall_by_distance(recall: pd.DataFrame, *, styles: Styles, origin: str = "") -> Drawing:
    """The gain of the whole window over the context cut to L on hits, in octaves of the distance back."""
    found = hits(recall)
    points = points_of(found)
    length = int(found["train_length"].iloc[0])
    points = points.assign(middle=np.sqrt(points["from"] * points["to"]))
    page = Page(points["encoding"].nunique())
    for name, line in points.groupby("encoding"):
        draw_line(page.axes, line["middle"], line["gain"], styles[str(name)])
    length_axis(page.axes, _octaves(points), length)
    high = max(float(points["gain"].max()), MIN_GAIN_AXIS_BPB)
    scale = signed_axis(page.axes, min(float(points["gain"].min()), -high / 2), high)
    name_axes(page.axes, "distance back to the earlier occurrence, in tokens", f"gain on such tokens, bits{scale}")
    mark_training(page.axes, length, at=0)
    remark(page.axes, (page.axes.get_xlim()[0], 1), (4, -11), "above zero: the token is recalled from beyond the cut")
    ends = [
        End(
            line["middle"].iloc[-1],
            line["gain"].iloc[-1],
            clip_name(f"{name} {signed(line['gain'].iloc[-1])}", str(name)),
            styles[str(name)],
        )
        for name, line in points.groupby("encoding")
    ]
    page.label_ends(ends)
    ngram = int(found["ngram"].iloc[0])
    title = "Is text from beyond the training length recalled?"
    note = (
        f"{origin} Tokens whose {ngram} preceding tokens occurred before, followed by the same token. Gain: the "
        f"loss with the context cut to L = {length} minus the loss with the whole window."
    )
    page.write(title, answer(points, length), "gain at the largest distance", note.strip())
    return Drawing(page, f"{title} {answer(points, length)}")


def _octaves(points: pd.DataFrame) -> list[int]:
    """The edges of the bins."""
    return sorted({int(first) for first in points["from"]} | {int(points["to"].max()) + 1})
