"""The C++ kernels of this folder as a loaded library: compiled at the first use, kept in the user's cache folder.

A library is compiled with the instructions of the CPU at hand. Its file name holds a hash of all that decides its
machine code (sources, compiler, flags, CPU), and one of its content. It gets that name only after its results have been
compared with the formula (proof.py), so that a library found under it has been proven on such a CPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from poscli.native.proof import disagreement
from poscli.system.cache_folder import cache_folder
from poscli.system.console import note, warn_once
from poscli.system.device import cpu_flags
from poscli.system.provenance import cpu

OFF = "POSCLI_NATIVE"  # the variable that, set to 0, switches compiled kernels off
SOURCES = ("forward.cpp", "backward.cpp", "rows_backward.cpp", "mixing_backward.cpp", "layers.cpp")
FOLDER = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
# No flag may let the compiler reorder sums: results would then differ from compiler to compiler more than they must.
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno")
FOR_THIS_CPU = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
LONGEST_COMPILATION = 300  # seconds; it takes 5


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
    for path in sorted(folder.glob(f"{key}-*.so")):
        if not _is_ours(path):
            warn_once(f"{path} could have been written by another user: its kernels are not run, but compiled again")
        elif _digest(path) == path.stem.partition("-")[2]:
            return _loaded_from(path)
        else:
            warn_once(f"{path} is damaged: its kernels are compiled again")
    with _workshop(folder) as temporary:
        new = Path(temporary) / f"{key}.so"
        note(f"compiling kernels for this CPU, once ({folder})")
        _compile(compiler, new)
        loaded = _loaded_from(new)
        if wrong := disagreement(loaded):
            raise _Unavailable(f"the kernels that {compiler} has compiled are wrong on this CPU: {wrong}")
        kept = _kept(new, folder / f"{key}-{_digest(new)}.so")
        return loaded if kept is None else _loaded_from(kept)


def _loaded_from(path: Path) -> ctypes.CDLL:
    try:
        found = ctypes.CDLL(str(path))
    except OSError as error:
        raise _Unavailable(f"the compiled kernels cannot be loaded: {error}") from error
    for name in ("attention_forward", "attention_backward"):
        getattr(found, name).restype = ctypes.c_bool  # whether there was enough memory
    return found


def _is_ours(path: Path) -> bool:
    """Whether only this user, or root, can have written a file: code of anyone else is not to be run."""
    if os.name != "posix":
        return True
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid in (0, os.getuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@contextmanager
def _workshop(folder: Path) -> Iterator[str]:
    """A new folder to compile in. It lies in `folder` where that can be written: some machines run nothing in /tmp."""
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            made = tempfile.TemporaryDirectory(prefix="new-", dir=folder)
        except OSError:
            made = tempfile.TemporaryDirectory(prefix="poscli-")
    except OSError as error:
        raise _Unavailable(f"no folder to compile in can be made: {error}") from error
    with made as temporary:
        yield temporary


def _digest(path: Path) -> str:
    """A hash of the content of a file, so that a damaged library is never run; '' if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def _place(compiler: str) -> tuple[Path, str]:
    """The folder of libraries, and the beginning of the name of the one for this compiler and CPU."""
    try:
        folder = cache_folder() / "native"
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


def _kept(new: Path, path: Path) -> Path | None:
    """The place of a proven library, once it is there. Where that fails (None), it serves this process only."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        shutil.copyfile(new, beside)
        beside.chmod(0o755)  # whatever the umask, nobody else can write it
        beside.replace(path)
    except OSError as error:
        warn_once(f"the compiled kernels cannot be kept in {path.parent} ({error.strerror}): compiled anew each time")
        return None
    return path
