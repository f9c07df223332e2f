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
from mutants.draw import Mutant, draw, mutants_of
from mutants.run import Outcome
from mutants.selection import statement
from mutants.summary import guess, write

TOY = """from __future__ import annotations

__all__ = ["A" + "B"]
LIMIT: int | None = 7


def larger(a: int | None, b: int = 3) -> int | None:
    \"\"\"
    >>> LIMIT
    7
    \"\"\"
    assert a, "no" + "thing"
    if a > b:
        return a
    return b
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


def test_nothing_without_an_effect_is_changed(toy) -> None:
    """Neither annotations nor `__all__` nor the message of an assertion; everything else is."""
    lines = {(mutant.line, mutant.operator.split("/")[1].split("_")[0]) for mutant in mutants_of(toy / "toy.py", toy)}
    assert lines == {
        (4, "NumberReplacer"), (7, "NumberReplacer"), (12, "AddNot"), (13, "AddNot"), (13, "ReplaceComparisonOperator"),
    }  # fmt: skip


def test_a_sample_is_a_function_of_its_seed(toy) -> None:
    """A larger sample begins with the smaller one, no place comes twice, and every mutant is another program."""
    every = draw(1, 100, [toy / "toy.py"], toy)
    assert draw(1, 3, [toy / "toy.py"], toy) == every[:3]
    assert [mutant.line for mutant in draw(2, 100, [toy / "toy.py"], toy)] != [mutant.line for mutant in every]
    assert len(every) == 5
    assert all(ast.dump(ast.parse(mutant.source(toy))) != ast.dump(ast.parse(TOY)) for mutant in every)


def test_a_change_that_a_test_sees_is_caught_and_another_survives(toy) -> None:
    """Also by the doctest of a changed file, which pytest imports in a way of its own."""
    (toy / "pytest.ini").write_text("[pytest]\naddopts = --doctest-modules\n")
    changes = [TOY, TOY.replace("3)", "4)"), TOY.replace("7\n\n", "8\n\n"), TOY.replace("a > b", "a >= b")]
    environ = environment(PYTHONPATH=str(Path(__file__).parent), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    command = [sys.executable, "-c", FORKING, str(toy), json.dumps(changes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environ)
    caught = [[True, "test_toy.py::test_larger", 1], [True, "toy.py::toy.larger", 2]]
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[False, "", 2], *caught, [False, "", 2]]


def test_a_statement_is_its_lines_above_its_body_and_the_names_it_defines() -> None:
    tree = ast.parse(
        "class A:\n    x = [\n        1,\n    ]\n\n    def f(\n        self, y=2\n    ):\n        return y\n"
    )
    assert statement(tree, 3) == ({2, 3, 4}, ["x"])
    assert statement(tree, 7) == ({6, 7, 8}, ["f"])
    assert statement(tree, 9) == ({9}, None)


def test_the_summary_says_why_a_mutant_survived(tmp_path) -> None:
    mutant = Mutant("poscli/report/x.py", 3, 0, "core/NumberReplacer", 0, "")
    unseen = Outcome("a", mutant, "a | 1", "a | 2", False, 0, 0, "", "", 0.0)
    seen = Outcome("b", mutant, "x = block", "x = lock", False, 4, 3, "", "", 1.0)
    caught = Outcome("c", mutant, "", "", True, 4, 1, "test", "", 1.0)
    assert guess(unseen) == "no test in this process runs the line"
    assert guess(seen).startswith("covered by 4 tests (3 ran), none looks at this value; may be equivalent")
    assert "3 mutants, 1 caught, 2 survived" in write([unseen, seen, caught], tmp_path / "x.md", "Title")
    text = (tmp_path / "x.md").read_text()
    assert "| report | 3 | 2 |" in text
    assert r"| `a \| 1` | `a \| 2` |" in text
