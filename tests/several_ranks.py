"""Commands on several ranks: forked processes with the environment that torchrun gives to each."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

# What commands on several ranks import, so that the forked processes need not.
import torch._dynamo
import torch.distributed.fsdp
import torch.nn.parallel
from torture.processes import Ended, Started

import poscli.cli.train
import poscli.report.catalogue
import poscli.runs.summary
import poscli.training.train

__all__ = ["free_port", "on_ranks", "poscli", "start_ranks", "torch"]

Prepare = Callable[[int], object]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def start_ranks(count: int, arguments: Callable[[int], tuple[object, ...]], prepare: Prepare) -> list[Started]:
    """Start a command on each rank; both functions are told the rank."""
    port = free_port()

    def become(rank: int) -> None:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        os.environ |= {name: str(number) for name, number in numbers.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        prepare(rank)

    return [Started(arguments(rank), lambda rank=rank: become(rank)) for rank in range(count)]


def on_ranks(count: int, *arguments: object, prepare: Prepare = lambda rank: None) -> list[Ended]:
    """Run a command on several ranks to its end."""
    return [each.wait() for each in start_ranks(count, lambda rank: arguments, prepare)]
