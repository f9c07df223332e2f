"""The user's cache folder: what can be made again at any time, and is safe to delete."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """$POSCLI_CACHE, or `poscli` in the user's cache folder. Raises RuntimeError if no home folder is known."""
    if named := os.environ.get("POSCLI_CACHE"):
        return Path(named).expanduser()
    variable, usual = ("LOCALAPPDATA", "~/AppData/Local") if sys.platform == "win32" else ("XDG_CACHE_HOME", "~/.cache")
    return Path(os.environ.get(variable) or usual).expanduser() / "poscli"
