"""The page of one encoding: what it is, its numbers on every text, whom it is shown to beat, and how to repeat it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from poscli.board.page import BOARD, places_of
from poscli.board.page.about import about, commands_of
from poscli.board.season import Season
from poscli.board.standings import RANKED, Row, Standings
from poscli.board.tables import multiple_text, name_on_board, with_interval
from poscli.drawing.text import signed
from poscli.report.catalogue import OTHER, spec_in_label
from poscli.report.page import render
from poscli.report.page.site import page_names
from poscli.report.verdicts import HARM_BPB
from poscli.statistics import Triple
from poscli.system.text import counted, printable_line

HOME = "board.html"


def encoding_files(tables: Sequence[Standings]) -> dict[str, str]:
    """The file of the page of every encoding on the board, by its label."""
    return page_names("encoding", dict.fromkeys(row.label for table in tables for row in table.rows))


def encoding_pages(tables: Sequence[Standings], season: Season) -> dict[str, str]:
    """The texts of the pages of all encodings by their files, with the commands of the season of the tables."""
    files = encoding_files(tables)
    places = {table.table: places_of(table) for table in tables}
    names = {row.label: name_on_board(row) for table in tables for row in table.rows}
    pages = {}
    for label, file in files.items():
        found = [(table, row) for table in tables for row in table.rows if row.label == label]
        table, row = found[0]
        known = about(spec_in_label(row.encoding), table.length)
        links = {each: (names[each], files[each]) for each in files}
        pages[file] = render(
            "encoding.html.jinja",
            BOARD,
            title=printable_line(names[label]),
            home=HOME,
            acts=known.described.acts[:1].upper() + known.described.acts[1:],
            trained=row.trained_as if row.is_reading else "",
            described=known.described.parts,
            parts=[_part(table, row, places[table.table], links, season) for table, row in found],
        )
    return pages


def _part(
    table: Standings,
    row: Row,
    places: Mapping[str, Mapping[str, int]],
    links: Mapping[str, tuple[str, str]],
    season: Season,
) -> dict[str, Any]:
    """What the page shows of one table."""
    known = about(spec_in_label(row.encoding), table.length)
    order = [each.label for each in table.ranked]
    beaten = {other for one, other in table.better if one == row.label}
    beating = {one for one, other in table.better if other == row.label}
    return {
        "title": table.title,
        "standing": _standing(table, row),
        "ranked": row.status == RANKED,
        "ratios": table.ratios,
        "lines": [
            {
                "text": text,
                "cells": [*(_cell(loss, ".3f") for loss in result.losses), _cell(result.regret, "z.2f")],
                "place": places.get(row.label, {}).get(text, ""),
            }
            for text, result in row.texts.items()
        ],
        "compared": [
            ("Shown to be better than it", [links[label] for label in order if label in beating]),
            ("It is shown to be better than", [links[label] for label in order if label in beaten]),
        ],
        "command": "" if known.described.family == OTHER else commands_of(row, season, season.table_named(table.table)),
        "facts": _facts(table, row),
    }


def _standing(table: Standings, row: Row) -> str:
    """Where it stands in a table, in a sentence or two."""
    if row.status != RANKED:
        return f"It has no rank. {row.status.capitalize()}: {row.why}."
    regret = " ".join(_cell(row.regret, "z.2f"))
    said = f"Rank {row.ranks} of {len(table.ranked)}, by a regret of {regret} at {table.ratios[-1]}."
    if row.first == 1:
        said += " Nobody is shown to be better."
    return said


def _facts(table: Standings, row: Row) -> list[tuple[str, str]]:
    """What is known of it beside its losses, as (fact, value)."""
    known = about(spec_in_label(row.encoding), table.length)
    last, gains = table.ratios[-1], zip(table.ratios[1:], row.gains, strict=False)
    facts = [
        ("Gain over reading L", "; ".join(f"{at}: {with_interval(gain, '+.3f')}" for at, gain in gains)),
        (f"Gain at {last} on {table.control}, where nothing is to be won", with_interval(row.control, "+.3f")),
        (
            "Share used of what training on the longest windows would win (that taken as exact), %",
            with_interval([100 * share for share in row.used], "z.0f"),
        ),
        (f"Shown not to cost {HARM_BPB} bits up to", multiple_text(row.safe)),
        (f"Shown to cost {HARM_BPB} bits from there on", multiple_text(row.harmful)),
        (f"Bits at {last} over the same encoding trained there", signed(row.price)),
        ("Time of a training step over that of none [quartiles]", with_interval(row.training, "z.2f")),
        ("Time of reading the longest windows over that of none [quartiles]", with_interval(row.reading, "z.2f")),
        ("Parameters of the model", f"{row.parameters:,}"),
        ("Tier", known.tier),
        ("Kernels", ", ".join(known.kernels)),
        ("Options changed", "; ".join(known.options)),
        ("Learning rates that tuning chose", ", ".join(f"{key} = {rate:g}" for key, rate in sorted(row.rates.items()))),
        ("Seeds", counted(row.seeds, "seed")),
        ("Source", row.source),
        ("Commits", ", ".join(row.commits)),
        ("Newest result", row.date),
    ]
    return [(fact, value) for fact, value in facts if value not in ("", "-")]


def _cell(numbers: Triple, how: str) -> tuple[str, str]:
    value, low, high = (round(number, 5) + 0.0 for number in numbers)  # zero has no sign
    if math.isnan(value):
        return "not known", ""
    return f"{value:{how}}", "" if math.isnan(low) else f"[{low:{how}}, {high:{how}}]"
