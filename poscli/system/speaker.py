"""Which of several ranks prints the error that ends a command, so that one line says it, and not one per rank."""

from __future__ import annotations

import os
import platform
import time
from datetime import timedelta

from poscli.system import early, ranks, rendezvous
from poscli.system.errors import UsageError

SECONDS = 3.0  # within which the first rank reports an error that it shares with others
FINDING = timedelta(seconds=5)  # for the store of ranks that have failed before they joined


def spoken_by(error: BaseException) -> str | None:
    """What to put before the message of an error that ends the command; None if this rank is to say nothing.

    Of all ranks one prints: the first one if it has an error, else the rank that has one, which states its number.
    """
    try:
        me = ranks.ranks()
    except UsageError:  # the environment names no rank, so that nobody else can print the error
        return ""
    if me.count == 1:
        return ""
    if getattr(error, "shared", False):
        return "" if me.first else None
    lost = isinstance(error, ranks.LostRankError)  # which every rank that is left may say, and says who it is
    if not (me.first or lost):
        early.told()  # torchrun ends this rank once the first one has ended, which needs no line of its own
    try:
        store = rendezvous.store(FINDING)
        if not (me.first or lost):
            _wait_for_first(store)
        speaks = store.add(rendezvous.TOLD, 1) == 1
    except (RuntimeError, OSError, KeyError, ValueError):  # the store has ended with the rank that kept it
        speaks = me.first or lost
    if not speaks:
        return None
    return "" if me.first or lost else f"rank {me.rank} on {platform.node()}: "


def _wait_for_first(store: object) -> None:
    """Give the first rank time to print an error that it has as well."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and not store.check([rendezvous.TOLD]):  # type: ignore[attr-defined]
        time.sleep(0.05)


def silence_libraries() -> None:
    """Keep warnings of torch's C++ code from stderr, which every rank would print; before torch is imported."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
