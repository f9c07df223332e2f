"""Fixtures of all tests."""

from __future__ import annotations

import atexit
import gc
import io
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser_session import Browser
from hypothesis import settings
from snapshots import check_rounded, check_trained

# Variables that say where a user keeps things, and how a terminal looks.
OF_THE_USER = ("POSCLI_CACHE", "POSCLI_QUIET", "XDG_", "MPL", "HF_", "TRITON_CACHE_DIR", "CXX")
OF_THE_TERMINAL = ("COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR", "TTY_", "LANG", "LC_", "TZ")


# The folders of tests that may depend on how a CPU rounds. `make numerical` repeats them with the kernels of others.
NUMERICAL = {
    *("equation", "encodings", "attention", "native", "model", "training", "evaluation", "why", "tasks", "verify"),
    *("inspect", "checkpoints", "api", "grids"),
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of numerical folders."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).parts[0] in NUMERICAL:
            item.add_marker("numerical")


def pytest_configure() -> None:
    """Let no test, nor any process it starts, see the home folder, caches, terminal or language of whoever runs it."""
    if "PYTEST_XDIST_WORKER" in os.environ:  # it has the environment of the process that started it
        return
    for name in list(os.environ):
        if name.startswith((*OF_THE_USER, *OF_THE_TERMINAL)):
            del os.environ[name]
    home, cache = home_of_tests(), tempfile.mkdtemp(prefix="poscli-cache-")
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    (home / "native").mkdir(mode=0o700, exist_ok=True)
    Path(cache, "native").symlink_to(home / "native")
    os.environ.update(HOME=str(home), POSCLI_CACHE=cache, LC_ALL="C.UTF-8")


def home_of_tests() -> Path:
    """A home folder that only tests use, kept from one run to the next for the kernels, which take seconds to compile.

    What else poscli caches is made anew in every run: a corpus built by earlier code would hide a fault in today's. The
    folder lies where others cannot write whatever the umask, because compiled kernels are not read from anywhere else.
    """
    user = os.getuid()
    folder = Path(tempfile.gettempdir()) / f"poscli-tests-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    return folder if (found.st_uid, found.st_mode & 0o7777) == (user, 0o700) else Path(tempfile.mkdtemp())


settings.register_profile("shared machine", deadline=None)  # it pauses for longer than any example may take
settings.load_profile("shared machine")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Run torch on one thread.

    The tensors of the tests are tiny, and beside another busy process a parallel region costs a tick of the scheduler:
    8 ms, where one thread takes 20 microseconds.
    """
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def made_once(one_thread: None) -> None:
    """Compile our own kernels and build the usual corpus before the first test: a command that had to would say so.

    The kernels are proven then, which processes side by side must not do with all cores each.
    """
    from poscli.data import load_corpus  # not at the top: `make mutants` changes poscli after this file was imported
    from poscli.native import library

    library()
    load_corpus("stdlib")


@pytest.fixture(scope="session", autouse=True)
def no_lines_of_progress() -> None:
    """Print no line of progress every 15 seconds: how fast a machine is must not change what a command says."""
    from poscli.system import progress

    progress.SECONDS_BETWEEN_LINES = math.inf


@pytest.fixture(scope="session", autouse=True)
def no_loss_of_power() -> None:
    """Do not wait for the disk: up to 4 ms for each of thousands of files, none of which has to outlive the machine."""
    os.fsync = lambda _: None  # a file that is closed is whole for every other process


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking at everything that was imported, again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def same_path() -> Iterator[None]:
    """Forget, after the tests of a file, the folders in which they let Python look for modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        yield


@pytest.fixture(scope="module", autouse=True)
def blank_pictures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Draw no picture, unless the file of the tests says `LOOKS_AT_PICTURES = True`.

    Commands in hundreds of tests write reports, and to draw their pictures would take half of that time: the files of
    pictures are empty, and what else is drawn is a dot.
    """
    if getattr(getattr(request.node, "obj", None), "LOOKS_AT_PICTURES", False):
        yield
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image
    from torture.reports import undrawn  # not at the top: `make mutants` changes poscli after this file was imported

    Image.new("RGB", (1, 1)).save(dot := io.BytesIO(), "png")
    with pytest.MonkeyPatch.context() as patch, undrawn():
        patch.setattr(FigureCanvasAgg, "print_png", lambda _, file: file.write(dot.getvalue()))
        yield


@pytest.fixture(scope="module")  # the tests of a file leave windows and permissions behind
def browser() -> Iterator[Browser]:
    """The browser in which pages are tested."""
    session = Browser()
    yield session
    session.driver.quit()


@pytest.fixture
def opened(browser: Browser, page: Path) -> Browser:
    """The browser with the page of the test's file, in a wide window."""
    browser.look(1400, "light")
    browser.open(page)
    return browser


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder, and no plugin loaded, as in a new process; what the test has imported is forgotten.

    What a test leaves behind (a loaded file, a folder in Python's path, what --quiet sets) would be found by the next
    one of any file.
    """
    from cli_runner import forget  # not at the top: `make mutants` changes poscli after this file was imported

    from poscli.system import plugins

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setenv("POSCLI_QUIET", "")
    yield tmp_path
    forget(tmp_path)


@pytest.fixture
def folder(here: Path) -> Path:
    """An empty current folder but for tiny.toml, a suite of four short runs."""
    from cli_runner import SUITE

    (here / "tiny.toml").write_text(SUITE)
    return here


@pytest.fixture
def place(here: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """The empty current folder as one of corpora."""
    from corpus_places import Place

    return Place(here, capsys)


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of alibi, learned and sinusoidal, trained and evaluated. Tests must not change them."""
    from cli_runner import trained

    return trained(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def task() -> Any:
    """The task of language on the usual corpus, in bytes."""
    from poscli.tasks import open_task

    return open_task("language", "stdlib", "bytes")


@pytest.fixture
def snapshot(file_regression: Any) -> Callable[..., None]:
    """Compare a text with the one that is kept as test_X/NAME.EXTENSION (see snapshots.py).

    The name is that of the test unless it is given. `rounded` admits what the rounding of another CPU changes, and
    `trained` what becomes of that in a short training.
    """

    def check(
        text: str, name: str | None = None, extension: str = ".txt", *, rounded: bool = False, trained: bool = False
    ) -> None:
        options = {"check_fn": check_trained if trained else check_rounded} if rounded or trained else {}
        file_regression.check(text, encoding="utf-8", extension=extension, basename=name, **options)

    return check
