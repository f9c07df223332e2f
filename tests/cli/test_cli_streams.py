"""What is printed: on full disks, into closed pipes and descriptors, and with text that would mislead a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import environment

pytestmark = pytest.mark.usefixtures("folder")
POSIX = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
QUICK = [("--help",), ("--version",), ("ls", "suites", "--json")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every command runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def poscli(arguments: tuple[str, ...], redirection: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell, with its streams redirected."""
    line = f'"$0" -m poscli {" ".join(arguments)} {redirection}'
    return subprocess.run(
        ["bash", "-c", line, sys.executable], capture_output=True, text=True, env=environment(**changes)
    )


@POSIX
@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
@pytest.mark.parametrize(("to", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_a_result_that_cannot_be_written_is_an_error(arguments: tuple[str, ...], to: str, why: str) -> None:
    done = poscli(arguments, to)
    assert (done.returncode, done.stderr) == (1, f"error: cannot write to stdout: {why}\n")


@POSIX
def test_a_stdout_that_is_not_buffered_fails_in_the_same_words() -> None:
    done = poscli(("ls", "suites"), ">/dev/full", PYTHONUNBUFFERED="1")
    assert (done.returncode, done.stderr) == (1, "error: cannot write to stdout: No space left on device\n")


@POSIX
def test_an_error_keeps_its_exit_code_where_nothing_can_be_written() -> None:
    assert poscli(("frobnicate", "--json"), ">/dev/full 2>/dev/full").returncode == 2
    assert poscli(("frobnicate", "--json"), ">&- 2>&-").returncode == 2


@POSIX
@pytest.mark.parametrize("to", ["2>/dev/full", "2>&-"])
def test_notes_that_cannot_be_written_do_not_stop_a_command(to: str) -> None:
    done = poscli(("ls", "suites"), to)
    assert done.returncode == 0
    assert "no suites in suites" in done.stdout


def test_characters_that_a_terminal_lacks_are_written_as_escapes(folder: Path) -> None:
    (folder / "suites").mkdir()
    (folder / "suites" / "\u03b1.toml").write_text('encodings = ["none"]\n', encoding="utf-8")
    listed = poscli(("ls", "suites"), "", PYTHONIOENCODING="ascii")
    assert listed.returncode == 0, listed.stderr
    assert r"\u03b1" in listed.stdout
    refused = poscli(("train", "--enc", "\u03b8"), "", PYTHONIOENCODING="ascii")
    assert refused.returncode == 2
    assert r"\u03b8" in refused.stderr


@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
def test_a_reader_that_leaves_is_no_error(arguments: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)  # as `| head` does after its last line
    done = subprocess.run(
        [sys.executable, "-m", "poscli", *arguments],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
