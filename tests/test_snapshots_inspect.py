"""Whole answers of `poscli inspect`: what it prints, its document, its pictures, property sheets, runs, the gallery."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from cli_runner import Result, cli
from looks import figures, pictures_as_text, short
from test_inspect_command import FILE

from poscli.config.run import ModelConfig

LOOKS_AT_PICTURES = True
SMALL = ("--preset", "nano", "--length", 16, "--max-len", 80, "--no-properties")
NARROW = ("--layers", 1, "--width", 16, "--heads", 2)  # heads of 8 channels
WIDE = ("--layers", 1, "--width", 24)
CONFIG = ModelConfig(layers=3, width=24, heads=3, mlp=32)

# What is inspected, and with which options: every view, alone and side by side, with and without numbers.
SHEETS: dict[str, tuple[object, ...]] = {
    "one": ("rope+alibi", *SMALL, "--heads", 3, *WIDE),
    "tables": ("sinusoidal", "learned", *SMALL, *NARROW),
    "mixed": ("sinusoidal(combine=multiply)", "sinusoidal(combine=concat, base=50)", *SMALL, *NARROW),
    "turning": ("rope(base=40)", "rope-dynamic", "fope", *SMALL, *NARROW),
    "biases": ("t5(buckets=6, far=20)", "kerple-log+window(20)", *SMALL, *WIDE, "--heads", 3),
    "scores": ("cope(max_pos=6)", "none", "toys:Bilinear", *SMALL, "--heads", 2),
    "order": ("interpolated+alibi", "learned+interpolated", "toys:Sharper", *SMALL, *NARROW),
    "grids": ("alibi-2d", "sinusoidal-2d", "learned-2d", *SMALL, *NARROW),
    "nonsense": ("mine.py:Hidden", "mine.py:Zero", *SMALL, *NARROW),
}  # fmt: skip
LOOKED_AT = ("one", "grids")  # of these the layout is compared, too
# What is inspected without a look at the pictures.
DOCUMENTS: dict[str, tuple[object, ...]] = {
    "layers": ("alibi|none|rope", "cope|fox", *SMALL, *NARROW, "--layers", 5),
    "many": ("|".join(["alibi", "none"] * 3 + ["rope"]), *SMALL, *NARROW, "--layers", 7, "--seed", 3),
    "others": ("xpos", "yarn(factor=4)", "dual-chunk", "clipped(clip=4)", "fox", *SMALL, *NARROW, "--seed", 3),
    "rest": ("hierarchical", "randomized", "rope-2d", "t5-2d", "mine.py:Nan", "mine.py:Root(r=2)", *SMALL, *NARROW),
    "long": ("logn(20)", "window(5)", "shaw(clip=4)", "--preset", "nano", "--no-properties", *NARROW),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, where pictures are written as text."""
    monkeypatch.chdir(tmp_path)
    pictures_as_text(monkeypatch)
    Path("mine.py").write_text(FILE)
    return tmp_path


@pytest.mark.parametrize("name", SHEETS)
def test_a_sheet(name: str, snapshot: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    pictures_as_text(monkeypatch, look=name in LOOKED_AT)
    snapshot(told("inspect", *SHEETS[name]), name, rounded=True)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document(name: str, snapshot: Callable[..., None]) -> None:
    with mock.patch("poscli.inspect.session.write_sheets", return_value=[]):
        snapshot(told("inspect", *DOCUMENTS[name]), name, rounded=True)


# ---- what is told


def told(*arguments: object) -> str:
    """All that a command prints and writes: its words, its document and its files; pictures are drawn once only."""
    document = cli(*arguments, "--json")
    with mock.patch("poscli.inspect.session.write_sheets", return_value=[]):
        words = replace(cli(*arguments), err=document.err)
    known = " ".join(words.out.split())
    return f"{in_words(words)}\n##### document\n{outline(document.json, known)}\n{''.join(files(known))}"


def in_words(result: Result) -> str:
    """The exit code and both streams."""
    lines = [f"exit code {result.code}", *result.out.splitlines(), "----- beside it", *result.err.splitlines()]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def written() -> list[Path]:
    """The files of the pictures."""
    return sorted(path for path in Path().rglob("*") if path.suffix in (".png", ".svg", ".html"))


def files(known: str) -> Iterator[str]:
    """Every file with its content, less the titles that are known; an SVG like the PNG beside it by one line."""
    for path in written():
        first, _, rest = path.read_text().partition("\n")
        png = path.with_suffix(".png")
        alike = path.suffix == ".svg" and png.exists() and png.read_text().partition("\n")[2] == rest
        titles = re.compile(r"^text: (.*(?:\n(?!text: |axes ).*)*)\n", re.MULTILINE)
        new = titles.sub(lambda title: "" if " ".join(title[1].split()) in known else title[0], rest)
        yield f"##### {path}: {first}\n{'' if alike else new}"


def outline(value: Any, known: str = "", indent: str = "") -> str:
    """A document with a line for every object that holds plain values alone; of known texts the first word."""
    if isinstance(value, list):
        return "".join(outline(each, known, indent) for each in value)
    inner = {name: each for name, each in value.items() if holds_objects(each)}
    own = [f"{name}: {plain(each, known)}" for name, each in value.items() if name not in inner]
    lines = [f"{indent}- {'; '.join(own)}\n"]
    for name, each in inner.items():
        below = outline(each, known, f"{indent}  ")
        lines.append(f"{indent}  {name} {below.lstrip()}" if below.count("\n") == 1 else f"{indent}  {name}\n{below}")
    return "".join(lines)


def holds_objects(value: Any) -> bool:
    """Whether a value of a document is an object, or a list of objects."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict) for each in value))


def plain(value: Any, known: str = "") -> str:
    """A value on one line: numbers with four digits, a list of many by some of them."""
    if isinstance(value, list) and value and all(each is None or isinstance(each, (int, float)) for each in value):
        return short(value)
    if isinstance(value, list):
        return "[" + ", ".join(plain(each, known) for each in value) + "]"
    if isinstance(value, str):
        return f"{value.split()[0]} (as above)" if len(value) > 30 and value in known else value
    return figures(value)
