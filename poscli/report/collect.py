"""What a report reads from the folders of runs: results, what training took, and the commands that repeat it.

Damaged runs are left out by name. A report may be sent to others, so that it tells nobody where the files of this
machine lie (`shown`).
"""

from __future__ import annotations

import calendar
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from poscli.config.run import PRESETS, ModelConfig, Recalibration, Recipe, RunConfig
from poscli.runs.repair import command_line, evaluation_options
from poscli.runs.results import (
    Tables,
    all_tables,
    evaluated_parts,
    evaluated_under,
    has_evaluation,
    join_evaluations,
    open_evaluated,
    part_folders,
    training_log,
    was_evaluated,
)
from poscli.runs.run import ENDED, Run, opened_runs
from poscli.runs.schema import Columns
from poscli.system.console import note
from poscli.system.errors import CorruptError, PoscliError
from poscli.system.text import counted

CLOCK_ROUNDING = 2.0  # seconds; the end of a training is recorded in whole seconds
# An absolute path: a corpus or a checkpoint to its end, or the file of a plugin in a spec.
WHOLE, FILE = re.compile(r"(?<![^:])/(?!/).+", re.DOTALL), re.compile(r"(?<![\w.~/-])/[\w.~/-]+\.py\b")
INSIDE = re.compile(r"(?<![\w.~/-])/(?!/)\S*[^\s.,:;'\")\]]")  # one inside a message, up to the next space
FIRST_COMMANDS = "run `poscli train --enc alibi` and `poscli extrapolate --max-len 8192` first"


def collect(runs: Path, measures: Columns | None = None) -> Tables:
    """Read the tables of every evaluated run in a folder.

    `measures` are columns that tasks add to the schema; they are kept where a file has them. Damaged runs are left out
    with a note each, and are in `left_out`. PoscliError if no run is evaluated, CorruptError if all that are evaluated
    are damaged.
    """
    trained, damaged = opened_runs(Path(runs))
    of_runs: list[Tables] = []
    parts: list[Tables] = []
    waiting = 0
    for home in trained:
        folders = [*([home.folder] if was_evaluated(home) else []), *part_folders(home)]
        waiting += not folders
        for folder in folders:
            part = folder != home.folder
            try:
                training_log(home)  # the report needs it: a damaged one counts as a damaged run
                (parts if part else of_runs).append(all_tables(open_evaluated(folder), measures))
            except CorruptError as error:
                damaged[f"{home.id}.as.{folder.name}" if part else home.id] = error
    evaluations = of_runs + parts
    if not evaluations and damaged:
        raise next(iter(damaged.values()))
    if not evaluations:
        cure = "evaluate the trained ones with `poscli extrapolate` first" if waiting else FIRST_COMMANDS
        raise PoscliError(f"no evaluated runs in {runs}: {cure}")
    if waiting:
        note(f"{waiting} of {len(trained)} runs are not evaluated yet and left out: poscli extrapolate")
    left_out = {name: str(error) for name, error in damaged.items()}
    for name, reason in left_out.items():
        note(f"{name} is left out: {reason}")
    return join_evaluations(evaluations)._replace(left_out=left_out)


def refuse_damaged(tables: Tables, *names: str) -> None:
    """CorruptError if a name is, or begins, the id of a damaged run and of no other: nothing else can be meant."""
    for name in names:
        damaged = [why for run, why in tables.left_out.items() if run.startswith(name)]
        sound = (tables.rows["run_id"].str.startswith(name) | (tables.rows["encoding"] == name)).any()
        if damaged and not sound:
            raise CorruptError(damaged[0])


@dataclass(frozen=True)
class Trained:
    """One evaluated run: its configuration, the settings of its evaluation, and what its training took."""

    config: RunConfig
    settings: Mapping[str, Any]  # of the evaluation, as in eval.json
    trained_as: str = ""  # in a post-hoc evaluation, the encoding that the model was trained with
    recalibration: Recalibration | None = None
    on: str = ""  # the corpus that was scored, where that is not the one of the training
    tokens: int = 0  # of training, as planned; 0 for a checkpoint
    seconds: float = float("nan")  # of training
    training: str = ""  # the run that was trained: evaluations under other encodings have the same one
    machine: str = ""  # on which it was trained
    span: tuple[float, float] | None = None  # when its training began at the latest, and ended, in seconds
    curve: tuple[tuple[int, float], ...] = ()  # the training log: tokens seen, and nats per token
    learned: tuple[tuple[int, int, float], ...] = ()  # steps, tokens seen, and share of right answers, where measured

    @property
    def decisive(self) -> str:
        """All that decides a result, but for encoding, seed and text: equal for runs that may be averaged.

        The name of a text may be spelled in several ways, and accumulation changes nothing but the order of sums.
        """
        return self.config.model_dump_json(exclude={"encoding", "seed", "corpus", "tokenizer", "tuning", "accumulate"})


