"""What tests of checkpoints start from: an empty current folder, and a folder of models with a text."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import make, write_corpus


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two checkpoints, and a corpus of sixteen documents in text.jsonl."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for family in ("llama", "bloom"):
        make(family, folder / family)
    write_corpus(folder / "text.jsonl")
    return folder
