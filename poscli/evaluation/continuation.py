"""Continuing an image: the model reads the upper rows of a held-out image and generates the others, cell by cell."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from poscli.drawing.pixels import side_by_side
from poscli.equation.grids import grid_shape
from poscli.evaluation.losses import NLL
from poscli.model.generate import generate
from poscli.model.transformer import Model
from poscli.system.errors import DataError, UsageError
from poscli.system.progress import Meter
from poscli.tasks.grid import Grid

GROWTH = 4  # times as many cells as in training, unless a size is asked for: twice the side


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
    def told(self) -> str:
        """A sentence about the loss."""
        return f"{self.nll / math.log(2):.2f} bits per cell of the true image below row {self.kept}"


@dataclass(frozen=True)
class Wish:
    """Which image to continue, and how; None stands for the default."""

    rows: int | None = None  # to keep: by default half of them
    side: int | None = None  # of the square to show: by default a grid of 4 times as many cells as in training
    image: int = 1

    def length(self, train_length: int) -> int:
        """The cells of the whole grid."""
        return GROWTH * train_length if self.side is None else self.side**2


def continue_image(model: Model, task: Grid, wish: Wish, *, temperature: float, seed: int) -> Continuation:
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
        for token in generate(
            model, prompt, task.data.start, tokens=left, temperature=temperature, seed=seed, columns=columns
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
        f"It predicts the true cells below the line\nat {made.nll / math.log(2):.2f} bits per cell."
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
