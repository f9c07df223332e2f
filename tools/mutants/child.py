"""Runs tests against one mutant, in a process forked for it.

The parent has imported what takes long to import (torch, pandas, ...) and nothing of poscli. The child imports poscli,
with one module from the changed source, and runs pytest on the chosen tests until one fails.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from mutants.coverage_map import ROOT, TESTS

PRELOADED = (
    "torch", "torch.nn.attention.flex_attention", "numpy", "pandas", "pyarrow.parquet", "scipy.stats", "scipy.optimize",
    "matplotlib.pyplot", "pytest", "hypothesis", "datasets", "transformers", "transformers.modeling_rope_utils",
    "transformers.models.bloom.modeling_bloom", "transformers.models.t5.modeling_t5", "x_transformers", "pydantic",
    "transformers.models.llama.modeling_llama", "transformers.models.swinv2.modeling_swinv2", "typer", "rich.console",
    "transformers.models.xlnet.modeling_xlnet", "jinja2", "safetensors.torch", "torchdiffeq", "rotary_embedding_torch",
)  # fmt: skip
MOST_MEMORY = 8 << 30  # bytes of data: a loop that never ends may also never stop to allocate
TOOL_FAILED = 70  # exit code of a child in which pytest itself could not be run
NOTHING_COLLECTED = int(pytest.ExitCode.NO_TESTS_COLLECTED)


@dataclass(frozen=True)
class Verdict:
    """What became of one run of the tests."""

    code: int  # pytest's, or minus the signal that ended the process
    failed: str = ""  # the first test that failed, or the file that could not be collected
    why: str = ""  # the last line of its error
    ran: int = 0  # tests

    @property
    def caught(self) -> bool:
        """Whether a test failed, or the process hung or died."""
        return self.code not in (0, NOTHING_COLLECTED)


def preload() -> None:
    """Import what the tests need and what takes seconds."""
    import torch

    torch.set_num_threads(1)
    for name in PRELOADED:
        importlib.import_module(name)
    from hypothesis import Phase, settings

    # The same examples in every run, no search for a smaller example once one fails, no failure for being slow.
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
    settings.load_profile("mutants")


def start(source: tuple[str, str] | None, tests: Sequence[str], seconds: float, folder: Path, root: Path = ROOT) -> int:
    """Fork a child that runs the tests; returns its process id. Its verdict comes into `folder / "PID.json"`.

    `source` is a file, relative to the root of the repository, with the text to import it from; None changes nothing.
    The child may use `seconds` of CPU.
    """
    process = os.fork()
    if process:
        return process
    code = TOOL_FAILED
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgid(0, 0)  # so that what the tests start can be ended with them
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        verdict = run_tests(source, tests, folder / f"tmp{os.getpid()}", root)
        (folder / f"{os.getpid()}.json").write_text(json.dumps(asdict(verdict)))
        code = 0
    except BaseException:
        (folder / f"{os.getpid()}.log").write_text(traceback.format_exc())
        raise
    finally:
        os._exit(code)  # nothing of the parent's may run: neither its finally blocks nor its exit handlers


def verdict_of(process: int, status: int, folder: Path) -> Verdict:
    """The verdict of a child that has ended with a status of `os.wait4`."""
    written = folder / f"{process}.json"
    if written.exists():
        verdict = Verdict(**json.loads(written.read_text()))
        written.unlink()
        return verdict
    code = os.waitstatus_to_exitcode(status)
    log = folder / f"{process}.log"
    if code == TOOL_FAILED and log.exists():  # a mutant may delete the folder
        raise RuntimeError(log.read_text())
    why = "took too long" if -code in (signal.SIGXCPU, signal.SIGKILL) else f"the process ended with {code}"
    return Verdict(code, why=why)


def run_tests(source: tuple[str, str] | None, tests: Sequence[str], scratch: Path, root: Path) -> Verdict:
    """Run tests in this process, with one module imported from changed source, up to the first failure."""
    watch = Watch(tests, MutantFinder(*source, root) if source else None)
    files = list(dict.fromkeys(test.split("::")[0] for test in tests))
    quiet = [*TESTS, "-x", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={scratch}"]
    quiet += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the parent has imported pytest's plugins
    os.chdir(root)
    code = pytest.main([*files, *quiet], plugins=[watch])
    if watch.late:
        raise RuntimeError(f"{watch.late} was imported before the mutant was in its place, so no test has met it")
    return Verdict(int(code), watch.failed, watch.why, watch.ran)


class Watch:
    """A pytest plugin: leaves the chosen tests, in the chosen order of files, and keeps the first failure."""

    def __init__(self, tests: Sequence[str], finder: MutantFinder | None) -> None:
        self.finder = finder
        self.order = {test: number for number, test in enumerate(tests)}
        self.failed = self.why = self.late = ""
        self.ran = 0

    def pytest_sessionstart(self) -> None:
        """Put the mutant before pytest's own importer, which reads every file named on the command line from disk."""
        if self.finder is not None:
            self.late = self.finder.name if self.finder.name in sys.modules else ""
            sys.meta_path.insert(0, self.finder)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda each: self.order[each.nodeid]
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran += report.when == "call"
        self._note(report)

    def _note(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid or "collection"
            crash = getattr(report.longrepr, "reprcrash", None)
            lines = (crash.message if crash else str(report.longrepr)).strip().splitlines() or [""]
            self.why = lines[0 if crash else -1][:200]


class MutantFinder:
    """An importer of one module, from source that is not in its file."""

    def __init__(self, file: str, text: str, root: Path) -> None:
        self.path, self.text = root / file, text
        parts = Path(file).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        folders = [str(self.path.parent)] if self.path.name == "__init__.py" else None
        loader = _Loader(name, str(self.path), self.text)
        return importlib.util.spec_from_file_location(
            name, self.path, loader=loader, submodule_search_locations=folders
        )


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.text, self.path, "exec", dont_inherit=True)
