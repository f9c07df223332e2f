"""Several processes that compute one result: the ranks that `torchrun` starts, which talk through torch.distributed.

Without torchrun there is one rank, nothing is started, and every function here returns at once. torch is imported only
if there are several ranks. Where all ranks are on one machine, nothing here listens on another address than the
loopback one.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from poscli.system import signals
from poscli.system.errors import PoscliError, UsageError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")  # of the environment, which torchrun sets
MEETING = ("MASTER_ADDR", "MASTER_PORT")  # where the ranks find each other, set by torchrun, too
LARGEST_PORT = 2**16 - 1
CLOSED = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")  # by a rank that has ended
LOST_SIGNS = (*CLOSED, "gloo/transport", "NCCL")
MOST_SAID = 400  # characters of another package's message
TORCHRUN = "start ranks with torchrun, or unset WORLD_SIZE"
SAME_START = "start every rank with the same command, the same files and the same versions"
JOIN = timedelta(minutes=5)  # within which all ranks must have started
PATIENCE = timedelta(minutes=30)  # for another rank in one exchange: the first one may be reading a large corpus
TOLD = "poscli/told"  # a key of the store: how many ranks want to print an error
LOOPBACK = "127.0.0.1"
REPORT_SECONDS = 3.0  # within which the first rank reports an error that it shares with others
FINDING = timedelta(seconds=5)  # for the store of ranks that have failed before they joined

_store: Any = None  # the store, once this rank has found it
_groups = 0  # how often the ranks have connected in this process


@dataclass(frozen=True)
class Ranks:
    """A process: number `rank` of `count`, and number `local` of those on its machine; numbers begin at 0."""

    rank: int = 0
    count: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and prints."""
        return self.rank == 0


class LostRankError(PoscliError):
    """Another rank has ended, so that a step cannot be finished."""


class SharedError(PoscliError):
    """The error of one rank, raised on all of them, with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def ranks() -> Ranks:
    """Which rank this process is, as torchrun's variables say; UsageError if they make no sense."""
    if "WORLD_SIZE" not in os.environ:
        return Ranks()
    stated = {name: os.environ.get(name, "0") for name in VARIABLES}
    if not all(text.isdecimal() for text in stated.values()) or int(stated["RANK"]) >= int(stated["WORLD_SIZE"]):
        raise UsageError(f"{_said(stated)} in the environment names no rank; {TORCHRUN}")
    me = Ranks(*(int(stated[name]) for name in VARIABLES))
    needed = {name: os.environ.get(name, "") for name in ("RANK", *MEETING)}
    port = needed["MASTER_PORT"]
    if me.count > 1 and not (all(needed.values()) and port.isdecimal() and 0 < int(port) <= LARGEST_PORT):
        raise UsageError(f"{_said(needed)} in the environment do not say where {me.count} ranks meet; {TORCHRUN}")
    return me


@contextmanager
def connected(device: torch.device) -> Iterator[torch.device]:
    """Connect the ranks in the block; yields the device of this rank, which is the given one if there is one rank.

    Several ranks compute on CPUs, or each on the GPU of its local number; UsageError if there is none of that number.
    LostRankError takes the place of any error in the block that says that a connection to a rank has broken. After an
    error the connections last until the process ends, so that this rank can say what happened before the others see
    them break.
    """
    if ranks().count == 1:
        yield device
        return
    device = _device_of_rank(device)
    with lost_ranks_named():
        if not _start(device.type, ranks().rank, ranks().count):
            raise lost()
        yield device
        import torch.distributed as dist

        exchanged(None)  # until every rank is here: one that left earlier would look lost to the others
        dist.destroy_process_group()


