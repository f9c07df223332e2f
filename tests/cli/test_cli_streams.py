"""What is printed on full disks, into closed pipes and descriptors, and where a terminal lacks characters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import environment

POSIX = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
VERSION, SUITES = ("--version",), ("ls", "suites", "--json")
FULL, CLOSED = "No space left on device", "Bad file descriptor"


def poscli(arguments: tuple[str, ...], redirection: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell, with its streams redirected."""
    line = f'"$0" -m poscli {" ".join(arguments)} {redirection}'
    return subprocess.run(
        ["bash", "-c", line, sys.executable], capture_output=True, text=True, env=environment(**changes)
    )


@POSIX
@pytest.mark.parametrize(
    ("arguments", "to", "why", "changes"),
    [
        (VERSION, ">/dev/full", FULL, {}),
        (VERSION, ">&-", CLOSED, {}),
        (SUITES, ">/dev/full", FULL, {}),
        (SUITES, ">&-", CLOSED, {}),
        (SUITES, ">/dev/full", FULL, {"PYTHONUNBUFFERED": "1"}),
    ],
)
def test_a_result_that_cannot_be_written_is_an_error(
    arguments: tuple[str, ...], to: str, why: str, changes: dict[str, str]
) -> None:
    done = poscli(arguments, to, **changes)
    assert (done.returncode, done.stderr) == (1, f"error: cannot write to stdout: {why}\n")


@POSIX
@pytest.mark.parametrize("to", ["/dev/full", "&-"])
def test_where_no_error_can_be_written_the_exit_code_and_the_result_are_the_same(to: str) -> None:
    assert poscli(("frobnicate", "--json"), f">{to} 2>{to}").returncode == 2
    done = poscli(("ls", "suites", "--folder", "elsewhere"), f"2>{to}")
    assert (done.returncode, done.stdout) == (0, "no suites in elsewhere; name a folder with --folder\n")


def test_characters_that_a_terminal_lacks_are_written_as_escapes(tmp_path: Path) -> None:
    (tmp_path / "\u03b1.toml").write_text('encodings = ["none"]\n', encoding="utf-8")
    listed = poscli(("ls", "suites", "--folder", str(tmp_path)), "", PYTHONIOENCODING="ascii")
    assert listed.returncode == 0, listed.stderr
    assert r"\u03b1" in listed.stdout
    refused = poscli(("\u03b8",), "", PYTHONIOENCODING="ascii")
    assert refused.returncode == 2
    assert r"\u03b8" in refused.stderr


@pytest.mark.parametrize("arguments", [VERSION, SUITES], ids=" ".join)
def test_a_reader_that_leaves_is_no_error(arguments: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)  # as `| head` does after its last line
    command = [sys.executable, "-m", "poscli", *arguments]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=environment())
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
