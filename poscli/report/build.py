"""Building a report: split rows into sections, give each a summary, pictures and caveats, write the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from poscli.drawing.style import styles_for
from poscli.report.caveats import caveats
from poscli.report.collect import FIRST_COMMANDS
from poscli.report.guessing import untrained
from poscli.report.markdown import report_markdown
from poscli.report.origin import footnote
from poscli.report.pooling import NothingToPlot, headline
from poscli.report.sections import Group, Picture, Report, Section, split
from poscli.report.summary import join, standings, summarize
from poscli.runs.schema import write_table
from poscli.system.errors import PoscliError
from poscli.system.files import write_atomic


def build_report(
    rows: pd.DataFrame,
    positions: pd.DataFrame,
    out: Path,
    *,
    mix: bool = False,
    trained: Mapping[str, int] | None = None,
    explained: Sequence[str] = (),
) -> Report:
    """Write summary.csv, report.md and up to three pictures per section to the folder `out`.

    Each corpus and training length has its own section; `mix` puts corpora into one. `trained` (from
    `trained_tokens`) adds the training budget to footnotes. `explained` lists what the protocols and baselines are,
    in Markdown, for the end of report.md.
    """
    if rows.empty:
        raise PoscliError(f"there are no results to report: {FIRST_COMMANDS}")
    sections = tuple(_section(group, Path(out), trained or {}) for group in split(rows, positions, mix=mix))
    summary = join([section.summary for section in sections])
    pictures = [picture.path for section in sections for picture in section.pictures]
    files = (Path(out) / "report.md", Path(out) / "summary.csv", *pictures)
    report = Report(sections, summary, files)
    write_table(files[1], summary)
    write_atomic(files[0], report_markdown(report, trained or {}, explained))
    return report


def _section(group: Group, out: Path, trained: Mapping[str, int]) -> Section:
    summary = summarize(group.rows, mix=True)  # corpora that must stay apart are different groups already
    pictures, missing = _draw(group, summary, out, trained)
    return Section(group, summary, tuple(pictures), (*group.notes, *caveats(group.rows, summary), *missing))


def _draw(
    group: Group, summary: pd.DataFrame, out: Path, trained: Mapping[str, int]
) -> tuple[list[Picture], list[str]]:
    """Draw the pictures of one section in common styles: (pictures, why others could not be drawn)."""
    from poscli.report import figures  # matplotlib takes a second to import, and a summary does not need it

    rows, styles = group.rows, styles_for(*standings(summary))
    scored = rows[rows["status"] == "ok"]
    per_token = scored["bytes"].sum() / scored["tokens"].sum() if scored["tokens"].sum() else 1.0
    origin = footnote(rows, headline(rows).perplexity, trained)
    pictures, missing = [], []
    for name, draw in (
        ("perplexity", lambda: figures.perplexity_by_length(rows, styles=styles, trained=trained)),
        ("gain", lambda: figures.context_gain_by_length(rows, styles=styles, trained=trained)),
        (
            "position",
            lambda: figures.loss_by_position(
                group.positions, styles=styles, bytes_per_token=per_token, origin=origin, guessing=untrained(rows)
            ),
        ),
    ):
        try:
            drawing = draw()
        except NothingToPlot as error:
            missing.append(f"No picture of {name}: {error}.")
            continue
        path = out / f"{name}{group.slug}.png"
        drawing.page.save(path)
        pictures.append(Picture(path, drawing.alt))
    return pictures, missing
