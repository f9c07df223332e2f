"""Results of runs as pandas tables, and reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from poscli import workflows
from poscli.api.keywords import checked
from poscli.report import Report, collect, trained_tokens
from poscli.report.collect import refuse_damaged
from poscli.report.comparison import compare_named
from poscli.report.formats import known_formats
from poscli.report.per_byte import refuse_several_tokenizers, without_perplexities
from poscli.report.sections import split
from poscli.report.summary import join, summarize
from poscli.runs import results as files
from poscli.runs.run import Run, list_runs
from poscli.system.files import check_folder
from poscli.tasks import task_columns


@checked
def runs(out: str | Path = "results") -> list[Run]:
    """Every run in a folder of results, oldest first; a note names each that is damaged and left out."""
    return list_runs(Path(out) / "runs")


@checked
def training_log(run: Run) -> pd.DataFrame:
    """The training log of a run: one row per logged step."""
    return files.training_log(run)


@checked
def results(out: str | Path = "results") -> pd.DataFrame:
    """All evaluations in a folder: one row per run, length, protocol and variant, as in eval.csv.

    Each row has the run's id, encoding, seed, corpus and number of parameters; its loss in nats per token (`nll`) with
    a 95 % interval, perplexity (`ppl`), bits per byte (`bpb`); and the context gain with its interval. PoscliError if
    nothing is evaluated yet.
    """
    return collect(Path(out) / "runs", task_columns()).rows


@checked
def summary(out: str | Path = "results", *, mix: bool = False) -> pd.DataFrame:
    """One row per encoding over its seeds, as in summary.csv: perplexities, gain, safe and effective length, verdict.

    `mix` compares runs on different corpora, and those of different tokenizers, which have no perplexities then.
    """
    tables = collect(Path(out) / "runs", task_columns())
    refuse_several_tokenizers(tables.rows, mix=mix)
    trained = trained_tokens(Path(out) / "runs")
    groups = split(tables.rows, tables.positions, tables.details, mix=mix, trained=trained)
    return join([without_perplexities(summarize(group.rows, mix=True)) for group in groups])


@checked
def compare(
    first: str, second: str, *, protocol: str = "", corpus: str = "", out: str | Path = "results"
) -> pd.DataFrame:
    """Is one run, or one encoding over its seeds, better than another? Differences at every length.

    They are differences of the loss in bits per byte under a protocol, by default the one that reports quote, or, for a
    task with right answers, of the accuracy. A run is named by its id or the beginning of it. `word` says
    better, worse or within noise.
    """
    tables = collect(Path(out) / "runs", task_columns())
    refuse_damaged(tables, first, second)
    return compare_named(tables.rows, tables.details, first, second, protocol=protocol, corpus=corpus)[0]


@checked
def report(
    out: str | Path = "results",
    *,
    to: str | Path | None = None,
    mix: bool = False,
    baseline: str = "",
    formats: Sequence[str] = (),
    site: str | Path | None = None,
) -> Report:
    """Write report.html, report.md, tables and pictures to `to`, by default OUT/report; `files` names them.

    `formats` are those of pictures beside PNG: svg, pdf. `site` is a folder for a page per corpus and per encoding.
    """
    runs, pictures, written = Path(out) / "runs", known_formats(formats), Path(to) if to else Path(out) / "report"
    check_folder(written, "to" if to else "out")
    if site is not None:
        check_folder(Path(site), "site")
    tables = collect(runs, task_columns())
    pages = None if site is None else Path(site)
    return workflows.report(tables, runs, written, mix=mix, baseline=baseline, formats=pictures, site=pages)
