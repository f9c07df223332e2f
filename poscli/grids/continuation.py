"""Continuing an image: the model reads the upper rows of a held-out image and generates the others, cell by cell."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from poscli.cli.commands.generate import Sampling, refuse_long_input, speed
from poscli.drawing.page import DOTS_PER_INCH, clip, written
from poscli.drawing.style import INK, PALETTE, QUIET
from poscli.drawing.text import drawable
from poscli.equation import Unsupported
from poscli.equation.operands import grid_shape
from poscli.evaluation.evaluate import refuse_other_text
from poscli.evaluation.losses import NLL
from poscli.grids.tasks import Grid
from poscli.model.generate import generate
from poscli.model.load import load_trained
from poscli.model.transformer import Model
from poscli.runs.run import Run
from poscli.system.console import data, emit, note
from poscli.system.errors import DataError, UsageError
from poscli.system.files import write_atomic
from poscli.system.progress import Meter
from poscli.system.text import printable
from poscli.tasks import open_task

GROWTH = 4  # times as many cells as in training, unless a size is asked for: twice the side
# Of the picture, in dots: the longer side of an image at least, and what lies around and between the images.
PANEL, LEFT, GAP, TOP, BOTTOM = 512, 60, 60, 60, 110
LINE = PALETTE[1]


@dataclass(frozen=True, eq=False)
class Continuation:
    """An image as it is and as a model continues it: grey values `[rows, columns]`."""

    true: NDArray[np.uint8]
    made: NDArray[np.uint8]
    kept: int  # rows that the model was given; the others are generated
    image: int  # number of the image among the held-out ones that are large enough, from 1
    images: int  # how many these are
    nll: float  # nats per true cell of the rows that were not given, each predicted from all true cells before it
    seconds: float  # of the generation

    @property
    def cells(self) -> int:
        """The number of cells that were generated."""
        return self.made[self.kept :].size

    @property
    def bits(self) -> float:
        """Bits per true cell of the rows that were not given."""
        return self.nll / math.log(2)

    @property
    def told(self) -> str:
        """The loss in words."""
        return f"{self.bits:.2f} bits per cell of the true image below row {self.kept}"


@dataclass(frozen=True)
class ImageChoice:
    """Which image to continue, and how; None stands for the default."""

    rows: int | None = None  # to keep: by default half of them
    side: int | None = None  # of the square to show: by default a grid of 4 times as many cells as in training
    image: int = 1

    def length(self, train_length: int) -> int:
        """The cells of the whole grid."""
        return GROWTH * train_length if self.side is None else self.side**2


def continue_held_out(run: Run, wish: Mapping[str, Any], file: Path, sampling: Sampling, json_: bool) -> None:
    """What `poscli generate` does with a model of images: write a picture, and print its file and the loss.

    `wish` has fields of `ImageChoice`, `file` is that of the picture, and `sampling` how cells are drawn and where.
    UsageError or DataError if there is no such image, or if it is too large for the memory or the encoding.
    """
    asked, config = ImageChoice(**wish), run.config
    task = open_task(config.task, config.corpus, config.tokenizer)
    assert isinstance(task, Grid)
    refuse_other_text(run, task)
    refuse_long_input(run.config, asked.length(config.length), sampling, "give a smaller --side")
    model = load_trained(run, sampling.device)
    try:
        made = continue_image(model, task, asked, temperature=sampling.temperature, seed=sampling.seed)
    except Unsupported as error:
        raise UsageError(f"{run.id} cannot continue so large an image: {error}; give a smaller --side") from error
    write_atomic(file, picture(made, run.label, config.length))
    rows, columns = made.true.shape
    document = {
        "run_id": run.id,
        "file": str(file),
        "rows": rows,
        "columns": columns,
        **{name: getattr(made, name) for name in ("kept", "image", "images", "nll", "cells", "seconds")},
    }
    emit(json_, document, lambda: data().write(f"{printable(file)}\n{made.told}\n"))
    note(speed(run.id, made.cells, "cells", made.seconds))


def continue_image(model: Model, task: Grid, wish: ImageChoice, *, temperature: float, seed: int) -> Continuation:
    """Continue a held-out image, from its top left corner on.

    UsageError for an image or a number of rows that there is not; DataError if every image is smaller than what is
    asked for. Raises Unsupported at the first position that the encoding does not have.
    """
    length = wish.length(model.length)
    rows, columns = grid_shape(length)
    kept = rows // 2 if wish.rows is None else wish.rows
    if not 1 <= kept < rows:
        raise UsageError(f"--rows {kept} must be between 1 and {rows - 1}, for an image of {rows} x {columns} cells")
    image, images = _image(task, rows, columns, wish.image)
    cells = image[:rows, :columns]
    nll = _loss(model, task, cells)[kept:].mean()
    start, prompt = time.perf_counter(), cells[:kept].ravel().tolist()
    left = length - len(prompt)
    with Meter("generate", left) as progress:
        drawn = []
        opened, start_token = [task.data.start, *prompt], {task.data.start}
        for token in generate(
            model, opened, start_token, tokens=left, temperature=temperature, seed=seed, columns=columns
        ):
            drawn.append(token)
            progress.advance(1, "cells")
    made = np.concatenate([cells[:kept].ravel(), np.array(drawn)]).reshape(rows, columns)
    greys, seconds = task.data.greys, time.perf_counter() - start
    return Continuation(greys[cells], greys[made], kept, wish.image, images, float(nll), seconds)


def picture(made: Continuation, name: str, train_length: int) -> bytes:
    """A PNG of the true image and, beside it, of the one that a model of a name has continued."""
    trained = "{} x {}".format(*grid_shape(train_length))
    rows, columns = made.true.shape
    names = (f"held-out image {made.image} of {made.images}", f"continued by {name}")
    below = (
        f"Above the line: rows 1 to {made.kept}, which the model was given. Below it, at the right: {made.cells:,} "
        f"generated cells.\nThe model was trained on grids of {trained} cells, and this one has {rows} x {columns}. "
        f"It predicts the true cells below the line\nat {made.bits:.2f} bits per cell."
    )
    return side_by_side((made.true, made.made), names, below, line=made.kept)


def _image(task: Grid, rows: int, columns: int, number: int) -> tuple[NDArray[np.uint8], int]:
    """The held-out image of a number, from 1, among those that hold so many cells, and how many these are."""
    split = task.data.valid
    large = np.flatnonzero(split.fits(rows, columns))
    if not len(large):
        height, width = split.largest
        raise DataError(
            f"no held-out image of {task.corpus} has {rows} x {columns} cells, and the largest has {height} x {width}; "
            f"give --side {min(height, width)} or less"
        )
    if not 1 <= number <= len(large):
        raise UsageError(f"--image {number} must be between 1 and {len(large)}, the held-out images of this size")
    return split.images[large[number - 1]], len(large)


@torch.inference_mode()
def _loss(model: Model, task: Grid, cells: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Nats of every cell of an image, `[rows, columns]`."""
    tokens = torch.tensor([[task.data.start, *cells.ravel().tolist()]], device=model.embedding.device)
    nll = task.score(model(tokens[:, :-1]).float(), tokens[:, 1:])[NLL]
    return nll[0].double().cpu().numpy().reshape(cells.shape)


def side_by_side(images: Sequence[NDArray[np.uint8]], names: Sequence[str], below: str, *, line: int) -> bytes:
    """A PNG of images of one shape, each cell a square, with their names above and a text below.

    A thin line above row `line` of every image, counted from 0, marks where what was given ends. The darkest cell of
    all images is drawn black and the lightest one white.
    """
    darkest, lightest = min(int(image.min()) for image in images), max(int(image.max()) for image in images)
    rows, columns = images[0].shape
    cell = -(-PANEL // max(rows, columns))
    width, height = columns * cell, rows * cell
    size = (2 * LEFT + len(images) * width + (len(images) - 1) * GAP, TOP + height + BOTTOM)
    figure = Figure(figsize=(size[0] / DOTS_PER_INCH, size[1] / DOTS_PER_INCH), dpi=DOTS_PER_INCH, facecolor="white")
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
    return written(figure, "png")