def agree(stated: dict[str, Any]) -> None:
    """Compare what every rank is about to do, as JSON values by name; a UsageError on all names the first difference.

    Tables within the values are compared entry by entry.
    """
    if ranks().count == 1:
        return
    statement: dict[str, Any] = {"host": platform.node(), "stated": _flat(json.loads(json.dumps(stated, default=str)))}
    first, *others = exchanged(statement)
    for rank, other in enumerate(others, 1):
        for name in dict.fromkeys([*first["stated"], *other["stated"]]):
            a, b = (each["stated"].get(name, "nothing") for each in (first, other))
            if a != b:
                both = f"rank 0 on {first['host']} has {a!r}, rank {rank} on {other['host']} has {b!r}"
                raise shared(UsageError(f"the ranks disagree about {name}: {both}; {SAME_START}"))


@contextmanager
def together() -> Iterator[None]:
    """A block after which all ranks go on, or none: the first error of any rank is raised on all of them.

    The block itself must not wait for other ranks. What interrupts a rank at once, as a second Ctrl-C, is not shared:
    the others see a lost rank.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        if ranks().count == 1:
            raise
        failure = error
    if ranks().count > 1:
        _raise_first(failure)


def any_rank(flag: bool) -> bool:
    """Whether the flag is true on any rank."""
    return largest(int(flag)) > 0


def largest(number: int) -> int:
    """The largest of the numbers that the ranks state."""
    return max(exchanged(number))


def exchanged(value: T) -> list[T]:
    """What every rank gives, in the order of ranks, on every rank, as pickles: ranks trust each other."""
    if ranks().count == 1:
        return [value]
    import torch.distributed as dist

    values: list[Any] = [None] * ranks().count
    with lost_ranks_named():
        dist.all_gather_object(values, value)
    return values


def numbers_of_all(numbers: list[float]) -> list[list[float]]:
    """The numbers of every rank, as many on each, in the order of ranks: one short message, for every step."""
    if ranks().count == 1:
        return [numbers]
    import torch
    import torch.distributed as dist

    row = torch.tensor(numbers, dtype=torch.float64)
    rows = [torch.empty_like(row) for _ in range(ranks().count)]
    with lost_ranks_named():
        dist.all_gather(rows, row)
    return [row.tolist() for row in rows]


def is_lost(error: BaseException) -> bool:
    """Whether an error says that the connection to another rank has broken."""
    if ranks().count == 1 or not isinstance(error, RuntimeError):
        return False
    return type(error).__name__.startswith("Dist") or any(sign in str(error) for sign in LOST_SIGNS)


def lost(error: BaseException | None = None) -> LostRankError:
    """The error of a rank that has lost another one, by an error that says more than that a connection was closed."""
    me, said, why = ranks(), " ".join(str(error or "").split()), ""
    if said and not any(sign in said for sign in CLOSED):
        why = f" ({said[:MOST_SAID]}); if that comes at once, set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
    return LostRankError(
        f"rank {me.rank} of {me.count} on {platform.node()} has lost another rank{why}; "
        "the same command goes on from the last checkpoint"
    )


def shared(error: Exception) -> Exception:
    """Mark an error as one that all ranks raise, so that the first one alone prints it."""
    error.shared = True  # type: ignore[attr-defined]
    return error


@contextmanager
def lost_ranks_named() -> Iterator[None]:
    """A block in which the error of a broken connection becomes a LostRankError."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost(error):
            raise
        raise lost(error) from error


def _said(variables: dict[str, str]) -> str:
    return " ".join(f"{name}={text}" for name, text in variables.items())


def _device_of_rank(device: torch.device) -> torch.device:
    """The device of this rank, one of several."""
    if device.type != "cuda":
        return device
    import torch

    me, here = ranks(), torch.cuda.device_count()
    if device.index is not None or me.local >= here:
        raise UsageError(
            f"--device {device} for {me.count} ranks, this one with the local number {me.local}, on {platform.node()} "
            f"with {here} GPUs: each rank needs its own; give --device cuda and at most {here} ranks per machine"
        )
    device = torch.device("cuda", me.local)
    torch.cuda.set_device(device)
    return device


