"""The jobs of a suite: each is one run from its configuration to its evaluation, as plain data and one function.

A job and its outcome are pydantic models, so that they can go to another process and come back as JSON. A job writes
its results into the run's folder and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from poscli.config.claim import Claim
from poscli.config.request import ExtrapolateRequest
from poscli.config.run import RunConfig
from poscli.config.suite import Suite
from poscli.config.validate import Frozen
from poscli.estimate import (
    Planned,
    PlannedJob,
    existing_run,
    planned_evaluation,
    planned_training,
    recalibration_left,
    refuse_unaffordable_windows,
    timed,
)
from poscli.evaluation.evaluate import settings_of
from poscli.evaluation.plan import Plan
from poscli.evaluation.posthoc import posthoc_runs, posthoc_specs, refuse_recalibration
from poscli.report.pooling import ratio_name
from poscli.runs.run import AS, ENDED, Run
from poscli.specs import parse, refuse_twice, with_layouts
from poscli.sweep.tune import JUDGED, Tuning, rows_of_trial, tuned_configs, tuning_of
from poscli.system.console import collected_warnings
from poscli.system.device import device_of
from poscli.system.device import threads as computing_with
from poscli.system.errors import DataError, Interrupted, LockedError, PoscliError, UsageError, near
from poscli.system.plugins import blamed, suspects
from poscli.tasks import open_task
from poscli.why.explain import is_left_to_explain
from poscli.workflows import OpenTask, TrainingSetup, evaluate, prepare, refuse_other_corpus, setups_on, train

LONGEST = 40  # characters of a corpus in a message


class Job(Frozen):
    """A run to train and to evaluate, the folder for its results, and the device."""

    config: RunConfig
    extrapolate: ExtrapolateRequest = ExtrapolateRequest()
    runs: Path  # the folder of all runs
    device: str = "cpu"
    fingerprint: str = ""  # of the corpus where the job was made; "" if any will do
    trial: tuple[str, ...] = ()  # of a trial: the rates that its tuning varies; it is judged on the text for tuning

    @property
    def label(self) -> str:
        """The name of the job in messages; the corpus is part of it unless it is the default one."""
        corpus = self.config.corpus
        shown = corpus if len(corpus) <= LONGEST else f"...{corpus[3 - LONGEST :]}"
        on = "" if corpus == RunConfig.model_fields["corpus"].default else f" on {shown}"
        tried = ", ".join(f"{rate} {getattr(self.config.recipe, rate):g}" for rate in self.trial)
        recipe = f" with {tried}" if tried else f"{self.config.recipe_mark}, seed {self.config.seed}"
        return f"{with_layouts(self.config.encoding)}{recipe}{on}"

    @property
    def folder(self) -> Path:
        """The folder of its run; the fingerprint must be known."""
        assert self.fingerprint
        return self.runs / self.config.run_id(self.fingerprint)


class Outcome(Frozen):
    """The folders that hold the results of a job, and the error that stopped it, if one did.

    `held` says which other process works on the run; the job is then to be tried again later. `warnings` are what the
    job had to say while it ran.
    """

    folders: tuple[Path, ...] = ()
    error: str = ""
    held: str = ""
    warnings: tuple[str, ...] = ()


def perform(job: Job, open_task: OpenTask = open_task) -> Outcome:
    """Do a job in this process, going on where it stopped; a job that fails has an outcome, too.

    A signal raises Interrupted, with everything saved. `open_task` may return a task that is open already, so that jobs
    can share it.
    """
    folders: list[Path] = []
    held = error = ""
    with collected_warnings() as warnings:
        try:
            with blamed():
                for folder in _results(job, open_task):
                    folders.append(folder)  # one at a time: those before an error count
        except Interrupted:
            raise
        except LockedError as locked:
            folders, held = [], str(locked)
        except Exception as failure:  # noqa: BLE001 - the other jobs go on; the cause is in the outcome
            error = " ".join(str(failure).split())
            if not isinstance(failure, PoscliError):
                error = f"{type(failure).__name__}: {error} (a bug of poscli{suspects()})"
    return Outcome(folders=tuple(folders), error=error, held=held, warnings=tuple(warnings))


def _results(job: Job, open_task: OpenTask) -> Iterator[Path]:
    """Train and evaluate a run; yields the folder of each evaluation as it ends."""
    config, device = job.config, device_of(job.device)
    task = open_task(config.task, config.corpus, config.tokenizer)
    if job.fingerprint and task.fingerprint != job.fingerprint:
        raise DataError(
            f"the corpus {config.corpus} has fingerprint {task.fingerprint} here, and {job.fingerprint} where the "
            "suite was started: give all machines the same files and the same Python version"
        )
    (run,) = train(TrainingSetup((config,), task, device), job.runs)
    if job.trial:
        rows_of_trial(run, task.tuning(), device)
        return
    for each in (run, *posthoc_runs(run, job.extrapolate, strict=False)):
        for setup in setups_on(each, job.extrapolate, device, open_task=open_task):
            evaluate([setup], why=job.extrapolate.why)
            yield setup.run.folder


def tunings_of(suite: Suite, device: str, out: Path) -> list[Tuning]:
    """The tunings that parts of a suite with a tuned recipe take their learning rates from, each once.

    Their results are in the folder `out`. DataError or UsageError if a text keeps nothing for tuning.
    """
    tunings: dict[str, Tuning] = {}
    for part in suite.parts():
        if part.recipe == "published":
            continue
        setup = prepare(part.train, _encodings_of(part), part.seeds[:1], device_of(device))
        setup.task.tuning()
        for config in setup.configs:
            tuning = tuning_of(config, setup, out)
            tunings.setdefault(tuning.name, tuning)
    return list(tunings.values())


def trials_of(tunings: Sequence[Tuning], device: str, *, anew: bool = False) -> list[Job]:
    """The trials of the tunings whose result is not known yet, or with `anew` of all, as jobs.

    `Tuning.find` takes up what they found.
    """
    return [
        Job(
            config=config,
            extrapolate=JUDGED,
            runs=tuning.folder / "runs",
            device=device,
            fingerprint=tuning.setup.task.fingerprint,
            trial=tuning.rates,
        )
        for tuning in tunings
        if anew or tuning.known() is None
        for config in tuning.setup.configs
    ]


def jobs_of(suite: Suite, device: str, runs: Path, *, to_plan: bool = False) -> list[Job]:
    """The jobs of a suite, without repetitions; UsageError or DataError if any of them cannot be done.

    PoscliError if trials of a tuned recipe are missing. With `to_plan`, the jobs that wait for them have other learning
    rates than they will have: they say what the suite costs, and must not be done.
    """
    if len(names := sorted({part.train.tokenizer for part in suite.parts()})) > 1:
        raise UsageError(
            f"the parts of the suite have the tokenizers {', '.join(names)}, whose perplexities one report cannot "
            "compare; write a suite for each, and compare their runs with `poscli report --mix`"
        )
    changed = [part for part in suite.parts() if part.lengths != "published"]
    specs = [parse(text) for part in changed for text in part.encodings]
    if changed and all(spec == spec.in_proportion() for spec in specs):
        raise UsageError(
            f"lengths = {changed[0].lengths!r} changes no encoding of the suite: a paper's proportion is known for "
            "none of their lengths, as it is for t5; leave the key out, or write lengths such as 'window(width=0.5L)'"
        )
    known: dict[RunConfig, tuple[int, Job]] = {}
    for number, part in enumerate(suite.parts(), 1):
        for job in _jobs_of_part(part, device, runs, to_plan=to_plan):
            first, same = known.setdefault(job.config, (number, job))
            if same.extrapolate != job.extrapolate:
                raise UsageError(
                    f"the parts {first} and {number} of the suite train {job.label} alike and evaluate it differently, "
                    "and a run has one evaluation; give both parts the same [extrapolate], or write a suite for each"
                )
    jobs = [job for _, job in known.values()]
    _refuse_claims(suite.claim, jobs)
    return jobs


def _refuse_claims(claims: Sequence[Claim], jobs: Sequence[Job]) -> None:
    """UsageError if a claim names an encoding that these jobs do not measure, or not at this length."""
    ratios: dict[str, dict[str, float]] = {}  # of an encoding, by their names
    for job in jobs if claims else ():
        lengths = settings_of(job.config, job.extrapolate).lengths
        measured = {ratio_name(length / job.config.length): length / job.config.length for length in lengths}
        others = posthoc_specs(job.config, job.extrapolate.as_, strict=False)
        for label in (job.config.encoding, *(f"{job.config.encoding}{AS}{spec}" for spec in others)):
            ratios.setdefault(label, {}).update(measured)
    for claim, asked in ((each, one) for each in claims for one in each.when):
        said = f"the claim {claim.says!r}"
        for label in filter(None, (asked.of, asked.over)):
            name = AS.join(str(parse(spec)) for spec in re.split(r" [(\[]", label)[0].split(AS))
            if name not in ratios:
                raise UsageError(f"{said} names {label!r}, which the suite does not measure: {near(name, ratios)}")
            if ratio_name(asked.at) not in ratios[name]:
                known = ", ".join(sorted(ratios[name], key=ratios[name].__getitem__))
                raise UsageError(f"{said} has at = {asked.at:g} for {label!r}, which is measured at {known}")


def _jobs_of_part(suite: Suite, device: str, runs: Path, *, to_plan: bool) -> list[Job]:
    """The jobs of a suite without parts."""
    setup = prepare(suite.train, _encodings_of(suite), suite.seeds, device_of(device))
    tuned = () if suite.recipe == "published" else tuned_configs(setup, runs.parent, to_plan=to_plan)
    setup = replace(setup, configs=tuned if suite.recipe == "tuned" else (*setup.configs, *tuned))
    settings = settings_of(setup.configs[0], suite.extrapolate)
    # First, because a plan may make a text for every length, and refuses those for which no document is long enough.
    refuse_unaffordable_windows(setup.configs[0], settings, setup.device)
    Plan(setup.task, settings)
    for config in setup.configs:
        refuse_recalibration(config, suite.extrapolate)
        refuse_other_corpus(config, suite.extrapolate)
    targets = suite.extrapolate.as_
    if targets and not any(posthoc_specs(config, targets, strict=False) for config in setup.configs):
        raise UsageError(f"none of the suite's encodings can be evaluated as {', '.join(targets)}")
    return [
        Job(config=config, extrapolate=suite.extrapolate, runs=runs, device=device, fingerprint=setup.task.fingerprint)
        for config in setup.configs
    ]


def _encodings_of(suite: Suite) -> list[str]:
    """The encodings of a suite without parts, with lengths as its key `lengths` asks."""
    refuse_twice(suite.encodings)
    published = [str(parse(text)) for text in suite.encodings]
    scaled = [str(parse(text).in_proportion()) for text in suite.encodings]
    chosen = {"published": published, "scaled": scaled, "both": [*published, *scaled]}[suite.lengths]
    return list(dict.fromkeys(chosen))


def sweeps(
    jobs: Sequence[Job], *, anew: bool, threads: int | None, open_task: OpenTask = open_task
) -> list[PlannedJob]:
    """The jobs of a suite: each a training and its evaluations. `anew`: what they have so far will be deleted.

    What is measured is measured with `threads` threads; None leaves their number to torch.
    """
    opened = cache(open_task)
    with computing_with(threads):
        return timed([_planned(job, opened, anew=anew) for job in jobs])


def _planned(job: Job, open_task: OpenTask, *, anew: bool) -> Planned:
    """The training, the recalibrations and the evaluations of a run, also under other encodings."""
    config, device, settings = job.config, device_of(job.device), settings_of(job.config, job.extrapolate)
    task = open_task(config.task, config.corpus, config.tokenizer)
    training, work = planned_training(config, task, job.runs, device, anew=anew)
    run = None if anew else existing_run(job.runs / training.run_id)
    planned_run = run or Run(job.runs / training.run_id, config, {})
    evaluations = []
    for each in (planned_run, *posthoc_runs(planned_run, job.extrapolate, strict=False)):
        if run is not None and run.status()["state"] == "complete":
            scored = [(s.run, s.task) for s in setups_on(each, job.extrapolate, device, open_task=open_task)]
        else:  # its tokenizer may not be trained yet: other corpora count as long as its own
            scored = [(each, task)] * max(1, len(job.extrapolate.on))
        for one, text in scored:
            known = one if run is not None and run.status()["state"] in ENDED else None  # else it is trained first
            why = job.extrapolate.why and not one.under_another and is_left_to_explain(known, text, settings)
            evaluations.append(planned_evaluation(known, each.config, text, settings, device, why=why))
        if each.recalibration:
            work += recalibration_left(each, task, device)
    to_evaluate = [each for _, left in evaluations for each in left]
    unfinished = any(each.done != "evaluated" for each, _ in evaluations) or any(each.steps for each in work)
    planned = replace(
        training,
        done=training.done if unfinished else f"{training.done}, evaluated",
        memory_gib=max(training.memory_gib, *(each.memory_gib for each, _ in evaluations)),
    )
    return planned, [*work, *to_evaluate]


def needed(jobs: Iterable[PlannedJob]) -> list[tuple[str, float]]:
    """The label and the memory, in bytes, of each job that is not done already."""
    return [(f"{job.encoding}, seed {job.seed}", job.memory_gib * 2**30) for job in jobs if job.seconds > 0]
