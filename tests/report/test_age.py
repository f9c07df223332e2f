"""A report says which results are older than the code, and why."""

from __future__ import annotations

import inspect
from pathlib import Path

import pandas as pd
import pytest
from cli_runner import ROOT
from fake_results import results

from poscli.checkpoints.checkpoint_model import CheckpointModel
from poscli.config.code import MEASURING, TRAINING, code_hash, code_of
from poscli.data import Split
from poscli.data.profile import gram_numbers
from poscli.grids.images import training_grids
from poscli.report import build_report
from poscli.statistics.intervals import ratio_interval
from poscli.tasks import TASKS

CODE = '''"""A module."""

def f(x):
    """What it does."""
    return x + 1  # one more
'''


def notes(tmp_path: Path, rows: pd.DataFrame, positions: pd.DataFrame) -> list[str]:
    made = build_report(rows, positions, tmp_path).sections[0].notes
    return [note for note in made if note.startswith("Older than the code")]


def test_results_of_today_are_not_older(tmp_path: Path) -> None:
    assert notes(tmp_path, *results()) == []


def test_what_has_changed_is_named(tmp_path: Path) -> None:
    """The encoding of rope, all that trains alibi, and the measuring of t5; the others are of today."""
    rows, positions = results()
    of_rope, of_alibi = rows["encoding"] == "rope", rows["encoding"] == "alibi"
    rows.loc[of_rope, "measured_code"] = "00000000-" + code_of("rope", MEASURING).split("-")[1]
    rows["trained_code"] = [code_of(name, TRAINING) for name in rows["encoding"]]
    rows.loc[of_alibi, "trained_code"] = code_of("alibi", TRAINING).split("-")[0] + "-00000000"
    (note,) = notes(tmp_path, rows, positions)
    assert "rope (the code of the encoding has changed since)" in note
    assert "alibi (the code that trains or measures has changed since)" in note
    assert "t5" not in note


def test_results_that_say_nothing_are_older(tmp_path: Path) -> None:
    rows, positions = results()
    (note,) = notes(tmp_path, rows.assign(measured_code=""), positions)
    assert "all (made before results said by which code)" in note


@pytest.mark.parametrize(
    ("changed", "alike"),
    [
        (CODE.replace("  # one more", ""), True),
        (CODE.replace("What it does", "What it is for"), True),
        (CODE.replace("x + 1", "(x\n        + 1)"), True),
        (CODE.replace("+ 1", "+ 2"), False),
        (CODE.replace("f(x)", "f(x, y=0)"), False),
    ],
)
def test_only_the_meaning_of_code_counts(tmp_path: Path, changed: str, alike: bool) -> None:
    for name, text in (("one", CODE), ("other", changed)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "code.py").write_text(text, encoding="utf-8")
    one, other = (code_hash([tmp_path / name / "code.py"]) for name in ("one", "other"))
    assert (one == other) == alike


def test_the_hashes_have_every_task_and_all_that_measures() -> None:
    drawn = [Split, training_grids, *(TASKS.get(name) for name in TASKS.names())]
    for rooms, parts in ((TRAINING, drawn), (MEASURING, [*drawn, CheckpointModel, ratio_interval, gram_numbers])):
        for part in parts:
            file = Path(inspect.getfile(part)).relative_to(ROOT / "poscli")
            assert any(file.is_relative_to(room) for room in rooms), file


def test_an_encoding_that_builds_on_another_has_its_code_too() -> None:
    """Encodings of different files differ, and so do combinations; what is no encoding has no code."""
    own = {name: code_of(name, TRAINING).split("-")[0] for name in ("rope", "yarn", "alibi", "yarn+logn", "rope|none")}
    assert len(set(own.values())) == len(own)
    assert code_of("./mine.py:Mine", TRAINING).startswith("-")
