"""The workers of a suite, from what a person asks for: how many, of how many threads, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from poscli.runs.lock import unlockable
from poscli.sweep.cluster import LOCAL, Cluster, found
from poscli.sweep.processes import Processes
from poscli.sweep.schedule import PROCESS_BYTES, refuse_crowded
from poscli.sweep.workers import Here, Workers
from poscli.system.console import warn_once
from poscli.system.device import device_of, usable_cores
from poscli.system.errors import UsageError
from poscli.system.files import make_folder
from poscli.system.memory import free_memory

START_SECONDS = 4.0  # until a worker process can begin: importing torch took 3 to 5 on CPUs
LEAST_GPU = 1e-4  # the smallest part of a GPU that Ray sets aside
GPU_HOST_BYTES = 4 * PROCESS_BYTES  # memory of the machine that a run on a GPU takes, with the libraries for it
Needed = Sequence[tuple[str, float]]  # of each job that is left to do: its label, and bytes


@dataclass(frozen=True)
class Wanted:
    """What a person asks for; None for what suits the machine."""

    workers: int | None = None
    cpus: int | None = None  # of each run
    gpus: float | None = None  # of each run
    memory: float | None = None  # of each run, in GiB
    ray: str = ""  # the address of a cluster, LOCAL for one that is started here, "" for none
    device: str = "auto"

    @property
    def count(self) -> int:
        """How many runs go on at the same time; on a cluster that runs already, the cluster decides."""
        if self.workers is None and self.ray == LOCAL:
            return max(1, usable_cores() // (self.cpus or 1))
        return self.workers or 1

    @property
    def start_seconds(self) -> float:
        """How long it takes until the workers can begin."""
        return START_SECONDS if self.count > 1 or self.ray else 0.0

    @property
    def threads(self) -> int | None:
        """The threads of each run. None if all runs go on in this process, where torch decides."""
        if self.cpus is not None or self.ray:
            return self.cpus or 1
        return max(1, usable_cores() // self.count) if self.count > 1 else None


def check(wanted: Wanted) -> None:
    """UsageError or DataError for workers that cannot be had, before any work is planned."""
    if wanted.gpus and not (LEAST_GPU <= wanted.gpus < 1 or wanted.gpus % 1 == 0):
        raise UsageError(
            f"--gpus {wanted.gpus:g}: a run gets whole GPUs, or a part of one from {LEAST_GPU:g} on; give 0.5 or 1"
        )
    if wanted.ray:
        found(wanted.ray)
    elif wanted.gpus and device_of(wanted.device).type == "cpu":
        raise UsageError(f"--gpus {wanted.gpus:g}: this machine has none that torch can use; leave it out")
    elif wanted.gpus and wanted.gpus * wanted.count > (there := torch.cuda.device_count()):
        raise UsageError(
            f"--gpus {wanted.gpus:g} for each of {wanted.count} workers: this machine has {there}; lower one of the two"
        )


@contextmanager
def assembled(wanted: Wanted, needed: Needed, runs: Path) -> Iterator[Workers]:
    """The workers that are wanted, for jobs whose results go into the folder `runs`.

    They have passed `check`. This process alone if nothing is left to do. UsageError if jobs that would run at the same
    time do not fit the memory, or machines do not share the folder or its locks; DataError if there is no cluster.
    """
    if not needed or (wanted.count == 1 and not wanted.ray):
        yield Here()
        return
    with _on_cluster(wanted, needed, runs) if wanted.ray else _on_this_machine(wanted, needed) as workers:
        _refuse_unlockable(runs)
        yield workers


def _refuse_unlockable(runs: Path) -> None:
    """UsageError if two processes could work on a run in this folder, which is created if it is missing."""
    make_folder(runs)
    if reason := unlockable(runs):
        raise UsageError(
            f"{reason}, so that two workers could work on the same run; give --workers 1 without --ray, or put results "
            "on another file system with --out"
        )


def _on_cluster(wanted: Wanted, needed: Needed, runs: Path) -> Workers:
    cluster = Cluster(wanted.ray, wanted.threads or 1)
    try:
        has_gpus = wanted.device != "cpu" and any(node.gpus for node in cluster.nodes)
        gpus = float(has_gpus) if wanted.gpus is None else wanted.gpus
        size = GPU_HOST_BYTES if gpus else PROCESS_BYTES + max(bytes_ for _, bytes_ in needed)
        cluster.allot(size if wanted.memory is None else wanted.memory * 2**30, gpus, wanted.workers)
        cluster.look_around(runs)
    except BaseException:
        cluster.close()
        raise
    return cluster


def _on_this_machine(wanted: Wanted, needed: Needed) -> Workers:
    threads, cores = wanted.threads or 1, usable_cores()
    if wanted.count * threads > cores:
        warn_once(
            f"{wanted.count} workers with --cpus {threads} each slow each other down, as there are {cores} cores to "
            f"use; --workers {max(1, cores // threads)} suits this machine"
        )
    if device_of(wanted.device).type == "cpu":
        own, cure = needed, "lower batch or max_len in the suite"
        if wanted.memory is not None:
            own, cure = [(label, wanted.memory * 2**30) for label, _ in needed], f"lower --memory {wanted.memory:g}"
        refuse_crowded(own, wanted.count, free_memory(torch.device("cpu")), cure)
        return Processes(wanted.count, threads)
    there = torch.cuda.device_count()
    return Processes(wanted.count, threads, range(there) if wanted.device in ("auto", "cuda") else ())
