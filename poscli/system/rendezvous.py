"""How the ranks find each other: a key-value store, and torch.distributed started through it.

Where all ranks are on one machine, nothing here listens on another address than the loopback one.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import Any

JOIN = timedelta(minutes=5)  # within which all ranks must have started
PATIENCE = timedelta(minutes=30)  # for another rank in one exchange: the first one may be reading a large corpus
TOLD = "poscli/told"  # a key of the store: how many ranks want to print an error
LOOPBACK = "127.0.0.1"

_store: Any = None  # the store, once this rank has found it
_groups = 0  # how often the ranks have connected in this process


def store(timeout: timedelta = JOIN) -> Any:
    """The key-value store of the ranks, by which they find each other."""
    global _store
    if _store is None:
        from torch.distributed.rendezvous import rendezvous

        if not is_local() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            _store = next(rendezvous("env://", timeout=timeout))[0]
        else:  # torch would let the first rank, which keeps the store, listen on every address
            _store = _local_store(timeout)
    return _store


def start(device_type: str, rank: int, count: int) -> bool:
    """Start torch.distributed: gloo for tensors on CPUs, NCCL for those on GPUs. False if a rank is missing."""
    import torch.distributed as dist

    global _groups
    if is_local():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    _groups += 1
    if not _all_here(f"poscli/here/{_groups}", count):
        return False
    backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
    own = dist.PrefixStore(f"poscli/{_groups}", store())  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=own, rank=rank, world_size=count, timeout=PATIENCE)
    return True


def is_local() -> bool:
    """Whether all ranks are on this machine, so that no other one may connect."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]


def _local_store(timeout: timedelta) -> Any:
    """A store on the loopback address, which the first rank keeps."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port, count = int(os.environ["MASTER_PORT"]), int(os.environ["WORLD_SIZE"])
    if os.environ["RANK"] != "0":
        return TCPStore(LOOPBACK, port, count, timeout=timeout, wait_for_workers=False)
    listening = socket.create_server((LOOPBACK, port)).detach()
    return TCPStore(LOOPBACK, port, count, True, timeout, wait_for_workers=False, master_listen_fd=listening)


def _all_here(key: str, count: int) -> bool:
    """Wait until every rank has started. False if one has not in time, or has ended with an error of its own."""
    end = time.monotonic() + JOIN.total_seconds()
    store().add(key, 1)
    while store().add(key, 0) < count:
        if time.monotonic() > end or store().check([TOLD]):
            return False
        time.sleep(0.02)
    return True
