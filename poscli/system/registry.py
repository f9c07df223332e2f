"""Registries of plugins of one kind, such as encodings or tasks.

A registry finds plugins in three places. Each file of the kind's own package registers its plugins when it is imported.
Other packages offer theirs through an entry-point group with the name of that package. A name of the form
`package.module:Class` loads an object that is registered nowhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from poscli.system.errors import UsageError, near

T = TypeVar("T")
C = TypeVar("C", bound=type)


def subclass_of(base: type) -> Callable[[Any], bool]:
    """A function that tells whether an object is a class derived from `base`."""
    return lambda candidate: isinstance(candidate, type) and issubclass(candidate, base)


class Registry(Generic[T]):
    """The plugins of one kind, by name.

    `kind` is what messages call a plugin ("encoding"), and `package` the package whose files register plugins, which is
    also the name of the entry-point group. `accepts` tells whether an object is such a plugin; `expected` is the hint
    in the error for an object that is not.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        accepts: Callable[[Any], bool],
        expected: str = "CONTRIBUTING.md shows what one looks like",
    ) -> None:
        self.kind, self.package, self.accepts, self.expected = kind, package, accepts, expected
        self._plugins: dict[str, T] = {}
        self._needs: dict[str, tuple[str, str]] = {}  # name -> module it imports, and poscli's extra
        self._broken: dict[str, str] = {}  # name of an entry point -> why it cannot be imported
        self._discovered = False

    def add(self, name: str, plugin: T, needs: tuple[str, str] | None = None) -> T:
        """Register a plugin. `needs` names a module that it imports when used, and the extra that installs it."""
        self._plugins[name] = plugin
        if needs:
            self._needs[name] = needs
        return plugin

    def register(self, name: str) -> Callable[[C], C]:
        """A decorator for registries of classes: sets the `name` of the class and registers it."""

        def add(cls: C) -> C:
            cls.name = name  # type: ignore[attr-defined]
            self.add(name, cls)  # type: ignore[arg-type]
            return cls

        return add

    def names(self) -> list[str]:
        """Every registered name, sorted, including those whose packages are not installed."""
        self._discover()
        return sorted({*self._plugins, *self._broken})

    def missing(self, name: str) -> str:
        """Why a plugin cannot be used on this machine, with the command that installs what it needs; '' if it can."""
        self._discover()
        module, extra = self._needs.get(name, ("", ""))
        if module and importlib.util.find_spec(module) is None:
            return f"needs {module}: pip install 'poscli[{extra}]'"
        return self._broken.get(name, "")

    def get(self, name: str) -> T:
        """The plugin of a name or of `package.module:Class`; UsageError suggests similar names."""
        if ":" in name:
            return self._outside(name)
        if why := self.missing(name):
            raise UsageError(f"{name} {why}")
        if name not in self._plugins:
            shown = f"`poscli ls {self.package.rpartition('.')[2]}` shows all"
            raise UsageError(f"there is no {self.kind} {name!r}: {near(name, self._plugins)}; {shown}")
        return self._plugins[name]

    def _discover(self) -> None:
        """Import every file of the package, which registers its plugins, and load every entry point."""
        if self._discovered:
            return
        self._discovered = True
        for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        for point in entry_points(group=self.package):
            try:
                plugin = point.load()
            except ImportError as error:  # other plugins stay usable; `missing` states the cause
                self._broken[point.name] = f"cannot be imported from {point.value}: {error}"
                continue
            self._plugins.setdefault(point.name, _named(plugin, point.name))

    def _outside(self, path: str) -> T:
        module, _, attribute = path.partition(":")
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)  # find a file in the current folder, as `python -m` does
        try:
            plugin = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, SyntaxError) as error:
            raise UsageError(f"cannot load the {self.kind} {path!r}: {error}; expected package.module:Class") from error
        if not self.accepts(plugin):
            raise UsageError(f"{path!r} is no {self.kind}: {self.expected}")
        return _named(plugin, path)


def _named(plugin: Any, name: str) -> Any:
    """Set the name of a class that does not define one itself; return the plugin."""
    if isinstance(plugin, type) and "name" not in vars(plugin):
        plugin.name = name  # type: ignore[attr-defined]
    return plugin
