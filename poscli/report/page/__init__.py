"""report.html: one self-contained page with every number of a report, which asks for nothing from outside.

The scripts of this folder draw tables and charts from the numbers of `page_section`. They draw in the browser, because
the reader's choices (the encoding to compare with, the protocol, an encoding under the pointer) change every number and
every line: the numbers then travel once instead of once per choice.

Every text reaches the page either through the template, which escapes it, or in a block of JSON in which `<`, `>` and
`&` are escaped, so that no title, spec or corpus can end the block. The scripts set texts, never markup. A content
security policy lets only these scripts run, by their hash, and forbids every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from scipy.special import stdtrit

from poscli.drawing.style import DASHES, PALETTE
from poscli.report.accuracy import PLACES
from poscli.report.catalogue import TITLES
from poscli.report.comparison import AllPairs
from poscli.report.data import Accuracies, BinData, Report, Section
from poscli.report.pooling import ratio_name
from poscli.report.summary import as_json
from poscli.report.verdicts import SOLVED_SHARE
from poscli.report.why import MEANT
from poscli.statistics import FEWEST_SEEDS, UPPER
from poscli.statistics.comparison import BETTER, NOT_COMPARED, TOO_FEW, WITHIN_NOISE, WORSE
from poscli.system.text import printable_line

TITLE = "Position encodings beyond their training length"
PACKAGE = "poscli.report.page"
SCRIPTS = ("core.js", "values.js", "lines.js", "pareto.js", "tables.js", "comparison.js", "page.js")
LIGHT, DARK = "#ffffff", "#15181c"  # the paper of both themes; also in style.css
BLACK, LIGHTEST = "#000000", "#f2f2f2"
READABLE = 4.5  # contrast of small text, by the accessibility guidelines (WCAG 2.2, criterion 1.4.3)

DIGITS = 5
UNITS = 100_000  # differences reach the page as whole multiples of 1e-5, which are half as long in JSON
LETTERS = {BETTER: "b", WORSE: "w", WITHIN_NOISE: "n", TOO_FEW: "t", NOT_COMPARED: "-"}


def page_html(report: Report) -> str:
    """The text of report.html for all sections of a report."""
    data = [page_section(section) for section in report.sections]
    return sections_html(report, data, title=report.about.title or TITLE)


def sections_html(report: Report, data: Sequence[dict[str, Any]], *, title: str, home: str = "") -> str:
    """The page of some sections, given by their data; `home` is the address of a page that it links back to."""
    # The dashes of matplotlib as the attribute `stroke-dasharray` of SVG.
    dashes = ["" if isinstance(dash, str) else " ".join(f"{1.4 * length:.3g}" for length in dash[1]) for dash in DASHES]
    return render(
        "template.html.jinja",
        title=printable_line(title),
        description=printable_line(report.about.description),
        left_out=[printable_line(line) for line in report.about.left_out],
        sections=data,
        home=home,
        data=json_block({"sections": data, "dashes": dashes, "fewestSeeds": FEWEST_SEEDS}),
    )


@dataclass(frozen=True)
class PageParts:
    """What a page of another package is made of: its templates, and the styles and scripts, by the packages' files.

    `styles` follow those of report.html, and `scripts` replace its own; each is a package and the name of a file in it.
    """

    package: str = PACKAGE
    styles: tuple[tuple[str, str], ...] = ()
    scripts: tuple[tuple[str, str], ...] = tuple((PACKAGE, name) for name in SCRIPTS)


REPORT_PARTS = PageParts()


def render(template: str, parts: PageParts = REPORT_PARTS, /, **values: Any) -> str:
    """A page from a template, with styles, scripts and the policy that allows these alone."""
    style = _colors() + "".join(_read(*name) for name in ((PACKAGE, "style.css"), *parts.styles))
    script = "".join(_read(*name) for name in parts.scripts)
    script = f'"use strict";\n(() => {{\n{script}}})();\n'
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    made = _templates(parts.package).get_template(template)
    return made.render(**values, style=Markup(style), script=Markup(script), policy=policy)


@cache
def _templates(package: str) -> Environment:
    """The templates of a package, and after them those of this one, whose page.html.jinja all pages extend."""
    loader = ChoiceLoader([PackageLoader(package, ""), PackageLoader(PACKAGE, "")])
    return Environment(loader=loader, undefined=StrictUndefined, autoescape=True, trim_blocks=True)


def _read(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    """The source expression of a content security policy for an inline style or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def json_block(data: Any) -> Markup:
    r"""Data as JSON that may stand in a script element.

    >>> print(json_block({"</script>": "<!--"}))
    {"\u003c/script\u003e":"\u003c!--"}
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _colors() -> str:
    """The palette as custom properties of CSS, on light and on dark paper, each readable as small text.

    On dark paper black becomes nearly white: as far as it must be lightened to be read, it would be the palette's grey.
    """
    on_dark = [LIGHTEST if color == BLACK else color for color in PALETTE]
    light, dark = (
        "".join(f"--c{n}:{readable_color(color, paper)};" for n, color in enumerate(colors))
        for colors, paper in ((PALETTE, LIGHT), (on_dark, DARK))
    )
    preferred = f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme]){{{dark}}}}}"
    return f':root{{{light}}}{preferred}@media screen{{:root[data-theme="dark"]{{{dark}}}}}\n'


def readable_color(color: str, paper: str) -> str:
    """The color, moved towards black or white until it has the contrast of small text on this paper.

    >>> readable_color("#0072B2", "#ffffff"), readable_color("#000000", "#15181c")
    ('#0072b2', '#858585')
    """
    target = 0.0 if _luminance(rgb(paper)) > 0.5 else 1.0
    start, share = rgb(color), 0.0
    mixed = start
    while contrast(mixed, rgb(paper)) < READABLE:
        share += 0.02
        mixed = tuple((1 - share) * part + share * target for part in start)
    return "#" + "".join(f"{round(255 * part):02x}" for part in mixed)


def rgb(color: str) -> tuple[float, ...]:
    """The parts of a color such as #0072B2, each between 0 and 1."""
    return tuple(int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))


