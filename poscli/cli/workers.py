"""The options that say on how many workers a suite runs, and where."""

from __future__ import annotations

import re
from typing import Annotated

import typer

MOST_WORKERS = 4096


def _not_empty(address: str | None) -> str | None:
    """An address as it was given; BadParameter for an empty one, which a variable of a shell that is not set leaves."""
    if address == "":
        raise typer.BadParameter(
            "--ray has an empty address; give HOST:PORT, or --ray alone for a cluster started here"
        )
    return address


Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", "-w", min=1, max=MOST_WORKERS, show_default="1, or as many as fit on the cluster of --ray",
        help="Runs at the same time, each in a process of its own.",
    ),
]  # fmt: skip
Cpus = Annotated[
    int | None,
    typer.Option(
        "--cpus", min=1, max=MOST_WORKERS, show_default="its share of the cores; 1 with --ray",
        help="Cores, and threads, of each run.",
    ),
]  # fmt: skip
Gpus = Annotated[
    float | None,
    typer.Option(
        "--gpus", min=0, max=MOST_WORKERS, show_default="its share of the GPUs; 1 with --ray",
        help="GPUs of each run; 0.5 lets two share one.",
    ),
]  # fmt: skip
Memory = Annotated[
    float | None,
    typer.Option(
        "--memory", min=0, show_default="as estimated",
        help="GiB of memory to set aside for each run.",
    ),
]  # fmt: skip
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="[ADDRESS]", callback=_not_empty, show_default=False,
        help="Run on the Ray cluster at HOST:PORT (auto: the one of this machine); without an address, on one that is "
        "started here and stopped in the end.",
    ),
]  # fmt: skip


def with_address(arguments: list[str]) -> list[str]:
    """The arguments of a command with an address after --ray, which may stand alone.

    >>> with_address(["run", "--ray", "a.toml"]), with_address(["run", "a.toml", "--ray", "auto"])
    (['run', '--ray=local', 'a.toml'], ['run', 'a.toml', '--ray=auto'])
    """
    made: list[str] = []
    for argument in arguments:
        if made and made[-1] == "--ray=local" and re.fullmatch(r"|auto|[^-].*:.*|[\d.]+", argument):
            made[-1] = f"--ray={argument}"
        else:
            made.append("--ray=local" if argument == "--ray" else argument)
    return made
