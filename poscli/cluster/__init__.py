"""The jobs of a suite on a Ray cluster.

commands.py has the option, cluster.py the workers. This file has what runs in a process on a node of the cluster: a
job, and before the first one a look around. It imports nothing heavy, which every look would wait for.
"""

from __future__ import annotations

import contextlib
import os
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

import poscli
from poscli.system.errors import UsageError

MARK = ".sweep"  # a file beside the runs, which the driver locks and every node must see


def execute(job: str, home: str, threads: int, variables: dict[str, str]) -> str:
    """Execute a job on `threads` threads; job and outcome are JSON. `home` is the driver's current folder.

    `variables` are those of the driver's environment that poscli reads. A signal or Ray's cancelling raises
    Interrupted, with everything saved.
    """
    os.environ.update(variables, POSCLI_QUIET="1")
    with contextlib.suppress(OSError):  # a machine without that folder can do what names none inside it
        os.chdir(home)
    import torch

    from poscli.sweep.job import Job, perform

    torch.set_num_threads(threads)
    return perform(Job.model_validate_json(job), _opened()).model_dump_json()


@cache
def _opened() -> Any:
    """Opens tasks, each once in the life of this process."""
    from poscli.tasks import open_task

    return cache(open_task)


def look_around(runs: str, token: str) -> dict[str, str]:
    """What a node has and sees: its name, its versions, and what is wrong with the folder of the runs, if anything is.

    The driver has written `token` to a file in the folder, and holds a lock on it.
    """
    mark = Path(runs) / MARK
    wrong = "unseen"
    try:
        if mark.read_text() == token:
            wrong = "unlocked"  # unless the lock that the driver holds is refused
            FileLock(f"{mark}.lock").acquire(timeout=0)
    except Timeout:
        wrong = ""
    except (OSError, NotImplementedError):
        pass
    return {"host": platform.node(), "wrong": wrong, **versions()}


def versions() -> dict[str, str]:
    """What must be the same on all machines of a sweep."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"poscli": poscli.__version__, "python": python, "torch": version("torch")}


def refuse_apart(address: str, seen: dict[str, str], runs: Path) -> None:
    """UsageError if a node, by what `look_around` saw there, cannot work with this process on the same runs."""
    node = f"{seen['host']} ({address})"
    if seen["wrong"] == "unseen":
        raise UsageError(f"{node} does not see {runs.absolute()} as this machine does; give --out a folder they share")
    if seen["wrong"] == "unlocked":
        raise UsageError(
            f"locks in {runs.absolute()} do not hold between this machine and {node}, so that two could train the same "
            "run; give --out a folder on a file system with locks, such as NFS version 4"
        )
    for name, ours in versions().items():
        if seen[name] != ours:
            raise UsageError(f"{node} has {name} {seen[name]}, this machine {ours}: install the same on all machines")
