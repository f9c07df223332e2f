"""`poscli report --site`: a folder of pages, one per corpus and training length, one per encoding, and an index."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from poscli.config.run import slug
from poscli.report.folder import Kind, write_folder
from poscli.report.local import shown_runs
from poscli.report.page.data import facts_of, section_data
from poscli.report.page.render import TITLE, render, sections_html
from poscli.report.sections import Report, Section
from poscli.report.trained import Trained
from poscli.system.text import printable_line

INDEX, LIST = "index.html", "site.json"
LONGEST = 60  # characters of a name in the name of a file
UNFINISHED = """<!doctype html><title>This site is not finished</title><p>poscli was stopped while it wrote this folder.
Repeat the command that wrote it.</p>
"""
SITE = Kind(INDEX, LIST, re.compile(r"index\.html|(corpus|encoding)-[A-Za-z0-9.+-]+\.html"), UNFINISHED)


def write_site(report: Report, folder: Path, trained: Mapping[str, Trained] | None = None) -> tuple[Path, ...]:
    """Write the site of a report to a folder; returns the paths of its files, the index first."""
    pages = site_pages(report, shown_runs(trained or {}))
    write_folder(Path(folder), {name: text.encode() for name, text in pages.items()}, SITE)
    return tuple(Path(folder) / name for name in pages)


def site_pages(report: Report, trained: Mapping[str, Trained]) -> dict[str, str]:
    """The texts of all pages by the names of their files."""
    title = printable_line(report.about.title or TITLE)
    data = [section_data(section, trained) for section in report.sections]
    corpora = _file_names("corpus", [section["title"] for section in data])
    names = list(dict.fromkeys(each["name"] for section in data for each in section["encodings"]))
    encodings = _file_names("encoding", names)
    index = [
        {"title": section["title"], "file": corpora[section["title"]], "answer": section["answers"][section["main"]]}
        for section in data
    ]
    links = [(name, encodings[name], _family(name, data)) for name in names]
    pages = {INDEX: render("index.html.jinja", title=title, sections=index, encodings=links)}
    for own in data:
        page = sections_html(report, [own], title=f"{title}: {own['title']}", home=INDEX)
        pages[corpora[own["title"]]] = page
    for name in names:
        found = [
            _of_encoding(shown, name) | {"file": corpora[shown["title"]], "facts": _facts(section, name, trained)}
            for section, shown in zip(report.sections, data, strict=True)
            if _has(shown, name)
        ]
        pages[encodings[name]] = render("encoding.html.jinja", title=name, home=INDEX, sections=found)
    return pages


def _facts(section: Section, name: str, trained: Mapping[str, Trained]) -> list[list[str]]:
    """How the results of one encoding were made."""
    rows = section.group.rows
    return facts_of(rows[rows["encoding"] == name], trained)


def _file_names(kind: str, titles: Iterable[str]) -> dict[str, str]:
    """A file name for each title, unique also where names of files ignore the case of letters."""
    found: dict[str, str] = {}
    for title in titles:
        mark = hashlib.sha256(title.encode(errors="surrogatepass")).hexdigest()[:6]
        plain = re.sub(r"[^A-Za-z0-9.+-]+", "-", slug(title))[:LONGEST].strip("-.")
        found[title] = f"{kind}-{plain}-{mark}.html"
    return found


def _has(section: dict[str, Any], name: str) -> bool:
    return any(each["name"] == name for each in section["encodings"])


def _family(name: str, data: list[dict[str, Any]]) -> str:
    return next(each["acts"] for section in data for each in section["encodings"] if each["name"] == name)


def _of_encoding(section: dict[str, Any], name: str) -> dict[str, Any]:
    """What the page of an encoding shows of one section: its description, and its numbers under every protocol."""
    n = next(number for number, each in enumerate(section["encodings"]) if each["name"] == name)
    lines = [
        {"head": f"loss, {protocol['name']}", "points": [_cells(point) for point in points[n]]}
        for protocol, points in zip(section["protocols"], section["points"], strict=True)
    ]
    if section["answered"]:
        lines.insert(0, {"head": "accuracy", "points": _shares(section, n)})
    known = {key: section[key] for key in ("title", "ratios", "lengths", "answered", "bits")}
    return known | {"encoding": section["encodings"][n], "lines": lines}


def _shares(section: dict[str, Any], n: int) -> list[dict[str, str]]:
    """The accuracies of an encoding by length, or why there is none."""
    shares = []
    for share, point in zip(section["answered"]["points"][n], section["points"][section["main"]][n], strict=True):
        cells = _cells(point)
        shares.append(cells if share is None else cells | {"value": _number(share, ".3f"), "gain": ""})
    return shares


def _cells(point: list[Any] | None) -> dict[str, str]:
    """A point as texts: loss and gain with their intervals, or why there is none."""
    if point is None:
        return {"value": "", "gain": "", "why": "not evaluated"}
    if point[3] is None:
        return {"value": "", "gain": "", "why": f"{point[0]}: {point[2]}"}
    return {"value": _number(point[3:6], ".3f"), "gain": _number(point[6:9], "+.3f"), "why": point[2]}


def _number(numbers: list[float | None], write: str) -> str:
    value, low, high = numbers
    if value is None:
        return "not measured"
    if low is None or high is None:
        return f"{value:{write}} (no interval: too few documents)"
    return f"{value:{write}} [{low:{write}}, {high:{write}}]"
