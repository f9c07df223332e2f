"""What `poscli extrapolate` refuses under torchrun, and what the ranks must agree about before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from poscli.system.errors import UsageError

if TYPE_CHECKING:
    import torch

    from poscli.config.request import ExtrapolateRequest
    from poscli.evaluation.measure import EvaluationSetup


@contextmanager
def joined(request: ExtrapolateRequest, device: str) -> Iterator[torch.device]:
    """Connect the ranks in the block, which gets this rank's device; UsageError for what cannot be done."""
    from poscli.system import ranks
    from poscli.system.device import device_of

    with ranks.connected(device_of(device)) as own:
        with ranks.together():
            _refuse_options(request)
        yield own


def _refuse_options(request: ExtrapolateRequest) -> None:
    """UsageError for what only one process can do."""
    from poscli.system.ranks import ranks

    count = ranks().count
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


def check_agreement(work: list[EvaluationSetup]) -> None:
    """UsageError if the ranks disagree about what to evaluate, or with what."""
    from poscli.system.ranks import agree, ranks

    if ranks().count > 1:
        agree(_stated(work))


def _stated(work: list[EvaluationSetup]) -> dict[str, object]:
    """What decides the results of all evaluations, by name."""
    import torch

    import poscli
    from poscli.evaluation.plan import record_of
    from poscli.system.device import device_name
    from poscli.system.provenance import commit

    return {
        "the version of poscli": poscli.__version__,
        "the commit of poscli": commit(),
        "the version of torch": torch.__version__,
        "the runs": [each.run.id for each in work],
        "the fingerprint of the corpus": {each.run.id: each.task.fingerprint for each in work},
        "the settings": {each.run.id: record_of(each.run, each.settings) for each in work},
        "the device": device_name(work[0].device) if work else "",
    }
