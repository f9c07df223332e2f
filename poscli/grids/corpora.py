"""Corpora of images: real images as grids of cells, each cell one of a few grey levels.

images                              a photograph, an elevation map and a scan, which matplotlib ships
images:FOLDER                       every file of a folder that Pillow can read, in grey
images:FOLDER?patch=4&levels=16     a cell is the mean of 4 x 4 pixels, and one of 16 grey levels
"""

from __future__ import annotations

import gzip
import re
import struct
import warnings
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from poscli.data.corpora import CORPORA, Kind, check_characters
from poscli.data.filesets import find_files
from poscli.data.source import Part, Source
from poscli.grids.images import Cells, GreyImage, ImageCorpus, image_corpus, patches, stretched
from poscli.system.console import note
from poscli.system.errors import DataError, UsageError, near
from poscli.system.text import counted, printable

GRAMMAR = "images[:FOLDER][?patch=4&levels=32]"
RANGES = {"patch": (1, 1024), "levels": (2, 256)}  # smallest and largest value of each option
EXPLAINED = (
    "**images**: a token is a cell of an image, and losses are in bits per cell. A window of l tokens is "
    "a grid of l cells, as square as the divisors of l allow (16 x 16 for 256, 16 x 32 for 512), read row by row "
    "from the top left. The cropped context is the smaller grid that ends at the same cell; a baseline that limits "
    "attention to the last tokens counts them row by row. Under *fixed*, even the longest grid touches neither the "
    "top nor the left of its image."
)

# The images that matplotlib ships, which every installation has: a photograph of 600 x 512 pixels, the elevation of a
# mountain range at 344 x 403 points, and a slice through a head, scanned at 256 x 256 points.
FILES = ("grace_hopper.jpg", "jacksboro_fault_dem.npz", "s1045.ima.gz")
SCAN_SIDE = 256  # pixels
BLOCK, SMALLEST_REMAINDER = 96, 80  # sides in cells; a smaller remainder at the right or below is left out
HELD_OUT: dict[int, Part] = {2: "valid", 6: "valid", 10: "valid", 4: "tune"}  # of 12 blocks, over all images

NAMED = 3  # files that cannot be read, in one message
GREY_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")


@dataclass(frozen=True)
class ImageSpec:
    """A corpus of images, with the size of a cell in pixels and the number of grey levels.

    >>> str(ImageSpec.parse("images:photos?levels=16&patch=1"))
    'images:photos?levels=16'
    """

    folder: str = ""  # a file, a folder or a pattern; "" for the images that matplotlib ships
    patch: int = 1  # a cell is the mean of patch x patch pixels
    levels: int = 32

    @classmethod
    def parse(cls, text: str) -> ImageSpec:
        """The spec of a text; UsageError if the grammar does not allow it."""
        match = re.fullmatch(r"images(:(?P<folder>[^?]+))?(\?(?P<options>.+))?", text)
        if match is None:
            raise UsageError(f"{text!r} is no corpus of images; the task grid reads images, written {GRAMMAR}")
        options: dict[str, int] = {}
        for option in filter(None, (match["options"] or "").split("&")):
            name, _, value = option.partition("=")
            if name not in RANGES:
                raise UsageError(f"{text!r}: there is no option {name!r}: {near(name, RANGES)}")
            low, high = RANGES[name]
            if not re.fullmatch(r"\d{1,6}", value) or not low <= int(value) <= high:
                raise UsageError(f"{text!r}: {name} must be a whole number from {low} to {high}, not {value!r}")
            options[name] = int(value)
        return cls(match["folder"] or "", **options)

    def __str__(self) -> str:
        values = {"patch": self.patch, "levels": self.levels}
        options = "&".join(f"{name}={value}" for name, value in values.items() if value != getattr(ImageSpec, name))
        return "images" + (f":{self.folder}" if self.folder else "") + (f"?{options}" if options else "")


