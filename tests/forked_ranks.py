"""A command of poscli as several ranks: forked processes that find each other as those of torchrun do."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from torture.processes import LONGEST_SECONDS, Ended, Started

from poscli.system.ranks import ranks


def nothing() -> None:
    """Prepare nothing."""


def start(*arguments: object, count: int = 2, prepare: Callable[[], object] = nothing) -> list[Started]:
    """Start a command on every rank; `prepare` is called on each of them first."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]

    def become(rank: int) -> None:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        os.environ.update({name: str(value) for name, value in numbers.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
        prepare()

    return [Started(arguments, prepare=lambda rank=rank: become(rank)) for rank in range(count)]


def on_ranks(
    *arguments: object, count: int = 2, prepare: Callable[[], object] = nothing, seconds: float = LONGEST_SECONDS
) -> list[Ended]:
    """Run a command on every rank to its end, which must come within some seconds."""
    return [each.wait(seconds) for each in start(*arguments, count=count, prepare=prepare)]


def on_rank(rank: int, do: Callable[[], object]) -> Callable[[], object]:
    """A preparation of one rank only."""
    return lambda: do() if ranks().rank == rank else None
