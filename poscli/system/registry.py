"""Registries of plugins of one kind, such as encodings or tasks.

A registry finds plugins in four places. Each file of the kind's own package registers its plugins when it is imported,
and so does each file of a satellite that is named like the last part of that package. Other packages offer theirs
through an entry-point group with the name of that package. A name of the form `package.module:Class`,
`path/to/file.py:Class` or `path/to/file.py` loads an object that is registered nowhere.

Satellites are the folders of poscli that its core works without: `poscli/grids/tasks.py` has a task, and each file of
`poscli/grids/encodings/` an encoding. The core imports nothing else of a satellite, and a satellite that is deleted is
missed by nothing but its own users.

A plugin of another package that cannot be imported, is not such a plugin or has a name that is taken is listed as
broken, with the cause, and hurts no other: built-in plugins keep their names, and of two packages that offer one name
neither is used.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

import poscli
from poscli.system import plugins
from poscli.system.errors import UsageError, near
from poscli.system.plugins import LoadError
from poscli.system.text import printable

T = TypeVar("T")
C = TypeVar("C", bound=type)
L = TypeVar("L")

SATELLITES = ("bench", "board", "checkpoints", "cluster", "grids", "inspect")


def plugged_in(part: str) -> dict[str, Path]:
    """The modules that satellites have for a part of the core, by their dotted names, with their files.

    `part` is the last name of that part: `encodings`, `tasks`, `corpora`.
    """
    package = Path(poscli.__file__).parent
    patterns = [f"{name}/{pattern}" for name in SATELLITES for pattern in (f"{part}.py", f"{part}/*.py")]
    files = sorted(file for pattern in patterns for file in package.glob(pattern) if file.stem != "__init__")
    return {".".join(("poscli", *file.relative_to(package).with_suffix("").parts)): file for file in files}


def subclass_of(base: type) -> Callable[[Any], bool]:
    """A function that tells whether an object is a class derived from `base`."""
    return lambda candidate: isinstance(candidate, type) and issubclass(candidate, base)


class Registry(Generic[T]):
    """The plugins of one kind, by name.

    `kind` is what messages call a plugin ("encoding"), and `package` the package whose files register plugins, which is
    also the name of the entry-point group. `accepts` tells whether an object is such a plugin; `expected` is the hint
    in the error for an object that is not. `fault` tries a plugin that another package offers and returns what is wrong
    with it, "" if nothing is.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        accepts: Callable[[Any], bool],
        expected: str = "CONTRIBUTING.md shows what one looks like",
        fault: Callable[[Any], str] = lambda plugin: "",
    ) -> None:
        self.kind, self.package, self.accepts, self.expected, self.fault = kind, package, accepts, expected, fault
        self._plugins: dict[str, T] = {}
        self._needs: dict[str, tuple[str, str]] = {}  # name -> module it imports, and poscli's extra
        self._broken: dict[str, str] = {}  # name that a package offers -> why it cannot be used
        self._discovered = False

    def add(self, name: str, plugin: T, needs: tuple[str, str] | None = None) -> T:
        """Register a plugin. `needs` names a module that it imports when used, and the extra that installs it.

        ValueError if the name belongs to another plugin.
        """
        if not _same(self._plugins.setdefault(name, plugin), plugin):
            raise ValueError(f"there is another {self.kind} named {name!r}; choose another name")
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
        """Every registered name, sorted, including those whose packages are not installed, and broken ones."""
        self._discover()
        return sorted({*self._plugins, *self._broken})

    def missing(self, name: str) -> str:
        """Why a plugin cannot be used on this machine, with the command that installs what it needs; '' if it can."""
        self._discover()
        module, extra = self._needs.get(name, ("", ""))
        if module and importlib.util.find_spec(module) is None:
            return f"needs {module}: pip install 'poscli[{extra}]'"
        return self._broken.get(name, "")

    def broken(self, name: str) -> bool:
        """Whether another package offers this plugin, and it is broken; `missing` states the cause."""
        self._discover()
        return name in self._broken

    def get(self, name: str, *, installed: bool = True) -> T:
        """The plugin of a name, of `package.module:Class`, of `file.py:Class` or of `file.py`.

        With `installed`, UsageError if a module that it imports when used is not installed. UsageError suggests similar
        names.
        """
        if ":" in name or plugins.is_file(name):
            value = self.full_name(name)
            plugin = self._loaded(value, plugins.load_object)
            if not self.accepts(plugin):
                raise UsageError(f"{value!r} is no {self.kind}: {self.expected}")
            self._remember(value, value, plugin)
            return _named(plugin, value)
        if (why := self.missing(name)) and (installed or self.broken(name)):
            raise UsageError(f"{name} {why}")
        if name not in self._plugins:
            shown = f"`poscli ls {self.package.rpartition('.')[2]}` shows all"
            raise UsageError(f"there is no {self.kind} {name!r}: {near(name, self._plugins)}; {shown}")
        return self._plugins[name]

    def full_name(self, name: str) -> str:
        """The one spelling of a name, as results show it: `file.py` becomes `file.py:Class`.

        UsageError if the file cannot be imported, or does not define exactly one plugin of this kind. Classes that the
        file imports, and those whose names begin with `_`, do not count.
        """
        name = plugins.canonical_value(name)
        if not plugins.is_file(name):
            return name
        module = self._loaded(name, plugins.load_module)
        defined = [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__]
        classes = {cls.__qualname__: cls for cls in defined if isinstance(cls, type)}
        offered = [each for each, cls in classes.items() if self.accepts(cls) and not each.startswith("_")]
        if len(offered) == 1:
            return f"{name}:{offered[0]}"
        if offered:
            named = f"{', '.join(offered[:-1])} and {offered[-1]}"
            raise UsageError(f"{name} defines {len(offered)} {self.kind}s, {named}: name one, as {name}:{offered[0]}")
        others = f"of its own it has only {', '.join(classes)}" if classes else "it has no class of its own"
        raise UsageError(f"{name} defines no {self.kind}: {others}; {self.expected}")

    def _discover(self) -> None:
        """Import every file of the package and of satellites, which register plugins, and load every entry point."""
        if self._discovered:
            return
        self._discovered = True
        for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        for name in plugged_in(self.package.rpartition(".")[2]):
            importlib.import_module(name)
        if plugins.enabled():
            self._load_entry_points()

    def _load_entry_points(self) -> None:
        """Load what other packages offer; of what cannot be used, only the cause is kept."""
        offers: dict[str, dict[str, EntryPoint]] = {}  # name -> value -> entry point; a package may be found twice
        for point in entry_points(group=self.package):
            offers.setdefault(point.name, {}).setdefault(point.value, point)
        built_in = set(self._plugins)
        for name, points in sorted(offers.items()):
            if name in built_in:
                for value, point in points.items():
                    why = f"the name {name} belongs to poscli; to use this one, write {value}"
                    self._broken[printable(f"{name} ({_package(point)})")] = why
            elif len(points) > 1:
                offered = " and ".join(f"{_package(point)} ({value})" for value, point in sorted(points.items()))
                self._broken[printable(name)] = f"is offered by {offered}; uninstall one, or write {min(points)}"
            else:
                self._load_entry_point(*points.values())

    def _load_entry_point(self, point: EntryPoint) -> None:
        """Register the plugin of an entry point, or note why it is broken and forget what its import registered."""
        before = dict(self._plugins), dict(self._needs)
        plugins.will_run(point.name)
        try:
            if not re.fullmatch(r"\w[\w.-]*", point.name):
                raise LoadError("its name may hold only letters, digits, '.', '-' and '_'")
            with plugins.contained():
                plugin = point.load()
                _named(plugin, point.name, anew=plugins.is_outside(plugin))
                wrong = "" if self.accepts(plugin) else f"it is no {self.kind}: {self.expected}"
                if wrong := wrong or self.fault(plugin):
                    raise LoadError(wrong)
                self.add(point.name, plugin)
        except LoadError as error:
            self._plugins, self._needs = before
            self._broken[printable(point.name)] = f"cannot be used: {error} ({point.value} of {_package(point)})"
            return
        self._remember(point.name, f"{point.module}:{point.attr}", plugin, point)

    def _loaded(self, value: str, load: Callable[[str], L]) -> L:
        """What `load` makes of a value; UsageError if plugins are switched off, or this one cannot be loaded."""
        if not plugins.enabled():
            raise UsageError(f"{value!r} is a plugin, and --no-plugins (or {plugins.SWITCH}) is set; leave that out")
        plugins.will_run(value)
        try:
            return load(value)
        except LoadError as error:
            fix = "expected package.module:Class or path/to/file.py:Class"
            if plugins.names_a_file(value):
                fix = "correct that file, or name another one"
            raise UsageError(f"cannot load the {self.kind} {value!r}: {error}; {fix}") from error

    def _remember(self, name: str, value: str, plugin: Any, point: EntryPoint | None = None) -> None:
        dist = point.dist if point is not None else None
        package = (dist.name, dist.version) if dist is not None else ("", "")
        module = plugins.import_module_of(value).__name__
        plugins.remember(plugins.Plugin(self.kind, name, value, plugin, module, *package))


def _same(one: Any, other: Any) -> bool:
    """Whether two plugins are one: a module that is imported again defines its classes anew."""
    places = [(getattr(p, "__module__", None), getattr(p, "__qualname__", None)) for p in (one, other)]
    return one is other or (places[0] == places[1] and isinstance(one, type))


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "another package"


def _named(plugin: Any, name: str, anew: bool = False) -> Any:
    """Set the name of a class, unless it has one and `anew` is false; return the plugin."""
    if isinstance(plugin, type) and (anew or "name" not in vars(plugin)):
        plugin.name = name  # type: ignore[attr-defined]
    return plugin
