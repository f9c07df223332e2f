"""Commands on several ranks: forked processes with the environment that torchrun gives to each."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

# What commands on several ranks import, so that the forked processes need not.
import torch._dynamo
import torch.nn.parallel
from torture.processes import LONGEST_SECONDS, Ended, Started

import poscli.cli.commands.train
import poscli.report.catalogue
import poscli.report.terminal
import poscli.runs.summary
import poscli.training.recalibrate
import poscli.training.train

__all__ = ["free_port", "on_rank", "on_ranks", "poscli", "start_ranks", "torch", "variables_of"]

Prepare = Callable[[int], object]


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def variables_of(rank: int, count: int, port: int) -> dict[str, str]:
    """The environment that torchrun gives to a rank, where all ranks are on one machine."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    return {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}


def start_ranks(
    count: int, arguments: Callable[[int], tuple[object, ...]], prepare: Prepare, *, first: int = 0, port: int = 0
) -> list[Started]:
    """Start a command on each rank from the `first` one on; both functions are told the rank."""
    port = port or free_port()

    def become(rank: int) -> None:
        os.environ |= variables_of(rank, count, port)
        prepare(rank)

    return [Started(arguments(rank), lambda rank=rank: become(rank)) for rank in range(first, count)]


def on_ranks(
    *arguments: object, count: int = 2, prepare: Prepare = lambda rank: None, seconds: float = LONGEST_SECONDS
) -> list[Ended]:
    """Run a command on several ranks to its end, which must come within some seconds."""
    return [each.wait(seconds) for each in start_ranks(count, lambda rank: arguments, prepare)]


def on_rank(chosen: int, do: Callable[[], object]) -> Prepare:
    """A preparation of one rank only."""
    return lambda rank: do() if rank == chosen else None
