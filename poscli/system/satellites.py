"""Satellites: the folders of poscli that its core works without, and the door by which they plug into it.

A satellite's file or folder is named like the part of the core that it plugs into: `poscli/grids/tasks.py` has a task,
and each file of `poscli/grids/encodings/` an encoding. These are imported where the core imports its own files of that
part, and register what they have in the same way. The core imports nothing else of a satellite, and a satellite that
is deleted is missed by nothing but its own users.
"""

from __future__ import annotations

from pathlib import Path

import poscli

SATELLITES = ("bench", "checkpoints", "cluster", "grids", "inspect")


def plugged_in(part: str) -> dict[str, Path]:
    """The modules that satellites have for a part of the core, by their dotted names, with their files.

    `part` is the last name of that part: `encodings`, `tasks`, `corpora`.
    """
    house = Path(poscli.__file__).parent
    files = [
        file
        for name in SATELLITES
        for pattern in (f"{part}.py", f"{part}/*.py")
        for file in (house / name).glob(pattern)
    ]
    files = sorted(file for file in files if file.stem != "__init__")
    return {".".join(("poscli", *file.relative_to(house).with_suffix("").parts)): file for file in files}
