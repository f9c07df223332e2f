"""How objects show themselves in a notebook: a title, and a table that is readable on a light and a dark page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from poscli.system.text import printable

_TABLE = """
<div>{% if title %}<b>{{ title }}</b>{% endif %}
<table style="text-align: left">
{% if head %}<thead><tr>{% for cell in head %}<th style="text-align: left">{{ cell }}</th>{% endfor %}</tr></thead>
{% endif %}<tbody>
{% for row in rows %}<tr>
{%- for cell in row %}<td style="text-align: left{{ styles.get(cell, "") }}">{{ cell }}</td>{% endfor -%}
</tr>
{% endfor %}</tbody></table>{% for line in notes %}
<div>{{ line }}</div>{% endfor %}</div>
"""


def html_table(
    title: str,
    rows: Iterable[Sequence[object]],
    head: Sequence[str] = (),
    *,
    notes: Sequence[str] = (),
    colors: Mapping[str, str] | None = None,
) -> str:
    """A table as HTML. All texts are escaped; `colors` gives cells that are exactly these words a CSS color."""
    from jinja2 import Environment  # not at the top: commands that draw no table do not need it

    cells = [[printable(cell, keep="\n") for cell in row] for row in rows]
    styles = {word: f"; color: {color}" for word, color in (colors or {}).items()}
    context: dict[str, Any] = {"title": printable(title), "head": head, "rows": cells, "styles": styles, "notes": notes}
    return Environment(autoescape=True).from_string(_TABLE.strip()).render(context)
