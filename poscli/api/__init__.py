"""poscli from Python: the commands as functions, for notebooks and models of your own.

    from poscli import api

    alibi = api.encoding("alibi", width=128, heads=8, length=512)
    out = api.attention(q, k, v, alibi)                    # in a model of one's own
    run = api.train("alibi", tokens="500k", preset="nano")
    api.extrapolate(run, max_len=4096)
    api.results()                                          # a pandas table

Nothing is printed on stdout; notes and progress go to stderr. What a command refuses raises the exception behind its
message: a subclass of `PoscliError`. `Unsupported`, for an input that an encoding cannot take, is not one of these.
layers.py has what goes into a model of one's own, experiments.py what trains, evaluates and reads results. The files
`api.py` of satellites add their own functions.
"""

import importlib
from typing import Any

from poscli.api.experiments import (
    Measured,
    compare,
    corpus,
    extrapolate,
    load,
    report,
    results,
    runs,
    summary,
    train,
    training_log,
    tune,
    verify,
)
from poscli.api.layers import attention, begin_step, embed, encoding, encodings, mix
from poscli.equation import Encoding, Shape, Unsupported
from poscli.system.errors import (
    CorruptError,
    DataError,
    LockedError,
    PluginError,
    PoscliError,
    StorageError,
    UsageError,
)
from poscli.system.registry import plugged_in

__all__ = [
    "CorruptError",
    "DataError",
    "Encoding",
    "LockedError",
    "Measured",
    "PluginError",
    "PoscliError",
    "Shape",
    "StorageError",
    "Unsupported",
    "UsageError",
    "attention",
    "begin_step",
    "compare",
    "corpus",
    "embed",
    "encoding",
    "encodings",
    "extrapolate",
    "load",
    "mix",
    "report",
    "results",
    "runs",
    "summary",
    "train",
    "training_log",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    """A function that a satellite adds, such as `checkpoint`."""
    for module in map(importlib.import_module, plugged_in("api")):
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    added = [name for module in plugged_in("api") for name in importlib.import_module(module).__all__]
    return sorted([*globals(), *added])
