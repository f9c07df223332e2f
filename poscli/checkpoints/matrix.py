"""One checkpoint under every encoding that needs no training, at its trained length and at a longer one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from poscli.checkpoints.advice import Advice, Candidate
from poscli.checkpoints.models import ReadCheckpoint, checkpoint_at, checkpoint_run
from poscli.checkpoints.paste import Snippet, cropped, snippets
from poscli.checkpoints.request import AdviceRequest
from poscli.checkpoints.wanted import FACTOR, fixed
from poscli.config.request import ExtrapolateRequest
from poscli.config.run import RunConfig
from poscli.config.validate import LONGEST_TEXT, LONGEST_WINDOW, validated
from poscli.evaluation.measure import EvaluationSetup
from poscli.evaluation.posthoc import ALL, compatible_specs, spec_under
from poscli.runs.results import Tables, evaluation_tables
from poscli.runs.run import evaluated_as
from poscli.runs.schema import FULL
from poscli.specs import check, parse
from poscli.system.device import device_of
from poscli.system.errors import UsageError
from poscli.tasks import task_columns
from poscli.workflows import evaluate, setups_on

# Lengths of contexts are powers of two: 32k is the name of 32,768.
CONTEXT_FACTORS = {"": 1, "k": 1024, "m": 1024**2}
PROTOCOL = "fixed"  # every scored token has inputs of the target's length before it
STRIDES, MOST_SCORED = 8, 1024  # strides in the trained length; the most tokens scored at the end of an input


@dataclass(frozen=True)
class Matrix:
    """A checkpoint, the length that it is to read, and its evaluations, of which the first is of the model as it is."""

    checkpoint: ReadCheckpoint
    target: int
    work: tuple[EvaluationSetup, ...]


def read_length(text: str, train_length: int) -> int:
    """The number of tokens that the text of --target stands for, at a trained length; UsageError if it stands for none.

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
    model: str, target: str, request: AdviceRequest, *, device_name: str, runs: Path, found: Sequence[str] = ()
) -> Matrix:
    """The checkpoint and the evaluations that are asked for. Nothing is written.

    `model` is DIR, FILE.gguf or hf:ORG/NAME@REVISION, and `target` the length of the inputs as `read_target` takes it.
    The factor of every scaling is the one for the target: a configuration has one factor for inputs of all lengths, and
    what it costs on short ones must be measured with this factor. `found` are further specs, with all options.

    Only what the advice is made of is measured: one protocol, which scores the same tokens at every length, and the
    ways to limit attention for the model as it is alone. More tokens are scored at the end of each input than
    `extrapolate` does, because a long input takes as long however few of its tokens are scored.
    """
    device = device_of(device_name)
    read = checkpoint_at(model, device, corpus=request.corpus, length=request.length, precision=request.precision)
    length = read.run.length
    longest = read_target(target, length)
    if request.lengths and request.lengths[-1] * length > longest:
        raise UsageError(
            f"--lengths {request.lengths[-1]:g} is above --target {target}, which is {longest / length:g} times the "
            "trained length; leave it out"
        )
    specs = dict.fromkeys([*specs_at(read.run, request.as_ or [ALL], longest), *found])
    values = {
        "lengths": tuple(dict.fromkeys((1.0, *request.lengths, longest / length))),
        "tokens": request.tokens,
        "stride": request.stride or max(1, min(MOST_SCORED, length // STRIDES)),
        "baselines": request.baselines,
    }
    asked = validated(ExtrapolateRequest, values, "advise")
    run, task = checkpoint_run(read, runs, device)
    return Matrix(
        read,
        longest,
        tuple(
            _needed(setup, tuple(request.baselines) if request.minutes else setup.settings.baselines)
            for each in (run, *(evaluated_as(run, spec) for spec in specs if spec != read.run.encoding))
            for setup in setups_on(each, asked, device, open_task=lambda *names: task)
        ),
    )


def specs_at(config: RunConfig, targets: Sequence[str], length: int) -> list[str]:
    """The specs that a checkpoint is to be compared under at inputs of `length` tokens, with all options.

    A factor that a target names stays as it is. Every other one is that for the length, also where the checkpoint was
    trained with another; `all` then stands for its own scaling with that factor too. UsageError for a target that it
    cannot be evaluated as.
    """
    trained, shape = config.encoding, config.model.shape(config.length)
    rescaled = fixed(trained, shape.length, length, anew=True)
    anew = config.model_copy(update={"encoding": rescaled})
    specs: list[str] = []
    for target in targets:
        if target == ALL:
            found = [rescaled, *compatible_specs(rescaled, shape, one_rope=config.one_rope)]
            specs += [fixed(spec, shape.length, length, anew=True) for spec in found]
        else:
            given = any(key == FACTOR for leaves in parse(target).layers for leaf in leaves for key, _ in leaf.options)
            spec = str(check(spec_under(config if given else anew, target), shape))
            specs.append(fixed(spec, shape.length, length, anew=not given))
    return [spec for spec in dict.fromkeys(str(parse(spec)) for spec in specs) if spec != trained]


def _needed(setup: EvaluationSetup, baselines: tuple[str, ...]) -> EvaluationSetup:
    """The part of an evaluation that the advice needs; `baselines` limit the attention of the model as it is."""
    settings = replace(setup.settings, only=PROTOCOL, baselines=() if setup.run.under_another else baselines)
    return replace(setup, settings=settings)


def measured(matrix: Matrix) -> Tables:
    """The tables of all evaluations; those that are there already are not made again."""
    evaluate(matrix.work)
    return evaluation_tables([each.run for each in matrix.work], task_columns())


def to_paste(
    matrix: Matrix, advice: Advice, runtimes: Sequence[str]
) -> tuple[list[Snippet], Candidate | None, list[Snippet]]:
    """What to paste for the advice, and perhaps another candidate and what to paste for that.

    If no program has a key for what is advised, the other one is the best for which a program has one, among those
    whose gain counts. If the last tokens are all that should be read, it is the one for inputs that must be read whole,
    if a program has a key for it. None if there is no other one. Without an advice there is nothing to paste.
    """
    read, revision = matrix.checkpoint, matrix.checkpoint.source.revision
    # What programs load: a folder, a file of GGUF, or ORG/NAME.
    model = read.source.spec.removeprefix("hf:").partition("@")[0] if revision else read.source.spec

    def pasted(candidate: Candidate) -> list[Snippet]:
        spec = candidate.spec or read.run.encoding
        if candidate.variant != FULL:
            spec = spec_under(read.run, candidate.variant)
        return snippets(model, read.architecture, read.config, spec, matrix.target, runtimes, revision=revision)

    if advice.untrained:
        return [], None, []
    if advice.chosen is None:
        first = cropped(model, read.run.length, runtimes, revision=revision)
        instead = [] if advice.whole is None else [advice.whole]
    else:
        first = pasted(advice.chosen)
        missing = all(snippet.reason for snippet in first)
        instead = [each for each in advice.candidates if missing and each.counts and each != advice.chosen]
    for other in instead:
        others = pasted(other)
        if not all(snippet.reason for snippet in others):
            return first, other, others
    return first, None, []
