"""Which recalibration a request asks for before a model is evaluated under another encoding."""

from __future__ import annotations

from poscli.config.plugins import source_hashes
from poscli.config.request import ExtrapolateRequest
from poscli.config.run import Recalibration, RunConfig
from poscli.system.errors import UsageError


def recalibration(config: RunConfig, encoding: str, request: ExtrapolateRequest) -> Recalibration | None:
    """How the model of a run is recalibrated before it is evaluated under another encoding; None if it is not."""
    if request.recalibrate is None:
        return None
    sources = source_hashes(encoding, config.task, config.tokenizer, config.model.shape(config.length))
    return Recalibration(
        tokens=request.recalibrate, length=request.recalibrate_length or config.length, plugins=sources
    )


def refuse_recalibration(config: RunConfig, request: ExtrapolateRequest) -> None:
    """UsageError if a request recalibrates nothing, too little, or a model that cannot be recalibrated."""
    if request.recalibrate is None:
        if request.recalibrate_length is not None:
            raise UsageError(
                f"--recalibrate-length {request.recalibrate_length} is the window of --recalibrate; give that too"
            )
        return
    given = f"--recalibrate {request.recalibrate}"
    if config.checkpoint is not None:
        raise UsageError(
            f"{given} trains poscli's own models, and {config.checkpoint.name} is a checkpoint; leave it out"
        )
    if not request.as_:
        raise UsageError(f"{given} trains a model under the encodings of --as; give --as too, such as --as none")
    if config.model.memory:
        raise UsageError(f"{given}: {config.encoding} has a memory, with which nothing is recalibrated; leave it out")
    length = request.recalibrate_length or config.length
    if request.recalibrate < (step := max(1, config.batch * config.length // length) * length):
        raise UsageError(f"{given} is less than one step of {step} tokens; give at least {step}")
