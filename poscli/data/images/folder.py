"""`images:FOLDER`: every file that Pillow can read, in grey; each image is one document."""

from __future__ import annotations

import struct
import warnings
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from poscli.data.filesets import find_files
from poscli.data.images.cells import Cells, Picture, patches, stretched
from poscli.data.images.spec import ImageSpec
from poscli.system.console import note
from poscli.system.errors import DataError
from poscli.system.text import printable

NAMED = 3  # files that cannot be read, in one message
GREY_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")


def pictures(spec: ImageSpec) -> tuple[ImageSpec, list[Picture]]:
    """The spec with an absolute path, and the images of its folder; DataError if none of its files is an image.

    Files that are no images, or are damaged, are left out and named in a note.
    """
    path, files = find_files("images", spec.folder)
    canonical, found, left_out = replace(spec, folder=path), [], []
    for file in files:
        try:
            cells = patches(pixels(file), spec.patch)
        except _Unreadable as error:
            left_out.append(f"{printable(file)} ({error})")
            continue
        if cells.size:
            found.append(Picture(cells))
        else:
            left_out.append(f"{printable(file)} (smaller than a patch of {spec.patch} x {spec.patch} pixels)")
    named = ", ".join(left_out[:NAMED]) + (f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else "")
    if not found:
        looked = f"{len(files)} file{'s' * (len(files) != 1)}"
        raise DataError(f"{canonical} holds no image in {looked}: {named}; name a folder with images, such as .png")
    if left_out:
        note(f"left out of {canonical}: {named}")
    return canonical, found


def pixels(path: Path) -> Cells:
    """The grey values of an image; values of more than 8 bits are scaled by their own range."""
    from PIL import Image, UnidentifiedImageError

    # What Pillow raises for damaged files depends on their format.
    damaged = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, struct.error, zlib.error)
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path) as image:
            if image.mode in GREY_MODES:
                return np.asarray(image.convert("L"))
            values = np.asarray(image)
    except Image.DecompressionBombError as error:
        raise _Unreadable(f"too large: more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels") from error
    except UnidentifiedImageError as error:
        raise _Unreadable("no image") from error
    except damaged as error:
        raise _Unreadable(printable(" ".join(str(error).split())) or "damaged") from error
    if values.ndim != 2 or not np.isfinite(values).all():
        raise _Unreadable("its values are no grey values")
    return stretched(values)


class _Unreadable(Exception):
    """Why an image cannot be read."""
