"""What checkpoints add to `poscli.api`."""

from __future__ import annotations

from pathlib import Path

from poscli.api.arguments import checked
from poscli.checkpoints import CORPUS
from poscli.checkpoints.models import checkpoint_at, checkpoint_run
from poscli.model.load import keep
from poscli.runs.run import Run
from poscli.system.device import device_of

__all__ = ["checkpoint"]


@checked
def checkpoint(
    model: str | Path,
    *,
    corpus: str = CORPUS,
    length: int | None = None,
    precision: str = "auto",
    task: str = "language",
    device: str = "auto",
    out: str | Path = "results",
) -> Run:
    """Make a run of a checkpoint of transformers, which `extrapolate` takes as it takes a trained run.

    `model` is a folder, a file of GGUF, or hf:ORG/NAME@REVISION. `corpus` is the text to evaluate it on, `length` the
    trained length in tokens where config.json says it wrongly, `precision` the number format, and `task` language, or
    one that asks about a long text: needle, facts or repeat. The run is kept in the folder `out`, without the weights,
    which are read from where they are.
    """
    where = device_of(device)
    read = checkpoint_at(str(model), where, corpus=corpus, length=length, precision=precision, task=task)
    run, _ = checkpoint_run(read, Path(out) / "runs", where)
    return keep(run, where)
