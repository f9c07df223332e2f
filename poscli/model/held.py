"""Keeping a checkpoint in memory while it is evaluated under one encoding after the other."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from poscli.model.language_model import LanguageModel


@dataclass
class _Held:
    """The checkpoint loaded last, and what decides which one it is."""

    what: object = None
    model: LanguageModel | None = None

    def release(self) -> None:
        """Free the memory now: where a method was replaced, a module refers to itself and waits for the collector."""
        if self.model is not None:  # to collect takes a fifth of a second
            self.what = self.model = None
            gc.collect()


_HELD: ContextVar[_Held | None] = ContextVar("held", default=None)


@contextmanager
def held() -> Iterator[None]:
    """A block in which the checkpoint loaded last stays loaded, so that all its encodings share one copy of it.

    A block within another one shares what that holds.
    """
    if _HELD.get() is not None:
        yield
        return
    here = _Held()
    before = _HELD.set(here)
    try:
        yield
    finally:
        _HELD.reset(before)
        here.release()


def once(what: object, load: Callable[[], LanguageModel]) -> LanguageModel:
    """The checkpoint that is held, if it is this one; else what `load` returns, and never two of them at a time."""
    here = _HELD.get()
    if here is None:
        return load()
    if here.what != what:
        here.release()
        here.what, here.model = what, load()
    assert here.model is not None
    return here.model
