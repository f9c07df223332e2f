"""What tests of boards start from: cells with the losses that a file of tests plants, and what a board says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with cells of the file's LOSSES, each of as many DOCUMENTS as the file says, and their season."""
    from planted_board import plant  # not at the top: `make mutants` changes poscli after this file was imported

    folder, module = tmp_path_factory.mktemp("cells"), request.module
    return folder, plant(folder, module.LOSSES, documents=module.DOCUMENTS)


@pytest.fixture(scope="module")
def table(made: tuple[Path, Any]) -> Any:
    """The standings of these cells."""
    from poscli.board.standings import standings_of

    (table,) = standings_of(*made)
    return table
