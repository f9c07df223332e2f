"""Which tests a mutant is run against, and in which order."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from mutants.coverage_map import ROOT, SOURCE, CoverageMap
from mutants.draw import Mutant

FIRST_SECONDS = 6.0  # of CPU: the wave that catches most mutants
FIRST_FILES = 4  # of the same wave: to collect a file takes about a second

Lines = set[int]


def covering(mutant: Mutant, known: CoverageMap) -> set[str]:
    """The tests that run the changed statement.

    A statement outside functions runs when its module is imported, which says nothing. For such a one: the tests that
    run a function of the module, and those that run a line anywhere in poscli with a name that the statement defines.
    """
    file = ROOT / mutant.file
    lines, names = statement(ast.parse(text_of(file)), mutant.line)
    if names is None:
        return known.tests_of(file, lines)
    tests = known.tests_of(file, lines_in_functions(file))
    if names:
        word = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
        for other in SOURCE.rglob("*.py"):
            text = text_of(other).splitlines()
            naming = {line for line in lines_in_functions(other) if word.search(text[line - 1])}
            tests |= known.tests_of(other, naming)
    return tests or named(file, known.times.seconds)


def named(file: Path, tests: Iterable[str]) -> set[str]:
    """The tests with the name of a file, as that of an encoding, among their parameters.

    For a file without a line that is called, such as an encoding that only declares what it inherits.
    """
    word = re.compile(rf"\[(.*\W)?{re.escape(file.stem.replace('_', '-'))}\b")
    return {test for test in tests if word.search(test)}


def waves(mutant: Mutant, tests: set[str], known: CoverageMap, most_seconds: float) -> list[list[str]]:
    """The tests to run, in two ordered parts: the nearest, and the others that fit into `most_seconds` of CPU.

    What no test has noticed by then counts as a survivor.
    """
    near = nearness(mutant.file)
    turn: dict[str, int] = {}
    count: dict[str, int] = defaultdict(int)
    for test in sorted(tests, key=lambda test: (known.times.seconds[test], test)):  # the fastest parameters come first
        function = test.split("[")[0]
        turn[test] = count[function]
        count[function] += 1
    ordered = sorted(tests, key=lambda test: (turn[test], -near(test), known.times.seconds[test], test))
    files = list(dict.fromkeys(test.split("::")[0] for test in ordered))
    parts: list[list[str]] = [[], []]
    paid: list[set[str]] = [set(), set()]
    spent = [0.0, 0.0]
    for test in ordered:
        for part, limit in enumerate((FIRST_SECONDS, most_seconds)):
            seconds = known.times.of(test, paid[part])
            if part == 0 and test.split("::")[0] not in files[:FIRST_FILES]:
                continue
            if spent[part] + seconds <= limit or not any(parts):
                parts[part].append(test)
                paid[part].update(known.times.fixtures[test])
                spent[part] += seconds
                break
    return [sorted(part, key=lambda test: (-near(test), test.split("::")[0])) for part in parts if part]


def nearness(file: str) -> Nearness:
    """How near a test's file lies to a file of poscli: by the words that their paths share."""
    path = Path(file).with_suffix("")
    return Nearness(file, set(re.split(r"[_/]", str(path.relative_to("poscli")))) - {"", "init"})


class Nearness:
    """Called with a test, returns a number: larger is nearer."""

    def __init__(self, file: str, words: set[str]) -> None:
        self.file, self.words = file, words

    def __call__(self, test: str) -> int:
        file = test.split("::")[0]
        if file == self.file:  # a doctest of this file
            return 100
        return len(self.words & set(re.split(r"[_/]", Path(file).stem)))


def statement(tree: ast.Module, line: int) -> tuple[Lines, list[str] | None]:
    """The lines of the innermost statement at a line, and the names it defines; None for these inside a function.

    Of a statement with a body, only the lines above the body.
    """
    best: ast.stmt | None = None
    in_function, names = False, []
    for node, inside, owner in _statements(tree.body, False, []):
        if _first_line(node) <= line <= (node.end_lineno or node.lineno):
            best, in_function, names = node, inside, owner
    if best is None:
        return {line}, []
    body = getattr(best, "body", None)
    last = body[0].lineno - 1 if body and body[0].lineno > best.lineno else best.end_lineno or best.lineno
    lines = set(range(_first_line(best), max(last, line) + 1))
    return lines, None if in_function else names


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])


def _statements(body: list[ast.stmt], inside: bool, names: list[str]) -> list[tuple[ast.stmt, bool, list[str]]]:
    """Every statement from the outside in, whether a function contains it, and the names it or its class defines."""
    found: list[tuple[ast.stmt, bool, list[str]]] = []
    for node in body:
        own = _defined(node) or names
        found.append((node, inside, own))
        deeper = inside or isinstance(node, ast.FunctionDef)
        for block in ("body", "orelse", "finalbody"):
            found += _statements(getattr(node, block, []), deeper, own)
        for part in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
            found += _statements(part.body, deeper, own)
    return found


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]


@cache
def text_of(file: Path) -> str:
    """The source of a file as it was when it was first asked for: somebody may be editing it."""
    return file.read_text(encoding="utf-8")


@cache
def lines_in_functions(file: Path) -> Lines:
    """The lines that run when a function is called, not when the module is imported."""
    functions = [node for node in ast.walk(ast.parse(text_of(file))) if isinstance(node, ast.FunctionDef)]
    return {line for node in functions for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)}
