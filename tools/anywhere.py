"""`make anywhere`: the fast tests in six random orders, each on another kind of machine, and which of them failed.

What a test must not depend on: the order, the number of cores, what else runs, what earlier tests have left, how the
allocator works, whether there is a compiler. Nor on the home folder, the terminal and the language of whoever runs it;
but these no test sees (`pytest_configure` in tests/conftest.py), so that there is nothing to try.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Setting:
    """One kind of machine."""

    name: str
    variables: dict[str, str] = field(default_factory=dict)  # EMPTY stands for an empty folder
    cores: int | None = None  # all of them
    busy: int = 0  # processes that compute without end beside the tests


SETTINGS = (
    Setting("as it is"),
    Setting("an empty folder for all that is kept", {"TMPDIR": "EMPTY"}),
    Setting("MALLOC_ARENA_MAX=1", {"MALLOC_ARENA_MAX": "1"}),
    Setting("two busy processes", busy=2),
    Setting("one core", cores=1),
    Setting("no compiler", {"POSCLI_NATIVE": "0"}),
)


def main() -> int:
    """Exit code 1 if any test failed under any setting."""
    parser = argparse.ArgumentParser(prog="make anywhere", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first of the six orders")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of settings, from 1 on")
    given = parser.parse_args()
    red = 0
    for number, setting in enumerate(SETTINGS, start=1):
        if not given.only or number in given.only:
            print(f"{number}. {setting.name}, order {given.seed + number - 1}: ", end="", flush=True)
            code, said = tests(setting, given.seed + number - 1)
            print(said, flush=True)
            red += code != 0
    print("green everywhere" if red == 0 else f"{red} red")
    return int(red > 0)


def tests(setting: Setting, seed: int) -> tuple[int, str]:
    """Pytest's exit code, its last line and the tests that failed."""
    workers = str(setting.cores or len(os.sched_getaffinity(0)))
    command = [sys.executable, "-m", "pytest", "-n", workers, "--dist", "worksteal", "-p", "no:cacheprovider"]
    command += ["-p", "randomly", f"--randomly-seed={seed}", "--tb=short", "-r", "fE"]
    with tempfile.TemporaryDirectory(prefix="home-") as empty, busy(setting.busy):
        changes = {name: empty if value == "EMPTY" else value for name, value in setting.variables.items()}
        cores = sorted(os.sched_getaffinity(0))[: setting.cores]
        done = subprocess.run(
            ["taskset", "-c", ",".join(map(str, cores)), *command],
            cwd=ROOT,
            env=os.environ | changes,
            capture_output=True,
            text=True,
        )
    failed = [line for line in done.stdout.splitlines() if re.match("FAILED|ERROR", line)]
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()]
    return done.returncode, "\n  ".join([last[0].strip("= "), *failed])


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` processes busy."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
