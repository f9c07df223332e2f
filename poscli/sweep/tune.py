"""Recipes of equal budget: nine trials for every encoding, judged at L on documents that are never scored.

A trial is a run in OUT/tune/runs with half of the tokens and a seed of its own, so that an interrupted tuning goes on
like any training. The results of all nine are in one file, OUT/tune/NAME.json. Its name has a hash of everything that
decides the result of the tuned run, except the seed and the two learning rates that the tuning chooses.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from poscli.config.request import ExtrapolateRequest
from poscli.config.run import TUNING_SEED, OtherCorpus, Recipe, RunConfig
from poscli.config.validate import validated
from poscli.evaluation.evaluate import settings_of
from poscli.evaluation.measure import EvaluationSetup
from poscli.runs.run import Run, evaluated_as
from poscli.runs.schema import FULL
from poscli.specs import build, parse
from poscli.system.console import warn_once
from poscli.system.errors import CorruptError, LockedError, PoscliError, UsageError
from poscli.system.files import read_object, write_atomic
from poscli.tasks import Task
from poscli.workflows import TrainingSetup, delete, evaluate, train

if TYPE_CHECKING:
    import pandas as pd

SECONDS_OF_PATIENCE = 2.0  # between two tries to read a trial that another process holds
FOLDER = "tune"  # in the folder of results
MATRIX_FACTORS = (0.5, 1.0, 2.0)  # of matrix_lr
ENCODING_FACTORS = (0.1, 0.3, 1.0)  # of encoding_lr, or of embedding_lr
JUDGED = ExtrapolateRequest(max_len="1x", tokens=16_384)  # how a trial is judged, on text for tuning


@dataclass(frozen=True)
class Tuning:
    """The trials of the recipe of one run, whose file and runs lie in `folder`."""

    setup: TrainingSetup  # of the nine trials, those of the smallest matrix_lr first
    rates: tuple[str, str]  # the fields of the recipe that the trials vary
    name: str
    folder: Path

    @property
    def file(self) -> Path:
        """Where the result is written when all trials are done."""
        return self.folder / f"{self.name}.json"

    def known(self) -> dict[str, Any] | None:
        """The result, if it was written before. CorruptError if the file is not what `find` writes."""
        if not self.file.exists():
            return None
        cure = "delete it, and repeat the command, which makes it again"
        found = read_object(self.file, cure)
        if not isinstance(best := found.get("best"), dict) or set(best) != set(self.rates):
            raise CorruptError(f"{self.file} does not say which {' and '.join(self.rates)} is best; {cure}")
        return found

    def forget(self) -> None:
        """Delete the result and all trials."""
        self.file.unlink(missing_ok=True)
        delete(self.setup.ids, self.folder / "runs")

    def find(self) -> dict[str, Any]:
        """Make the trials that are not made yet, and write what they found.

        The result has the nine losses at L in bits per byte (None where training diverged), the best learning rates,
        and `spread`, the largest loss minus the smallest. DataError or UsageError if the task keeps no text for tuning;
        PoscliError, and nothing is written, if a trial lacked memory or none has a finite loss.
        """
        text = self.setup.task.tuning()  # first: without it, nothing is to be trained
        if (found := self.known()) is not None:
            return found
        trials = []
        for run in self._trained():
            rows = rows_of_trial(run, text, self.setup.device)
            chosen = rows[(rows["protocol"] == text.protocols[-1]) & (rows["variant"] == FULL)]
            bpb = float(chosen["bpb"].iloc[0])
            rates = {rate: getattr(run.config.recipe, rate) for rate in self.rates}
            trials.append({"run_id": run.id, **rates, "bpb": bpb if math.isfinite(bpb) else None})
        losses = [trial["bpb"] for trial in trials if trial["bpb"] is not None]
        if not losses:
            raise PoscliError(f"no trial of {self.name} has a finite loss; change the recipe, as by --set clip=0.5")
        best = next(trial for trial in trials if trial["bpb"] == min(losses))
        config = self.setup.configs[0]
        found = {
            "encoding": config.encoding,
            "corpus": config.corpus,
            "fingerprint": self.setup.task.fingerprint,
            "length": config.length,
            "tokens": config.tokens,
            "seed": config.seed,
            "protocol": text.protocols[-1],
            "trials": trials,
            "best": {rate: best[rate] for rate in self.rates},
            "spread": max(losses) - min(losses),
        }
        write_atomic(self.file, json.dumps(found, indent=2) + "\n")
        return found

    def _trained(self) -> list[Run]:
        """The runs of all trials. Another driver of the same suite may hold one for a moment, as it reads it too."""
        while True:
            try:
                return train(self.setup, self.folder / "runs")
            except LockedError as error:
                warn_once(f"{error}: waiting for that")
                time.sleep(SECONDS_OF_PATIENCE)


def rows_of_trial(run: Run, text: Task, device: torch.device) -> pd.DataFrame:
    """The rows of the evaluation of a trial at L on the text for tuning; PoscliError if its training lacked memory."""
    if (status := run.status())["state"] == "oom":
        raise PoscliError(
            f"a trial lacked memory, {run.id}: {status['message']}; or free memory, and repeat the command"
        )
    # Named as another corpus, so that its tables never pass for those of the scored documents.
    split = OtherCorpus(spec=f"{text.corpus}, for tuning", fingerprint=text.fingerprint)
    scored = evaluated_as(run, run.config.encoding, other_corpus=split)
    return evaluate([EvaluationSetup(scored, text, settings_of(run.config, JUDGED), device)])[0]


def tuning_of(config: RunConfig, setup: TrainingSetup, out: Path) -> Tuning:
    """The tuning of a run of a setup, with results in the folder `out`. Nothing is written.

    The second rate is that of the encoding's parameters, or of the token embedding if it has none. UsageError for rates
    that were chosen by hand, or for half of the tokens if they are less than a step.
    """
    layers = build(parse(config.encoding), config.model.shape(config.length), seed=0)
    learned = any(p.requires_grad for layer in layers for p in layer.parameters())
    rates = ("matrix_lr", "encoding_lr" if learned else "embedding_lr")
    default = Recipe()
    for rate in rates:
        if (value := getattr(config.recipe, rate)) != getattr(default, rate):
            raise UsageError(f"{rate}={value:g} is given, but tuning chooses it for {config.encoding}; leave it out")
    if (half := config.tokens // 2) < (step := config.batch * config.length):
        raise UsageError(
            f"--tokens {config.tokens}: each trial of a tuning has half of them, and a step needs {step}; give at "
            f"least {2 * step}, or a smaller --batch"
        )
    untuned = config.model_copy(update={"seed": TUNING_SEED})
    trials = []
    for factors in product(MATRIX_FACTORS, ENCODING_FACTORS):
        values = {rate: factor * getattr(default, rate) for rate, factor in zip(rates, factors, strict=True)}
        recipe = validated(Recipe, config.recipe.model_dump() | values, "recipe")
        trials.append(untuned.model_copy(update={"tokens": half, "recipe": recipe}))
    name = untuned.run_id(setup.task.fingerprint)
    return Tuning(TrainingSetup(tuple(trials), setup.task, setup.device), rates, name, out / FOLDER)


def tuned_configs(setup: TrainingSetup, out: Path, *, to_plan: bool) -> tuple[RunConfig, ...]:
    """The runs of a setup with the recipes that tunings found, whose results are in the folder `out`.

    PoscliError if a tuning has no result yet. With `to_plan`, such a run keeps the rates of the setup: it costs the
    same, and must not be trained.
    """
    configs = []
    for config in setup.configs:
        tuning = tuning_of(config, setup, out)
        if (found := tuning.known()) is None and not to_plan:
            raise PoscliError(f"{tuning.file} is not there any more; the same command makes it again")
        best = config.recipe.model_dump() | ({} if found is None else found["best"])
        recipe = validated(Recipe, best, str(tuning.file))
        configs.append(config.model_copy(update={"recipe": recipe, "tuning": tuning.name}))
    return tuple(configs)
