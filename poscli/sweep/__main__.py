"""Run one job in this process: the job as JSON on stdin, its outcome as JSON on stdout, progress on stderr."""

from __future__ import annotations

import sys

from pydantic import ValidationError

from poscli.sweep.job import Job
from poscli.sweep.runners import Here
from poscli.system.errors import USAGE
from poscli.system.signals import Interrupted


def main() -> int:
    """Run the job on stdin.

    The exit code is 0 even if the job failed, 2 if stdin is not a job, and that of the signal if one stopped it.
    """
    try:
        job = Job.model_validate_json(sys.stdin.read())
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        cause = f"{where}: {error.errors()[0]['msg']}" if where else error.errors()[0]["msg"]
        sys.stderr.write(f"error: stdin is not a job ({cause}); it takes what Job.model_dump_json writes\n")
        return USAGE
    try:
        outcome = Here().run(job)
    except Interrupted as stop:
        return stop.exit_code
    sys.stdout.write(outcome.model_dump_json() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
