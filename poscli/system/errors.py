"""Errors that a user may see, each with the exit code of the command that fails with it.

Every message is one line that states the value, the rule and the fix. `cli.main` prints the message, with a traceback
only under `--debug`. Violated invariants of the code are `assert`s, never these classes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from poscli.system.text import printable_line

FAILED, USAGE, PARTIAL, DATA, CORRUPT, LOCKED = 1, 2, 3, 4, 5, 75
INTERRUPTED, TERMINATED = 130, 143


class PoscliError(Exception):
    """A failure whose cause and fix fit in one line."""

    exit_code = FAILED


class UsageError(PoscliError):
    """A command, a spec, a suite or an option asks for something that cannot be done."""

    exit_code = USAGE


class PluginError(PoscliError):
    """Code from outside poscli, such as an encoding of the user, failed or returned what it must not return."""


class DataError(PoscliError):
    """A text, a checkpoint, a table or a server is missing, unreadable, too short, or not what it should be."""

    exit_code = DATA


class CorruptError(PoscliError):
    """A file of a run differs from what poscli wrote, or a file of a checkpoint is damaged."""

    exit_code = CORRUPT


class ForeignError(CorruptError):
    """The files of a folder are whole, and belong to another run or another version: nothing may replace them."""


class StorageError(PoscliError):
    """A file or a folder cannot be written. What was written before is intact."""


class LockedError(PoscliError):
    """Another process is working on the same run."""

    exit_code = LOCKED


class Interrupted(PoscliError):
    """A job was stopped by a signal, after saving its state."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum


LONGEST_MESSAGE = 800  # characters of an error; the middle of a longer one is cut, which holds the value
MOST_NAMES_LISTED = 20  # in one message


def near(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the similar names, or, if there are none, all names.

    >>> near("alibbi", ["alibi", "rope", "t5"])
    'did you mean alibi?'
    >>> near("zzz", ["alibi", "rope"])
    'there are alibi, rope'
    >>> near("zzz", ["rope"])
    'there is rope'
    >>> near("zzz", [f"name{n}" for n in range(52)])
    'none of the 52 known names is similar'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(filter(None, [', '.join(close[:-1]), close[-1]]))}?"
    if len(names) > MOST_NAMES_LISTED:
        return f"none of the {len(names)} known names is similar"
    if not names:
        return "there are none"
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"


def one_line(message: str) -> str:
    r"""A message as one line that a terminal can show: without control characters, and cut in its middle if too long.

    >>> one_line("there is no encoding\n\x1b[31mred")
    'there is no encoding \\x1b[31mred'
    >>> len(one_line("there is no encoding " + 10_000 * "a"))
    800
    """
    line = printable_line(message)
    if len(line) <= LONGEST_MESSAGE:
        return line
    half = (LONGEST_MESSAGE - 5) // 2
    return f"{line[: LONGEST_MESSAGE - 5 - half]} ... {line[-half:]}"
