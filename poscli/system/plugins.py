"""Loading plugins, which are code from outside poscli: a broken one is refused with its cause and hurts nothing else.

A plugin is named by a value: `package.module:Class`, `path/to/file.py:Class`, or `path/to/file.py` for the one plugin
that the file defines.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

IMPORT_SECONDS = 10.0  # after which an import that has not ended counts as broken
PREFIX = "poscli_plugin_"  # of the names in sys.modules of modules that were imported from files
SOURCE = "__poscli_source__"  # the name under which the module of a file keeps the file's content
_containing = 0  # blocks of `contained` that are running
SWITCH = "POSCLI_NO_PLUGINS"  # the environment variable behind --no-plugins; processes started from here inherit it


class LoadError(Exception):
    """A plugin cannot be loaded; the message is the cause, in one line."""


class LeftError(SystemExit):
    """A plugin has called os._exit, which would have ended the process without a word."""


class _OverdueError(BaseException):
    """An import takes too long. Not an Exception, so that `except Exception` in a plugin does not swallow it."""


def enabled() -> bool:
    """Whether plugins may be loaded: not under --no-plugins, nor with POSCLI_NO_PLUGINS set to anything but 0."""
    return os.environ.get(SWITCH, "0") in ("", "0")


def is_file(value: str) -> bool:
    """Whether a value is the path of a file without the name of a class."""
    return value.endswith(".py") and ":" not in value


def exists(value: str) -> bool:
    """Whether a value names a file that exists."""
    path, _ = _file_of(value)
    return path is not None and path.is_file()


def canonical(value: str) -> str:
    """The one spelling of a value, so that a run is found again: only the path of a file has several.

    A path inside the current folder is relative to it, as module names are, so that a project can be moved with its
    results. Any other path is absolute.
    """
    path, attribute = _file_of(value)
    if path is None:
        return value
    here = Path.cwd().resolve()
    shown = (path.relative_to(here) if path.is_relative_to(here) else path).as_posix()
    return shown if is_file(value) else f"{shown}:{attribute}"


def load(value: str) -> Any:
    """The object that a value names. LoadError, with the cause, for whatever goes wrong while it is imported."""
    module, (place, _, attribute) = load_module(value), value.rpartition(":")
    if not hasattr(module, attribute):
        raise LoadError(
            f"{place} has no attribute {attribute!r}" if attribute else "the class after the colon is missing"
        )
    return getattr(module, attribute)


def load_module(value: str) -> ModuleType:
    """The module that a value names. LoadError, with the cause, for whatever goes wrong while it is imported."""
    with contained():
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)  # find a file in the current folder, as `python -m` does
        return import_module_of(value)


def import_module_of(value: str) -> ModuleType:
    """The module that a value names, imported."""
    path, _ = _file_of(value)
    if path is None:
        return importlib.import_module(value.partition(":")[0])
    return _import_file(path)


def forget_edited() -> None:
    """Let files whose content has changed since they were imported be imported again when they are named next.

    A session of Python calls this when a person asks for something new. A command never does: all its work is done by
    the code that it found first, whose hash its results carry.
    """
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        module = sys.modules[name]
        path = Path(module.__file__ or "")
        if not path.is_file() or path.read_bytes() != vars(module)[SOURCE]:
            del sys.modules[name]


@contextmanager
def contained() -> Iterator[None]:
    """Code from outside may run in the block: LoadError for anything it raises, and if it runs for too long.

    What it prints on stdout goes to stderr, because stdout may have to be one JSON document. Ctrl-C stays Ctrl-C.
    """
    global _containing
    _watch_exit()
    _containing += 1
    try:
        with redirect_stdout(sys.stderr), _time_limit(IMPORT_SECONDS):
            yield
    except (KeyboardInterrupt, LoadError):
        raise
    except _OverdueError as error:
        raise LoadError(
            f"its import did not end within {IMPORT_SECONDS:g} seconds; import slow packages where they are used"
        ) from error
    except SystemExit as error:
        raise LoadError(f"it called {exit_of(error)} while it was imported") from error
    except BaseException as error:
        raise LoadError(cause_of(error)) from error
    finally:
        _containing -= 1


def exit_of(error: SystemExit) -> str:
    """The call by which a plugin wanted to end the process."""
    return f"{'os._exit' if isinstance(error, LeftError) else 'sys.exit'}({error.code!r})"


def _watch_exit() -> None:
    """From now on, os._exit raises a LeftError where a plugin calls it: exit code 0 would look like success."""
    leave, process = os._exit, os.getpid()
    if getattr(leave, "watched", False):
        return

    def watched(status: int) -> NoReturn:
        from poscli.system.plugin_sources import plugin_files  # which imports this file

        caller = sys._getframe(1).f_code.co_filename
        own = caller.startswith(str(Path(__file__).parent.parent))  # as a second Ctrl-C in a plugin
        if os.getpid() == process and not own and (_containing or caller in plugin_files()):
            raise LeftError(status)
        leave(status)

    watched.watched = True  # type: ignore[attr-defined]
    os._exit = watched


def cause_of(error: BaseException) -> str:
    """An error of a plugin in one line; its class is named unless the message of its kind says enough."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - a plugin's error may have a __str__ that fails, too
        message = ""
    if isinstance(error, ImportError | SyntaxError | AttributeError) and message:
        return message
    return f"{type(error).__name__}: {message}" if message else f"{type(error).__name__} without a message"


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Interrupt the block after some seconds; without a limit off the main thread and on Windows."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise _OverdueError

    start, handler = time.monotonic(), signal.signal(signal.SIGALRM, interrupt)
    # Again every second, because the first interruption may end in a `finally` or an `except` of the plugin.
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)
        if remaining:
            left = remaining - (time.monotonic() - start)
            signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3), interval)


def _file_of(value: str) -> tuple[Path | None, str]:
    """The absolute path of the file that a value names, and the class, if it has one; None for a module's name."""
    path, _, attribute = (value, "", "") if is_file(value) else value.rpartition(":")
    if not path.endswith(".py"):
        return None, attribute
    try:
        found = Path(path).expanduser().resolve()
        found.is_file()  # raises what every later use would raise
    except (OSError, ValueError, RuntimeError):  # a loop of links, a NUL in a name or a long one, no home folder
        return None, attribute
    return found, attribute


def _import_file(path: Path) -> ModuleType:
    """The module in a file, imported under a name that belongs to this path alone.

    The file is compiled here, because Python's cache of compiled files misses a change within the same second.
    """
    name = f"{PREFIX}{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise LoadError(f"{path} is a folder" if path.is_dir() else f"there is no file {path}")
    source = path.read_bytes()
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    vars(module)[SOURCE] = source
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except BaseException:
        del sys.modules[name]  # as for any other import that fails
        raise
    return module
