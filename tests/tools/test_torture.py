"""A sample of the torture suite; `make torture` runs all of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from torture.pipeline import STEPS
from torture.rows import ROWS, Row, _whole

# Trials of each row that is sampled; the others have tests of their own, in processes, cli and report.
SAMPLE = {
    "death": 1,
    "ENOSPC": 1,
    "SIGKILL": 1,
    "mutated files": 4,
    "mutated corpora": 2,
    "hostile names": 2,
    "pickles": 2,
}
WIDE = {"SIGTERM": 1, "SIGINT": 1, "2, 4, 8": 1, "2-rank": 1, "resume": 2, "NaN": 2}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSCLI_QUIET", "1")
        yield tmp_path_factory.mktemp("torture")


def row_of(start: str) -> Row:
    (row,) = [row for row in ROWS if row.test.startswith(start)]
    return row


@pytest.mark.parametrize(
    ("start", "count"), [*SAMPLE.items(), *(pytest.param(*each, marks=pytest.mark.wide) for each in WIDE.items())]
)
def test_a_sample(start: str, count: int, base: Path) -> None:
    row = row_of(start)
    trials = list(row.trials(base))
    for n in random.Random(row.test).sample(range(len(trials)), count):
        name, trial = trials[n]
        assert not trial(base / f"{row.test[:8]}-{n}"), name


def test_a_fault_that_is_not_survived_is_found(base: Path) -> None:
    """The trials can fail: a run whose weights were changed, and whose checksums were made to agree, is noticed."""
    whole = _whole(base)
    out = whole.start("extrapolate", base / "changed")
    (weights,) = out.rglob(f"step-{STEPS}/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert any("model.safetensors differs" in fault for fault in whole.differences("train", out))
