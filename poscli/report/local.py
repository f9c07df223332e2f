"""Names as a report shows them: it may be sent to others, so it tells nobody where the files of this machine lie."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from poscli.report.trained import Trained

# An absolute path: a corpus or a checkpoint to its end, or the file of a plugin in a spec.
WHOLE, FILE = re.compile(r"(?<![^:])/(?!/).+", re.DOTALL), re.compile(r"(?<![\w.~/-])/[\w.~/-]+\.py\b")


def shown(text: str) -> str:
    """A corpus, a spec or a message without absolute paths: they are relative to the current folder, or begin with ~.

    Any result names the same file as before to a command that is run in the current folder.
    """
    text = text.replace(f"{Path.cwd()}/", "") if Path.cwd() != Path("/") else text
    home = os.path.expanduser("~")  # noqa: PTH111 - unlike Path.home, it does not fail where there is none
    text = re.sub(rf"(?<![\w.~-]){re.escape(home)}/", "~/", text) if len(home) > 1 else text
    pattern = WHOLE if not FILE.search(text) else FILE
    return pattern.sub(lambda path: os.path.relpath(path.group()), text)


def shown_table(table: pd.DataFrame) -> pd.DataFrame:
    """A table of results whose texts hold no absolute paths."""
    names = list(table.select_dtypes(["object", "string"]).columns)
    known = {text: shown(text) for name in names for text in table[name].unique() if isinstance(text, str)}
    return table.assign(**{name: table[name].map(lambda value: known.get(value, value)) for name in names})


def shown_runs(runs: Mapping[str, Trained]) -> dict[str, Trained]:
    """What is known about runs, without absolute paths in their configurations and settings."""
    return {run_id: _shown_run(run) for run_id, run in runs.items()}


def _shown_run(run: Trained) -> Trained:
    config, names = run.config, ("encoding", "task", "corpus", "tokenizer")
    changed: dict[str, Any] = {name: shown(getattr(config, name)) for name in names}
    if config.checkpoint is not None:
        changed["checkpoint"] = config.checkpoint.model_copy(update={"source": shown(config.checkpoint.source)})
    settings = {name: _shown_value(value) for name, value in run.settings.items()}
    return replace(run, config=config.model_copy(update=changed), settings=settings, trained_as=shown(run.trained_as))


def _shown_value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_shown_value(each) for each in value]
    return shown(value) if isinstance(value, str) else value
