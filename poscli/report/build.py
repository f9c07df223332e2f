"""Building a report: check rows, split them into sections, compute what each says, draw and write the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from poscli.drawing.text import listed
from poscli.report.ceilings import is_ceiling
from poscli.report.claims import claims_of_groups, claims_replicated
from poscli.report.collect import FIRST_COMMANDS, Trained, shown, shown_runs, shown_table
from poscli.report.comparison import as_written
from poscli.report.data import About, Report, Section
from poscli.report.documents import latex_tables, report_markdown
from poscli.report.folder import BROWSER_PAGE, LATEX, LIST, PAGE, TABLE, write_folder
from poscli.report.groups import split
from poscli.report.page import page_html
from poscli.report.pooling import ACCURACY, is_answered, refuse_several_tokenizers
from poscli.report.section import section_of
from poscli.system.errors import PoscliError, UsageError, near

FORMULA_SIGNS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are full-width


# Rows are cut out of small tables, for which texts as objects of Python are faster than those of pyarrow.
@pd.option_context("mode.string_storage", "python")
def build_report(
    rows: pd.DataFrame,
    positions: pd.DataFrame,
    out: Path,
    *,
    details: Mapping[str, pd.DataFrame] | None = None,
    mix: bool = False,
    baseline: str = "",
    runs: Mapping[str, Trained] | None = None,
    about: About | None = None,
    formats: Sequence[str] = (),
    ngrams: Mapping[tuple[str, int], str] | None = None,
) -> Report:
    """Write summary.csv, report.md, report.html, tables.tex, the pictures of each section and files.json to `out`.

    Each corpus and training length has its own section; `mix` puts corpora into one. Runs of several tokenizers are a
    UsageError without `mix`, and with it they are compared in bits per byte. `details` are the tables beside rows and
    positions (`Tables.details`), which analyses need. `baseline` names an encoding that all others are compared with;
    UsageError if there is none of that name. `runs` (from `trained_runs`) adds the training budget to footnotes, and
    the cost of training and the commands to report.html. `about` is what the rows cannot tell, such as a title and
    claims. `formats` are those of pictures beside PNG: svg, pdf. `ngrams` (from `ngram_gains`) are sentences for texts,
    by fingerprint and training length. Files of an earlier report in the folder that are not written again are removed.
    All pictures are drawn before the first file is written, so that an error leaves the earlier report as it was.
    """
    _refuse(rows, mix=mix)
    out, about, contents = Path(out), about or About(), dict[str, bytes]()
    tables = {name: shown_table(table) for name, table in (details or {}).items()}
    groups = split(shown_table(rows), shown_table(positions), tables, mix=mix, runs=runs)
    names = sorted({str(name) for group in groups for name in group.rows["encoding"]})
    baseline = as_written(shown(baseline), names)
    if baseline and baseline not in names:
        raise UsageError(f"--baseline {baseline}: no run has this encoding: {near(baseline, names)}")
    known, sections = shown_runs(runs or {}), []
    for group, claims in zip(groups, claims_of_groups(about.claims, groups), strict=True):
        longer = [other for other in groups if is_ceiling(other, group, known)]
        ngram = (ngrams or {}).get((group.text[0][0], group.train_length), "") if len(group.text[0]) == 1 else ""
        section = section_of(group, known, baseline, longer, ngram)
        if told := claims_replicated(claims, section):
            section = replace(section, analyses=(told, *section.analyses))
        contents |= draw_pictures(section, formats)
        sections.append(section)
    about = replace(about, left_out=[shown(each, message=True) for each in about.left_out])
    files = tuple(out / name for name in (PAGE, TABLE, BROWSER_PAGE, LATEX, *contents, LIST))
    report = Report(tuple(sections), about, files)
    contents[TABLE] = for_spreadsheets(report.summary).to_csv(index=False, lineterminator="\n").encode()
    contents[PAGE] = report_markdown(report).encode()
    contents[LATEX] = latex_tables(report).encode()
    contents[BROWSER_PAGE] = page_html(report).encode()
    write_folder(out, contents)
    return report


def draw_pictures(section: Section, formats: Sequence[str]) -> dict[str, bytes]:
    """The pictures of a section in common styles, as PNG and in further formats, by the names of their files."""
    from poscli.drawing.page import written  # matplotlib takes a second to import
    from poscli.report.figures import page_of

    pictures = {}
    for figure, name in zip(section.figures, section.pictures, strict=True):
        page = page_of(figure, section.styles)
        for suffix in dict.fromkeys(("png", *formats)):
            pictures[f"{name.removesuffix('png')}{suffix}"] = written(page.figure, suffix)
    return pictures


def _refuse(rows: pd.DataFrame, *, mix: bool) -> None:
    """PoscliError for rows that no report can be made of.

    A task with right answers shares no section with another task or with text.
    """
    if rows.empty:
        raise PoscliError(f"there are no results to report: {FIRST_COMMANDS}")
    refuse_several_tokenizers(rows, mix=mix)
    if not mix or not is_answered(rows):
        return
    for length, part in rows.groupby("train_length"):
        answered = sorted(set(part.loc[part[ACCURACY].notna(), "corpus"]))
        if answered and part["fingerprint"].nunique() > 1:
            others = listed(sorted(set(part["corpus"])))
            raise UsageError(
                f"--mix would join {others}, all trained at L = {length}, although {listed(answered)} is judged by "
                "right answers; leave out --mix, or report on them in a folder of their own"
            )


def for_spreadsheets(table: pd.DataFrame) -> pd.DataFrame:
    """The table, with an apostrophe before every text that a spreadsheet would take for a formula.

    Spreadsheets execute a cell that begins with `=`, `+`, `-` or `@`. They show `'=1+1` as the text `=1+1`.
    """
    texts = table.select_dtypes(["object", "string"]).columns
    return table.assign(
        **{name: table[name].map(lambda text: f"'{text}" if text.startswith(FORMULA_SIGNS) else text) for name in texts}
    )
