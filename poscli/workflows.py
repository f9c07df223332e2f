"""From a request to a report, in four steps: `prepare`, `train`, `evaluate`, `report`.

The command line, the API and the jobs of a sweep all go this one way, so that they refuse, compute and write the same.
Importing this module imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from poscli import specs
from poscli.config.request import LONGEST_PROFILED, SHORTEST_PROFILED, ExtrapolateRequest, TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import TUNING_SEED, OtherCorpus, RunConfig
from poscli.data import Tokenizer, load_corpus, source_of
from poscli.data.ngram import window_gains, window_lengths
from poscli.data.profile import distance_profile
from poscli.data.source import Source
from poscli.estimate import refuse_unaffordable_windows
from poscli.evaluation.evaluate import evaluate_run, is_evaluated, refuse_unfinished, settings_of
from poscli.evaluation.measure import EvaluationSetup
from poscli.evaluation.posthoc import runs_as
from poscli.model.held import held
from poscli.model.load import keep, load_tokenizer
from poscli.runs.results import Tables
from poscli.runs.run import Run, delete_run, evaluated_as
from poscli.system.console import note
from poscli.system.errors import DataError, UsageError
from poscli.system.ranks import ranks, together
from poscli.tasks import TASKS, Task, open_task
from poscli.training.recalibrate import recalibrate
from poscli.training.train import train as train_run
from poscli.why.explain import check_judge, explain

if TYPE_CHECKING:
    import pandas as pd

    from poscli.report import About, Report

OpenTask = Callable[[str, str, "str | Tokenizer"], Task]  # from the names of a task, a corpus and a tokenizer


@dataclass(frozen=True)
class TrainingSetup:
    """The runs to train, with the task and the device that they share."""

    configs: tuple[RunConfig, ...]
    task: Task
    device: torch.device

    @property
    def ids(self) -> list[str]:
        """The names of the runs' folders."""
        return [config.run_id(self.task.fingerprint) for config in self.configs]


def prepare(
    request: TrainRequest, encodings: Sequence[str], seeds: Sequence[int], device: torch.device
) -> TrainingSetup:
    """The training of every encoding with every seed, checked before any begins. Nothing is written.

    The configurations are in the order of `seeds`, and for each seed in that of `encodings`. UsageError for what
    cannot be trained, DataError for a corpus that cannot be read or is too short.
    """
    specs.refuse_twice(encodings)
    if TUNING_SEED in seeds:
        raise UsageError(f"--seed {TUNING_SEED} is that of the trials of `poscli tune`; give another seed")
    configs = [resolve(request, encoding, seed, device) for seed in seeds for encoding in encodings]
    for config in configs:
        _refuse_without_source(config)
    task = open_task(request.task, request.corpus, request.tokenizer)
    task.check(configs[0].length)
    if (memory := configs[0].model.memory) and task.segments(configs[0].length) < 2:
        raise UsageError(
            f"--memory {memory}: no window of {task.corpus} continues another one, so that nothing would be "
            "remembered; leave it out"
        )
    return TrainingSetup(tuple(config.model_copy(update={"corpus": task.corpus}) for config in configs), task, device)


def _refuse_without_source(config: RunConfig) -> None:
    """UsageError for a class that has no file: its results could not say which code they come from."""
    for name, source in config.plugins.items():
        if not source:
            raise UsageError(
                f"{name} has no file, so its results could not say which code they come from; write it to a file, in a "
                "notebook by a cell that begins with %%writefile my_encoding.py, and train 'my_encoding.py'"
            )


def train(setup: TrainingSetup, runs: Path, *, force: bool = False) -> list[Run]:
    """Train every run of a setup in the folder `runs`, going on where an earlier call stopped.

    `force` first deletes what the runs have so far. A run that diverges or does not fit the memory is returned with
    that state. LockedError if another process works on a run.
    """
    if force:
        with together():
            delete(setup.ids if ranks().first else [], runs)
    return [train_run(config, setup.task, runs, setup.device) for config in setup.configs]


def delete(ids: Iterable[str], runs: Path) -> None:
    """Delete those of the named runs that exist in the folder `runs`, with a note for each."""
    for name in ids:
        if (runs / name).exists():
            delete_run(runs / name)
            note(f"deleted {name}")


def setups_of(
    runs: list[Run],
    request: ExtrapolateRequest,
    device: torch.device,
    *,
    strict: bool = True,
    smoke: bool = False,
    judge: Run | None = None,
    open_task: OpenTask = open_task,
) -> list[EvaluationSetup]:
    """The evaluations that a request asks for: each run, and its weights under the encodings of `request.as_`.

    Nothing is written. With `strict`, an encoding that a run cannot be evaluated as is a UsageError, else a note. With
    `smoke`, only a few hundred tokens are scored. UsageError if a training has not ended, if the longest windows
    certainly do not fit the memory, or if `judge`, which says for `request.why` which tokens need a long context,
    cannot judge one of the runs; LockedError if a training goes on.
    """
    for run in runs:
        if run.config.checkpoint is None:  # a checkpoint was trained elsewhere, and its run may not be there yet
            refuse_unfinished(run)
    setups = []
    for run in runs_as(runs, request, strict):
        of_run = setups_on(run, request, device, smoke=smoke, open_task=open_task)
        for setup in of_run:
            check_judge(setup.run, judge, setup.settings.lengths[-1])
        setups += of_run
    return setups


