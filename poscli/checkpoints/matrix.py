"""One checkpoint under every encoding that needs no training, at its trained length and at a longer one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from poscli.checkpoints.architecture import Architecture, architecture
from poscli.checkpoints.models import Wish, checkpoint_config, checkpoint_run, config_of
from poscli.checkpoints.paste import Snippet, cropped, snippets
from poscli.checkpoints.source import find
from poscli.checkpoints.wanted import fixed
from poscli.config.request import ExtrapolateRequest
from poscli.config.run import RunConfig
from poscli.config.validate import LONGEST_TEXT, LONGEST_WINDOW
from poscli.evaluation.measure import EvaluationSetup
from poscli.evaluation.posthoc import ALL, posthoc_spec, posthoc_specs
from poscli.report.advice import Advice, Candidate
from poscli.runs.results import Tables, evaluation_tables
from poscli.runs.schema import FULL
from poscli.system.device import device_of
from poscli.system.errors import UsageError
from poscli.tasks import task_columns
from poscli.workflows import evaluate, setups_of

# Lengths of contexts are powers of two: 32k is the name of 32,768.
CONTEXT_FACTORS = {"": 1, "k": 1024, "m": 1024**2}


@dataclass(frozen=True)
class Matrix:
    """The checkpoint, the length that it is to read, and its evaluations, the first one as it is."""

    name: str  # in the results
    model: str  # what programs load: a folder, or ORG/NAME
    config: dict[str, Any]  # the content of its config.json
    architecture: Architecture
    run: RunConfig
    target: int
    work: tuple[EvaluationSetup, ...]


def read_length(text: str, train_length: int) -> int:
    """The number of tokens that the text of --target stands for; UsageError if it stands for none.

    >>> read_length("32k", 2048), read_length("10000", 2048), read_length("4x", 2048), read_length("1.5x", 2048)
    (32768, 10000, 8192, 3072)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmx]?)", text.strip(), re.IGNORECASE)
    if match is None or len(text) > LONGEST_TEXT:
        raise UsageError(f"--target {text[:LONGEST_TEXT]!r} is no length; write 32k, 8192 or 4x")
    unit = match[2].lower()
    tokens = Decimal(match[1]) * (train_length if unit == "x" else CONTEXT_FACTORS[unit])
    if tokens != int(tokens):
        raise UsageError(f"--target {text} is {tokens:g} tokens, which is no whole number; give another length")
    return int(tokens)


def read_target(text: str, train_length: int) -> int:
    """The number of tokens that the text of --target stands for; UsageError unless it is more than `train_length`."""
    tokens = read_length(text, train_length)
    if not train_length < tokens <= LONGEST_WINDOW:
        raise UsageError(
            f"--target {text} is {tokens} tokens, and must be above the {train_length} that the model was trained "
            f"on and at most {LONGEST_WINDOW}; a model reads shorter inputs as it is"
        )
    return tokens


def opened(
    model: str, target: str, *, corpus: str, tokens: int, encodings: Sequence[str], device_name: str, runs: Path
) -> Matrix:
    """The checkpoint and the evaluations that are asked for. Nothing is written.

    `model` is DIR or hf:ORG/NAME@REVISION, `target` the length of the inputs as `read_target` takes it, `tokens` the
    number to score per length and protocol, and `encodings` those to compare; without any, all that need no training.
    The factor of every scaling is the one for the target: a configuration has one factor for inputs of all lengths, and
    what it costs on short ones must be measured with this factor.
    """
    device = device_of(device_name)
    run_config, rows = checkpoint_config(Wish(model, corpus), device)
    assert run_config.checkpoint is not None
    length = run_config.length
    longest = read_target(target, length)
    wanted = posthoc_specs(run_config, list(encodings or [ALL]), strict=True)
    specs = dict.fromkeys(fixed(spec, length, longest) for spec in wanted)
    request = ExtrapolateRequest.model_validate({"lengths": (1, longest / length), "tokens": tokens, "as": list(specs)})
    run, task = checkpoint_run(run_config, rows, runs, device)
    source = find(run_config.checkpoint.source, config_only=True)
    config = dict(config_of(source))
    return Matrix(
        name=run_config.checkpoint.name,
        model=source.spec.removeprefix("hf:").partition("@")[0] if source.revision else model,
        config=config,
        architecture=architecture(config),
        run=run_config,
        target=longest,
        work=tuple(setups_of([run], request, device, open_task=lambda *names: task)),
    )


def measured(matrix: Matrix) -> Tables:
    """The tables of all evaluations; those that are there already are not made again."""
    evaluate(matrix.work)
    return evaluation_tables([each.run for each in matrix.work], task_columns())


def to_paste(
    matrix: Matrix, advice: Advice, runtimes: Sequence[str]
) -> tuple[list[Snippet], Candidate | None, list[Snippet]]:
    """What to paste for the advice; and if no program has a key for it, the best candidate for which one has, with its.

    Only candidates whose gain counts are looked at.
    """

    def pasted(candidate: Candidate) -> list[Snippet]:
        spec = candidate.spec or matrix.run.encoding
        if candidate.variant != FULL:
            spec = posthoc_spec(matrix.run.encoding, candidate.variant, matrix.run.model.shape(matrix.run.length))
        return snippets(matrix.model, matrix.architecture, matrix.config, spec, matrix.target, runtimes)

    if advice.chosen is None:
        return cropped(matrix.model, matrix.run.length, runtimes), None, []
    first = pasted(advice.chosen)
    if all(snippet.reason for snippet in first):
        for other in advice.candidates:
            if other.counts and other != advice.chosen:
                others = pasted(other)
                if not all(snippet.reason for snippet in others):
                    return first, other, others
    return first, None, []