def trained_runs(runs: Path) -> dict[str, Trained]:
    """Every evaluated run in a folder by its id, post-hoc evaluations included, without those that are damaged."""
    known: dict[str, Trained] = {}
    for home in opened_runs(Path(runs))[0]:
        try:
            log = training_log(home)
        except CorruptError:
            continue
        made: dict[str, Any] = {"training": home.id, "machine": str(home.env.get("machine", ""))}
        # Not those of the log: a training that failed ended early, and is a seed of its encoding all the same.
        if (config := home.config).checkpoint is None:
            made["tokens"] = config.steps * config.batch * config.length
        if len(log):
            curve = tuple(zip(map(int, log["tokens"]), map(float, log["nll"]), strict=True))
            made |= {"seconds": training_seconds(log), "curve": curve}
            if "accuracy" in log:
                asked = log[["step", "tokens", "accuracy"]].dropna().itertuples(index=False)
                made["learned"] = tuple((int(step), int(tokens), float(share)) for step, tokens, share in asked)
            made |= {"span": _span(home, float(log["seconds"].iloc[-1]))}
        for run in [*([home] if has_evaluation(home) else []), *evaluated_parts(home)]:
            trained_as = run.trained if run.under_another else ""
            on = run.corpus if run.other_corpus else ""
            settings = evaluated_under(run) or {}
            known[run.id] = Trained(run.config, settings, trained_as, run.recalibration, on=on, **made)
    return known


