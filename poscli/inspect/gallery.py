"""The gallery: a sheet for every registered encoding, a contact sheet with a small picture of each, and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.console import Console
from rich.table import Table
from rich.text import Text

from poscli.config.run import slug
from poscli.encodings import get, missing, names
from poscli.inspect.contact_sheet import Tile, draw_contact_sheet
from poscli.inspect.figure import explained
from poscli.inspect.session import fresh_group, write_sheet
from poscli.inspect.settings import InspectSettings
from poscli.inspect.views import Inspected, inspect
from poscli.report.catalogue import FAMILIES
from poscli.system.errors import PoscliError
from poscli.system.files import write_atomic
from poscli.system.progress import Meter
from poscli.system.text import printable

PAGE, CONTACT = "gallery.html", "gallery"
OTHER = "other"  # the heading of families that come from outside
_TEMPLATES = Environment(loader=PackageLoader("poscli.inspect", "."), undefined=StrictUndefined, autoescape=True)


@dataclass(frozen=True, eq=False)
class Entry:
    """One encoding: its family, what was found, and the name of its picture; or why there is none."""

    name: str
    family: str
    inspected: Inspected | None = None
    picture: str = ""
    failure: str = ""

    @property
    def formula(self) -> str:
        """The formula of the encoding; empty if it could not be built."""
        return explained(self.inspected.subject) if self.inspected else ""

    @property
    def findings(self) -> list[str]:
        """What its pictures say."""
        return [found.finding for found in self.inspected.found.values()] if self.inspected else []


@dataclass(frozen=True, eq=False)
class Gallery:
    """All entries, grouped by family, and the files that were written."""

    entries: list[Entry]
    page: Path
    files: list[Path]

    @property
    def failed(self) -> bool:
        """Whether an encoding that is installed could not be drawn."""
        return any(entry.failure and not missing(entry.name) for entry in self.entries)

    def record(self) -> dict[str, Any]:
        """The gallery for a JSON document."""
        rows = [
            {"name": entry.name, "family": entry.family, "picture": entry.picture, "unavailable": entry.failure}
            | {"inspected": entry.inspected.record() if entry.inspected else None}
            for entry in self.entries
        ]
        return {"encodings": rows, "files": [str(path) for path in self.files]}


def draw_gallery(settings: InspectSettings, folder: Path) -> Gallery:
    """Draw every registered encoding into a folder; one that cannot be built is listed with the reason."""
    known, entries, files = names(), [], []
    with Meter("inspect", len(known)) as progress:
        for name in known:
            entry = _entry(name, settings)
            if entry.inspected:
                files += write_sheet([entry.inspected], folder, entry.picture, f"{slug(name)}.svg")
            entries.append(entry)
            progress.advance(1, name)
    families = list(FAMILIES)
    order = {family: place for place, family in enumerate(families)}
    entries.sort(key=lambda entry: (order.get(entry.family, len(order)), entry.name))
    tiles = [Tile(heading(entry.family), entry.name, entry.inspected, entry.failure) for entry in entries]
    sheet = draw_contact_sheet(tiles)
    for suffix, content in ((".png", sheet.png()), (".svg", sheet.svg())):
        write_atomic(folder / f"{CONTACT}{suffix}", content)
        files.append(folder / f"{CONTACT}{suffix}")
    write_atomic(folder / PAGE, _page(entries))
    return Gallery(entries, folder / PAGE, [folder / PAGE, *files])


def heading(family: str) -> str:
    """What a family is called, as in the table of all encodings."""
    return FAMILIES.get(family, OTHER)


def show_gallery(gallery: Gallery, console: Console) -> None:
    """Print a line for each encoding: what the last of its pictures says, or why there is none."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("encoding", "attention where all tokens look alike"):
        table.add_column(column, no_wrap=column == "encoding")
    for entry in gallery.entries:
        found = Text(printable(entry.failure), style="yellow") if entry.failure else Text(entry.findings[-1])
        table.add_row(entry.name, found)
    console.print(table)


def _entry(name: str, settings: InspectSettings) -> Entry:
    if why := missing(name):
        return Entry(name, "", failure=why)
    family = get(name).family
    try:
        (inspected,) = inspect(fresh_group(name, settings).subjects, [None])
    except PoscliError as reason:
        return Entry(name, family, failure=str(reason))
    return Entry(name, family, inspected, picture=f"{slug(name)}.png")


def _page(entries: Sequence[Entry]) -> str:
    """The HTML page: the contact sheet, then every family with the pictures of its encodings."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(heading(entry.family), []).append(entry)
    return _TEMPLATES.get_template("gallery.html.jinja").render(groups=groups, contact=f"{CONTACT}.svg")
