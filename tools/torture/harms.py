"""Ways to damage a file, whatever it holds."""

from __future__ import annotations

import random
from pathlib import Path


def flip(draw: random.Random, path: Path) -> None:
    """Change one bit, or eight."""
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 1, 8]) if content else 0):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def digit(draw: random.Random, path: Path) -> None:
    """Change one digit of a text, which leaves JSON well-formed, or a byte of another file."""
    content = bytearray(path.read_bytes())
    places = [n for n, byte in enumerate(content) if 48 <= byte <= 57] or list(range(len(content)))
    if places:
        content[draw.choice(places)] = draw.choice(b"0123456789")
    path.write_bytes(content)


def cut(draw: random.Random, path: Path) -> None:
    """Cut off the end."""
    path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size + 1)])


def drop_lines(draw: random.Random, path: Path) -> None:
    """Leave out a line."""
    lines = path.read_bytes().splitlines(keepends=True) or [b""]
    del lines[draw.randrange(len(lines)) : draw.randrange(len(lines)) + 1]
    path.write_bytes(b"".join(lines))


def replace(draw: random.Random, path: Path) -> None:
    """Replace the content by nothing, random bytes or other JSON."""
    junk = [b"", b"[]", b"{}", b"null", b"\xff\xfe", *(draw.randbytes(draw.randrange(1, 300)) for _ in range(5))]
    path.write_bytes(draw.choice(junk))


def nest(draw: random.Random, path: Path) -> None:
    """Replace the content by deeply nested JSON."""
    path.write_bytes(draw.choice((b"[", b'{"text":')) * 50_000)


def remove(draw: random.Random, path: Path) -> None:
    """Delete the file."""
    path.unlink()


def make_folder(draw: random.Random, path: Path) -> None:
    """Put a folder in its place."""
    path.unlink()
    path.mkdir()


def loop(draw: random.Random, path: Path) -> None:
    """Put a symlink to itself in its place."""
    path.unlink()
    path.symlink_to(path)


HARMS = (flip, digit, cut, drop_lines, replace, nest, remove, make_folder, loop)
