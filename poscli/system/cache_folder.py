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


def make_in_cache(folder: Path) -> None:
    """Create a folder of the cache and its missing parents, which nobody else can write, whatever the umask.

    Compiled kernels lie in the cache, and are run only if nobody else can have put them there. Raises OSError.
    """
    for missing in reversed([each for each in (folder, *folder.parents) if not os.path.lexists(each)]):
        missing.mkdir(mode=0o755, exist_ok=True)