def load_images(text: str) -> ImageCorpus:
    """Read the images that a spec names. Nothing is kept on disk.

    Raises UsageError if the spec cannot be understood, and DataError if there are no images, or too few.
    """
    check_characters(text)
    spec = ImageSpec.parse(text)
    spec, pictures = pictures_of_folder(spec) if spec.folder else (spec, shipped_pictures(spec.patch))
    return image_corpus(str(spec), spec.levels, pictures)


def shipped_pictures(patch: int) -> list[GreyImage]:
    """The images that matplotlib ships, cut into blocks of 96 x 96 cells, each of which is a document.

    Of 12 blocks, three are scored and one is for tuning, so that no cell is both trained and evaluated on, and there
    are enough documents to resample. DataError if the files are missing, or patches of `patch` x `patch` pixels too
    large.
    """
    if reason := available():
        raise DataError(reason)
    from PIL import Image

    photograph, elevation, scan = _shipped_files()
    with Image.open(photograph) as image, np.load(elevation) as arrays:
        values = [np.asarray(image.convert("L")), arrays["elevation"]]
    values.append(np.frombuffer(gzip.decompress(scan.read_bytes()), "<u2").reshape(SCAN_SIDE, SCAN_SIDE))
    images = [block for pixels in values for block in blocks(patches(stretched(pixels), patch))]
    if len(images) <= min(HELD_OUT):
        raise DataError(f"images?patch={patch}: no blocks of {BLOCK} x {BLOCK} cells are left; give a smaller patch")
    return [GreyImage(cells, HELD_OUT.get(number % 12, "train")) for number, cells in enumerate(images)]


def available() -> str:
    """Why the images that matplotlib ships cannot be read, and what to do; "" if they can."""
    missing = [path for path in _shipped_files() if not path.is_file()]
    if not missing:
        return ""
    path = missing[0]
    return f"this matplotlib has no sample image {path.name} in {path.parent}; name a folder of images: images:FOLDER"


def blocks(cells: Cells) -> list[Cells]:
    """Disjoint blocks in raster order.

    >>> [block.shape for block in blocks(np.zeros((100, 180), np.uint8))]
    [(96, 96), (96, 84)]
    """
    starts = [[at for at in range(0, extent, BLOCK) if extent - at >= SMALLEST_REMAINDER] for extent in cells.shape]
    return [cells[row : row + BLOCK, column : column + BLOCK] for row in starts[0] for column in starts[1]]


def _shipped_files() -> list[Path]:
    import matplotlib

    return [Path(matplotlib.get_data_path()) / "sample_data" / name for name in FILES]


def pictures_of_folder(spec: ImageSpec) -> tuple[ImageSpec, list[GreyImage]]:
    """The spec with an absolute path, and the images of its folder, each of which is a document.

    Files that are not images, or are damaged, are left out and named in a note. DataError if no file is an image.
    """
    path, files = find_files("images", spec.folder)
    canonical, pictures, left_out = replace(spec, folder=path), [], []
    for file in files:
        try:
            cells = patches(grey_pixels(file), spec.patch)
        except _Unreadable as error:
            left_out.append(f"{printable(file)} ({error})")
            continue
        if cells.size:
            pictures.append(GreyImage(cells))
        else:
            left_out.append(f"{printable(file)} (smaller than a patch of {spec.patch} x {spec.patch} pixels)")
    named = ", ".join(left_out[:NAMED]) + (f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else "")
    if not pictures:
        looked = counted(len(files), "file")
        raise DataError(f"{canonical} holds no image in {looked}: {named}; name a folder with images, such as .png")
    if left_out:
        note(f"left out of {canonical}: {named}")
    return canonical, pictures


def grey_pixels(path: Path) -> Cells:
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


def refuse_as_text(argument: str) -> Source:
    """UsageError: images cannot be read as text."""
    spec = f"images:{argument}" if argument else "images"
    raise UsageError(f"the corpus {spec} holds images, not text; add --task grid, or name a text")


CORPORA.add(
    "images",
    Kind(
        GRAMMAR,
        "for --task grid: the images that matplotlib ships, or those of a folder",
        refuse_as_text,
        available,
        unit="cell",
        explained=EXPLAINED,
    ),
)
