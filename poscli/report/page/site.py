"""`poscli report --site`: a folder of pages, one per corpus and training length, one per encoding, and an index."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from poscli.config.run import slug
from poscli.drawing.text import signed
from poscli.report.data import Report, Section
from poscli.report.folder import FolderKind, write_folder
from poscli.report.page import TITLE, page_section, render, sections_html
from poscli.report.pooling import Point, ratio_name
from poscli.system.text import printable_line

INDEX, LIST = "index.html", "site.json"
LONGEST = 60  # characters of a name in the name of a file
UNFINISHED = """<!doctype html><title>This site is not finished</title><p>poscli was stopped while it wrote this folder.
Repeat the command that wrote it.</p>
"""
SITE = FolderKind(INDEX, LIST, re.compile(r"index\.html|(corpus|encoding)-[A-Za-z0-9.+-]+\.html"), UNFINISHED)


def write_site(report: Report, folder: Path) -> tuple[Path, ...]:
    """Write the site of a report to a folder; returns the paths of its files, the index first."""
    pages = site_pages(report)
    write_folder(Path(folder), {name: text.encode() for name, text in pages.items()}, SITE)
    return tuple(Path(folder) / name for name in pages)


def site_pages(report: Report) -> dict[str, str]:
    """The texts of all pages by the names of their files."""
    title = printable_line(report.about.title or TITLE)
    corpora = page_names("corpus", [section.title for section in report.sections])
    acts: dict[str, str] = {}
    for section in report.sections:
        for each in section.encodings:
            acts.setdefault(each.name, each.acts)
    encodings = page_names("encoding", acts)
    links = [(name, encodings[name], how) for name, how in acts.items()]
    pages = {INDEX: render("index.html.jinja", title=title, sections=report.sections, files=corpora, encodings=links)}
    for section in report.sections:
        page = sections_html(report, [page_section(section)], title=f"{title}: {section.title}", home=INDEX)
        pages[corpora[section.title]] = page
    for name in acts:
        parts = [
            {"section": section, "file": corpora[section.title], **_of_encoding(section, name)}
            for section in report.sections
            if name in section.made_of
        ]
        pages[encodings[name]] = render("encoding.html.jinja", title=name, home=INDEX, parts=parts)
    return pages


def page_names(kind: str, titles: Iterable[str]) -> dict[str, str]:
    """A file name for each title, unique also where names of files ignore the case of letters."""
    names: dict[str, str] = {}
    for title in titles:
        mark = hashlib.sha256(title.encode(errors="surrogatepass")).hexdigest()[:6]
        plain = re.sub(r"[^A-Za-z0-9.+-]+", "-", slug(title))[:LONGEST].strip("-.")
        names[title] = f"{kind}-{plain}-{mark}.html"
    return names


def _of_encoding(section: Section, name: str) -> dict[str, Any]:
    """What the page of an encoding shows of one section: its numbers under every protocol."""
    n = [each.name for each in section.encodings].index(name)
    lines = []
    for protocol in section.protocols:
        points = {point.length: point for point in section.points(protocol.name) if point.encoding == name}
        cells = [_cells(points.get(length), section.items) for length in section.lengths]
        lines.append({"head": f"loss, {protocol.name}", "points": cells})
        if section.accuracies is not None and protocol.name == section.headline.perplexity:
            known = zip(section.accuracies.points[n], cells, strict=True)
            shares = [
                cell if math.isnan(share[0]) else cell | {"value": _number(share, _plain, section.items), "gain": ""}
                for share, cell in known
            ]
            lines.insert(0, {"head": "accuracy", "points": shares})
    ratios = [ratio_name(length / section.train_length) for length in section.lengths]
    return {"encoding": section.encodings[n], "facts": section.made_of[name], "ratios": ratios, "lines": lines}


def _cells(point: Point | None, items: str) -> dict[str, str]:
    """A point as texts: loss and gain with their intervals, or why there is none."""
    if point is None:
        return {"value": "", "gain": "", "why": "not evaluated"}
    if not point.is_known:
        return {"value": "", "gain": "", "why": f"{point.status}: {point.reason}"}
    loss, gain = _number(point.loss, _plain, items), _number(point.gain, signed, items)
    return {"value": loss, "gain": gain, "why": point.reason}


def _plain(value: float) -> str:
    return f"{value:.3f}"


def _number(numbers: Sequence[float], write: Callable[[float], str], items: str) -> str:
    """(value, low, high) as text, each written so; `items` are what intervals are over."""
    value, low, high = (round(number, 5) + 0.0 for number in numbers)  # as on the page, and zero has no sign
    if not math.isfinite(value):
        return "not measured"
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{write(value)} (no interval: too few {items})"
    return f"{write(value)} [{write(low)}, {write(high)}]"
