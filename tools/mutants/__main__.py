"""`python -m mutants`: draw a sample of mutants, run the tests against each, and list the survivors."""

from __future__ import annotations

import argparse
import os
import signal
import sys

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # before torch is imported

from mutants import child, coverage_map, draw, equivalent, run, summary
from mutants.coverage_map import HOME


def main() -> int:
    """Exit code 0 whether or not there are survivors: they are places to look at, not failures."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the sample")
    parser.add_argument("--count", type=int, default=300, help="mutants in the sample")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=60.0, help="of CPU that the tests of one mutant may take")
    parser.add_argument("--again", action="store_true", help="try the survivors again, after tests were added")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that children are ended too
    HOME.mkdir(exist_ok=True)
    known = equivalent.load()
    results = HOME / f"seed{given.seed}.jsonl"
    if (code := coverage_map.refresh()) not in (0, 1):  # tests that fail without a mutant are left out
        return code
    drawn = draw.draw(given.seed, given.count)
    if given.again:
        run.forget(results, [key for key, outcome in run.read(results).items() if not outcome.caught])
    child.preload()
    outcomes = run.sample(drawn, coverage_map.CoverageMap(), results, given.jobs, given.seconds)
    path = HOME / f"seed{given.seed}.md"
    print(summary.write(outcomes, path, f"Mutants, seed {given.seed}", known), path, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
