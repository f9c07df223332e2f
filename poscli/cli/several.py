"""What `poscli extrapolate` refuses under torchrun, and what the ranks must agree about before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.system.errors import UsageError

if TYPE_CHECKING:
    import torch

    from poscli.config.request import ExtrapolateRequest
    from poscli.evaluation.measure import EvaluationSetup

ContextParallel = Annotated[
    bool,
    typer.Option(
        "--context-parallel",
        help="Under torchrun: the ranks read each window that is longer than L together; by default each reads some "
        "of the windows.",
    ),
]


@contextmanager
def joined(request: ExtrapolateRequest, context_parallel: bool, device: str) -> Iterator[torch.device]:
    """Connect the ranks in the block, which gets this rank's device; UsageError for what cannot be done."""
    from poscli.system import ranks
    from poscli.system.device import device_of

    with ranks.joined(device_of(device)) as own:
        with ranks.together():
            _refuse_options(request, context_parallel)
        yield own


def _refuse_options(request: ExtrapolateRequest, context_parallel: bool) -> None:
    """UsageError for what one process can do only, and for what only several can."""
    from poscli.system.ranks import ranks

    count = ranks().count
    if count == 1 and context_parallel:
        raise UsageError(
            "--context-parallel needs several ranks, and this is one process; leave it out, or start the command with "
            "torchrun --nproc-per-node N -m poscli extrapolate ... (docs/PARALLEL.md)"
        )
    if count > 1 and request.why:
        raise UsageError(
            f"--why runs in one process, and there are {count} ranks; leave it out, and repeat the command with --why "
            "and without torchrun when the evaluation is done: it makes the analyses only"
        )
    if count > 1 and request.recalibrate is not None:
        raise UsageError(
            f"--recalibrate {request.recalibrate} trains in one process, and there are {count} ranks; run the command "
            "without torchrun"
        )


def prepare(work: list[EvaluationSetup], context_parallel: bool) -> list[EvaluationSetup]:
    """The evaluations as the ranks will share them; UsageError if they cannot, or disagree about what to do."""
    from dataclasses import replace

    from poscli.system.ranks import agree, ranks

    if ranks().count == 1:
        return work
    agree(_stated(work, context_parallel))
    if not context_parallel:
        return work
    for each in work:
        _refuse_parts(each)
    return [replace(each, context_parallel=True) for each in work]


def _stated(work: list[EvaluationSetup], context_parallel: bool) -> dict[str, object]:
    """What decides the results of all evaluations, by name."""
    import torch

    import poscli
    from poscli.evaluation.sources import record_of
    from poscli.system.device import device_name
    from poscli.system.provenance import commit

    return {
        "the version of poscli": poscli.__version__,
        "the commit of poscli": commit(),
        "the version of torch": torch.__version__,
        "--context-parallel": context_parallel,
        "the runs": [each.run.id for each in work],
        "the fingerprint of the corpus": {each.run.id: each.task.fingerprint for each in work},
        "the settings": {each.run.id: record_of(each.run, each.settings) for each in work},
        "the device": device_name(work[0].device) if work else "",
    }


def _refuse_parts(setup: EvaluationSetup) -> None:
    """UsageError if a window cannot be read by several ranks together."""
    from poscli.model.context_parallel import refusal
    from poscli.specs import parse
    from poscli.specs.size import abstract

    run, config = setup.run, setup.run.config
    without = "leave it out: each window is then read by one rank"
    if config.checkpoint is not None:
        raise UsageError(
            f"--context-parallel cannot read {run.label}, a checkpoint of transformers, in parts; {without}"
        )
    encodings = abstract(parse(config.encoding), config.model.shape(config.length, setup.task.vocab))
    if why := refusal(config.model, encodings):
        raise UsageError(f"--context-parallel cannot read {run.label} in parts: {why}; choose other runs, or {without}")
