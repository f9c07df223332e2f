"""A season that is trained in seconds: two encodings and a reading, on three texts of random words."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

SEASON = """
name = "tests"
texts = ["{0}", "{1}"]
control = "{2}"

[train]
corpus = "{0}"
preset = "nano"
model.layers = 1
length = 16
batch = 4
tokens = 640

[extrapolate]
max_len = 32
tokens = 128
stride = 8
baselines = []

[[table]]
name = "small"
title = "Small models"
ceilings = ["rope"]
encodings = ["none", "rope"]
readings.rope = ["rope+window"]

[[task]]
name = "find"
table = "small"
train = {{ task = "recall", preset = "nano", length = 32, batch = 2, tokens = 256 }}
extrapolate = {{ max_len = 64, tokens = 64 }}
"""
ALL = {"none", "rope", "rope as rope+window"}


def write_season(folder: Path) -> Path:
    """Write the season and its texts to a folder; returns the season's file."""
    path = folder / "season.toml"
    path.write_text(SEASON.format(*_texts(folder, ("a", "b", "c"))))
    return path


def _texts(folder: Path, names: tuple[str, ...]) -> Iterator[str]:
    """Folders of texts of random words, one for each name, as corpora."""
    draw = random.Random(0)
    for name in names:
        (folder / name).mkdir()
        for n in range(12):
            (folder / name / f"{n}.txt").write_text(" ".join(draw.choices([f"{name}{k}" for k in range(9)], k=120)))
        yield f"text:{folder / name}"
