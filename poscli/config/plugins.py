"""The source of plugins as a part of a run's configuration: code from outside poscli that is edited is another run."""

from __future__ import annotations

from typing import Any

from poscli.config.run import RunConfig
from poscli.data.tokenizers import tokenizer_class
from poscli.equation import Shape
from poscli.specs import build, parse, plugins_among
from poscli.system import plugins
from poscli.system.errors import CorruptError, PluginError, UsageError
from poscli.system.plugins import blamed, is_outside, name_of, source_hash
from poscli.tasks import TASKS


def source_hashes(encoding: str, task: str, tokenizer: str, shape: Shape) -> dict[str, str]:
    """The hash of the source of every encoding of a spec, the task and the tokenizer that are not poscli's own.

    The keys are their names. A hash covers the file of a class or, in a package, all .py files of the package, and the
    same of its parents: 16 hex digits. UsageError or PluginError for what cannot be loaded.
    """
    with blamed():
        layers = build(parse(encoding), shape, seed=0)
    classes: dict[str, type] = {name_of(type(part)): type(part) for part in plugins_among(layers)}
    classes[task] = TASKS.get(task)
    classes[tokenizer] = tokenizer_class(tokenizer)
    return {name: source_hash(cls) for name, cls in sorted(classes.items()) if is_outside(cls)}


def check_plugins(config: RunConfig, env: dict[str, Any]) -> None:
    """Refuse to go on with a trained run whose plugins cannot be loaded or are no longer what they were in training.

    `env` is the run's env.json. UsageError names the folder of a plugin that cannot be loaded; CorruptError names one
    whose source has changed.
    """
    if not config.plugins:
        return
    try:
        shape = config.model.shape(config.length)
        now = source_hashes(config.encoding, config.task, config.tokenizer, shape)
    except (UsageError, PluginError) as error:
        if not plugins.enabled():
            raise
        where = " and ".join(f"{name} was in {_folder(name, env)}" for name in config.plugins)
        raise UsageError(
            f"{error}. When this run was trained, {where}: run there, or put that folder on PYTHONPATH"
        ) from error
    for name, then in config.plugins.items():
        if now.get(name) != then:
            raise CorruptError(
                f"the source of {name} is not what this run was trained with (hash {then}, now {now.get(name)}): "
                f"restore it in {_folder(name, env)}, or train again"
            )


def _folder(name: str, env: dict[str, Any]) -> str:
    """The folder that a plugin was loaded from in training, from env.json."""
    return next((plugin["folder"] for plugin in env.get("plugins", []) if plugin["name"] == name), "another folder")