def _raise_first(failure: Exception | None) -> None:
    """Raise the error of the first rank that has one, on every rank."""
    report: dict[str, Any] = {"host": platform.node(), "failed": failure is not None}
    if failure is not None:
        said = str(failure) if isinstance(failure, PoscliError) else f"{type(failure).__name__}: {failure}"
        report |= {"said": said, "code": getattr(failure, "exit_code", 1)}
    for rank, other in enumerate(exchanged(report)):
        if other["failed"]:
            if failure is not None and rank == ranks().rank == 0:
                raise shared(failure)
            before = f"rank {rank} on {other['host']}: " if rank else ""
            raise shared(SharedError(before + other["said"], other["code"])) from failure


def _flat(table: dict[str, Any], before: str = "") -> dict[str, Any]:
    """A table of tables as one table, whose names are the ways to its values.

    >>> _flat({"model": {"width": 64}, "seed": 0})
    {'model.width': 64, 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return flat


def _find_store(timeout: timedelta = JOIN) -> Any:
    """The key-value store of the ranks, by which they find each other."""
    global _store
    if _store is None:
        from torch.distributed.rendezvous import rendezvous

        if not _is_local() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            _store = next(rendezvous("env://", timeout=timeout))[0]
        else:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]

            port, count = int(os.environ["MASTER_PORT"]), int(os.environ["WORLD_SIZE"])
            kept_here: dict[str, Any] = {}
            if os.environ["RANK"] == "0":  # which keeps the store; torch would let it listen on every address
                listening = socket.create_server((LOOPBACK, port)).detach()
                kept_here = {"is_master": True, "master_listen_fd": listening}
            _store = TCPStore(LOOPBACK, port, count, timeout=timeout, wait_for_workers=False, **kept_here)
    return _store


def _start(device_type: str, rank: int, count: int) -> bool:
    """Start torch.distributed: gloo for tensors on CPUs, NCCL for those on GPUs. False if a rank is missing."""
    import torch.distributed as dist

    global _groups
    if _is_local():
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    _groups += 1
    if not _all_here(f"poscli/here/{_groups}", count):
        return False
    backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
    store = dist.PrefixStore(f"poscli/{_groups}", _find_store())  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=PATIENCE)
    return True


def _is_local() -> bool:
    """Whether all ranks are on this machine, so that no other one may connect."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]


def _all_here(key: str, count: int) -> bool:
    """Wait until every rank has started. False if one has not in time, or has ended with an error of its own."""
    end = time.monotonic() + JOIN.total_seconds()
    _find_store().add(key, 1)
    while _find_store().add(key, 0) < count:
        if time.monotonic() > end or _find_store().check([TOLD]):
            return False
        time.sleep(0.02)
    return True


def spoken_by(error: BaseException) -> str | None:
    """What to put before the message of an error that ends the command; None if this rank is to say nothing.

    Of all ranks one prints: the first one if it has an error, else the rank that has one, which states its number.
    """
    try:
        me = ranks()
    except UsageError:  # the environment names no rank, so that nobody else can print the error
        return ""
    if me.count == 1:
        return ""
    if getattr(error, "shared", False):
        return "" if me.first else None
    speaks_at_once = me.first or isinstance(error, LostRankError)  # any rank may say that one is lost, and who it is
    if not speaks_at_once:
        signals.end_silently()  # torchrun ends this rank once the first one has ended, which needs no line of its own
    try:
        store = _find_store(FINDING)
        if not speaks_at_once:  # the first rank has time to print an error that it has as well
            end = time.monotonic() + REPORT_SECONDS
            while time.monotonic() < end and not store.check([TOLD]):
                time.sleep(0.05)
        speaks = store.add(TOLD, 1) == 1
    except (RuntimeError, OSError, KeyError, ValueError):  # the store has ended with the rank that kept it
        speaks = speaks_at_once
    if not speaks:
        return None
    return "" if speaks_at_once else f"rank {me.rank} on {platform.node()}: "


def silence_libraries() -> None:
    """Keep warnings of torch's C++ code from stderr, which every rank would print; before torch is imported."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
