"""The gallery: a sheet for every registered encoding, a contact sheet with a small picture of each, and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table
from rich.text import Text

from poscli.config.run import slug
from poscli.drawing.page import clip, written
from poscli.drawing.sheet import Contents, Sheet
from poscli.drawing.style import FAINT, INK, QUIET
from poscli.drawing.text import drawable
from poscli.encodings import get, missing, names
from poscli.inspect.numbers import Missing
from poscli.inspect.session import drawn_size, explained, fresh_group, write_sheet
from poscli.inspect.settings import InspectSettings
from poscli.inspect.subject import RANDOM
from poscli.inspect.views import Inspected, all_views, measure_views
from poscli.report.catalogue import FAMILIES
from poscli.system.errors import PoscliError
from poscli.system.files import write_atomic
from poscli.system.progress import Meter
from poscli.system.text import printable

COLUMNS = 3  # of slots of the sheet, which decide its width
PER_ROW = 9  # tiles
# In inches: the height of a picture, what lies between tiles, the name above it, and the family above those.
TILE_HEIGHT, TILE_GAP, NAME, FAMILY = 1.0, 0.16, 0.2, 0.36
MARGIN = 0.25
JOINED = "meant to be joined with another"  # wrappers, most of which change nothing by themselves
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
    def heading(self) -> str:
        """What its family is called, as in the table of all encodings."""
        return FAMILIES.get(self.family, OTHER)

    @property
    def formula(self) -> str:
        """The formula of the encoding; empty if it could not be built."""
        return explained(self.inspected.subject) if self.inspected else ""

    @property
    def findings(self) -> list[str]:
        """What its pictures say."""
        return [record.finding for record in self.inspected.records.values()] if self.inspected else []


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
    """Draw every registered encoding into a folder; one that cannot be built is listed with the reason.

    UsageError before anything is drawn for settings that are wrong for all of them.
    """
    drawn_size(settings)
    known, entries, files = names(), [], []
    with Meter("inspect", len(known)) as progress:
        for name in known:
            entry = _entry(name, settings)
            if entry.inspected:
                files += write_sheet([entry.inspected], folder, entry.picture, f"{slug(name)}.svg")
            entries.append(entry)
            progress.advance(1, name)
    order = {family: place for place, family in enumerate(FAMILIES)}
    entries.sort(key=lambda entry: (order.get(entry.family, len(order)), entry.name))
    sheet = draw_contact_sheet(entries)
    for suffix in ("png", "svg"):
        files.append(folder / f"{CONTACT}.{suffix}")
        write_atomic(files[-1], written(sheet.figure, suffix))
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.heading, []).append(entry)
    page = _TEMPLATES.get_template("gallery.html.jinja").render(groups=groups, contact=f"{CONTACT}.svg")
    write_atomic(folder / PAGE, page)
    return Gallery(entries, folder / PAGE, [folder / PAGE, *files])


def _entry(name: str, settings: InspectSettings) -> Entry:
    if why := missing(name):
        return Entry(name, "", failure=why)
    family = get(name).family
    try:
        (inspected,) = measure_views(fresh_group(name, settings).subjects, [None])
    except PoscliError as reason:
        return Entry(name, family, failure=str(reason))
    return Entry(name, family, inspected, picture=f"{slug(name)}.png")


def draw_contact_sheet(entries: Sequence[Entry]) -> Sheet:
    """A tile per encoding: attention by distance where all tokens look alike, one line per head, on shared axes."""
    groups = [(heading, list(group)) for heading, group in groupby(entries, key=lambda entry: entry.heading)]
    rows = sum(-(-len(group) // PER_ROW) for _, group in groups)
    height = rows * (TILE_HEIGHT + NAME + TILE_GAP) + len(groups) * FAMILY
    of_views = " ".join(view.thumbnail.explained for view in all_views().values() if view.thumbnail)
    axes_explained = (
        "x: tokens back from the query, log scale; dashed: the training length. y: attention weight, log scale; "
        f"dotted: equal weights. {of_views} "
        "An encoding that changes nothing at its initial weights has random ones here."
    )
    title = f"{len(entries)} encodings: attention by distance where all tokens look alike"
    sheet = Sheet(0, COLUMNS, Contents(title, [""], [axes_explained], [], ""), height)
    top, width = 0.0, (sheet.width - 2 * MARGIN - (PER_ROW - 1) * TILE_GAP) / PER_ROW
    for heading, group in groups:
        sheet.write(MARGIN, top + 0.1, heading, size=9, weight="bold")
        top += FAMILY
        for n, entry in enumerate(group):
            x = MARGIN + n % PER_ROW * (width + TILE_GAP)
            if n and n % PER_ROW == 0:
                top += TILE_HEIGHT + NAME + TILE_GAP
            sheet.write(x, top, clip(entry.name, 22), size=7.6)
            _draw_tile(sheet.box(x, top + NAME, width, TILE_HEIGHT), entry)
        top += TILE_HEIGHT + NAME + TILE_GAP
    return sheet


def _draw_tile(axes: Axes, entry: Entry) -> None:
    """The picture of a tile, without names of axes; they are the same everywhere."""
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(FAINT)
    name, record = list(entry.inspected.records.items())[-1] if entry.inspected else ("", None)
    view = all_views().get(name)
    if view and view.thumbnail and not isinstance(record, Missing):
        view.thumbnail.draw(axes, record)
    else:
        reason = drawable((entry.failure or (record.finding if record else ""))[:60])
        axes.text(
            0.5, 0.5, reason, transform=axes.transAxes, ha="center", va="center", fontsize=5.5, color=INK, wrap=True,
            parse_math=False,
        )  # fmt: skip
    if entry.inspected:
        subject = entry.inspected.subject
        remark = subject.weights if subject.weights == RANDOM else JOINED if subject.encoding.wraps else ""
        axes.text(0.97, 0.05, remark, transform=axes.transAxes, fontsize=5.5, color=QUIET, ha="right")


def show_gallery(gallery: Gallery, console: Console) -> None:
    """Print a line for each encoding: what the last of its pictures says, or why there is none."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("encoding", "attention where all tokens look alike"):
        table.add_column(column, no_wrap=column == "encoding")
    for entry in gallery.entries:
        text = Text(printable(entry.failure), style="yellow") if entry.failure else Text(entry.findings[-1])
        table.add_row(entry.name, text)
    console.print(table)
