"""`poscli extrapolate --model`: evaluating checkpoints as trained runs are evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.checkpoints.commands import PLACE
from poscli.checkpoints.request import LONGEST_MINUTES
from poscli.cli import complete
from poscli.cli.commands import COMMANDS
from poscli.cli.commands.extrapolate import OtherModels
from poscli.config.request import ExtrapolateRequest
from poscli.config.validate import LONGEST_WINDOW
from poscli.system.errors import UsageError

if TYPE_CHECKING:
    import torch

    from poscli.evaluation.measure import EvaluationSetup

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="Evaluate a checkpoint of transformers instead: a folder, a file of GGUF, or hf:ORG/NAME@REVISION; "
        "repeatable.",
        metavar=PLACE,
    ),
]
Corpus = Annotated[
    str | None,
    typer.Option("--corpus", help="With --model: the text, by default whole:stdlib; `poscli ls corpora` shows all."),
]
Length = Annotated[
    int | None,
    typer.Option(
        "--length", help="With --model: its trained length in tokens, where config.json is wrong.", min=8,
        max=LONGEST_WINDOW,
    ),
]  # fmt: skip
Precision = Annotated[
    str | None,
    typer.Option("--precision", help="With --model: float32, bfloat16 or float16, by default that of its weights."),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task", help="With --model: needle, facts or repeat, which ask about a long text; by default language.",
        autocompletion=complete.tasks,
    ),
]  # fmt: skip
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes", help="With --model: score as many tokens as this time allows for, and at most --tokens.",
        min=0.01, max=LONGEST_MINUTES,
    ),
]  # fmt: skip


@dataclass(frozen=True)
class Checkpoints(OtherModels):
    """Which checkpoints to evaluate, on what, and how; None for the default."""

    model: Models = None
    corpus: Corpus = None
    length: Length = None
    precision: Precision = None
    minutes: Minutes = None
    task: TaskName = None

    def setups(
        self, request: ExtrapolateRequest, device: torch.device, runs: Path, *, smoke: bool, selected: list[str]
    ) -> list[EvaluationSetup]:
        from poscli.checkpoints.budget import fitting
        from poscli.checkpoints.models import checkpoint_at, checkpoint_run
        from poscli.evaluation.posthoc import posthoc_specs, refuse_recalibration
        from poscli.workflows import setups_of

        if self.model and selected:
            raise UsageError(
                f"{selected[0]} is a trained run, and --model {self.model[0]} a checkpoint; leave one of the two out"
            )
        options = {name: getattr(self, name) for name in ("corpus", "length", "precision", "minutes", "task")}
        if not self.model and (stray := [name for name, value in options.items() if value is not None]):
            raise UsageError(
                f"--{stray[0]} {options[stray[0]]} is for --model: a trained run has its own; leave it out"
            )
        minutes = options.pop("minutes")
        wishes = {name: value for name, value in options.items() if value}
        setups: list[EvaluationSetup] = []
        for model in self.model or ():
            read = checkpoint_at(model, device, **wishes)
            refuse_recalibration(read.run, request)
            posthoc_specs(read.run, request.as_, strict=True)  # refuses, before the corpus is made into tokens
            run, task = checkpoint_run(read, runs, device)
            if any(run.folder == setup.run.folder for setup in setups):
                continue  # it is named twice
            setups += setups_of([run], request, device, smoke=smoke, open_task=lambda *names, task=task: task)
        return fitting(setups, minutes) if setups and minutes is not None else setups


COMMANDS.add("extrapolate.model", Checkpoints)