def _luminance(color: tuple[float, ...]) -> float:
    """The relative luminance of sRGB values."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The contrast ratio of two colors, between 1 and 21, as WCAG defines it."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def page_section(section: Section) -> dict[str, Any]:
    """The numbers and texts that the page shows of one section.

    Numbers that have no table of documents behind them, such as seconds, are lists of one value per seed; from them the
    page computes Student's interval over seeds, absolute or relative to another encoding. Recall and accuracy by place
    also have their own intervals, which it shows where it is not relative.
    """
    names = [each.name for each in section.protocols]
    families = {each.family for each in section.encodings}
    return {
        "title": section.title,
        "trainLength": section.train_length,
        "lengths": section.lengths,
        "ratios": [ratio_name(length / section.train_length) for length in section.lengths],
        "unit": section.unit,
        "bits": section.bits,
        "perplexities": not section.per_byte,  # of several tokenizers, only losses per byte compare
        "protocols": [{"name": each.name, "explained": each.explained} for each in section.protocols],
        "main": names.index(section.headline.perplexity),
        "gainFrom": [names.index(each.gain_from) if each.gain_from else None for each in section.protocols],
        "families": [{"key": key, "title": title} for key, title in TITLES.items() if key in families],
        "encodings": _plain(section.encodings),
        "points": [_points(section, name) for name in names],
        "pairs": [{"loss": _packed(each.losses), "gain": _packed(each.gains)} for each in section.protocols],
        "answered": None if section.accuracies is None else _accuracies(section.accuracies),
        "tasks": _plain(section.measures),
        "costs": _plain(section.costs),
        "timing": section.timing,
        "position": _bins(section.positions),
        "recall": _bins(section.recall),
        "ceilings": _plain(section.ceilings),
        "use": None if section.use is None else _plain(replace(section.use, columns=())),
        "attribution": _plain(section.harms),
        "changes": MEANT if section.harms else (),
        "facts": section.made,
        "notes": section.notes,
        "items": section.items,
        "fewSeeds": section.few_seeds,
        "student": _plain(stdtrit(np.arange(1, max(2, len(section.seeds))), UPPER).tolist()),
        "answers": [{"sentence": each.answer.sentence, "facts": each.answer.facts} for each in section.protocols],
    }


def _plain(value: Any) -> Any:
    """A value for JSON, its numbers shortened."""
    return as_json(value, DIGITS)


def _bins(bins: Sequence[BinData]) -> list[dict[str, Any]]:
    return [
        {"from": each.first, "to": each.last, "values": _plain(each.values), "intervals": _plain(each.intervals)}
        for each in bins
    ]


def _points(section: Section, protocol: str) -> list[list[list[Any] | None]]:
    """The points of a protocol by encoding and length; None where there is no row.

    A point is a list, because there are thousands: status, failed seeds, reason, and (value, low, high) of the loss, of
    the gain and of the perplexity. The interval of a loss per byte is not that of the loss per token, of which the
    perplexity is made: documents differ in how many bytes a token has.
    """
    known = {
        (p.encoding, p.length): [
            p.status,
            p.failed,
            p.reason,
            *_plain((*p.loss, *p.gain, p.ppl, p.ppl_low, p.ppl_high)),
        ]
        for p in section.points(protocol)
    }
    return [[known.get((each.name, length)) for length in section.lengths] for each in section.encodings]


def _packed(pairs: AllPairs | None) -> dict[str, Any] | None:
    """Every pair at every length as [difference, low, high] in 1 / UNITS, and for every base a letter for each word."""
    if pairs is None:
        return None
    numbers = [None if math.isnan(v) else round(v * UNITS) for each in pairs.comparisons for v in each.numbers]
    return {"numbers": numbers, "words": ["".join(map(LETTERS.__getitem__, pairs.words(base))) for base in pairs.names]}


def _accuracies(accuracies: Accuracies) -> dict[str, Any]:
    """The right answers: [accuracy, low, high] by encoding and length, None without a number; compared; by place."""
    place = None
    if accuracies.places:
        question, _, label = PLACES[accuracies.by_depth]
        place = {
            "title": f"Does it matter {question}?",
            "label": label,
            "depth": accuracies.by_depth,
            "length": accuracies.place_length,
            "bins": _bins(accuracies.places),
        }
    return {
        "solved": SOLVED_SHARE,
        "chance": _plain(accuracies.chance),
        "pairs": _packed(accuracies.pairs),
        "place": place,
        "points": [
            [None if math.isnan(numbers[0]) else _plain(numbers) for numbers in line] for line in accuracies.points
        ],
    }
