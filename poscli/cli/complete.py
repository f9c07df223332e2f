"""What shells offer at the Tab key. Names of plugins are read from their files, because importing takes seconds."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import typer

import poscli
from poscli.system.registry import plugged_in

REGISTERS = re.compile(r'^(?:@(?:\w+\.)?register|\w+\.add)\(\s*"([^"]+)"', re.MULTILINE)


def registered(package: str) -> list[str]:
    """The names that the files of a package register, those of satellites, and those of its entry-point group.

    Nothing is imported.
    """
    folder = Path(poscli.__file__).parent.joinpath(*package.split(".")[1:])
    files = [*folder.glob("*.py"), *plugged_in(package.rpartition(".")[2]).values()]
    names = {name for path in files for name in REGISTERS.findall(path.read_text(encoding="utf-8"))}
    return sorted(names | {point.name for point in entry_points(group=package)})


def _names(package: str) -> Callable[[], list[str]]:
    return lambda: registered(package)


encodings = _names("poscli.encodings")
layouts = _names("poscli.layouts")
tasks = _names("poscli.tasks")
tokenizers = _names("poscli.data.tokenizers")
protocols = _names("poscli.evaluation.protocols")
baselines = _names("poscli.evaluation.baselines")


def specs() -> list[str]:
    """The shortest specs: names of encodings and of layouts."""
    return sorted([*encodings(), *layouts()])


def corpora() -> list[str]:
    """The kinds of corpora, and the texts whose best possible loss is known."""
    known_limit = registered("poscli.data.known_limit")
    return [*registered("poscli.data.corpora"), *(f"bayes:{name}" for name in known_limit)]


def presets() -> list[str]:
    """The shapes of models."""
    from poscli.config.run import PRESETS

    return list(PRESETS)


def runs(context: typer.Context) -> list[str]:
    """The ids of the runs in the results folder that the command line names."""
    out = Path(context.params.get("out_") or "results")
    return sorted(path.parent.name for path in (out / "runs").glob("*/config.toml"))


def suites() -> list[str]:
    """The suites in the folder `suites`; shells add other files by themselves."""
    return sorted(str(path) for path in Path("suites").glob("*.toml"))


# For options that are made from the field of a model: field -> what completes it.
OF_FIELDS: dict[str, Callable[..., Any]] = {
    "encodings": specs,
    "task": tasks,
    "corpus": corpora,
    "tokenizer": tokenizers,
    "preset": presets,
    "as_": specs,
    "protocols": protocols,
    "baselines": baselines,
}
