"""Workers on a Ray cluster (https://docs.ray.io, Ray Core): a local one that is started and stopped, or one that runs.

Ray decides where a job runs and notices when its process or machine dies; the driver tries such a job again. Ray
carries nothing but jobs and outcomes: results are written to the runs' folder, which all machines must share.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from filelock import FileLock, Timeout

from poscli.cluster import MARK, execute, look_around, refuse_apart
from poscli.config.run import RunConfig
from poscli.sweep.crew import PROCESS_BYTES, Crew, Needed
from poscli.sweep.job import Job, Outcome
from poscli.sweep.workers import STOP_SECONDS, WorkerDied, Workers
from poscli.system.console import warn_once
from poscli.system.device import usable_cores
from poscli.system.errors import DataError, LockedError, UsageError
from poscli.system.files import make_folder, remove_display, write_atomic
from poscli.system.memory import in_words
from poscli.system.ranks import LARGEST_PORT, LOOPBACK
from poscli.system.signals import kept_handlers

KEPT_HERE = ("POSCLI_MACHINE", "POSCLI_API_KEY")  # the name of a machine is its own, and a key is for no other
LOCAL = "local"  # in the place of an address: a cluster of this machine alone, for as long as the command runs
CONNECT_SECONDS = 5.0  # to wait for an answer at an address
LOCK_SECONDS = 5.0  # to wait for another sweep that is starting
GPU_HOST_BYTES = 4 * PROCESS_BYTES  # memory of the machine that a run on a GPU takes, with the libraries for it
LEAST_GPU, ROUNDING = 1e-4, 1e-9  # the smallest part of a GPU that Ray sets aside; of a number of such parts
STORE_BYTES = 100 * 2**20  # of a local cluster's object store, through which only jobs and outcomes pass


@dataclass(frozen=True)
class Node:
    """A machine of a cluster, and what it offers to jobs."""

    id: str
    address: str
    cpus: float
    gpus: float
    memory: float  # bytes


@dataclass(frozen=True)
class PerRun:
    """What is set aside for each job while it runs."""

    cpus: int = 1
    gpus: float = 0
    memory: float = 0  # bytes; 0: not counted

    def fits(self, node: Node) -> int:
        """How many jobs fit on a node at the same time."""
        rooms = [node.cpus // self.cpus]
        rooms += [node.gpus / self.gpus + ROUNDING] if self.gpus else []  # 1 // 0.1 is 9
        rooms += [node.memory // self.memory] if self.memory else []
        return int(min(rooms))


class Cluster(Workers):
    """Executes jobs on the nodes of a cluster, at most `count` at a time."""

    def __init__(self, address: str, cpus: int = 1) -> None:
        self._local, self._cpus = address == LOCAL, cpus
        self._ray = ray_at(address)
        self._running: dict[Future[Outcome], Any] = {}
        with kept_handlers():
            self._connect(address)
        self.nodes = [_node(each) for each in self._ray.nodes() if each["Alive"]]
        if self._local and any(node.address != LOOPBACK for node in self.nodes):
            warn_once(f"this version of Ray listens on {self.nodes[0].address}, not on {LOOPBACK} alone")

    def look_around(self, runs: Path) -> None:
        """UsageError if a node does not see the folder of the runs, or not its locks, or has other versions."""
        make_folder(runs)
        token, mark = uuid.uuid4().hex, runs / MARK
        lock = FileLock(f"{mark}.lock")
        try:
            lock.acquire(timeout=LOCK_SECONDS)
        except Timeout as error:
            raise LockedError(f"another sweep looks for its machines in {runs}; try again in a moment") from error
        try:
            write_atomic(mark, token)
            for node, seen in zip(self.nodes, self._seen(runs.absolute(), token), strict=True):
                refuse_apart(node.address, seen, runs)
        finally:
            remove_display(mark)
            lock.release()

    def _seen(self, runs: Path, token: str) -> list[dict[str, str]]:
        """What each node sees of a folder; UsageError if poscli cannot be run on one of them."""
        pin = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        look = self._ray.remote(num_cpus=0, max_retries=1)(look_around)
        here = [look.options(scheduling_strategy=pin(node.id, soft=False)) for node in self.nodes]
        try:
            return self._ray.get([each.remote(str(runs), token) for each in here])
        except self._ray.exceptions.RayError as error:
            raise UsageError(
                f"a machine of the cluster cannot run poscli ({_last_line(error)}); install poscli[ray] on all of them"
            ) from error

    def allot(self, needed: float, gpus: float, most: int | None) -> None:
        """Set aside bytes and GPUs for each job, and run at most `most` at a time; UsageError if none fits."""
        self._per_run = PerRun(self._cpus, gpus, needed)
        self.count = sum(self._per_run.fits(node) for node in self.nodes)
        if self.count == 0:
            self._refuse()
        self.count = min(self.count, most or self.count)
        self._remote = self._ray.remote(num_cpus=self._cpus, num_gpus=gpus, memory=int(needed), max_retries=0)(execute)

    def submit(self, job: Job) -> Future[Outcome]:
        absolute = job.model_copy(update={"runs": job.runs.absolute()})
        # Ray takes no variables of this process along.
        ours = {name: text for name, text in os.environ.items() if name.startswith("POSCLI_") and name not in KEPT_HERE}
        reference = self._remote.remote(absolute.model_dump_json(by_alias=True), str(Path.cwd()), self._cpus, ours)
        outcome: Future[Outcome] = Future()
        self._running[outcome] = reference
        reference.future().add_done_callback(lambda answer: self._settle(answer, outcome, job))
        return outcome

    def stop(self) -> None:
        running = list(self._running.values())
        for reference in running:
            self._ray.cancel(reference, force=False)
        deadline = time.monotonic() + STOP_SECONDS
        while self._running and time.monotonic() < deadline:
            time.sleep(0.1)

    def close(self) -> None:
        with kept_handlers():
            self._ray.shutdown()

    def _connect(self, address: str) -> None:
        quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
        try:
            if self._local:
                size = {"num_cpus": usable_cores(), "object_store_memory": STORE_BYTES, "include_dashboard": False}
                self._ray.init(address=LOCAL, **size, **quiet)  # without an address, it would obey RAY_ADDRESS
            else:
                self._ray.init(address=address, **quiet)
        except (OSError, RuntimeError, ValueError, self._ray.exceptions.RayError) as error:
            raise DataError(f"--ray {address}: no cluster can be joined ({_last_line(error)}); {CURE}") from error

    def _settle(self, answer: Future[str], outcome: Future[Outcome], job: Job) -> None:
        """Pass on what a job's process returned, or why it returned nothing."""
        try:
            known = Outcome.model_validate_json(answer.result())
            here = tuple(job.runs / folder.relative_to(job.runs.absolute()) for folder in known.folders)
            result = known.model_copy(update={"folders": here})
        except Exception as error:  # noqa: BLE001 - whatever Ray raises, the job has no outcome
            self._running.pop(outcome, None)
            outcome.set_exception(WorkerDied(f"its worker on the cluster has ended ({_first_line(error)})"))
        else:
            self._running.pop(outcome, None)
            outcome.set_result(result)

    def _refuse(self) -> None:
        """UsageError that names what no node has."""
        run, most = self._per_run, lambda what: max(getattr(node, what) for node in self.nodes)
        if run.gpus > most("gpus"):
            raise UsageError(f"--gpus {run.gpus:g}: no machine of the cluster has more than {most('gpus'):g} GPUs")
        if run.cpus > most("cpus"):
            raise UsageError(f"--cpus {run.cpus}: no machine of the cluster has more than {most('cpus'):g} CPUs")
        if run.memory > most("memory"):
            raise UsageError(
                f"a run needs about {in_words(run.memory)}, and no machine of the cluster offers more than "
                f"{in_words(most('memory'))}; lower batch or max_len in the suite, or give --memory if that is wrong"
            )
        raise UsageError(
            f"no machine of the cluster has {run.cpus} CPUs, {run.gpus:g} GPUs and {in_words(run.memory)} at once"
            "; lower --cpus, --gpus or --memory"
        )


