"""Draws docs/architecture.svg from the code: the rooms of poscli on their floors, and which rooms each one imports.

`make table` writes it, and tests/test_rooms.py checks that it is the picture of today's code. Floors are those of
tests/test_rooms.py, sentences the first lines of the rooms' docstrings. An arrow that follows from two others is left
out: a room may also import what the rooms it points to import.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from html import escape

from test_rooms import FLOORS, HOUSE, SATELLITES, files_of, imported

PICTURE = HOUSE.parent / "docs" / "architecture.svg"
WIDTH, BOX_WIDTH, BOX_HEIGHT, GAP = 1180, 172, 84, 34
LINE_CHARACTERS, LINE_HEIGHT = 27, 14
STYLE = (
    "text{font:11px sans-serif;fill:#333}.name{font:bold 14px monospace;fill:#111}rect{fill:#fff;stroke:#678}"
    ".satellite rect{fill:#f4efe4;stroke:#a98}path{fill:none;stroke:#9ab;stroke-width:1.2}"
)


def drawn() -> str:
    """The picture, as SVG."""
    places = dict(_places())
    height = len(FLOORS) * (BOX_HEIGHT + GAP)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    arrows = [_arrow(places[room], places[other]) for room, other in _arrows()]
    boxes = [_box(room, *place) for room, place in places.items()]
    white = f'<rect width="{WIDTH}" height="{height}" style="stroke:none"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", white, *arrows, *boxes, "</svg>", ""])


def _places() -> Iterator[tuple[str, tuple[float, float]]]:
    """The left upper corner of every room's box, floor by floor."""
    for number, rooms in enumerate(FLOORS):
        pitch = WIDTH / len(rooms)
        for place, room in enumerate(rooms):
            yield room, (pitch * (place + 0.5) - BOX_WIDTH / 2, GAP / 2 + number * (BOX_HEIGHT + GAP))


def _arrows() -> Iterator[tuple[str, str]]:
    """Pairs of a room and one that it imports, without those that follow from others."""
    imports = {room: _imports_of(room) for rooms in FLOORS for room in rooms}
    reached: dict[str, set[str]] = {}
    for room in (room for rooms in reversed(FLOORS) for room in rooms):
        below = {far for other in imports[room] for far in reached.get(other, set())}
        reached[room] = imports[room] | below
        yield from ((room, other) for other in sorted(imports[room] - below))


def _imports_of(room: str) -> set[str]:
    names = {name for path in files_of(room) for _, name in imported(ast.parse(path.read_text(encoding="utf-8")))}
    return names.intersection(room for rooms in FLOORS for room in rooms) - {room}


def _box(room: str, x: float, y: float) -> str:
    file = HOUSE / f"{room}.py" if (HOUSE / f"{room}.py").exists() else HOUSE / room / "__init__.py"
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    lines = textwrap.wrap(docstring.split("\n\n")[0].splitlines()[0], LINE_CHARACTERS, max_lines=4, placeholder=" ...")
    texts = [f'<text class="name" x="{x + 8:.0f}" y="{y + 18:.0f}">{room}</text>']
    texts += [
        f'<text x="{x + 8:.0f}" y="{y + 35 + LINE_HEIGHT * n:.0f}">{escape(line)}</text>'
        for n, line in enumerate(lines)
    ]
    kind = ' class="satellite"' if room in SATELLITES else ""
    frame = f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>'
    return f"<g{kind}>{frame}{''.join(texts)}</g>"


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x, y), (to_x, to_y) = start, end
    x, to_x, y = x + BOX_WIDTH / 2, to_x + BOX_WIDTH / 2, y + BOX_HEIGHT
    bend = (to_y - y) / 2
    return f'<path d="M{x:.0f},{y:.0f} C{x:.0f},{y + bend:.0f} {to_x:.0f},{to_y - bend:.0f} {to_x:.0f},{to_y:.0f}"/>'


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
