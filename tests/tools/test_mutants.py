"""`make mutants`: what is drawn, which tests a mutant meets, and that a change is noticed where a test looks."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="make mutants installs it")
pytest.importorskip("coverage", reason="make mutants installs it")

from cli_runner import environment
from mutants import equivalent
from mutants.draw import Mutant, draw
from mutants.run import Outcome
from mutants.summary import write

TOY = """from __future__ import annotations
from dataclasses import dataclass
__all__ = ["A" + "B"]
LIMIT: int | None = 7


def larger(a: int | None, *, b: int = 3) -> int | None:
    \"\"\"
    >>> LIMIT
    7
    \"\"\"
    assert a, "no" + "thing"
    if a > b:
        return a
    return b


class Function:
    pass


@dataclass(frozen=True)
class Pairs(Function):
    @staticmethod
    def forward(a, b):
        return [*zip(a, b, strict=True)]
"""
TEST = """import toy


def test_larger():
    assert toy.larger(5) == 5
    assert toy.larger(1) == 3
"""
FORKING = """
import json, os, sys
from pathlib import Path
from mutants import child
root = Path(sys.argv[1])
sys.path.insert(0, str(root))
for text in json.loads(sys.argv[2]):
    process = child.start(("toy.py", text), ["test_toy.py::test_larger", "toy.py::toy.larger"], 60, root, root)
    _, status, _ = os.wait4(process, 0)
    verdict = child.verdict_of(process, status, root)
    print(json.dumps([verdict.caught, verdict.failed, verdict.ran]))
"""


@pytest.fixture
def toy(tmp_path) -> Path:
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "test_toy.py").write_text(TEST)
    return tmp_path


def test_a_sample_is_a_function_of_its_seed_and_changes_what_has_an_effect(toy) -> None:
    """Neither annotations nor `__all__` nor the message of an assertion nor a bare star; everything else is changed.

    Nor invariants: that a dataclass is frozen, a zip strict and a method of torch's Functions static. A larger sample
    begins with the smaller one, no place comes twice, and every mutant is another program.
    """
    every = draw(1, 100, [toy / "toy.py"], toy)
    assert {(mutant.line, mutant.operator.split("/")[1].split("_")[0]) for mutant in every} == {
        (4, "NumberReplacer"),
        (7, "NumberReplacer"),
        (12, "AddNot"),
        (13, "AddNot"),
        (13, "ReplaceComparisonOperator"),
        (22, "RemoveDecorator"),
    }
    assert draw(1, 3, [toy / "toy.py"], toy) == every[:3]
    assert [mutant.line for mutant in draw(2, 100, [toy / "toy.py"], toy)] != [mutant.line for mutant in every]
    assert len(every) == 6
    assert all(ast.dump(ast.parse(mutant.source(toy))) != ast.dump(ast.parse(TOY)) for mutant in every)


def test_a_change_lies_on_the_line_that_it_names(tmp_path) -> None:
    """Also below a bare star, which cosmic-ray would change and counts."""
    file = tmp_path / "area.py"
    file.write_text("def area(a, *, b):\n    return a * b\n\n\ndef volume(a, *, b):\n    return a * b * b\n")
    drawn = draw(1, 100, [file], tmp_path)
    assert [mutant.line for mutant in sorted(drawn, key=lambda mutant: (mutant.line, mutant.column))] == [2, 6, 6]
    lines = file.read_text().splitlines()
    for mutant in drawn:
        changed = mutant.source(tmp_path).splitlines()
        assert [n for n, (old, new) in enumerate(zip(lines, changed, strict=True), 1) if old != new] == [mutant.line]


def tried(toy: Path, changes: list[str]) -> subprocess.CompletedProcess[str]:
    """The toy's tests against its file with other texts, each in a fork of one process."""
    environ = environment(PYTHONPATH=str(Path(__file__).parents[2] / "tools"), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    command = [sys.executable, "-c", FORKING, str(toy), json.dumps(changes)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)


def test_a_module_that_is_imported_before_the_mutant_is_in_its_place_is_an_error_of_the_tool(toy) -> None:
    """It would survive, because the tests meet the module as it was."""
    (toy / "conftest.py").write_text("import toy\n")
    done = tried(toy, [TOY.replace("3)", "4)")])
    assert done.returncode == 1
    assert "RuntimeError: toy was imported before the mutant was in its place" in done.stderr


def test_a_change_that_a_test_sees_is_caught_and_another_survives(toy) -> None:
    """Also by the doctest of a changed file, which pytest imports in a way of its own."""
    (toy / "pytest.ini").write_text("[pytest]\naddopts = --doctest-modules\n")
    changes = [TOY, TOY.replace("3)", "4)"), TOY.replace("7\n\n", "8\n\n"), TOY.replace("a > b", "a >= b")]
    done = tried(toy, changes)
    assert done.returncode == 0, done.stderr
    caught = [[True, "test_toy.py::test_larger", 1], [True, "toy.py::toy.larger", 2]]
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[False, "", 2], *caught, [False, "", 2]]


ENTRY = """
[[equivalent]]
file = "poscli/report/x.py"
before = "size = 512"
after = ["size = 511", "size = 513"]
kind = "cost"
because = "blocks of any size give the same sums"
"""


def outcome(before: str, after: str, *, caught: bool = False) -> Outcome:
    mutant = Mutant("poscli/report/x.py", 3, 0, "core/NumberReplacer", 0, "")
    return Outcome(f"{before} {after}", mutant, before, after, caught, 4, 3, "", "", 1.0)


def test_listed_survivors_are_apart_and_do_not_count_as_missed(tmp_path) -> None:
    """By the text of the line, wherever it stands; of two changes to a line only the listed one."""
    (tmp_path / "list.toml").write_text(ENTRY)
    known = equivalent.load(tmp_path / "list.toml")
    survived = [outcome("size = 512", "size = 513"), outcome("size = 512", "size = -512")]
    caught = [outcome("a", "b", caught=True), outcome("c", "d", caught=True)]
    head = write([*survived, *caught], tmp_path / "x.md", "Title", known)
    counts = "4 mutants: 2 caught, 2 survived, of which 1 are equivalent. Of the 3 with an effect 66.7 % are caught"
    assert counts in head
    text = (tmp_path / "x.md").read_text()
    assert "| report | 4 | 2 | 1 |" in text
    missed, apart = text.split("## Equivalent: only time or memory differ")
    assert "`size = -512`" in missed
    assert "`size = 513`" not in missed
    assert "| equivalent, because |" in apart
    assert "| `size = 512` | `size = 513` | blocks of any size give the same sums |" in apart
    assert "no longer in the source" in text
    assert "- poscli/report/x.py: `size = 512`" in text


def test_an_entry_without_a_reason_is_refused(tmp_path) -> None:
    for wrong in (ENTRY.replace("cost", "taste"), ENTRY.replace("blocks of any size give the same sums", "")):
        (tmp_path / "list.toml").write_text(wrong)
        with pytest.raises(ValueError, match="size = 512"):
            equivalent.load(tmp_path / "list.toml")


def test_no_change_is_listed_twice() -> None:
    changes = [(entry.file, entry.before, after) for entry in equivalent.load() for after in entry.after]
    assert len({*changes}) == len(changes)
