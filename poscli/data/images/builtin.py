"""The images that matplotlib ships as sample data, which every installation has: no download, the same everywhere.

A photograph of 600 x 512 pixels (grace_hopper.jpg), the elevation of a mountain range at 344 x 403 points
(jacksboro_fault_dem.npz) and a slice through a head, scanned at 256 x 256 points (s1045.ima.gz). Each is cut into
blocks of 96 x 96 cells, and each block is a document. Every fourth one is held out, so that no cell is both trained and
evaluated on, and there are enough documents to resample.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from poscli.data.images.cells import Cells, Picture, patches, stretched
from poscli.system.errors import DataError

BLOCK, SMALLEST_REMAINDER = 96, 80  # sides in cells; a smaller remainder at the right or below is left out
HELD_OUT_EVERY, FIRST_HELD_OUT = 4, 2  # blocks, numbered from 0 over all images
SCAN_SIDE = 256  # pixels
FILES = ("grace_hopper.jpg", "jacksboro_fault_dem.npz", "s1045.ima.gz")


def pictures(patch: int) -> list[Picture]:
    """The blocks of all images as documents; DataError if the files are missing, or patches too large."""
    if reason := available():
        raise DataError(reason)
    found = [block for pixels in _images(_folder()) for block in blocks(patches(stretched(pixels), patch))]
    if len(found) <= FIRST_HELD_OUT:
        raise DataError(f"images?patch={patch}: no blocks of {BLOCK} x {BLOCK} cells are left; give a smaller patch")
    return [
        Picture(cells, "valid" if number % HELD_OUT_EVERY == FIRST_HELD_OUT else "train")
        for number, cells in enumerate(found)
    ]


def available() -> str:
    """Why the sample images cannot be read, and what to do; "" if they can."""
    folder = _folder()
    missing = [name for name in FILES if not (folder / name).is_file()]
    if not missing:
        return ""
    return f"this matplotlib has no sample image {missing[0]} in {folder}; name a folder of images: images:FOLDER"


def blocks(cells: Cells) -> list[Cells]:
    """Disjoint blocks in raster order.

    >>> [block.shape for block in blocks(np.zeros((100, 180), np.uint8))]
    [(96, 96), (96, 84)]
    """
    starts = [[at for at in range(0, extent, BLOCK) if extent - at >= SMALLEST_REMAINDER] for extent in cells.shape]
    return [cells[row : row + BLOCK, column : column + BLOCK] for row in starts[0] for column in starts[1]]


def _folder() -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path()) / "sample_data"


def _images(folder: Path) -> Iterator[NDArray[np.generic]]:
    """The values of each image."""
    from PIL import Image

    photograph, elevation, scan = (folder / name for name in FILES)
    with Image.open(photograph) as image:
        yield np.asarray(image.convert("L"))
    with np.load(elevation) as arrays:
        yield arrays["elevation"]
    yield np.frombuffer(gzip.decompress(scan.read_bytes()), "<u2").reshape(SCAN_SIDE, SCAN_SIDE)
