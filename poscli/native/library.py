"""The C++ kernels of this folder as a loaded library: compiled at the first use, kept in the user's cache folder.

A library is compiled with the instructions of the CPU at hand. Its file name holds a hash of all that decides its
machine code (sources, compiler, flags, CPU), and one of its content. It gets that name only after its results have been
compared with the formula (proof.py), so that a library found under it has been proven on such a CPU.

A library is code. It is read only from a folder in which nobody but this user and root can put or exchange a file.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import torch

from poscli.native.proof import disagreement
from poscli.system.console import note, warn_once
from poscli.system.device import cpu_flags
from poscli.system.errors import DataError
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


class _Unavailable(Exception):
    """Why there is no library, in the words of `why_not`."""


def library() -> ctypes.CDLL | None:
    """The library; None if it cannot be had here, for the reason that `why_not` gives."""
    return _found()[0]


def why_not() -> str:
    """Why there is no library; '' if there is one."""
    return _found()[1]


def _found() -> tuple[ctypes.CDLL | None, str]:
    off = os.environ.get(OFF, "") == "0"
    return (None, f"{OFF}=0 switches compiled kernels off") if off else _loaded()


@cache
def _loaded() -> tuple[ctypes.CDLL | None, str]:
    """The library, and why there is none: it is looked for, and compiled, once per process."""
    try:
        return _proven(_compiler()), ""
    except _Unavailable as error:
        warn_once(f"attention runs on torch's kernels, which are slower on a CPU: {error}")
        return None, str(error)


def _compiler() -> str:
    """The path of a C++ compiler: that of the variable CXX, or the first that is found.

    Apple's, in /usr/bin of macOS, is passed over: it has no OpenMP, and where it is not installed its name opens a
    window that offers to install it.
    """
    wanted, apples = os.environ.get("CXX", ""), 0
    for name in [wanted] if wanted else COMPILERS:
        path = shutil.which(name)
        if path and sys.platform == "darwin" and path.startswith("/usr/bin/") and not wanted:
            apples += 1
        elif path:
            return path
    if wanted:
        raise _Unavailable(f"CXX={wanted} is not found")
    but = " but Apple's, which has no OpenMP; CXX may name another" if apples else ""
    raise _Unavailable(f"no C++ compiler ({', '.join(COMPILERS)}) is found{but}")


def _proven(compiler: str) -> ctypes.CDLL:
    """The library from the cache folder; compiled and compared with the formula first, if it is not there."""
    folder, key = _place(compiler)
    with suppress(OSError):  # nothing is found in the folder then, and nothing can be kept, which is said below
        make_in_cache(folder)
    if unsafe := _why_unsafe(folder):
        warn_once(f"compiled kernels are neither read from nor kept in {folder}, but compiled anew each time: {unsafe}")
    for path in [] if unsafe else sorted(folder.glob(f"{key}-*.so")):
        if _others_can_write(path):
            warn_once(f"{path} could have been written by another user: its kernels are not run, but compiled again")
        elif _digest(path) == path.stem.partition("-")[2]:
            return _load(path)
        else:
            warn_once(f"{path} is damaged: its kernels are compiled again")
    with _workshop(None if unsafe else folder) as temporary:
        new = Path(temporary) / f"{key}.so"
        if not unsafe:
            note(f"compiling kernels for this CPU, once ({folder})")
        _compile(compiler, new)
        loaded = _load(new)
        if wrong := disagreement(loaded):
            raise _Unavailable(f"the kernels that {compiler} has compiled are wrong on this CPU: {wrong}")
        if not unsafe:
            kept = folder / f"{key}-{_digest(new)}.so"
            try:
                new.chmod(0o755)  # whatever the umask, nobody else can write it
                new.replace(kept)
                loaded._name = str(kept)
            except OSError as error:  # it serves this process only
                warn_once(
                    f"the compiled kernels cannot be kept in {folder} ({error.strerror}): compiled anew each time"
                )
    return loaded


def _load(path: Path) -> ctypes.CDLL:
    """The library in a file, which `_name` names."""
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise _Unavailable(f"the compiled kernels cannot be loaded: {error}") from error
    for name in ("attention_forward", "attention_backward"):
        getattr(loaded, name).restype = ctypes.c_bool  # whether there was enough memory
    return loaded


def _digest(path: Path) -> str:
    """A hash of the content of a file; '' if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def _others_can_write(path: Path) -> bool:
    """Whether a file is a link or something else than a file, or belongs to, or can be written by, somebody else."""
    try:
        status = path.lstat()
    except OSError:
        return False
    foreign = os.name == "posix" and (status.st_uid not in (0, os.getuid()) or bool(status.st_mode & OTHERS_WRITE))
    return foreign or not stat.S_ISREG(status.st_mode)


def _why_unsafe(folder: Path) -> str:
    """Why others could exchange files in a folder, and what to do about it; '' if nobody can.

    The rule is sshd's StrictModes: the folder and its parents belong to this user or root, and nobody else can write
    them. In a parent with the sticky bit, such as /tmp, others can write, but not rename what is not theirs.
    """
    for each in (folder, *folder.parents) if os.name == "posix" else ():
        try:
            status = os.lstat(each)
        except OSError:  # what cannot be looked at cannot be opened
            continue
        if (owner := status.st_uid) not in (0, os.getuid()):
            return (
                f"{each} belongs to user {owner}, who can exchange them; only you ({os.getuid()}) and root may: "
                "set POSCLI_CACHE to a folder of your own"
            )
        sticky = each != folder and status.st_mode & stat.S_ISVTX
        if status.st_mode & OTHERS_WRITE and not sticky:
            mode = f"{stat.S_IMODE(status.st_mode):o}"
            return f"others can write {each} (mode {mode}) and exchange them; only you and root may: chmod go-w {each}"
    return ""


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
    except (DataError, RuntimeError) as error:  # the second: links that form a loop
        raise _Unavailable(f"no folder for them is known: {error}") from error
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
