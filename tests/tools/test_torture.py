"""A sample of the torture suite; `make torture` runs all of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from torture.pipeline import STEPS
from torture.rows import ROWS, Row

SAMPLE = {  # trials of each row
    "death": 1,
    "ENOSPC": 1,
    "SIGKILL": 1,
    "SIGTERM": 1,
    "SIGINT": 1,
    "mutated files": 4,
    "mutated corpora": 2,
    "hostile names": 2,
    "hostile texts": 0,  # tests/report/test_report_texts.py
    "random command": 0,  # tests/cli/test_commands.py
    "pickles": 2,
    "2, 4, 8": 1,
    "Ray sweep": 0,  # tests/processes/test_cluster.py
    "2 local workers": 0,  # tests/processes/test_workers.py
    "2-rank": 1,
    "resume": 2,
    "NaN": 2,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSCLI_QUIET", "1")
        yield tmp_path_factory.mktemp("torture")


def rows() -> list[ParameterSet]:
    """The rows as parameters: `make test` takes those that no other file tests in small."""
    kept = ("death", "ENOSPC", "SIGKILL", "mutated", "hostile names", "pickles")
    return [
        pytest.param(row, id=row.test, marks=[] if row.test.startswith(kept) else [pytest.mark.wide]) for row in ROWS
    ]


@pytest.mark.parametrize("row", rows())
def test_a_sample(row: Row, base: Path) -> None:
    trials = list(row.trials(base))
    count = next(count for name, count in SAMPLE.items() if row.test.startswith(name))
    chosen = random.Random(row.test).sample(range(len(trials)), count)
    found = {}
    for n in chosen:
        name, trial = trials[n]
        if faults := trial(base / f"{row.test[:8]}-{n}"):
            found[name] = faults
    assert not found


def test_a_fault_that_is_not_survived_is_found(base: Path) -> None:
    """The trials can fail: a run whose weights were changed, and whose checksums were made to agree, is noticed."""
    from torture.rows import _whole

    whole = _whole(base)
    out = whole.start("extrapolate", base / "changed")
    (weights,) = out.rglob(f"step-{STEPS}/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert any("model.safetensors differs" in fault for fault in whole.differences("train", out))
