"""The board as pages: board.html, which asks for nothing from outside, and a page for every encoding.

Every number is one of the standings; the scripts of this folder only write, sort and filter them, and draw them. They
stand beside core.js, lines.js and tables.js of report.html.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from poscli.board.agree_words import Said
from poscli.board.page.about import FLASH, FLEX, about
from poscli.board.standings import RANKED, Standings
from poscli.board.tables import PLACES, name_on_board, record_of_table, tasks_of
from poscli.equation.blanks import TIERS
from poscli.report.catalogue import TITLES, spec_in_label
from poscli.report.page import PACKAGE, UNITS, PageParts, json_block, render
from poscli.report.summary import as_json

BOARD = PageParts(
    package="poscli.board.page",
    styles=(("poscli.board.page", "board.css"),),
    scripts=(
        *((PACKAGE, name) for name in ("core.js", "lines.js", "tables.js")),
        *(("poscli.board.page", name) for name in ("scatter.js", "ranking.js", "pairs.js", "texts.js", "board.js")),
    ),
)
SHAPES = {False: 0, True: 2}  # of the marks of encodings as trained, and of readings of trained models


def board_html(tables: Sequence[Standings], pages: Mapping[str, str], others: Said | None = None) -> str:
    """The text of board.html. `pages` has the file of each encoding's page, by its label; `others` what papers find."""
    sections = [page_table(table, pages) for table in tables]
    title = f"The board of position encodings, season {tables[0].season}"
    data = json_block({"sections": sections})
    return render("board.html.jinja", BOARD, title=title, sections=sections, others=others, data=data)


def families_of(table: Standings) -> dict[str, str]:
    """The family of every encoding of a table, by its label."""
    return {row.label: about(spec_in_label(row.encoding), table.length).described.family for row in table.rows}


def colour_of(family: str) -> int:
    """The number of a family's colour in the palette."""
    return list(TITLES).index(family)


def page_table(table: Standings, pages: Mapping[str, str]) -> dict[str, Any]:
    """What the page shows of one table: its record, with what else is known of the encodings."""
    record = record_of_table(table)
    rows, at = record.pop("rows"), {row.label: n for n, row in enumerate(table.rows)}
    places = places_of(table)
    for row, line in zip(table.rows, rows, strict=True):
        known = about(spec_in_label(row.encoding), table.length)
        line |= {
            "name": name_on_board(row), "family": known.described.family, "color": colour_of(known.described.family),
            "dash": SHAPES[row.is_reading], "tier": known.tier, "kernels": known.kernels, "readAs": row.is_reading,
            "free": row.parameters == table.bare, "page": pages.get(row.label, ""), "places": places.get(row.label),
        }  # fmt: skip
    families = {line["family"] for line in rows}
    used = {line["tier"] for line in rows}
    record |= {
        "encodings": rows,
        "mark": hashlib.sha256(table.table.encode()).hexdigest()[:6],
        "ratios": table.ratios,
        "families": [{"key": key, "title": title} for key, title in TITLES.items() if key in families],
        "tiers": [tier for tier in TIERS if tier in used],
        "kernels": [FLASH, FLEX],
        "tasks": tasks_of(table),
        "better": _beaten(table, at),
        "pairs": _packed(table, at),
        "without": {text: [at[label] for label in labels] for text, labels in table.without.items()},
        "profiles": {text: each for text, each in record["profiles"].items() if text in table.texts},
    }
    plain: dict[str, Any] = as_json(record, PLACES)
    return plain


def places_of(table: Standings) -> dict[str, dict[str, int]]:
    """The place of every ranked encoding on each text, by the regret there, by label and text."""
    places: dict[str, dict[str, int]] = {row.label: {} for row in table.ranked}
    for text in table.texts:
        order = sorted(table.ranked, key=lambda row: (row.texts[text].regret[0], row.label))
        for place, row in enumerate(order, 1):
            places[row.label][text] = place
    return places


def _beaten(table: Standings, at: Mapping[str, int]) -> list[list[int]]:
    """For every encoding, the numbers of those than which it is shown to be better."""
    beaten: list[list[int]] = [[] for _ in table.rows]
    for one, other in table.better:
        beaten[at[one]].append(at[other])
    return [sorted(each) for each in beaten]


def _packed(table: Standings, at: Mapping[str, int]) -> list[list[int] | None]:
    """At i (i - 1) / 2 + j, for ranked encodings i > j: the regret of i less that of j, with its interval."""
    count = sum(row.status == RANKED for row in table.rows)  # these come first
    packed: list[list[int] | None] = [None] * (count * (count - 1) // 2)
    for (one, other), (value, low, high) in table.pairs.items():
        i, j = at[one], at[other]
        if i >= count or j >= count:
            continue
        if i < j:
            i, j, value, low, high = j, i, -value, -high, -low
        packed[i * (i - 1) // 2 + j] = [round(UNITS * number) for number in (value, low, high)]
    return packed