@dataclass(frozen=True)
class RayCrew(Crew):
    """The workers that a person asks for on a cluster."""

    address: str = LOCAL  # HOST:PORT, auto, or LOCAL for a cluster that is started here

    @property
    def alone(self) -> bool:
        """No run goes on in this process."""
        return False

    @property
    def count(self) -> int:
        """How many runs go on at the same time; on a cluster that runs already, the cluster decides."""
        if self.workers is None and self.address == LOCAL:
            return max(1, usable_cores() // self.threads)
        return self.workers or 1

    @property
    def threads(self) -> int:
        """The threads of each run."""
        return self.cpus or 1

    def suited_to(self, configs: Sequence[RunConfig], runs_per_core: int = 0) -> Crew:
        """As it is: how many workers a cluster has is known when it is asked."""
        return self

    def check(self) -> None:
        """UsageError or DataError for what no cluster has, or if none answers at the address."""
        if self.gpus and not (LEAST_GPU <= self.gpus < 1 or self.gpus % 1 == 0):
            raise UsageError(
                f"--gpus {self.gpus:g}: a run gets whole GPUs, or a part of one from {LEAST_GPU:g} on; give 0.5 or 1"
            )
        if self.device.startswith("cuda:"):
            raise UsageError(f"--device {self.device}: on a cluster each run sees its own GPUs only; use cuda, or auto")
        ray_at(self.address)

    def _started(self, needed: Needed, runs: Path) -> Workers:
        cluster = Cluster(self.address, self.threads)
        try:
            has_gpus = self.device != "cpu" and any(node.gpus for node in cluster.nodes)
            gpus = float(has_gpus) if self.gpus is None else self.gpus
            size = GPU_HOST_BYTES if gpus else PROCESS_BYTES + max(bytes_ for _, bytes_ in needed)
            cluster.allot(size if self.memory is None else self.memory * 2**30, gpus, self.workers)
            cluster.look_around(runs)
        except BaseException:
            cluster.close()
            raise
        return cluster


# What a client of HTTP/2, on which gRPC runs, says first: the preface and an empty frame of settings (RFC 9113, 3.4).
SETTINGS_FRAME, FRAME_HEADER = 4, 9  # the type of that frame, and the bytes of a frame's header, the fourth of them
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS_FRAME, 0, 0, 0, 0, 0])
CURE = "start one with `ray start --head`, or give --ray without an address for one on this machine alone"


