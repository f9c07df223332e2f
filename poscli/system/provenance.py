"""Provenance of a result: versions, machine, and the commit of the source tree."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

import poscli
from poscli.system import plugins
from poscli.system.device import cpu_has_bfloat16, device_name
from poscli.system.text import printable_line

LONGEST_MACHINE = 100  # characters of a machine's name


@cache
def commit() -> str:
    """The commit of the source tree that runs, followed by `+` if poscli/ has been changed; "" if there is no tree."""
    root = Path(poscli.__file__).parent.parent
    if not (root / ".git").exists():
        return ""
    try:
        head = _git(root, "rev-parse", "--short=10", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "poscli")
        return head + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(root: Path, *arguments: str) -> str:
    return _said_by("git", "-C", str(root), *arguments)


def _said_by(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()


def machine() -> str:
    """The name of this machine in results, on one line: POSCLI_MACHINE if that is set, else the host's name."""
    return printable_line(os.environ.get("POSCLI_MACHINE", "") or platform.node())[:LONGEST_MACHINE]


@cache
def cpu() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    said: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        said.setdefault(name.strip(), value.strip())  # each processor has the same lines
    if "model name" in said:
        return said["model name"]
    if sys.platform == "darwin":
        with suppress(OSError, subprocess.SubprocessError):
            return _said_by("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
    numbers = [f"{name} {said[name]}" for name in ("CPU implementer", "CPU part") if name in said]  # of ARM
    return ", ".join([platform.processor() or platform.machine(), *numbers])


def measured_on(device: torch.device) -> dict[str, str]:
    """The columns of eval.csv that say where and with what a loss is measured."""
    return {
        "device": device_name(device),
        "poscli": poscli.__version__,
        "commit": commit(),
        "machine": machine(),
        "cpu": cpu(),
        "torch": torch.__version__,
    }


def describe(device: torch.device) -> dict[str, Any]:
    """Versions and machine, for env.json and `poscli doctor`."""
    return measured_on(device) | {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_bfloat16": cpu_has_bfloat16(),
        "plugins": plugins.loaded(),
        "command": " ".join(["poscli", *sys.argv[1:]]),
    }
