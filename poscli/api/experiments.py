"""Verify, train and evaluate, as the commands of these names do, and read, compare and report what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from poscli import workflows
from poscli.api.arguments import checked, read, spec_of, takes
from poscli.config.request import ExtrapolateRequest, TrainRequest, refuse_smoke_with_tokens
from poscli.config.run import ModelConfig
from poscli.drawing.text import number
from poscli.equation import Encoding
from poscli.model.load import load_trained
from poscli.model.transformer import Model
from poscli.report import Report, collect, trained_runs
from poscli.report.collect import refuse_damaged
from poscli.report.comparison import compare_named
from poscli.report.folder import known_formats
from poscli.report.groups import split
from poscli.report.origin import bits_per
from poscli.report.pooling import (
    headline,
    pool,
    ratio_name,
    refuse_several_tokenizers,
    task_measures,
)
from poscli.report.summary import GAIN, join, summarize
from poscli.report.table import gain_text
from poscli.runs import results as files
from poscli.runs.run import Run, list_runs
from poscli.runs.schema import POSITION_COLUMNS, frame
from poscli.runs.select import with_known_plugins
from poscli.sweep.tune import tuning_of
from poscli.system import plugins
from poscli.system.device import device_of
from poscli.system.errors import UsageError
from poscli.system.files import check_folder
from poscli.system.notebook import html_table
from poscli.system.plugins import blamed
from poscli.tasks import open_task, task_columns
from poscli.verify import Verdict
from poscli.verify import verify as check_all


@dataclass(frozen=True, eq=False, repr=False)
class Measured:
    """One evaluation, or several: `rows` has everything, `by_length` and `summary` what one looks at first.

    `rows` is a pandas table with one row per run, length, protocol and variant, as in eval.csv. Losses are in nats per
    token; columns that end in `bpb` are in bits per byte.
    """

    rows: pd.DataFrame

    @classmethod
    def of(cls, tables: Sequence[pd.DataFrame]) -> Measured:
        """All rows of several tables."""
        return cls(pd.concat(tables, ignore_index=True))

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per encoding: perplexities at every length, the context gain at the longest, and the verdict."""
        groups = split(self.rows, frame([], POSITION_COLUMNS))
        return join([summarize(group) for group in groups])

    @cached_property
    def by_length(self) -> pd.DataFrame:
        """One row per encoding, text and length: perplexity, bits per byte, the context gain with its 95 % interval.

        The gain, in bits per byte, is the loss with the context cut to the training length minus that with the whole
        window: above 0, the model uses what lies farther back. `corpus` names the text.
        """
        parts = []
        for _, rows in self.rows.groupby("fingerprint", sort=False):
            chosen, measures = headline(rows), task_measures(rows)
            scores = pool(rows, chosen.perplexity)[["encoding", "length", "ratio", "status", "ppl", "bpb", *measures]]
            gains = pool(rows, chosen.gain).set_index(["encoding", "length"])[["gain", "gain_low", "gain_high"]]
            gains.columns = list(GAIN)
            parts.append(scores.join(gains, on=["encoding", "length"]).assign(corpus=rows["corpus"].iloc[0]))
        return pd.concat(parts, ignore_index=True)

    def __repr__(self) -> str:
        cells = [self._head, *self._lines()]
        widths = [max(len(row[n]) for row in cells) for n in range(len(self._head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([*(line.rstrip() for line in lines), *self._verdicts()])

    def _repr_html_(self) -> str:
        return html_table("", self._lines(), self._head, notes=self._verdicts())

    @property
    def _head(self) -> list[str]:
        bits = bits_per(self.rows).replace(" per ", "/")
        return ["encoding", "length", "perplexity", bits, *task_measures(self.rows), f"gain, {bits} [95 %]"]

    def _lines(self) -> Iterator[list[str]]:
        for row in self.by_length.to_dict("records"):
            failed = row["status"] != "ok"
            numbers = [row["status"], "-"] if failed else [number(row["ppl"]), number(row["bpb"])]
            measures = [number(row[name]) for name in task_measures(self.rows)]
            gain = gain_text(*(row[name] for name in GAIN)) if row["ratio"] > 1 else "-"
            name = row["encoding"] if self.rows["corpus"].nunique() == 1 else f"{row['encoding']} on {row['corpus']}"
            yield [name, f"{row['length']} ({ratio_name(row['ratio'])})", *numbers, *measures, gain]

    def _verdicts(self) -> list[str]:
        rows = self.summary.to_dict("records")
        return [
            f"{row['encoding']}: {row['verdict']}" + (f" ({row['reason']})" if row["reason"] else "") for row in rows
        ]


SHAPE = {"model": ModelConfig}  # `layers`, `width`, ... are options beside those of the request


@checked
def verify(encoding: str | type[Encoding], *, seed: int = 0) -> Verdict:
    """Check that an encoding does what every encoding must do: causality, cached decoding, engines, gradients, ...

    `seed` draws the input and the weights. The verdict has the findings and a `status`: `passed`, `failed`, or
    `unavailable` if a package that the encoding needs is not installed. UsageError for a spec that is wrong.
    """
    plugins.forget_edited()
    with blamed():
        return check_all(spec_of(encoding), seed)


@takes(TrainRequest, SHAPE)
@checked
def train(
    enc: str | type[Encoding],
    *,
    seed: int = 0,
    device: str = "auto",
    out: str | Path = "results",
    force: bool = False,
    **options: Any,
) -> Run:
    """Train a tiny language model with an encoding; an interrupted run goes on, a complete one is returned at once.

    The run lies in the folder `out`. `force` deletes what the run has so far. A run that diverges or does not fit the
    memory is returned with that state, as `run.status()` says. UsageError for options that cannot be trained, DataError
    for a corpus that cannot be read or is too short, LockedError if another process works on the run.
    """
    plugins.forget_edited()
    request = read(TrainRequest, options, "train", SHAPE)
    with blamed():
        setup = workflows.prepare(request, [spec_of(enc)], [seed], device_of(device))
        return workflows.train(setup, Path(out) / "runs", force=force)[0]


@takes(TrainRequest, SHAPE)
@checked
def tune(
    enc: str | type[Encoding],
    *,
    device: str = "auto",
    out: str | Path = "results",
    force: bool = False,
    **options: Any,
) -> pd.DataFrame:
    """Nine trials of an encoding's learning rates, each with half of the tokens: one row each, the best first.

    The columns are `run_id`, the two rates that were varied (`matrix_lr`, and `encoding_lr` or, if the encoding learns
    nothing, `embedding_lr`) and `bpb`, the loss at L in bits per byte on text that is never scored, NaN if the training
    diverged. Suites in the same folder `out` take the best with recipe = "tuned". `force` makes the trials again.
    UsageError or DataError if there is no text for tuning; PoscliError if a trial lacks memory or no loss is finite.
    """
    plugins.forget_edited()
    request = read(TrainRequest, options, "tune", SHAPE)
    with blamed():
        setup = workflows.prepare(request, [spec_of(enc)], [0], device_of(device))
        tuning = tuning_of(setup.configs[0], setup, Path(out))
        if force:
            tuning.forget()
        found = tuning.find()
    return pd.DataFrame(found["trials"]).sort_values("bpb", ignore_index=True)


@checked
def corpus(text: str, *, tokenizer: str = "bytes", length: int = 256, tokens_of: str = "") -> dict[str, Any]:
    """What a corpus is, how far back it repeats itself, and what an n-gram with a cache wins by longer windows.

    `text` is the spec of the corpus, and the keys are those of `poscli corpus TEXT --json`. `length` is L in tokens, 8
    to 65,536, and `tokens_of` the corpus whose text trains the tokenizer, if that is another one. UsageError for a spec
    or a length that is wrong; DataError for a corpus that cannot be read or has no documents longer than 16 L.
    """
    return workflows.measure_text(text, tokenizer, length, tokens_of)


@takes(ExtrapolateRequest)
@checked
def extrapolate(
    run: Run,
    *,
    judge: Run | None = None,
    smoke: bool = False,
    device: str = "auto",
    force: bool = False,
    **options: Any,
) -> Measured:
    """Evaluate a trained run at 1, 2, 4, ... times its training length; what was measured before is not repeated.

    `judge` is a run that says which tokens need long context, for `why=True`; `smoke` scores only a few hundred tokens.
    A damaged evaluation is made again; `force` makes any evaluation again, and leaves the trained model as it is.
    UsageError for a run that is not complete, options that it cannot have or a judge that cannot judge it; DataError if
    its text has changed; LockedError if another process works on it.
    """
    plugins.forget_edited()
    request = read(ExtrapolateRequest, options, "extrapolate")
    refuse_smoke_with_tokens(request, smoke)
    if judge is not None and not request.why:
        raise UsageError(f"judge = {judge.id}: it judges the key tokens of why; give why=True too")
    with blamed():
        known = with_known_plugins([run], strict=True)
        setups = workflows.setups_of(
            known, request, device_of(device), smoke=smoke, judge=judge, open_task=cache(open_task)
        )
        return Measured.of(workflows.evaluate(setups, why=request.why, judge=judge, force=force))


@checked
def load(run: Run, *, device: str = "auto") -> Model:
    """The trained model of a complete run: a torch module from token ids `[B, T]` to logits `[B, T, vocabulary]`.

    Its weights need no gradient. UsageError for a model that poscli did not train, CorruptError for a damaged file.
    """
    plugins.forget_edited()
    with blamed():
        return load_trained(run, device_of(device))


@checked
def runs(out: str | Path = "results") -> list[Run]:
    """Every run in a folder of results, oldest first; a note names each that is damaged and left out.

    CorruptError if all of them are damaged.
    """
    return list_runs(Path(out) / "runs")


@checked
def training_log(run: Run) -> pd.DataFrame:
    """The training log of a run: one row per logged step, with the columns of train.csv; empty before the first.

    `nll` is in nats per token and `bpb` in bits per byte, both means since the row before; `seconds` is the training
    time so far. CorruptError if the log is damaged.
    """
    return files.training_log(run)


@checked
def results(out: str | Path = "results") -> pd.DataFrame:
    """All evaluations in a folder: one row per run, length, protocol and variant, as in eval.csv.

    Each row has the run's id, encoding, seed, corpus and number of parameters; its loss in nats per token (`nll`) with
    a 95 % interval, perplexity (`ppl`) and bits per byte (`bpb`); and the context gain in nats per token (`gain`) with
    its interval. PoscliError if nothing is evaluated yet.
    """
    return collect(Path(out) / "runs", task_columns()).rows


@checked
def summary(out: str | Path = "results", *, mix: bool = False) -> pd.DataFrame:
    """One row per encoding over its seeds, as in summary.csv: perplexities, gain, safe and effective length, verdict.

    `mix` compares runs on different corpora, and those of different tokenizers, which have no perplexities then.
    """
    tables = collect(Path(out) / "runs", task_columns())
    refuse_several_tokenizers(tables.rows, mix=mix)
    trained = trained_runs(Path(out) / "runs")
    groups = split(tables.rows, tables.positions, tables.details, mix=mix, runs=trained)
    return join([summarize(group) for group in groups])


@checked
def compare(
    first: str, second: str, *, protocol: str = "", corpus: str = "", out: str | Path = "results"
) -> pd.DataFrame:
    """Is one run, or one encoding over its seeds, better than another? One row for every length that both have.

    `difference` is the loss of `first` minus that of `second` in bits per byte, or for a task with right answers the
    difference of the accuracies; `low` and `high` are the ends of its 95 % interval. `word` says of `first`: better,
    worse, within noise, too few documents, or not compared. A run is named by its id or the beginning of it. Without
    `protocol` it is the one that reports quote. UsageError for runs that cannot be compared.
    """
    tables = collect(Path(out) / "runs", task_columns())
    refuse_damaged(tables, first, second)
    trained = trained_runs(Path(out) / "runs")
    rows, details = tables.rows, tables.details
    return compare_named(rows, details, first, second, trained=trained, protocol=protocol, corpus=corpus).table


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

    `mix` is as in `summary`, and `baseline` names an encoding that all others are compared with. `formats` are those of
    pictures beside PNG: svg, pdf. `site` is a folder for a page per corpus and per encoding. UsageError for an unknown
    baseline or format, StorageError for a folder that cannot be written, PoscliError if nothing is evaluated.
    """
    runs, pictures, written = Path(out) / "runs", known_formats(formats), Path(to) if to else Path(out) / "report"
    check_folder(written, "to" if to else "out")
    if site is not None:
        check_folder(Path(site), "site")
    tables = collect(runs, task_columns())
    pages = None if site is None else Path(site)
    return workflows.report(tables, runs, written, mix=mix, baseline=baseline, formats=pictures, site=pages)
