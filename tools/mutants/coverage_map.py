"""Which tests run which lines, and how long every test takes: one run of all but the slow tests, under coverage.

Lines that a shared fixture runs count for every test that asks for the fixture, because only the first such test runs
them. Results that poscli caches are thrown away before every test for the same reason. What a test does in other
processes is not seen.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "poscli"
HOME = ROOT / ".mutants"
TESTS = ("-m", "not slow and not gpu")  # those of `make test` and of `make numerical`
FIXTURE = "fixture "  # how the contexts of shared fixtures begin


@dataclass
class TestTimes:
    """What one run of the tests says about every test. Times are seconds of CPU, child processes included."""

    __test__ = False
    seconds: dict[str, float] = field(default_factory=dict)  # of every test that passed
    fixtures: dict[str, list[str]] = field(default_factory=dict)  # the fixtures that a test asks for
    fixture_seconds: dict[str, float] = field(default_factory=dict)  # of every shared fixture

    def of(self, test: str, paid: set[str]) -> float:
        """The seconds of a test, with those of its shared fixtures that no test in `paid` has set up."""
        shared = (name for name in self.fixtures[test] if name not in paid)
        return self.seconds[test] + sum(self.fixture_seconds.get(name, 0.0) for name in shared)

    def total(self, tests: Iterable[str]) -> float:
        """The seconds of tests that run one after the other."""
        total, paid = 0.0, set[str]()
        for test in tests:
            total += self.of(test, paid)
            paid.update(self.fixtures[test])
        return total


class CoverageMap:
    """The answers: tests of a line, times of a test."""

    def __init__(self, home: Path = HOME) -> None:
        self.times = TestTimes(**json.loads((home / "tests.json").read_text()))
        self.data = coverage.CoverageData(str(home / "coverage"))
        self.data.read()
        self.askers: dict[str, list[str]] = {}
        for test, fixtures in self.times.fixtures.items():
            for name in fixtures:
                self.askers.setdefault(name, []).append(test)
        self._lines = functools.cache(self._read)

    def tests_of(self, file: Path, lines: Iterable[int]) -> set[str]:
        """The tests that run one of the lines of a file."""
        by_line = self._lines(file)
        return {test for line in lines for context in by_line.get(line, ()) for test in self._expand(context)}

    def _read(self, file: Path) -> dict[int, list[str]]:
        return self.data.contexts_by_lineno(str(file))

    def _expand(self, context: str) -> Iterator[str]:
        tests = self.askers.get(context[len(FIXTURE) :], []) if context.startswith(FIXTURE) else [context]
        return (test for test in tests if test in self.times.seconds)


class Recorder:
    """A pytest plugin: names the context of every line that runs, and takes the time."""

    def __init__(self, tracer: coverage.Coverage) -> None:
        self.tracer = tracer
        self.times = TestTimes()
        self.caches: list[Any] = []
        self.modules = 0
        self.context = ""
        self.shared = 0.0  # seconds in shared fixtures since the test began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self.times.fixtures[item.nodeid] = list(getattr(item, "fixturenames", []))
        self._forget()
        self._switch(item.nodeid)
        self.shared, start = 0.0, cpu_seconds()
        result = yield
        self.times.seconds[item.nodeid] = round(cpu_seconds() - start - self.shared, 4)
        self._switch("")
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        outer, start = self.context, cpu_seconds()
        self._switch(FIXTURE + fixturedef.argname)
        try:
            return (yield)
        finally:
            taken = cpu_seconds() - start
            self.shared += taken
            known = self.times.fixture_seconds.get(fixturedef.argname, 0.0)
            self.times.fixture_seconds[fixturedef.argname] = max(known, round(taken, 4))
            self._switch(outer)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.times.fixtures.pop(report.nodeid, None)

    def _switch(self, context: str) -> None:
        self.context = context
        self.tracer.switch_context(context)

    def _forget(self) -> None:
        if len(sys.modules) != self.modules:
            self.modules = len(sys.modules)
            ours = [module for name, module in list(sys.modules.items()) if name.startswith("poscli.")]
            values = (value for module in ours for value in vars(module).values())
            self.caches = [value for value in values if isinstance(value, functools._lru_cache_wrapper)]
        for cache in self.caches:
            cache.cache_clear()


def record(files: list[str], home: Path = HOME) -> int:
    """Run the tests of some files, or all, under coverage, and add them to the map. Returns pytest's exit code."""
    home.mkdir(exist_ok=True)
    tracer = coverage.Coverage(
        data_file=str(home / "coverage"), include=[f"{SOURCE}/*"], config_file=False, messages=False
    )
    recorder = Recorder(tracer)
    if files:
        tracer.load()
    else:
        tracer.erase()
    tracer.start()
    try:
        code = pytest.main([*files, *TESTS, "-p", "no:xdist", "-p", "no:cacheprovider"], plugins=[recorder])
    finally:
        tracer.stop()
        tracer.save()
    times = json.loads((home / "tests.json").read_text()) if files else vars(TestTimes())
    for part, found in vars(recorder.times).items():
        kept = {name: value for name, value in times[part].items() if name.split("::")[0] not in files}
        times[part] = kept | found
    times["seconds"] = {test: seconds for test, seconds in times["seconds"].items() if test in times["fixtures"]}
    (home / "tests.json").write_text(json.dumps(times))
    return int(code)


def refresh(home: Path = HOME) -> int:
    """Make the map anew: of the test files that have changed, or if others have, of all. Returns an exit code."""
    stored, now = home / "files.json", fingerprints()
    then = json.loads(stored.read_text()) if stored.exists() else {}
    changed = {file for file in {*then, *now} if then.get(file) != now.get(file)}
    if not changed:
        return 0
    tests = sorted(file for file in changed if Path(file).match("tests/*/test_*.py") and file in now)
    only_tests = then and all(Path(file).match("tests/*/test_*.py") for file in changed)
    print(f"running {' '.join(tests) if only_tests else 'all tests'} once, to learn what they cover", flush=True)
    code = subprocess.run(
        [sys.executable, "-m", "mutants.coverage_map", *(tests if only_tests else [])], cwd=ROOT
    ).returncode
    if code in (0, 1):
        stored.write_text(json.dumps(now))
    return code


def cpu_seconds() -> float:
    """Seconds of CPU that this process and its finished children have used."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def fingerprints() -> dict[str, str]:
    """A hash of every file of poscli and of its tests: the map holds for these."""
    files = (*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"))
    return {str(file.relative_to(ROOT)): hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in sorted(files)}


if __name__ == "__main__":
    sys.exit(record(sys.argv[1:]))
