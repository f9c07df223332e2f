"""`poscli extrapolate --model`: its options, and the evaluations that they ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from poscli.config.count import LONGEST_WINDOW
from poscli.system.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from poscli.checkpoints.models import Wish
    from poscli.config.request import ExtrapolateRequest
    from poscli.evaluation.measure import EvaluationSetup

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="Evaluate a checkpoint of transformers instead: a folder, or hf:ORG/NAME@REVISION; repeatable.",
        metavar="DIR|hf:ORG/NAME",
    ),
]
Corpus = Annotated[
    str | None,
    typer.Option("--corpus", help="With --model: the text, by default stdlib; `poscli ls corpora` shows all."),
]
Length = Annotated[
    int | None,
    typer.Option(
        "--length", help="With --model: the tokens it was trained on, where config.json says it wrongly.", min=8,
        max=LONGEST_WINDOW,
    ),
]  # fmt: skip
Precision = Annotated[
    str | None,
    typer.Option("--precision", help="With --model: float32, bfloat16 or float16, by default that of its weights."),
]


def wishes(
    models: list[str], corpus: str | None, length: int | None, precision: str | None, others: list[str]
) -> list[Wish]:
    """The checkpoints that are asked for; UsageError for an option of --model without it.

    `others` are trained runs that are asked for, which do not go with checkpoints: UsageError for both.
    """
    from poscli.checkpoints.models import Wish

    if models and others:
        raise UsageError(f"{others[0]} selects a trained run, and --model {models[0]} names a checkpoint; give one")
    given = {"--corpus": corpus, "--length": length, "--precision": precision}
    if not models and (stray := [name for name, value in given.items() if value is not None]):
        raise UsageError(f"{stray[0]} {given[stray[0]]} is for --model: a trained run has its own; leave it out")
    defaults = Wish("")
    return [Wish(each, corpus or defaults.corpus, length, precision or defaults.precision) for each in models]


def work(
    wishes: list[Wish], request: ExtrapolateRequest, smoke: bool, device: torch.device, runs: Path
) -> list[EvaluationSetup]:
    """The evaluations of every checkpoint, and of its weights under the encodings of --as. Nothing is written."""
    from poscli.checkpoints.models import adopted, checkpoint_config
    from poscli.evaluation.posthoc import posthoc_specs, refuse_recalibration
    from poscli.workflows import setups_of

    setups: list[EvaluationSetup] = []
    for wish in wishes:
        config, rows = checkpoint_config(wish, device)
        refuse_recalibration(config, request)
        posthoc_specs(config, request.as_, strict=True)  # refuses, before the corpus is made into tokens
        run, task = adopted(config, rows, runs, device)
        if any(run.folder == setup.run.folder for setup in setups):
            continue  # it is named twice
        setups += setups_of([run], request, device, smoke=smoke, open_task=lambda *names, task=task: task)
    return setups
