"""Images: what is read from files of many formats, kept, drawn for training and refused, whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus_places import Place, write
from grid_images import noise
from lines import outcome, sections, told
from PIL import Image

from poscli.grids.corpora import ImageSpec, available, load_images
from poscli.grids.images import (
    training_grids,
)

Snapshot = Callable[..., None]


def write_pictures(folder: Path) -> Path:
    """Images in several formats, and files that are none."""
    folder.mkdir()
    for n in range(4):
        Image.fromarray(noise(n, 6 + n, 8)).save(folder / f"grey{n}.png")
    Image.fromarray(noise(0, 6, 8)).save(folder / "same.bmp")
    Image.fromarray(np.stack([noise(n, 6, 6) for n in (5, 6, 7)], axis=2)).save(folder / "colour.png")
    Image.fromarray(noise(8, 6, 6).astype(np.uint16) * 100 + 50).save(folder / "deep.png")
    Image.fromarray(noise(9, 6, 6).astype(np.float32) / 7 - 3).save(folder / "float.tiff")
    Image.fromarray(np.full((6, 6), np.nan, np.float32)).save(folder / "nan.tiff")
    Image.fromarray(noise(10, 6, 6) > 128).save(folder / "black.png")
    Image.fromarray(noise(11, 1, 5)).save(folder / "strip.png")
    Image.fromarray(noise(12, 3, 2)).save(folder / "dot.png")
    (folder / "cut.png").write_bytes((folder / "grey3.png").read_bytes()[:60])
    (folder / "notes.txt").write_text("no image")
    (folder / "empty.gif").write_bytes(b"")
    return folder


@pytest.mark.parametrize("options", ["?levels=40", "?patch=2&levels=3"])
def test_images(options: str, place: Place, snapshot: Snapshot) -> None:
    folder = write_pictures(place.folder / "pictures")
    made: list[Any] = []

    def load() -> dict[str, Any]:
        made.append(load_images(f"images:{folder}{options}"))
        found: dict[str, Any] = made[0].describe()
        return found

    parts = {"says": place.heard(load)}
    (corpus,) = made
    parts["greys"] = told([corpus.greys, corpus.start, corpus.vocab, corpus.spec.removeprefix(f"images:{folder}")])
    for name, split in (("train", corpus.train), ("valid", corpus.valid), ("tune", corpus.tune)):
        parts[name] = "\n".join(told(image) for image in split.images)
        parts[f"sizes of {name}"] = told([split.shapes, split.cells, split.largest, split.fits(3, 4)])
    for shape in ((2, 3), (2, 2), (1, 3)):
        parts[f"batch of {shape}"] = told(
            [
                training_grids(corpus.train, shape=shape, size=6, seed=seed, step=step)
                for seed, step in ((0, 0), (0, 1), (2, 1))
            ]
        )
    snapshot(sections(parts))


REFUSED = """
images:texts images:single images:one images:one/a.png?patch=5 images:all/*.txt images:none images:all?patch=9
images?patch=700 images?patch=0 images?levels=257 images?levels=1&patch=3 images?level=4 images?patch images? image
images: images:a?patch=1&levels=32 images?levels=3&patch=2&levels=4 images?patch=1025 images?patch=2.5
"""


def test_images_that_are_refused(place: Place, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(place.folder / "all")
    texts = ("texts/a.txt", "texts/b.txt", "texts/c.md", "texts/d", "single/x.txt")
    write(place.folder, dict.fromkeys(texts, "x"))
    (place.folder / "one").mkdir()
    Image.fromarray(noise(0, 4, 4)).save(place.folder / "one/a.png")
    specs = [*REFUSED.split(), "images:a\nb"]
    lines = [f"{spec!r}: {place.heard(lambda spec=spec: load_images(spec).describe())}" for spec in specs]
    lines += [
        f"{spec}: {outcome(ImageSpec.parse, spec)}"
        for spec in ("images", "images?patch=4", "images:a/b?levels=9&patch=2", "images?patch=1&levels=32")
    ]
    monkeypatch.setattr("matplotlib.get_data_path", lambda: "/nowhere")
    lines += [available(), outcome(load_images, "images")]
    snapshot("\n".join(lines) + "\n")
