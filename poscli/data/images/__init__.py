"""Corpora of images, for tasks on grids: real images as grids of cells, each cell one of a few grey levels.

    images                              a photograph, an elevation map and a scan, which matplotlib ships
    images:FOLDER                       every file of a folder that Pillow can read, in grey
    images:FOLDER?patch=4&levels=16     a cell is the mean of 4 x 4 pixels, and one of 16 grey levels

Read in this order: spec.py (the grammar), builtin.py and folder.py (where images come from), cells.py (pixels into
cells, cells into levels), corpus.py (the result), sampler.py (training batches).
"""

from __future__ import annotations

from poscli.data.corpora import check_characters
from poscli.data.images import builtin, folder
from poscli.data.images.corpus import ImageCorpus, ImageSplit, build
from poscli.data.images.sampler import batch
from poscli.data.images.spec import GRAMMAR, ImageSpec

__all__ = ["GRAMMAR", "ImageCorpus", "ImageSpec", "ImageSplit", "batch", "load_images"]


def load_images(spec: str) -> ImageCorpus:
    """Read the images that a spec names. Nothing is kept on disk.

    Raises UsageError if the spec cannot be understood, and DataError if there are no images, or too few.
    """
    check_characters(spec)
    parsed = ImageSpec.parse(spec)
    canonical, pictures = folder.pictures(parsed) if parsed.folder else (parsed, builtin.pictures(parsed.patch))
    return build(canonical, pictures)