def _span(run: Run, seconds: float) -> tuple[float, float] | None:
    """When a training that took some `seconds` began at the latest, and when it ended; None if that is not recorded."""
    status = run.status()
    if status["state"] not in ENDED or "updated" not in status:
        return None
    try:
        end = calendar.timegm(time.strptime(str(status["updated"]), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return None
    return end - seconds, float(end)


def training_seconds(log: pd.DataFrame) -> float:
    """The time that training takes after it is warm, of a training log with `step` and `seconds`.

    The first steps also import, allocate and measure engines, most of all in the first run of a process: their time is
    that of as many later ones. A log of one row has only its own.
    """
    first, last = log.iloc[0], log.iloc[-1]
    if last["step"] <= first["step"] or last["seconds"] <= first["seconds"]:
        return float(last["seconds"])
    return float((last["seconds"] - first["seconds"]) * last["step"] / (last["step"] - first["step"]))


def timed_together(runs: Iterable[str], trained: Mapping[str, Trained]) -> tuple[int, int]:
    """The number of these runs that were trained beside another run on the same machine, and the number of these runs.

    `trained` is what `trained_runs` found: all runs of the folder, so that those of other sections count. Trainings
    without recorded times are left out.
    """
    every = {each.training: each for each in trained.values() if each.span is not None and each.training}
    chosen = [every[name] for name in {trained[run].training for run in runs if run in trained} if name in every]

    def overlap(one: Trained, other: Trained) -> bool:
        """Whether two trainings on one machine overlap by more than the rounding of recorded times."""
        if one is other or one.machine != other.machine or one.span is None or other.span is None:
            return False
        return min(one.span[1], other.span[1]) - max(one.span[0], other.span[0]) > CLOCK_ROUNDING

    beside = [each for each in chosen if any(overlap(each, other) for other in every.values())]
    return len(beside), len(chosen)


def timing_note(runs: Iterable[str], trained: Mapping[str, Trained]) -> str:
    """Why the training times of these runs do not compare, as a sentence; empty where nothing speaks against it."""
    beside, known = timed_together(runs, trained)
    if not beside:
        return ""
    return (
        f"Training times do not compare: {beside} of {known} runs were trained at the same time as another run on the "
        "same machine, which slows both down."
    )


def configurations(runs: Sequence[Trained]) -> list[tuple[str, str]]:
    """How models were made, as (fact, value); where runs differ, their values are listed. Checkpoints have no facts."""
    trained = [run.config for run in runs if run.config.checkpoint is None]
    facts = {
        "Model": (
            f"{counted(m.layers, 'layer')}, width {m.width}, {counted(m.heads, 'head')}"
            for m in (each.model for each in trained)
        ),
        "Training batch": (f"{counted(each.batch, 'window')} of {each.length} tokens" for each in trained),
        "Optimizer": (
            f"Muon at {r.matrix_lr:g} for matrices, AdamW at {r.embedding_lr:g} for embeddings, {r.head_lr:g} for the "
            f"head and {r.encoding_lr:g} for encodings"
            for r in (each.recipe for each in trained)
        ),
        "Precision": (each.precision for each in trained),
    }
    if any(each.tuning for each in trained):
        facts["Recipe"] = ("equal budget: best of nine trials" if each.tuning else "as published" for each in trained)
    return [(fact, "; ".join(dict.fromkeys(values))) for fact, values in facts.items()] if trained else []


def reproduce(runs: Sequence[Trained]) -> str:
    """The commands that make the results of these runs, which differ in their seeds only; "" without runs."""
    if not runs:
        return ""
    run, seeds = runs[0], sorted({each.config.seed for each in runs})
    evaluation = evaluation_options(run.settings, run.config.encoding if run.trained_as else "", run.recalibration)
    evaluation += ["--on", run.on] if run.on else []
    if run.config.checkpoint is not None:
        options = ["--corpus", run.config.corpus, "--length", run.config.length, "--precision", run.config.precision]
        source = run.config.checkpoint.source
        return command_line("poscli", "extrapolate", "--model", source, *options, *evaluation)
    seed = str(seeds[0]) if len(seeds) == 1 else "$seed"
    encoding = run.trained_as or run.config.encoding
    train = f"{command_line('poscli', 'train', '--enc', encoding, *training_options(run.config))} --seed {seed}"
    if len(seeds) > 1:
        train = f"for seed in {' '.join(map(str, seeds))}; do {train}; done"
    return f"{train} && {command_line('poscli', 'extrapolate', '--enc', encoding, *evaluation)}"


def training_options(config: RunConfig) -> list[object]:
    """The options of `poscli train` but for encoding and seed; those at their default are left out if that is plain."""
    words: list[object] = ["--corpus", config.corpus, "--length", config.length, "--tokens", config.tokens]
    words += ["--batch", config.batch]
    model = config.model
    presets = [name for name, preset in PRESETS.items() if model.model_copy(update={"memory": 0}) == preset]
    if presets:
        words += ["--preset", presets[0], *(["--memory", model.memory] if model.memory else [])]
    else:
        words += [word for name in ModelConfig.model_fields for word in (f"--{name}", getattr(model, name))]
    for name in ("task", "tokenizer", "accumulate"):
        if (value := getattr(config, name)) != RunConfig.model_fields[name].default:
            words += [f"--{name}", value]
    default = Recipe()
    for name in Recipe.model_fields:
        if (value := getattr(config.recipe, name)) != getattr(default, name):
            words += ["--set", f"{name}={value!r}"]
    return [*words, "--precision", config.precision]


def shown(text: str, *, message: bool = False) -> str:
    """A corpus, a spec or a `message` without absolute paths: they are relative to the current folder, or begin with ~.

    Any result names the same file as before to a command that is run in the current folder. The path of a corpus may
    hold spaces, and ends it; in a message a path ends at the first space, unless it lies in the current folder or in
    the home.
    """
    # What stands before decides whether a path begins there: /tmp is also in the middle of /var/tmp.
    here = str(Path.cwd())
    text = re.sub(rf"(?<![\w.~-]){re.escape(here)}/", "", text) if here != "/" else text
    home = os.path.expanduser("~")  # noqa: PTH111 - unlike Path.home, it does not fail where there is none
    text = re.sub(rf"(?<![\w.~-]){re.escape(home)}/", "~/", text) if len(home) > 1 else text
    pattern = INSIDE if message else FILE if FILE.search(text) else WHOLE
    return pattern.sub(lambda path: os.path.relpath(path.group()), text)


def shown_table(table: pd.DataFrame) -> pd.DataFrame:
    """A table of results whose texts hold no absolute paths."""
    names = list(table.select_dtypes(["object", "string"]).columns)
    columns = {}
    for name in names:
        texts = (text for text in table[name].unique() if isinstance(text, str))
        known = {text: shown(text, message=name == "reason") for text in texts}
        columns[name] = table[name].map(lambda value, known=known: known.get(value, value))
    return table.assign(**columns)


def shown_runs(runs: Mapping[str, Trained]) -> dict[str, Trained]:
    """What is known about runs, without absolute paths in their configurations and settings."""

    def shown_value(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [shown_value(each) for each in value]
        return shown(value) if isinstance(value, str) else value

    known = {}
    for run_id, run in runs.items():
        config, names = run.config, ("encoding", "task", "corpus", "tokenizer")
        changed: dict[str, Any] = {name: shown(getattr(config, name)) for name in names}
        if config.checkpoint is not None:
            changed["checkpoint"] = config.checkpoint.model_copy(update={"source": shown(config.checkpoint.source)})
        config, settings = config.model_copy(update=changed), {k: shown_value(v) for k, v in run.settings.items()}
        trained_as, on = shown(run.trained_as), shown(run.on)
        known[run_id] = replace(run, config=config, settings=settings, trained_as=trained_as, on=on)
    return known
