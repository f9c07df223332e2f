"""The C++ kernels of this folder as a loaded library: compiled at the first use, kept in the user's cache folder.

A library is compiled with the instructions of the CPU at hand. Its file name holds a hash of all that decides its
machine code (sources, compiler, flags, CPU), and one of its content. It gets that name only after its results have been
compared with the formula (proof.py), so that a library found under it has been proven on such a CPU.

A library is code. It is read only from a folder in which nobody but this user and root can put or exchange a file, and
what is loaded is the open file whose owner and content have been checked.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import torch

from poscli.native.proof import disagreement
from poscli.system.console import note, warn_once
from poscli.system.device import cpu_flags
from poscli.system.files import cache_folder, make_in_cache
from poscli.system.provenance import cpu

OFF = "POSCLI_NATIVE"  # the variable that, set to 0, switches compiled kernels off
SOURCES = ("forward.cpp", "backward.cpp", "rows_backward.cpp", "mixing_backward.cpp", "layers.cpp")
FOLDER = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
# No flag may let the compiler reorder sums: results would then differ from compiler to compiler more than they must.
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno")
FOR_THIS_CPU = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
LONGEST_COMPILATION = 300  # seconds; it takes 5
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
OPEN_FILES = Path("/proc/self/fd")  # where Linux gives what a process has open a path


class _Unavailable(Exception):
    """Why there is no library, in the words of `why_not`."""


def library() -> ctypes.CDLL | None:
    """The library; None if it cannot be had here, for the reason that `why_not` gives."""
    return _found()[0]


def why_not() -> str:
    """Why there is no library; '' if there is one."""
    return _found()[1]


def identity() -> str:
    """A name for the kernels that run here: that of their file, which changes with their code; '' if none do."""
    found = library()
    return "" if found is None else Path(found._name).stem.partition("-")[0]


def switched_off() -> bool:
    """Whether the user has switched compiled kernels off."""
    return os.environ.get(OFF, "") == "0"


def _found() -> tuple[ctypes.CDLL | None, str]:
    return (None, f"{OFF}=0 switches compiled kernels off") if switched_off() else _loaded()


@cache
def _loaded() -> tuple[ctypes.CDLL | None, str]:
    try:
        return _proven(_compiler()), ""
    except _Unavailable as error:
        warn_once(f"attention runs on torch's kernels, which are slower on a CPU: {error}")
        return None, str(error)


def _compiler() -> str:
    """The path of a C++ compiler: that of the variable CXX, or the first that is found."""
    asked = os.environ.get("CXX", "")
    for name in [asked] if asked else COMPILERS:
        if path := shutil.which(name):
            return path
    raise _Unavailable(f"CXX={asked} is not found" if asked else f"no C++ compiler ({', '.join(COMPILERS)}) is found")


def _proven(compiler: str) -> ctypes.CDLL:
    """The library from the cache folder; compiled and compared with the formula first, if it is not there."""
    folder, key = _place(compiler)
    with suppress(OSError):  # nothing is found in the folder then, and nothing can be kept, which `_keep` says
        make_in_cache(folder)
    if unsafe := _why_unsafe(folder):
        warn_once(f"compiled kernels are neither read from nor kept in {folder}, but compiled anew each time: {unsafe}")
    for path in [] if unsafe else sorted(folder.glob(f"{key}-*.so")):
        try:
            opened = _Opened(path)
        except PermissionError:
            warn_once(f"{path} could have been written by another user: its kernels are not run, but compiled again")
        except OSError:
            warn_once(f"{path} is damaged: its kernels are compiled again")
        else:
            if opened.digest == path.stem.partition("-")[2]:
                return _loaded_from(opened)
            opened.close()
            warn_once(f"{path} is damaged: its kernels are compiled again")
    with _workshop(None if unsafe else folder) as temporary:
        new = Path(temporary) / f"{key}.so"
        if not unsafe:
            note(f"compiling kernels for this CPU, once ({folder})")
        _compile(compiler, new)
        try:
            new.chmod(0o755)  # whatever the umask, nobody else can write it
            opened = _Opened(new)
        except OSError as error:
            raise _Unavailable(f"the compiled kernels cannot be read: {error}") from error
        loaded = _loaded_from(opened)
        if wrong := disagreement(loaded):
            raise _Unavailable(f"the kernels that {compiler} has compiled are wrong on this CPU: {wrong}")
        if not unsafe and _keep(new, kept := folder / f"{key}-{opened.digest}.so"):
            loaded._name = str(kept)
    return loaded


def _loaded_from(opened: _Opened) -> ctypes.CDLL:
    """The library of an open file, whose `_name` is the file's path."""
    try:
        found = opened.load()
    except OSError as error:
        opened.close()
        raise _Unavailable(f"the compiled kernels cannot be loaded: {error}") from error
    for name in ("attention_forward", "attention_backward"):
        getattr(found, name).restype = ctypes.c_bool  # whether there was enough memory
    return found


