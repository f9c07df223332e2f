"""Faults injected into file-system operations: the process dies at one of them, or the system refuses it.

Every write of poscli goes through Python's `os` module or `open`: safetensors, Parquet and PNG files are made in memory
first. So wrapping these functions counts every operation that changes the disk.
"""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from typing import Any

CHANGING = ("write", "fsync", "fchmod", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "ftruncate")
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

Fault = Callable[[str, tuple[Any, ...]], None]  # called with the operation and its arguments instead of it


class Counter:
    """Counts the operations below some folders, and calls a fault at one of them."""

    def __init__(self, roots: tuple[str, ...], at: int = -1, fault: Fault | None = None) -> None:
        self.roots, self.at, self.fault = roots, at, fault
        self.count, self.kinds = 0, []
        self.descriptors: set[int] = set()  # open for writing below the roots

    def install(self) -> None:
        """Wrap the functions of this process; it is to end soon."""
        for name in CHANGING:
            setattr(os, name, self._wrapped(name, getattr(os, name)))
        os.open = self._opening(os.open)
        io.open = self._opening_file(io.open)

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._concerns(args, kwargs):
                self._count(name, args)
            return call(*args, **kwargs)

        return wrapper

    def _opening(self, call: Callable[..., int]) -> Callable[..., int]:
        def wrapper(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if flags & WRITE_FLAGS and self._concerns((path,), kwargs):
                self._count("open", (path,))
            handle = call(path, flags, *args, **kwargs)
            if self._concerns((path,), kwargs):
                self.descriptors.add(handle)
            else:
                self.descriptors.discard(handle)
            return handle

        return wrapper

    def _opening_file(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if set(mode) & set("wax+") and self._concerns((file,), kwargs):
                self._count("open", (file,))
            return call(file, mode, *args, **kwargs)

        return wrapper

    def _concerns(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether an operation is on a path below the roots, or on a descriptor that was opened there."""
        first = args[0]
        if isinstance(first, int):
            return first in self.descriptors
        if kwargs.get("dir_fd") is not None:  # as in rmtree, whose folder was opened below the roots
            return kwargs["dir_fd"] in self.descriptors
        return os.path.abspath(os.fspath(first)).startswith(self.roots)  # noqa: PTH100 - a symlink counts itself

    def _count(self, name: str, args: tuple[Any, ...]) -> None:
        self.kinds.append(name)
        self.count += 1
        if self.count - 1 == self.at and self.fault:
            self.fault(name, args)


def die(name: str, args: tuple[Any, ...]) -> None:
    """Die at once, as by SIGKILL or a power failure; of a write, half arrives."""
    if name == "write":
        _real_write(args[0], bytes(args[1])[: len(args[1]) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(errno: int) -> Fault:
    """The system refuses the operation with this error."""

    def fault(name: str, args: tuple[Any, ...]) -> None:
        path = args[0] if not isinstance(args[0], int) else None
        raise OSError(errno, os.strerror(errno), path)

    return fault


_real_write = os.write
