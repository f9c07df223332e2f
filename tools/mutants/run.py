"""Goes through a sample of mutants and keeps one line of results for each, so that a stopped run can go on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from mutants.child import NOTHING_COLLECTED, Verdict, start, verdict_of
from mutants.coverage_map import CoverageMap
from mutants.draw import Mutant
from mutants.selection import covering, waves

SLOWER, PATIENCE = 3.0, 20.0  # a run may take so many times its usual seconds of CPU, and so many more
WALL = 4.0  # seconds on the clock per second of CPU: other programs run too, and a process may wait for ever


@dataclass(frozen=True)
class Outcome:
    """A mutant, what it changes, and whether a test noticed."""

    key: str
    mutant: Mutant
    before: str
    after: str
    caught: bool
    covering: int  # tests that run the line
    ran: int  # tests that ran
    failed: str  # the first that failed
    why: str  # its error
    seconds: float  # of CPU

    @classmethod
    def load(cls, line: str) -> Outcome:
        """The outcome that one line of a results file holds."""
        values = json.loads(line)
        return cls(**values | {"mutant": Mutant(**values["mutant"])})


class Order(NamedTuple):
    """Tests to run in a child, on changed source or, for None, on poscli as it is."""

    source: tuple[str, str] | None
    tests: list[str]
    usual: float  # seconds of CPU that the tests take


Work = Generator[Order, tuple[Verdict, float], Outcome]


def try_mutant(mutant: Mutant, known: CoverageMap, untrusted: set[str], most_seconds: float) -> Work:
    """Ask for the waves of tests of a mutant, until one notices it."""
    tests = covering(mutant, known) - untrusted
    before, after = mutant.change()
    ran, spent, verdict = 0, 0.0, Verdict(NOTHING_COLLECTED)
    for wave in waves(mutant, tests, known, most_seconds):
        verdict, seconds = yield Order((mutant.file, mutant.source()), wave, known.times.total(wave))
        ran, spent = ran + verdict.ran, spent + seconds
        if verdict.caught:
            break
    failed, why = verdict.failed, verdict.why
    return Outcome(mutant.key, mutant, before, after, verdict.caught, len(tests), ran, failed, why, round(spent, 2))


def fork_all(works: Iterable[Work], jobs: int, done: Callable[[Outcome], None]) -> None:
    """Run every piece of work, `jobs` processes at a time, and hand over its outcome."""
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    waiting = iter(works)
    running: dict[int, tuple[Work, float]] = {}  # process -> its work, and the time by which it has to end

    def proceed(work: Work, answer: tuple[Verdict, float] | None) -> None:
        try:
            order = next(work) if answer is None else work.send(answer)
        except StopIteration as end:
            done(end.value)
            return
        seconds = SLOWER * order.usual + PATIENCE
        process = start(order.source, order.tests, seconds, folder)
        running[process] = work, time.monotonic() + WALL * seconds

    try:
        while True:
            while len(running) < jobs and (work := next(waiting, None)) is not None:
                proceed(work, None)
            if not running:
                return
            process, status, usage = _ended(running)
            if process:
                _end_group(process)
                work, _ = running.pop(process)
                shutil.rmtree(folder / f"tmp{process}", ignore_errors=True)
                proceed(work, (verdict_of(process, status, folder), usage))
    finally:
        for process in running:
            _end_group(process)
            os.waitpid(process, 0)
        shutil.rmtree(folder, ignore_errors=True)


def sample(drawn: list[Mutant], known: CoverageMap, results: Path, jobs: int, most_seconds: float) -> list[Outcome]:
    """The outcomes of all mutants, those in the results file as they are. Prints survivors as they come."""
    marks = results.with_suffix(".untrusted.json")
    untrusted: set[str] = set(json.loads(marks.read_text())) if marks.exists() else set()
    while True:
        found = read(results)
        left = [mutant for mutant in drawn if mutant.key not in found]
        print(f"{len(drawn) - len(left)} of {len(drawn)} mutants are known", flush=True)

        def keep(outcome: Outcome, found: dict[str, Outcome] = found) -> None:
            found[outcome.key] = outcome
            with results.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
            if not outcome.caught:
                where = f"{outcome.mutant.file}:{outcome.mutant.line}"
                print(f"survived {where}: {outcome.before}  ->  {outcome.after}", flush=True)

        fork_all((try_mutant(mutant, known, untrusted, most_seconds) for mutant in left), jobs, keep)
        found = {mutant.key: found[mutant.key] for mutant in drawn}
        wrong = fail_anyway(found.values(), known)
        if not wrong:
            return list(found.values())
        print(f"without a mutant these tests fail too, and are left out: {', '.join(sorted(wrong))}", flush=True)
        untrusted |= wrong
        marks.write_text(json.dumps(sorted(untrusted)))
        forget(results, [outcome.key for outcome in found.values() if outcome.failed in wrong])


def fail_anyway(outcomes: Iterable[Outcome], known: CoverageMap) -> set[str]:
    """Of the tests that caught a mutant, those that fail without one when they are run in this way."""
    tests = {outcome.failed for outcome in outcomes if outcome.failed in known.times.seconds}
    wrong: set[str] = set()
    while tests - wrong:
        verdicts: list[Verdict] = []
        left = sorted(tests - wrong, key=lambda test: test.split("::")[0])
        fork_all([_unchanged(left, known, verdicts)], 1, lambda _: None)
        if not verdicts[0].caught:
            break
        if verdicts[0].failed not in left:
            raise RuntimeError(f"the tests cannot run without a mutant: {verdicts[0]}")
        wrong.add(verdicts[0].failed)
    return wrong


def _unchanged(tests: list[str], known: CoverageMap, verdicts: list[Verdict]) -> Work:
    verdict, seconds = yield Order(None, tests, known.times.total(tests))
    verdicts.append(verdict)
    return Outcome("", Mutant("", 0, 0, "", 0, ""), "", "", verdict.caught, 0, verdict.ran, "", "", seconds)


def read(results: Path) -> dict[str, Outcome]:
    """The outcomes in a results file by key; a line that was cut off is skipped."""
    found = {}
    for line in results.read_text().splitlines() if results.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            outcome = Outcome.load(line)
            found[outcome.key] = outcome
    return found


def forget(results: Path, keys: list[str]) -> None:
    """Take outcomes out of a results file."""
    kept = [outcome for key, outcome in read(results).items() if key not in keys]
    results.write_text("".join(json.dumps(asdict(outcome)) + "\n" for outcome in kept))


def _ended(running: dict[int, tuple[Work, float]]) -> tuple[int, int, float]:
    """A child that has ended, with its status and seconds of CPU; process 0 after a short wait in which none has."""
    for process, (_, latest) in running.items():
        ended, status, usage = os.wait4(process, os.WNOHANG)
        if ended:
            return ended, status, usage.ru_utime + usage.ru_stime
        if time.monotonic() > latest:
            os.kill(process, signal.SIGKILL)
    time.sleep(0.02)
    return 0, 0, 0.0


def _end_group(process: int) -> None:
    """End what the tests of a child have started and left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
