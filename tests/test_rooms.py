"""The house: which rooms there are, and that imports run downwards only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent / "poscli"

# The floors, from the top. A room may import rooms on lower floors only; rooms on one floor do not know each other.
# workflows.py and estimate.py are rooms of one file.
FLOORS = (
    ("grids",),
    ("inspect",),
    ("board",),
    ("bench", "checkpoints", "cluster"),
    ("cli", "api"),
    ("sweep",),
    ("workflows",),
    ("estimate",),
    ("training", "report"),
    ("why",),
    ("evaluation",),
    ("verify",),
    ("model",),
    ("runs",),
    ("config",),
    ("specs",),
    ("encodings", "layouts", "tasks"),
    ("attention", "data", "drawing"),
    ("equation", "native"),
    ("statistics", "system"),
)

SATELLITES = ("grids", "inspect", "board", "bench", "checkpoints", "cluster")  # named in the picture of the house
# Files whose functions are called as what they call is: the commands, their completions, and the API.
CALLERS = ("cli/commands/", "cli/complete", "cli/__init__", "__main__", "sweep/__main__", "api/", "workflows")
# What is called alike because it is alike: what every engine has, every kind of corpus, and every formula of a blank.
ALIKE = {
    *{"refuses", "run", "source", "available"},
    *{"distance_bias", "met_by_keys", "met_by_queries", "pair_bias", "potential"},
}
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def files_of(room: str) -> list[Path]:
    """The files of a room, which is a folder or one file."""
    return sorted([*HOUSE.glob(f"{room}.py"), *(HOUSE / room).rglob("*.py")])


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every room that a file imports from, with the line: also inside functions and for type checkers only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "poscli":
            path = node.module.split(".")[1:]
            yield from ((node.lineno, path[0]) for _ in [0] if path)
            yield from ((node.lineno, alias.name) for alias in node.names if not path)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("poscli."):
                    yield node.lineno, alias.name.split(".")[1]


def test_every_room_has_a_floor_and_a_docstring() -> None:
    rooms = {path.parent.name for path in HOUSE.glob("*/__init__.py")}
    assert rooms | {"workflows", "estimate"} == set(FLOOR)
    assert {path.name for path in HOUSE.glob("*.py")} == {"__init__.py", "__main__.py", "estimate.py", "workflows.py"}
    assert all(ast.get_docstring(ast.parse((HOUSE / room / "__init__.py").read_text())) for room in rooms)


@pytest.mark.parametrize("room", FLOOR)
def test_no_import_runs_upwards(room: str) -> None:
    wrong = []
    for path in files_of(room):
        for line, other in imported(ast.parse(path.read_text())):
            if other in FLOOR and other != room and FLOOR[other] <= FLOOR[room]:
                wrong.append(f"{path.relative_to(HOUSE)}:{line} imports {other}")
    assert not wrong


@pytest.mark.parametrize("room", [room for room in FLOOR if room not in ("encodings", "bench", "evaluation", "grids")])
def test_no_room_names_an_encoding(room: str) -> None:
    """An encoding is known by its own file; baselines, the bench's yardstick and post-hoc encodings are specs.

    A satellite may derive its encodings from those of the core, as a plugin may.
    """
    files = {path.stem for path in (HOUSE / "encodings").glob("*.py")} - {"__init__", "registry", "based"}
    for path in files_of(room):
        for node in ast.walk(ast.parse(path.read_text())):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno}"
                named = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in named:
                if name.startswith("poscli.encodings."):
                    assert name.split(".")[2] not in files, f"{path}:{node.lineno}"


def test_a_public_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(HOUSE.rglob("*.py")):
        file = str(path.relative_to(HOUSE))
        for node in ast.parse(path.read_text()).body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if public and not (isinstance(node, ast.FunctionDef) and file.startswith(CALLERS)):
                places.setdefault(node.name, []).append(file)
    assert not {name: files for name, files in places.items() if len(files) > 1 and name not in ALIKE}
