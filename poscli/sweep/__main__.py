"""Run one job in this process: the job as JSON on stdin, its outcome as JSON on stdout, progress on stderr."""

from __future__ import annotations

import sys

from poscli.sweep.job import Job
from poscli.sweep.runners import Here
from poscli.system.signals import Interrupted


def main() -> int:
    """Run the job on stdin. The exit code is 0 even if the job failed, and that of the signal if one stopped it."""
    try:
        outcome = Here().run(Job.model_validate_json(sys.stdin.read()))
    except Interrupted as stop:
        return stop.exit_code
    sys.stdout.write(outcome.model_dump_json() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
