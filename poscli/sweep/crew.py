"""The workers of a suite: how many, of how many threads, and whether their jobs fit the memory at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from poscli.config.run import RunConfig
from poscli.config.size import training_bytes
from poscli.data.tokenizers.bytes import VOCAB
from poscli.estimate import CORE_SPEED, PlannedJob
from poscli.model.flops import training_flops
from poscli.runs.lock import unlockable
from poscli.sweep.drive import makespan
from poscli.sweep.workers import Here, Processes, Workers
from poscli.system.console import warn_once
from poscli.system.device import device_of, usable_cores
from poscli.system.errors import UsageError
from poscli.system.files import make_folder
from poscli.system.memory import USABLE, free_memory, in_words
from poscli.system.text import counted

START_SECONDS = 4.0  # until a worker process can begin: importing torch took 3 to 5 on CPUs
PROCESS_BYTES = 0.5 * 2**30  # of a worker process before it does anything: Python, torch and a corpus
# Models narrower than NARROW gain little from a second thread: on two cores, a step of `nano` then takes 0.86 times as
# long, of `copy` 0.76 times, of `tiny` 0.5 to 0.7 times. So one run for each core is faster than one run on all cores.
# It is so if there are RUNS_PER_CORE runs for each core, and all take LONG_SECONDS or more: at the end, cores have no
# run left, and what they lose by waiting must be less than what is gained.
NARROW, RUNS_PER_CORE, LONG_SECONDS = 256, 4, 120.0
Needed = Sequence[tuple[str, float]]  # of each job that is left to do: its label, and bytes


@dataclass(frozen=True)
class Crew:
    """The workers that a person asks for, on this machine; None for what suits it."""

    workers: int | None = None
    cpus: int | None = None  # of each run
    gpus: float | None = None  # of each run; on a cluster only
    memory: float | None = None  # of each run, in GiB of the machine's memory
    device: str = "auto"
    chosen: bool = False  # nobody asked for workers: `suited_to` chose them

    @property
    def count(self) -> int:
        """How many runs go on at the same time."""
        return self.workers or 1

    @property
    def alone(self) -> bool:
        """Whether all runs go on in this process."""
        return self.count == 1

    @property
    def threads(self) -> int | None:
        """The threads of each run. None if all runs go on in this process, where torch decides."""
        if self.cpus is not None:
            return self.cpus
        return max(1, usable_cores() // self.count) if self.count > 1 else None

    def seconds_for(self, planned: Iterable[PlannedJob], at_work: Workers | None = None) -> float:
        """How long the workers take for jobs, their start included: those that are `at_work`, else those asked for."""
        count, alone = (self.count, self.alone) if at_work is None else (at_work.count, not at_work.elsewhere)
        seconds = makespan((job.seconds for job in planned), count)
        return seconds if alone or not seconds else seconds + START_SECONDS

    def suited_to(self, configs: Sequence[RunConfig], runs_per_core: int = RUNS_PER_CORE) -> Crew:
        """With a worker of one thread for each core, if no number was asked for and that is faster for these runs.

        It is slower with fewer than `runs_per_core` runs for each core. Where the memory holds one run only, that run
        has all cores. `configs` are those of all runs, also of those that are done already, so that an interrupted run
        goes on with as many threads as it began with.
        """
        cores, cpu = usable_cores(), torch.device("cpu")
        if self.workers is not None or self.cpus is not None or device_of(self.device) != cpu:
            return self
        narrow = all(config.model.width < NARROW for config in configs)
        operations = sum(training_flops(config.model, VOCAB, config.length) * config.tokens for config in configs)
        if cores == 1 or not narrow or len(configs) < runs_per_core * cores or operations < LONG_SECONDS * CORE_SPEED:
            return self
        different = dict.fromkeys(config.model_copy(update={"seed": 0}) for config in configs)
        largest = max(training_bytes(config, cpu) for config in different)
        if self.memory is not None:
            largest = self.memory * 2**30
        fitting = int(USABLE * free_memory(cpu) / (PROCESS_BYTES + largest))
        if fitting < 2:  # one run after the other, each on all cores
            return replace(self, workers=1, chosen=True)
        return replace(self, workers=min(cores, fitting), cpus=1, chosen=True)

    def check(self) -> None:
        """UsageError or DataError for workers that cannot be had, before any work is planned."""
        if self.gpus is not None:
            raise UsageError(
                f"--gpus {self.gpus:g} is for a cluster, as the workers of one machine take its GPUs in turn; give "
                "--ray too, or leave it out"
            )

    @contextmanager
    def assembled(self, needed: Needed, runs: Path) -> Iterator[Workers]:
        """The workers, for jobs whose results go into the folder `runs`. `check` has passed.

        `needed` is the memory of the jobs that are left; if there are none, this process is the only worker. UsageError
        if jobs that would run at the same time do not fit the memory, if two of them could work on one run, because
        locks in the folder do not hold, or for what is asked of several workers where there is one.
        """
        if not needed or self.alone:
            if needed and self.memory is not None and not self.chosen:
                raise UsageError(
                    f"--memory {self.memory:g} is for several workers; give --workers too, or leave it out"
                )
            yield Here()
            return
        with self._started(needed, runs) as workers:
            make_folder(runs)
            if (reason := unlockable(runs)) and self.chosen:
                yield Here()
                return
            if reason:
                raise UsageError(
                    f"{reason}, so that two workers could work on the same run; give --workers 1 without --ray, or put "
                    "results on another file system with --out"
                )
            yield workers

    def _started(self, needed: Needed, runs: Path) -> Workers:
        """The workers for some jobs; UsageError if the jobs do not fit their memory."""
        threads, cores = self.threads or 1, usable_cores()
        if self.count * threads > cores:
            warn_once(
                f"{self.count} workers of {counted(threads, 'thread')} each slow each other down on "
                f"{counted(cores, 'core')}; --workers {max(1, cores // threads)} suits this machine"
            )
        on_cpu, free = device_of(self.device).type == "cpu", free_memory(torch.device("cpu"))
        if self.memory is not None:
            asked = [(label, self.memory * 2**30) for label, _ in needed]
            refuse_crowded(asked, self.count, free, f"lower --memory {self.memory:g}")
        elif on_cpu and self.chosen:  # nobody asked for so many; evaluations may need more than trainings
            sizes = sorted((PROCESS_BYTES + size for _, size in needed), reverse=True)
            fitting = next((n for n in range(self.count, 1, -1) if sum(sizes[:n]) <= USABLE * free), 1)
            return Processes(fitting, threads) if fitting > 1 else Here()
        elif on_cpu:  # the estimate for a GPU is one of the GPU's memory
            refuse_crowded(needed, self.count, free, "lower batch or max_len in the suite")
        if on_cpu:
            return Processes(self.count, threads)
        there = torch.cuda.device_count()
        return Processes(self.count, threads, range(there) if self.device in ("auto", "cuda") else ())


def refuse_crowded(needed: Needed, workers: int, free: float, cure: str) -> None:
    """UsageError if the largest jobs cannot run at the same time in `free` bytes of memory.

    `cure` says what would make the jobs smaller.
    """
    largest = sorted(needed, key=lambda job: -job[1])[:workers]
    fitting = next((n for n in range(len(largest), 0, -1) if _bytes(largest[:n]) <= USABLE * free), 0)
    if not largest or fitting == len(largest):
        return
    label, size = largest[0]
    if fitting == 0:
        raise UsageError(
            f"{label} needs about {in_words(size + PROCESS_BYTES)} with the process of its worker, {in_words(free)} "
            f"are free; {cure}"
        )
    raise UsageError(
        f"{len(largest)} workers may need {in_words(_bytes(largest))} at the same time ({label}: {in_words(size)}), "
        f"{in_words(free)} are free; give --workers {fitting}, or {cure}"
    )


def _bytes(jobs: Needed) -> float:
    return sum(size + PROCESS_BYTES for _, size in jobs)
