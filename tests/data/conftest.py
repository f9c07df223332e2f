"""What tests of corpora start from: an empty cache, and a folder of texts."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """Ten documents of 100 bytes."""
    from corpus_places import write  # not at the top: `make mutants` changes poscli after this file was imported

    return write(tmp_path / "books", {f"{n}.txt": f"book {n} ".ljust(99, ".") + "\n" for n in range(10)})
