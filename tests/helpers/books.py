"""A small corpus of books, with windows that a test can count one by one."""

from __future__ import annotations

import random
from pathlib import Path


def write_books(folder: Path) -> Path:
    """60 documents of about 400 bytes: words from a small vocabulary."""
    draw = random.Random(0)
    words = ["".join(draw.choices("aeioulmnrst", k=draw.randint(2, 7))) for _ in range(40)]
    folder.mkdir()
    for n in range(60):
        text = " ".join(draw.choices(words, k=draw.randint(70, 90)))
        (folder / f"{n}.txt").write_text(f"{n} {text}\n")
    return folder