def _why_unsafe(folder: Path) -> str:
    """Why others could exchange files in a folder, and what to do about it; '' if nobody can.

    The rule is sshd's StrictModes: the folder and its parents belong to this user or root, and nobody else can write
    them. In a parent with the sticky bit, such as /tmp, others can write, but not rename what is not theirs.
    """
    for each in (folder, *folder.parents) if os.name == "posix" else ():
        try:
            found = os.lstat(each)
        except OSError:  # what cannot be looked at cannot be opened
            continue
        if found.st_uid not in (0, os.getuid()):
            return (
                f"{each} belongs to user {found.st_uid}, who can exchange them; only you ({os.getuid()}) and root may: "
                "set POSCLI_CACHE to a folder of your own"
            )
        sticky = each != folder and found.st_mode & stat.S_ISVTX
        if found.st_mode & OTHERS_WRITE and not sticky:
            mode = f"{stat.S_IMODE(found.st_mode):o}"
            return f"others can write {each} (mode {mode}) and exchange them; only you and root may: chmod go-w {each}"
    return ""


class _Opened:
    """A file of kernels that is open for reading, and the hash of what was read from it.

    Raises PermissionError if somebody else can have written the file, and OSError if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        # Some systems lack some of these flags. With O_NONBLOCK, a pipe in place of the file is not waited for.
        flags = sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY"))
        self.path = path
        try:
            self.descriptor = os.open(path, os.O_RDONLY | flags)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise PermissionError("it is a link, which O_NOFOLLOW forbids") from error
            raise
        try:
            found = os.fstat(self.descriptor)
            if os.name == "posix" and (found.st_uid not in (0, os.getuid()) or found.st_mode & OTHERS_WRITE):
                raise PermissionError("its owner or mode allows others to write it")
            with open(self.descriptor, "rb", closefd=False) as file:
                self.content = file.read()
        except OSError:
            self.close()
            raise
        self.digest = hashlib.sha256(self.content).hexdigest()[:16]

    def load(self) -> ctypes.CDLL:
        """The content as a library whose `_name` is the path; OSError if it is not one.

        The descriptor stays open. The loader knows libraries by the path they were loaded from, and would take the next
        file that has this number for this one.
        """
        if os.name != "posix":
            return ctypes.CDLL(str(self.path))
        if OPEN_FILES.is_dir():
            found = ctypes.CDLL(str(OPEN_FILES / str(self.descriptor)))
        else:
            with tempfile.TemporaryDirectory(prefix="poscli-") as private:
                (copy := Path(private) / self.path.name).write_bytes(self.content)
                found = ctypes.CDLL(str(copy))
        found._name = str(self.path)
        return found

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)


@contextmanager
def _workshop(folder: Path | None) -> Iterator[str]:
    """A new folder to compile in. It lies in `folder` where that can be written: some machines run nothing in /tmp."""
    try:
        try:
            made = tempfile.TemporaryDirectory(prefix="poscli-" if folder is None else "new-", dir=folder)
        except OSError:
            made = tempfile.TemporaryDirectory(prefix="poscli-")
    except OSError as error:
        raise _Unavailable(f"no folder to compile in can be made: {error}") from error
    with made as temporary:
        yield temporary


def _place(compiler: str) -> tuple[Path, str]:
    """The folder of libraries, and the beginning of the name of the one for this compiler and CPU."""
    try:
        # Links are followed here, so that what is checked is where the files lie, and no link can change that.
        folder = (cache_folder() / "native").resolve()
    except RuntimeError as error:
        raise _Unavailable(f"no folder for them is known: {error}; set POSCLI_CACHE to one") from error
    program = Path(compiler).resolve()
    installed = program.stat()  # of another version, the compiler has another size or time
    parts = [str(program), str(installed.st_size), str(installed.st_mtime_ns), *FLAGS, FOR_THIS_CPU, torch.__version__]
    parts += [cpu(), *sorted(cpu_flags()), *_openmp()]
    parts += [path.read_text() for path in sorted([*FOLDER.glob("*.cpp"), *FOLDER.glob("*.h")])]
    return folder, hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]


def _compile(compiler: str, to: Path) -> None:
    command = [compiler, *FLAGS, FOR_THIS_CPU, *(str(FOLDER / name) for name in SOURCES), *_openmp(), "-o", str(to)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_COMPILATION, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise _Unavailable(f"{compiler} fails: {error}") from error
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line.lower()), done.stderr[:200].strip())
        said = said or f"it ended with code {done.returncode} and said nothing"
        raise _Unavailable(f"{compiler} cannot compile them: {said.strip()}")


def _openmp() -> list[str]:
    """Torch's own OpenMP library, if it brings one: two pools of threads would fight for the cores."""
    folder = Path(torch.__file__).parent / "lib"
    return [
        str(path) for path in sorted([*folder.glob("libgomp*"), *folder.glob("libomp*"), *folder.glob("libiomp5*")])[:1]
    ]


def _keep(new: Path, path: Path) -> bool:
    """Whether a proven library could be moved to its place. Where it could not, it serves this process only."""
    try:
        new.replace(path)
    except OSError as error:
        warn_once(f"the compiled kernels cannot be kept in {path.parent} ({error.strerror}): compiled anew each time")
        return False
    return True
