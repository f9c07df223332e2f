"""The grammar of image corpora: images[:FOLDER][?patch=4&levels=32]."""

from __future__ import annotations

import re
from dataclasses import dataclass

from poscli.system.errors import UsageError, near

GRAMMAR = "images[:FOLDER][?patch=4&levels=32]"
RANGES = {"patch": (1, 1024), "levels": (2, 256)}  # smallest and largest value of each option

_SPEC = re.compile(r"images(:(?P<folder>[^?]+))?(\?(?P<options>.+))?")


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
        match = _SPEC.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is no corpus of images; the task grid reads images, written {GRAMMAR}")
        options: dict[str, int] = {}
        for option in filter(None, (match["options"] or "").split("&")):
            name, _, value = option.partition("=")
            options[name] = _number(text, name, value)
        return cls(match["folder"] or "", **options)

    def __str__(self) -> str:
        own = {"patch": self.patch, "levels": self.levels}
        options = "&".join(f"{name}={value}" for name, value in own.items() if value != getattr(ImageSpec, name))
        return "images" + (f":{self.folder}" if self.folder else "") + (f"?{options}" if options else "")


def _number(text: str, name: str, value: str) -> int:
    if name not in RANGES:
        raise UsageError(f"{text!r}: there is no option {name!r}: {near(name, RANGES)}")
    low, high = RANGES[name]
    if not re.fullmatch(r"\d{1,6}", value) or not low <= int(value) <= high:
        raise UsageError(f"{text!r}: {name} must be a whole number from {low} to {high}, not {value!r}")
    return int(value)