def ray_at(address: str) -> ModuleType:
    """The package ray, with its usage reports off, if something answers at an address; else UsageError or DataError.

    A local cluster listens on the loopback address alone. Ray does so by itself on other systems, where it has no
    clusters of several machines unless this variable asks for them; on Linux the variable must say no.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address == LOCAL:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
    except ImportError as error:
        raise UsageError("--ray needs the package ray: pip install 'poscli[ray]'; or give --workers alone") from error
    logging.getLogger("ray").setLevel(logging.ERROR)
    if address != LOCAL:
        _refuse_silent(address, ray.util.get_node_ip_address())
    return ray


def _refuse_silent(address: str, this_machine: str) -> None:
    """DataError if no gRPC server answers at an address, for which Ray itself would wait for minutes.

    Ray replaces a loopback address by this machine's `this_machine` one, and so does this.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    is_port = re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) <= LARGEST_PORT
    if not host or not is_port or "/" in host:
        raise UsageError(f"--ray {address}: an address is HOST:PORT, such as 10.0.0.1:6379, or auto")
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):  # which answers to no greeting in plain text
        return
    host = this_machine if host in ("127.0.0.1", "localhost") else host
    try:
        with socket.create_connection((host, int(port)), CONNECT_SECONDS) as connection:
            connection.sendall(HTTP2_GREETING)
            answer = connection.recv(FRAME_HEADER, socket.MSG_WAITALL)
    except (OSError, UnicodeError) as error:  # UnicodeError: such as a host "..", which no name can be
        raise DataError(f"--ray {address}: nothing answers at {host}:{port} ({error}); {CURE}") from error
    if len(answer) < FRAME_HEADER or answer[3] != SETTINGS_FRAME:
        raise DataError(f"--ray {address}: what answers at {host}:{port} is no Ray cluster; {CURE}")


def _node(description: dict[str, Any]) -> Node:
    has = description["Resources"]
    amounts = {name: float(has.get(key, 0)) for name, key in (("cpus", "CPU"), ("gpus", "GPU"), ("memory", "memory"))}
    return Node(description["NodeID"], description["NodeManagerAddress"], **amounts)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _last_line(error: BaseException) -> str:
    """The cause, where the message of an error holds the traceback of another one."""
    return ([type(error).__name__] + [line for line in str(error).splitlines() if line.strip()])[-1].strip()
