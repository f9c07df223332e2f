"""What is asked of a model, and how its answers are scored.

task.py has the base class and the documents to evaluate on, episodes.py the base of synthetic tasks; every other file
is a task. Satellites have more: poscli/grids/tasks.py.
"""

from poscli.data import Tokenizer
from poscli.tasks.episodes import EpisodeTask
from poscli.tasks.task import IGNORED, TASKS, Batch, HeldOut, Spans, Task, Text

__all__ = ["IGNORED", "TASKS", "Batch", "EpisodeTask", "HeldOut", "Spans", "Task", "Text", "open_task", "task_columns"]


def open_task(name: str, corpus: str, tokenizer: str | Tokenizer) -> Task:
    """The task of a name on a corpus; UsageError for an unknown name, DataError for a corpus that cannot be read.

    The tokenizer is given by its spec, or itself if it has been trained already.
    """
    return TASKS.get(name).open(corpus, tokenizer)


def task_columns() -> dict[str, tuple[str, str]]:
    """The columns that tasks add to eval.csv, of all tasks together: name -> (dtype, meaning)."""
    usable = [name for name in TASKS.names() if not TASKS.missing(name)]
    return {column: meaning for name in usable for column, meaning in TASKS.get(name).columns.items()}
