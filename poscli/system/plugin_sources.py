"""The source of plugins: which were loaded, from where, what their code was, and which of them raised an error."""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poscli.system.errors import PluginError, PoscliError
from poscli.system.plugins import cause_of, exit_of

OWN = "poscli"
# Packages whose classes a plugin may inherit from without their source becoming a part of the plugin's.
FOUNDATIONS = {OWN, "torch", "numpy", *sys.stdlib_module_names}


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
    """The plugins that this process has loaded, for env.json and `poscli doctor`.

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
            plugin = _plugin_at(path, frame.f_code.co_qualname) or owners[str(path)]
            what = f"called {exit_of(error)}" if isinstance(error, SystemExit) else f"raised {_shown(error)}"
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


def _shown(error: BaseException) -> str:
    cause, kind = cause_of(error), type(error).__name__
    return cause if cause.startswith(kind) else f"{kind}: {cause}"


def _plugin_at(path: Path, qualified: str) -> Plugin | None:
    """The plugin of a file whose class has the method `qualified`: a file may hold several."""
    cls = qualified.partition(".")[0]
    found = (p for p in _loaded.values() if p.value.rpartition(":")[2] == cls and path in p.files)
    return next(found, None)


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
