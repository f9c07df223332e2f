"""Plugins, which are code from outside poscli: loading them, their source, and which of them raised an error.

A plugin is named by a value: `package.module:Class`, `path/to/file.py:Class`, or `path/to/file.py` for the one plugin
that the file defines. A broken one is refused with its cause and hurts nothing else.
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
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from poscli.system.errors import PluginError, PoscliError

OWN = "poscli"
# Packages whose classes a plugin may inherit from without their source becoming a part of the plugin's.
FOUNDATIONS = {OWN, "torch", "numpy", *sys.stdlib_module_names}
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


def names_a_file(value: str) -> bool:
    """Whether a value names a file that exists."""
    path, _ = _file_of(value)
    return path is not None and path.is_file()


def canonical_value(value: str) -> str:
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


def load_object(value: str) -> Any:
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
        caller = sys._getframe(1).f_code.co_filename
        is_poscli = caller.startswith(str(Path(__file__).parent.parent))  # as a second Ctrl-C in a plugin
        if os.getpid() == process and not is_poscli and (_containing or caller in plugin_files()):
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
        file = Path(path).expanduser().resolve()
        file.is_file()  # raises what every later use would raise
    except (OSError, ValueError, RuntimeError):  # a loop of links, a NUL in a name or a long one, no home folder
        return None, attribute
    return file, attribute


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


@dataclass(frozen=True)
class Plugin:
    """A plugin that was loaded: what it is, where it was found, and the package that offers it, if one does."""

    kind: str  # as messages call it: encoding, task, tokenizer, ...
    name: str
    value: str  # module:Class, or file.py:Class
    thing: Any
    module: str  # name in sys.modules of the module that holds it
    distribution: str = ""
    version: str = ""

    @property
    def files(self) -> list[Path]:
        """Its source files; those of the packages that it comes from, in sorted order."""
        return sorted({path for root in self._roots() for path in _files_of(root)})

    def record(self) -> dict[str, str]:
        """What env.json says about it."""
        file = getattr(sys.modules.get(self.module), "__file__", None) or ""
        folder = _root_of(self.module).parent if file else ""
        return {
            "kind": self.kind,
            "name": self.name,
            "value": self.value,
            "distribution": self.distribution,
            "version": self.version,
            "file": file,
            "folder": str(folder),
            "sha256": _digest(self._roots()),
        }

    def _roots(self) -> list[Path]:
        # A package may offer a class of poscli under another name; poscli's files are not the plugin's.
        modules = [m for m in (self.module, *_modules_of(self.thing)) if m.partition(".")[0] != OWN and _has_file(m)]
        return sorted({_root_of(module) for module in modules})


_loaded: dict[tuple[str, str], Plugin] = {}  # by kind and name
_run: dict[str, None] = {}  # the names of all plugins whose code has run, the broken ones too


def remember(plugin: Plugin) -> None:
    """Note that a plugin was loaded."""
    _loaded[plugin.kind, plugin.name] = plugin


def loaded() -> list[dict[str, str]]:
    """The plugins that this process has loaded, for env.json and the document of `poscli bench`.

    Each has its kind, name and value, the distribution that offers it with its version, its file, the folder that must
    be on the path to import it, and the SHA-256 of its source.
    """
    return [_loaded[key].record() for key in sorted(_loaded)]


def will_run(name: str) -> None:
    """Note that the code of a plugin is about to run, which may change anything, whether it can be loaded or not."""
    _run.pop(name, None)  # it becomes the latest
    _run[name] = None


def suspects() -> str:
    """The plugins that may be the cause of an error of poscli, as the end of a phrase; "" if there are none.

    The latest three are named: a process may have loaded hundreds, and a message is cut at some length.
    """
    latest = list(reversed(_run))
    names = latest[:3] + [f"{len(latest) - 3} more"] * (len(latest) > 3)
    return f", or of what is not part of it and has been loaded: {' and '.join(names)}" if names else ""


def plugin_files() -> set[str]:
    """The source files of all plugins that were loaded."""
    return {str(path) for plugin in _loaded.values() for path in plugin.files}


def is_outside(thing: Any) -> bool:
    """Whether a class comes from outside poscli."""
    return str(getattr(thing, "__module__", "")).partition(".")[0] != OWN


def name_of(cls: type) -> str:
    """The name that a class was loaded under; for one that another class made use of, its own."""
    return next((plugin.name for plugin in _loaded.values() if plugin.thing is cls), cls.__qualname__)


def source_hash(cls: type) -> str:
    """The first 16 digits of the SHA-256 of a class' source: "" if it has no file, as in an interactive session.

    The source is that of the class and of its parents outside poscli, torch and numpy: the module's file, or, for a
    module of a package, every .py file of the whole package.
    """
    roots = sorted({_root_of(module) for module in _modules_of(cls) if _has_file(module)})
    return _digest(roots)[:16] if roots else ""


def blame(error: BaseException) -> str:
    """One line about an error that a plugin raised or let pass: which one, what, and where; "" if none did."""
    owners = {str(path): plugin for plugin in _loaded.values() for path in plugin.files}
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        path = Path(frame.f_code.co_filename).resolve()
        if str(path) in owners:
            cls = frame.f_code.co_qualname.partition(".")[0]  # a file may hold several plugins
            of_class = (p for p in _loaded.values() if p.value.rpartition(":")[2] == cls and path in p.files)
            plugin = next(of_class, owners[str(path)])
            if isinstance(error, SystemExit):
                what = f"called {exit_of(error)}"
            else:
                cause, error_class = cause_of(error), type(error).__name__
                what = f"raised {cause if cause.startswith(error_class) else f'{error_class}: {cause}'}"
            return f"the {plugin.kind} {plugin.name}, which is not part of poscli, {what} ({path.name}, line {line})"
    return ""


@contextmanager
def blamed() -> Iterator[None]:
    """An error that a plugin raises in the block, or its sys.exit, becomes a PluginError that names the plugin."""
    try:
        yield
    except PoscliError:
        raise
    except (Exception, SystemExit) as error:
        if line := blame(error):
            raise PluginError(line) from error
        if isinstance(error, SystemExit) and not error.code:  # poscli did not; typer exits with 1 at a closed pipe
            raise PluginError(f"a package that poscli uses called sys.exit({error.code!r})") from error
        raise


def _modules_of(thing: Any) -> list[str]:
    """The modules of a class and of its parents, without those of poscli, of torch and of Python itself."""
    modules = [base.__module__ for base in thing.__mro__] if isinstance(thing, type) else []
    return [module for module in modules if module.partition(".")[0] not in FOUNDATIONS]


def _has_file(module: str) -> bool:
    return bool(getattr(sys.modules.get(module), "__file__", None))


def _root_of(module: str) -> Path:
    """The file of a module, or, for a module of a package, the folder of the outermost package."""
    root = Path(sys.modules[module].__file__ or "").resolve()
    if root.name == "__init__.py":
        root = root.parent
    for _ in range(module.count(".")):  # a namespace package has no __init__.py and belongs to nobody
        if not (root.parent / "__init__.py").is_file():
            break
        root = root.parent
    return root


def _files_of(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py")) if root.is_dir() else [root]


def _digest(roots: list[Path]) -> str:
    """The SHA-256 of files and of packages: of names and contents, not of where they are."""
    digest = hashlib.sha256()
    for root in roots:
        for path in _files_of(root):
            content = path.read_bytes() if path.is_file() else b""
            digest.update(f"{path.relative_to(root.parent).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()
