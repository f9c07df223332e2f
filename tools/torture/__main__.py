"""Run the torture suite, or some of its rows, and write results/torture: `python -m torture [--only ROW]`.

Rows that are done keep their line in results/torture/torture.csv, so that an interrupted suite goes on with the next
row; --again forgets them.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from poscli.system.provenance import cpu

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "results" / "torture"
COLUMNS = ["test", "tried", "faults", "minutes", "rule"]
PAGE = Path(__file__).with_name("page.md")  # the text of results/torture/README.md

Trial = tuple[str, Callable[[Path], list[str]]]  # a name, and what to try in a folder of its own


@dataclass(frozen=True)
class Row:
    """A row of the table: what is tried, the rule, and all its trials."""

    test: str
    rule: str
    trials: Callable[[Path], Iterator[Trial]]


def main() -> int:
    """Run the rows; returns 1 if a trial found a fault."""
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("--only", help="run the rows with this text in their name")
    parser.add_argument("--share", type=float, default=1.0, help="share of the trials of each row to run")
    parser.add_argument("--again", action="store_true", help="run rows that are done already")
    parser.add_argument("--part", default="0/1", help="N/M: every M-th trial from the N-th, for M processes at once")
    asked = parser.parse_args()
    from .rows import ROWS

    os.environ["POSCLI_QUIET"] = "1"
    failed = False
    for row in ROWS:
        if asked.only and asked.only not in row.test:
            continue
        if not asked.again and asked.share == 1 and row.test in set(_done()["test"]):
            continue
        line = _run(row, asked.share, *map(int, asked.part.split("/")))
        failed |= line["faults"] > 0
        if asked.share == 1 and asked.part == "0/1":
            _write(line)
    return int(failed)


def _run(row: Row, share: float, part: int, parts: int) -> dict[str, object]:
    start, tried, faults = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="torture-") as base:
        for n, (name, trial) in enumerate(row.trials(Path(base))):
            if n % parts != part or n % max(1, round(1 / share)):
                continue
            folder = Path(base) / f"trial-{n}"
            found = trial(folder)
            tried, faults = tried + 1, faults + bool(found)
            for fault in found:
                print(f"{row.test}: {name}: {fault}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            if sys.stderr.isatty():
                print(f"\r{row.test}: {tried}", end="", file=sys.stderr)
    minutes = (time.monotonic() - start) / 60
    print(f"{row.test}: {tried} tried, {faults} with faults, {minutes:.1f} minutes", flush=True)
    return {"test": row.test, "tried": tried, "faults": faults, "minutes": round(minutes, 1), "rule": row.rule}


def _done() -> pd.DataFrame:
    path = FOLDER / "torture.csv"
    return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=COLUMNS)


def _write(line: dict[str, object]) -> None:
    """Put a row's line into torture.csv."""
    from .rows import ROWS

    known = {str(old["test"]): old for old in _done().to_dict("records")} | {str(line["test"]): line}
    table = pd.DataFrame([known[row.test] for row in ROWS if row.test in known], columns=COLUMNS)
    FOLDER.mkdir(parents=True, exist_ok=True)
    table.to_csv(FOLDER / "torture.csv", index=False)
    lines = ["| test | tried | with faults | minutes | rule |", "| --- | ---: | ---: | ---: | --- |"]
    lines += [f"| {' | '.join(str(row[name]) for name in COLUMNS)} |" for row in table.to_dict("records")]
    about = PAGE.read_text().format(
        python=platform.python_version(), torch=torch.__version__, cpu=cpu(), cores=os.cpu_count()
    )
    (FOLDER / "README.md").write_text(about.replace("TABLE", "\n".join(lines)))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
