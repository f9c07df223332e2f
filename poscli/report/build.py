"""Building a report: split rows into sections, give each a summary, pictures and caveats, write the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from poscli.drawing.style import Styles, styles_for
from poscli.drawing.text import listed
from poscli.report.accuracy import placed
from poscli.report.analyses import analyses
from poscli.report.answer import answers
from poscli.report.budget import budget_note
from poscli.report.caveats import caveats
from poscli.report.collect import FIRST_COMMANDS
from poscli.report.comparison import as_written
from poscli.report.folder import BROWSER_PAGE, LATEX, LIST, PAGE, TABLE, write_folder
from poscli.report.guessing import untrained
from poscli.report.latex import latex_tables
from poscli.report.local import shown, shown_runs, shown_table
from poscli.report.markdown import report_markdown
from poscli.report.named_once import named_once
from poscli.report.origin import bits_per, footnote
from poscli.report.page import page_html
from poscli.report.per_byte import refuse_several_tokenizers, without_perplexities
from poscli.report.pooling import ACCURACY, NothingToPlot, headline
from poscli.report.recalled import hits, points_of
from poscli.report.sections import About, Group, Picture, Report, Section, split
from poscli.report.summary import join, standings, summarize
from poscli.report.trained import Trained
from poscli.system.errors import PoscliError, UsageError, near

if TYPE_CHECKING:  # matplotlib takes a second to import
    from poscli.report.figures import Drawing

FORMULA_SIGNS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are full-width


def build_report(
    rows: pd.DataFrame,
    positions: pd.DataFrame,
    out: Path,
    *,
    details: Mapping[str, pd.DataFrame] | None = None,
    mix: bool = False,
    baseline: str = "",
    trained: Mapping[str, int] | None = None,
    runs: Mapping[str, Trained] | None = None,
    about: About | None = None,
    formats: Sequence[str] = (),
) -> Report:
    """Write summary.csv, report.md, report.html, tables.tex, the pictures of each section and files.json to `out`.

    Each corpus and training length has its own section; `mix` puts corpora into one. Runs of several tokenizers are a
    UsageError without `mix`, and with it they are compared in bits per byte. `details` are the tables beside rows and
    positions (`Tables.details`), which analyses need. `baseline` names an encoding that all others are compared with;
    UsageError if there is none of that name. `trained` (from `trained_tokens`) adds the training budget to footnotes;
    `runs` (from `trained_runs`) adds the cost of training and the commands to report.html. `about` is what the rows
    cannot tell, such as a title. `formats` are those of pictures beside PNG: svg, pdf. Files of an earlier report in
    the folder that are not written again are removed. All pictures are drawn before the first file is written, so that
    an error leaves the earlier report as it was.
    """
    _refuse(rows, mix=mix)
    details = {name: shown_table(table) for name, table in (details or {}).items()}
    groups = split(shown_table(rows), shown_table(positions), details, mix=mix, trained=trained)
    baseline = _known(shown(baseline), sorted({str(name) for group in groups for name in group.rows["encoding"]}))
    out, trained = Path(out), trained or {}
    contents: dict[str, bytes] = {}
    sections = tuple(_section(group, out, trained, runs or {}, contents, baseline, formats) for group in groups)
    summary = join([without_perplexities(section.summary) for section in sections])
    files = tuple(out / name for name in (PAGE, TABLE, BROWSER_PAGE, LATEX, *contents, LIST))
    report = Report(sections, summary, files, _shown(about or About()))
    contents[TABLE] = for_spreadsheets(summary).to_csv(index=False, lineterminator="\n").encode()
    contents[PAGE] = report_markdown(report, trained).encode()
    contents[LATEX] = latex_tables(report).encode()
    contents[BROWSER_PAGE] = page_html(report, shown_runs(runs or {})).encode()
    write_folder(out, contents)
    return report


def _shown(about: About) -> About:
    return replace(about, left_out=[shown(each) for each in about.left_out])


def _refuse(rows: pd.DataFrame, *, mix: bool) -> None:
    """PoscliError for rows that no report can be made of."""
    if rows.empty:
        raise PoscliError(f"there are no results to report: {FIRST_COMMANDS}")
    refuse_several_tokenizers(rows, mix=mix)
    if mix:
        _refuse_mixed_tasks(rows)


def _refuse_mixed_tasks(rows: pd.DataFrame) -> None:
    """UsageError if a task with right answers would share a section with another task or with text."""
    if ACCURACY not in rows:
        return
    for length, part in rows.groupby("train_length"):
        answered = sorted(set(part.loc[part[ACCURACY].notna(), "corpus"]))
        if answered and part["fingerprint"].nunique() > 1:
            others = listed(sorted(set(part["corpus"])))
            raise UsageError(
                f"--mix would join {others}, all trained at L = {length}, although {listed(answered)} is judged by "
                "right answers; leave out --mix, or report on them in a folder of their own"
            )


def _known(baseline: str, names: Sequence[str]) -> str:
    """The baseline as it is written in the results; UsageError if no run has this encoding."""
    baseline = as_written(baseline, names)
    if baseline and baseline not in names:
        raise UsageError(f"--baseline {baseline}: no run has this encoding: {near(baseline, names)}")
    return baseline


def for_spreadsheets(table: pd.DataFrame) -> pd.DataFrame:
    """The table, with an apostrophe before every text that a spreadsheet would take for a formula.

    Spreadsheets execute a cell that begins with `=`, `+`, `-` or `@`. They show `'=1+1` as the text `=1+1`.
    """
    texts = table.select_dtypes(["object", "string"]).columns
    return table.assign(**{name: table[name].map(_no_formula) for name in texts})


def _no_formula(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else text


def _section(
    group: Group,
    out: Path,
    trained: Mapping[str, int],
    runs: Mapping[str, Trained],
    contents: dict[str, bytes],
    baseline: str,
    formats: Sequence[str],
) -> Section:
    """One section; the content of its pictures goes to `contents`, by file name."""
    summary = summarize(group.rows, mix=True)  # corpora that must stay apart are different groups already
    pictures, missing = _draw(group, summary, trained, tuple(dict.fromkeys(("png", *formats))))
    contents |= {
        f"{name}{group.slug}.{suffix}": content
        for name, (files, _) in pictures.items()
        for suffix, content in files.items()
    }
    shown = tuple(Picture(out / f"{name}{group.slug}.png", alt) for name, (_, alt) in pictures.items())
    notes = (*group.notes, *caveats(group.rows, summary), *budget_note(group.rows, summary, runs), *missing)
    return Section(group, summary, shown, notes, answers(group, summary, runs), analyses(group, summary, baseline))


def _draw(
    group: Group, summary: pd.DataFrame, trained: Mapping[str, int], formats: Sequence[str]
) -> tuple[dict[str, tuple[dict[str, bytes], str]], list[str]]:
    """Draw one section in common styles: (files by format and alternative text by name, why others are missing)."""
    group, summary, model = named_once(group, summary)
    styles = styles_for(*standings(summary), always=model)
    pictures, missing = {}, []
    for name, draw in _drawings(group, summary, trained, styles).items():
        try:
            drawing = draw()
        except NothingToPlot as error:
            missing.append(f"No picture of {name}: {error}.")
            continue
        pictures[name] = ({suffix: getattr(drawing.page, suffix)() for suffix in formats}, drawing.alt)
    return pictures, missing


def _drawings(
    group: Group, summary: pd.DataFrame, trained: Mapping[str, int], styles: Styles
) -> dict[str, Callable[[], Drawing]]:
    """What to draw of one section, by name."""
    # matplotlib takes a second to import, and a summary does not need it
    from poscli.report import figures
    from poscli.report.accuracy_figure import accuracy_by_length, accuracy_by_place
    from poscli.report.recall_figure import recall_by_distance

    rows = group.rows
    scored = rows[rows["status"] == "ok"]
    per_token = scored["bytes"].sum() / scored["tokens"].sum() if scored["tokens"].sum() else 1.0
    origin = footnote(rows, headline(rows).perplexity, trained)
    drawn: dict[str, Callable[[], Drawing]] = {}
    answers, recall = (group.details.get(name, pd.DataFrame()) for name in ("answers", "recall"))
    if len(answers):
        drawn["accuracy"] = lambda: accuracy_by_length(answers, summary, styles=styles, origin=origin)
        if placed(answers, summary):
            drawn["place"] = lambda: accuracy_by_place(answers, summary, styles=styles, origin=origin)
    else:  # of an episode, only the answer has a loss that the training cared for
        drawn["perplexity"] = lambda: figures.perplexity_by_length(rows, styles=styles, trained=trained)
        drawn["gain"] = lambda: figures.context_gain_by_length(rows, styles=styles, trained=trained)
        drawn["position"] = lambda: figures.loss_by_position(
            group.positions,
            styles=styles,
            bytes_per_token=per_token,
            origin=origin,
            guessing=untrained(rows),
            unit=bits_per(rows),
        )
    if len(recall) and points_of(hits(recall))["from"].nunique() > 1:  # random text does not occur again
        of_gain = footnote(rows, headline(rows).gain, trained)
        drawn["recall"] = lambda: recall_by_distance(recall, styles=styles, origin=of_gain)
    return drawn
