"""report.html: one self-contained page with every number of a report, which asks for nothing from outside.

The scripts of this folder draw tables and charts from the numbers of `numbers.page_section`. They draw in the browser,
because the reader's choices (the encoding to compare with, the protocol, an encoding under the pointer) change every
number and every line: the numbers then travel once instead of once per choice.

Every text reaches the page either through the template, which escapes it, or in a block of JSON in which `<`, `>` and
`&` are escaped, so that no title, spec or corpus can end the block. The scripts set texts, never markup. A content
security policy lets only these scripts run, by their hash, and forbids every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from poscli.drawing.style import DASHES, PALETTE
from poscli.report.data import Report
from poscli.report.page.numbers import page_section
from poscli.statistics import FEWEST_SEEDS
from poscli.system.text import printable_line

TITLE = "Position encodings beyond their training length"
SCRIPTS = ("core.js", "values.js", "lines.js", "pareto.js", "tables.js", "comparison.js", "page.js")
LIGHT, DARK = "#ffffff", "#15181c"  # the paper of both themes; also in style.css
BLACK, LIGHTEST = "#000000", "#f2f2f2"
READABLE = 4.5  # contrast of small text, by the accessibility guidelines (WCAG 2.2, criterion 1.4.3)

_TEMPLATES = Environment(
    loader=PackageLoader("poscli.report.page", ""), undefined=StrictUndefined, autoescape=True, trim_blocks=True
)


def page_html(report: Report) -> str:
    """The text of report.html for all sections of a report."""
    data = [page_section(section) for section in report.sections]
    return sections_html(report, data, title=report.about.title or TITLE)


def sections_html(report: Report, data: Sequence[dict[str, Any]], *, title: str, home: str = "") -> str:
    """The page of some sections, given by their data; `home` is the address of a page that it links back to."""
    return render(
        "template.html.jinja",
        title=printable_line(title),
        description=printable_line(report.about.description),
        left_out=[printable_line(line) for line in report.about.left_out],
        sections=data,
        home=home,
        data=_json({"sections": data, "dashes": [_dash(dash) for dash in DASHES], "fewestSeeds": FEWEST_SEEDS}),
    )


def render(template: str, **values: Any) -> str:
    """A page from a template, with styles, scripts and the policy that allows these alone."""
    style, script = _colors() + _read("style.css"), "".join(map(_read, SCRIPTS))
    script = f'"use strict";\n(() => {{\n{script}}})();\n'
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    return _TEMPLATES.get_template(template).render(**values, style=Markup(style), script=Markup(script), policy=policy)


def _read(name: str) -> str:
    return resources.files("poscli.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    """The source expression of a content security policy for an inline style or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _json(data: Any) -> Markup:
    r"""Data as JSON that may stand in a script element.

    >>> print(_json({"</script>": "<!--"}))
    {"\u003c/script\u003e":"\u003c!--"}
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _dash(dash: Any) -> str:
    """A dash of matplotlib as the attribute `stroke-dasharray` of SVG."""
    return "" if dash == "-" else " ".join(f"{1.4 * length:.3g}" for length in dash[1])


def _colors() -> str:
    """The palette as custom properties of CSS, on light and on dark paper, each readable as small text.

    On dark paper black becomes nearly white: as far as it must be lightened to be read, it would be the palette's grey.
    """
    on_dark = [LIGHTEST if color == BLACK else color for color in PALETTE]
    light, dark = (
        "".join(f"--c{n}:{readable(color, paper)};" for n, color in enumerate(colors))
        for colors, paper in ((PALETTE, LIGHT), (on_dark, DARK))
    )
    chosen = f':root[data-theme="dark"]{{{dark}}}'
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root:not([data-theme]){{{dark}}}}}{chosen}\n"


def readable(color: str, paper: str) -> str:
    """The color, moved towards black or white until it has the contrast of small text on this paper.

    >>> readable("#0072B2", "#ffffff"), readable("#000000", "#15181c")
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
