"""The rows of the torture suite, in the order in which they run."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import signal
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import torch

import poscli

from . import commands, corpora, damage, deaths, killed, names, numbers, ranks, reports, sweeps
from .__main__ import Row, Trial
from .pipeline import Undisturbed

KILLS, STOPS, PICKLES, ROUNDS, CUTS, LOSSES = 200, 50, 25, 50, 2, 5
MUTATIONS, CORPORA = 3750, 1250  # of files of runs, and of sources and caches of corpora
NAMES, PAGES, LINES = 500, 100, 100  # hostile names; hostile reports, in one trial; batches of ten command lines
LONGEST_RUN_SECONDS = 1.2  # within which a signal is sent: about as long as a stage takes


@cache
def _whole(base: Path) -> Undisturbed:
    """The undisturbed run; first everything is imported that the forked processes would import one by one."""
    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(poscli.__path__, "poscli."):
        if "kernels" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    importlib.import_module("torch._dynamo")  # an optimizer imports it, in almost two seconds
    return Undisturbed(base / "undisturbed")


def _deaths(base: Path) -> Iterator[Trial]:
    whole = _whole(base)
    for stage, at, kind in deaths.trials(whole, base):
        yield f"{stage}, {kind} {at}", partial(deaths.death, whole, stage=stage, at=at)


def _refusals(base: Path) -> Iterator[Trial]:
    whole = _whole(base)
    for (stage, at, kind), error in itertools.product(list(deaths.trials(whole, base)), deaths.ERRORS):
        yield f"{error} in {stage}, {kind} {at}", partial(deaths.refusal, whole, stage=stage, at=at, error=error)


def _signals(signum: int, count: int, base: Path) -> Iterator[Trial]:
    whole = _whole(base)
    for seed in range(count):
        longest = LONGEST_RUN_SECONDS
        yield f"seed {seed}", partial(killed.killed, whole, seed=seed, signum=signum, longest=longest)


def _contests(base: Path) -> Iterator[Trial]:
    whole = _whole(base)
    for processes, number in itertools.product((2, 4, 8), range(ROUNDS)):
        yield f"{processes} processes, round {number}", partial(killed.contest, whole, processes=processes)


def _losses(base: Path) -> Iterator[Trial]:
    _whole(base)  # everything is imported
    expected = ranks.undisturbed(base)
    for seed in range(LOSSES):
        longest = 2 * LONGEST_RUN_SECONDS  # two ranks on one core
        yield f"seed {seed}", partial(ranks.killed, expected, seed=seed, longest=longest)


def _mutations(base: Path) -> Iterator[Trial]:
    whole = _whole(base)
    for seed in range(MUTATIONS):
        yield f"seed {seed}", partial(damage.mutation, whole, seed=seed)


def _corpora(base: Path) -> Iterator[Trial]:
    for seed in range(CORPORA):
        yield f"seed {seed}", partial(corpora.mutation, seed=seed)


def _names(base: Path) -> Iterator[Trial]:
    for seed in range(NAMES):
        kind, text = names.hostile_spec(seed)
        yield f"{kind} {text!r}"[:200], partial(_checked, partial(names.check, kind, text))


def _pages(base: Path) -> Iterator[Trial]:
    yield f"{PAGES} reports", partial(_checked, partial(reports.torture, PAGES, draw_pictures=False))


def _lines(base: Path) -> Iterator[Trial]:
    for batch in range(LINES):
        yield f"batch {batch}", partial(_checked, partial(commands.torture, batch, 10))


def _checked(check: Callable[[], object], folder: Path) -> list[str]:
    """The faults of a check that raises what it finds."""
    try:
        check()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a fault
        return [f"{type(error).__name__}: {error}"]
    return []


def _pickles(base: Path) -> Iterator[Trial]:
    whole = _whole(base)
    for seed in range(PICKLES):
        yield f"seed {seed}", partial(damage.pickled, whole, seed=seed)


def _resumes(base: Path) -> Iterator[Trial]:
    for encoding, seed in itertools.product(numbers.encodings(), range(CUTS)):
        yield f"{encoding}, cut {seed}", partial(numbers.resumed, encoding=encoding, seed=seed)


def _harms(base: Path) -> Iterator[Trial]:
    for encoding, harm in itertools.product(numbers.TIERS, numbers.HARMS):
        yield f"{encoding}, {harm}", partial(numbers.broken, encoding=encoding, harm=harm)


def _sweep(how: str, base: Path) -> Iterator[Trial]:
    for name, number in sweeps.trials(how):
        yield name, lambda folder, number=number: sweeps.compared(base, how, number)


ROWS = [
    Row("death at every file-system operation", "the same commands then give the same bits", _deaths),
    Row("ENOSPC, EIO, EACCES at every operation", "one line names the path; the same commands go on", _refusals),
    Row("SIGKILL at random times", "nothing corrupt, lost or doubled", partial(_signals, signal.SIGKILL, KILLS)),
    Row("SIGTERM at random times", "code 143 within 10 s; goes on", partial(_signals, signal.SIGTERM, STOPS)),
    Row("SIGINT at random times", "code 130 within 10 s; goes on", partial(_signals, signal.SIGINT, STOPS)),
    Row("mutated files of runs", "refused, or the undisturbed results", _mutations),
    Row("mutated corpora and their caches", "refused, rebuilt, or the same tokens", _corpora),
    Row("hostile names, specs, corpora, suites", "nothing outside the results folder; one line", _names),
    Row("hostile texts in 100 reports", "nothing injected", _pages),
    Row("random command lines, ten at a time", "a documented exit code; one line; no traceback", _lines),
    Row("pickles in place of files", "none is executed", _pickles),
    Row("2, 4, 8 processes on one run", "one winner", _contests),
    Row(
        "Ray sweep of 40 runs, 15 worker and 3 driver kills",
        "each run once, the bits of one process",
        partial(_sweep, "ray"),
    ),
    Row("2 local workers, 40 runs, 15 kills, a SIGTERM to all", "the same", partial(_sweep, "processes")),
    Row("2-rank gloo DDP, a rank killed", "the same command then gives the same bits", _losses),
    Row("resume of every encoding, 2 cuts", "the same bits", _resumes),
    Row("NaN, infinity and no memory, every tier", "the status says so; no invented number", _harms),
]