def setups_on(
    run: Run,
    request: ExtrapolateRequest,
    device: torch.device,
    *,
    smoke: bool = False,
    open_task: OpenTask = open_task,
) -> list[EvaluationSetup]:
    """The evaluations of a run on the corpora of `request.on`, or on its own if there are none."""
    settings = settings_of(run.config, request, smoke)
    refuse_unaffordable_windows(run.config, settings, device)
    refuse_other_corpus(run.config, request)
    if not request.on:
        task = open_task(run.config.task, run.config.corpus, run.config.tokenizer)
        return [EvaluationSetup(run, task, settings, device)]
    setups = list[EvaluationSetup]()
    coder, home = load_tokenizer(run), run.training if run.trained else run
    for corpus in dict.fromkeys(request.on):
        task = open_task(run.config.task, corpus, coder)
        other = OtherCorpus(spec=task.corpus, fingerprint=task.fingerprint)
        own = task.fingerprint == run.fingerprint
        scored = run if own else evaluated_as(home, run.config.encoding, other_corpus=other)
        if all(each.run.folder != scored.folder for each in setups):  # a corpus may be named in two ways
            setups.append(EvaluationSetup(scored, task, settings, device))
    return setups


def refuse_other_corpus(config: RunConfig, request: ExtrapolateRequest) -> None:
    """UsageError if a request names corpora to score that the model of a run cannot read."""
    if not request.on:
        return
    given = f"--on {request.on[0]}"
    if config.checkpoint is not None:
        raise UsageError(f"{given}: a checkpoint is evaluated on any corpus with --corpus; give that in its place")
    if not TASKS.get(config.task).reads_text:
        raise UsageError(f"{given}: the task {config.task} of {config.encoding} reads no text; leave it out")
    if request.recalibrate is not None:
        raise UsageError(f"{given} and --recalibrate {request.recalibrate} exclude each other; leave one of them out")
    for corpus in request.on:
        other, own = source_of(corpus), _source_if_there(config.corpus)
        if own is not None and other.shows_held_out(own):
            instead = "leave out `whole:`" if other.whole else f"name {own.spec}, or what is made of that"
            raise UsageError(f"--on {corpus}: {config.encoding} was trained on text of it; {instead}")


def _source_if_there(corpus: str) -> Source | None:
    """The source of a corpus; None if its files are gone."""
    try:
        return source_of(corpus)
    except (DataError, UsageError):
        return None


def evaluate(
    setups: Sequence[EvaluationSetup], *, why: bool = False, judge: Run | None = None, force: bool = False
) -> list[pd.DataFrame]:
    """Make every evaluation that is not made yet, or with `force` every one; returns the rows of each.

    A run that is to be recalibrated is trained under its new encoding first. `why` adds the analyses of each run,
    for which `judge` says which tokens need a long context.
    """
    with held():
        with together():
            for setup in setups if ranks().first else ():
                if setup.run.config.checkpoint is not None and not setup.run.trained:
                    keep(setup.run, setup.device)
        tables = []
        for setup in setups:
            if setup.run.recalibration and not is_evaluated(setup.run, setup.settings):
                recalibrate(setup.run, setup.task, setup.device)
            tables.append(evaluate_run(setup, force=force))
        for setup in setups if why else ():
            explain(setup, judge)
    return tables


def measure_text(text: str, tokenizer: str, length: int, tokens_of: str = "") -> dict[str, Any]:
    """What `poscli corpus` says of a text, as plain JSON: its size, its distance profile, and what longer windows win.

    `tokens_of` is the corpus whose text trains the tokenizer, if that is another one. UsageError or DataError for what
    cannot be read, and for texts that are too short for windows of 16 times the `length`, in tokens.
    """
    from poscli.report.summary import as_json

    if not SHORTEST_PROFILED <= length <= LONGEST_PROFILED:
        raise UsageError(f"length = {length}: must be at least {SHORTEST_PROFILED} and at most {LONGEST_PROFILED}")
    coder = load_corpus(tokens_of, tokenizer=tokenizer).tokenizer if tokens_of else tokenizer
    corpus = load_corpus(text, tokenizer=coder)
    windows = [gain._asdict() for gain in window_gains(corpus, length)]
    described = corpus.describe()
    for name, split in (("train", corpus.train), ("valid", corpus.valid), ("tune", corpus.tune)):
        described[name] |= {"tokens": len(split.tokens)}
    profile = distance_profile(corpus, window_lengths(length))
    return dict(as_json({"corpus": described, "length": length, "windows": windows, "profile": profile}))


def report(
    tables: Tables,
    runs: Path,
    to: Path,
    *,
    mix: bool = False,
    baseline: str = "",
    formats: Sequence[str] = (),
    site: Path | None = None,
    about: About | None = None,
) -> Report:
    """Write a report of `tables`, the evaluations of runs in the folder `runs`, to the folder `to`.

    `site` is a folder for a page per corpus and encoding. `about` is what a suite says of itself, with its runs that
    have no results as `left_out`. The files include those of the site.
    """
    from poscli.report import About, build_report, trained_runs, write_site
    from poscli.report.ceilings import ngram_gains
    from poscli.report.documents import explanations

    about = about or About()
    left_out = [*about.left_out, *(f"{run}: {why}" for run, why in tables.left_out.items())]
    written = build_report(
        tables.rows,
        tables.positions,
        to,
        details=tables.details,
        about=replace(about, left_out=left_out, explained=explanations(tables.rows)),
        mix=mix,
        baseline=baseline,
        runs=trained_runs(runs),
        formats=formats,
        ngrams=ngram_gains(runs.parent / "corpus"),
    )
    return written if site is None else replace(written, files=(*written.files, *write_site(written, site)))
