"""Draws mutants: a place in poscli's source, and one small change at it.

A place is a line, a column and a kind of operator (number, comparison, ...). Places are drawn uniformly, then one of
the changes at the place: drawn among all changes, half of the sample would be the eleven replacements of every `+`.
"""

from __future__ import annotations

import ast
import hashlib
import random
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import parso.tree
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from mutants.coverage_map import ROOT, SOURCE

# Not mutated: the commands, which are options and words, and Triton's kernels, which tests run in other processes.
LEFT_OUT = ("poscli/cli/", "poscli/attention/triton_kernels.py")
NEVER_MUTATED = {
    "name",
    "string",
    "fstring_start",
    "fstring_string",
    "fstring_end",
    "newline",
    "endmarker",
    "error_leaf",
}
ONLY_CHANGE = {"ReplaceBinaryOperator": "operator", "ReplaceComparisonOperator": "comparison"}  # most operators by far
PUNCTUATION = set("()[]{},.:;=@") | {"->", ":="}
# `a is b` for `a == b` differs or not by how CPython stores small numbers; the inserters need names of variables.
NOT_USED = ("_Is", "_IsNot", "VariableReplacer", "VariableInserter")

Span = tuple[tuple[int, int], tuple[int, int]]  # (line, column) of the begin and the end


@dataclass(frozen=True)
class Mutant:
    """One change: which operator of cosmic-ray, at which of the places in a file that it could change."""

    file: str  # relative to the repository
    line: int
    column: int
    operator: str
    occurrence: int
    source_hash: str  # of the file

    @property
    def key(self) -> str:
        """The mutant's name in the file of results; another one when the source changes."""
        return f"{self.file}:{self.line}:{self.column} {self.operator} {self.occurrence} {self.source_hash}"

    def source(self, root: Path = ROOT) -> str:
        """The changed source of the file; RuntimeError if the file is no longer the one the mutant was drawn for."""
        text = (root / self.file).read_text(encoding="utf-8")
        if hash_of(text) != self.source_hash:
            raise RuntimeError(f"{self.file} has changed since the sample was drawn; run the same command again")
        changed = mutate_code(text, get_operator(self.operator)(), self.occurrence)
        assert changed is not None
        return changed

    def change(self, root: Path = ROOT) -> tuple[str, str]:
        """The changed line before and after, without indentation."""
        before = (root / self.file).read_text(encoding="utf-8").splitlines()
        after = self.source(root).splitlines()
        if "RemoveDecorator" in self.operator:
            return before[self.line - 1].strip(), "(removed)"
        at = next(n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new)
        return before[at].strip(), after[at].strip()


def draw(seed: int, count: int, files: list[Path] | None = None, root: Path = ROOT) -> list[Mutant]:
    """`count` mutants, or one of every place. A larger sample of the same seed begins with the smaller one.

    Places are in the order of a hash, so that a change to one file leaves the mutants of all others in the sample.
    """
    places: dict[tuple[str, int, int, str], list[Mutant]] = defaultdict(list)
    for file in sources() if files is None else files:
        for mutant in mutants_of(file, root):
            places[mutant.file, mutant.line, mutant.column, kind_of(mutant.operator)].append(mutant)
    drawn: list[Mutant] = []
    for place in sorted(places, key=lambda place: hash_of(f"{seed} {place}")):
        choices = places[place]
        random.Random(f"{seed} {place}").shuffle(choices)
        working = next((mutant for mutant in choices if _changes(mutant, root)), None)
        if working is not None:
            drawn.append(working)
        if len(drawn) == count:
            break
    return drawn


def sources() -> list[Path]:
    """The files that are mutated."""
    return [file for file in sorted(SOURCE.rglob("*.py")) if not str(file.relative_to(ROOT)).startswith(LEFT_OUT)]


def mutants_of(file: Path, root: Path = ROOT) -> Iterator[Mutant]:
    """Every change that may have an effect in one file."""
    text = file.read_text(encoding="utf-8")
    name, digest = str(file.relative_to(root)), hash_of(text)
    skipped, kept = without_effect(ast.parse(text), text.splitlines())
    nodes = [node for node in ast_nodes(get_ast(text)) if _may_change(node)]
    for operator in operator_names():
        if operator.endswith(NOT_USED):
            continue
        positions_of = get_operator(operator)().mutation_positions
        asked = [node for node in nodes if node.type == ONLY_CHANGE.get(kind_of(operator), node.type)]
        positions = ((node, start) for node in asked for start, _ in positions_of(node))
        for occurrence, (node, (line, column)) in enumerate(positions):  # in the order in which cosmic-ray counts them
            if node.parent is not None and node.parent.type == "parameters":
                continue  # the star before keyword-only parameters: as a slash it forbids callers that do not exist
            if not within((line, column), skipped) or within((line, column), kept):
                yield Mutant(name, line, column, operator, occurrence, digest)


def kind_of(operator: str) -> str:
    """The kind of an operator.

    >>> kind_of("core/ReplaceBinaryOperator_Add_Sub")
    'ReplaceBinaryOperator'
    """
    return operator.split("/")[1].split("_")[0]


def hash_of(text: str) -> str:
    """Twelve hex digits that tell versions of a file apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def without_effect(tree: ast.Module, lines: list[str]) -> tuple[list[Span], list[Span]]:
    """The spans that nothing runs, and those inside them that something does run: calls such as pydantic's `Field`.

    Among them are invariants, which never fail: messages of assertions, frozen dataclasses, strict zips. And torch
    calls forward and backward of a Function through its class, where a function without `@staticmethod` is the same.
    """
    annotations: list[ast.AST] = []
    others: list[ast.AST] = []
    decorators: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            annotations.append(node.annotation)
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            annotations.append(node.returns)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            others.append(node)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            others.append(node)
        if isinstance(node, ast.Assert) and node.msg is not None:
            others.append(node.msg)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("dataclass", "zip"):
            others += [each.value for each in node.keywords if ast.unparse(each) in ("frozen=True", "strict=True")]
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Function") for base in node.bases):
            signed = [each for method in node.body for each in getattr(method, "decorator_list", [])]
            decorators += [each for each in signed if ast.unparse(each) == "staticmethod"]
    calls = (each for annotation in annotations for each in ast.walk(annotation) if isinstance(each, ast.Call))
    spans = [_span(node, lines) for node in annotations + others]
    spans += [((line, column - 1), end) for (line, column), end in (_span(each, lines) for each in decorators)]  # the @
    return spans, [_span(node, lines) for node in calls]


def within(position: tuple[int, int], spans: list[Span]) -> bool:
    """Whether a position lies in one of the spans."""
    return any(start <= position < end for start, end in spans)


def _span(node: ast.AST, lines: list[str]) -> Span:
    """From a node's first character to its last; ast counts columns in bytes, parso in characters."""
    ends = ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))  # type: ignore[attr-defined]
    start, end = ((line, len(lines[line - 1].encode()[:column].decode())) for line, column in ends)
    return start, end


def _may_change(node: parso.tree.NodeOrLeaf) -> bool:
    """False for the two thirds of all nodes that no operator changes: asking 190 operators about each takes minutes."""
    return node.type not in NEVER_MUTATED and getattr(node, "value", "") not in PUNCTUATION


def _changes(mutant: Mutant, root: Path) -> bool:
    """Whether the changed source is Python, and another program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            source = mutant.source(root)
            compile(source, mutant.file, "exec")
        except SyntaxError:
            return False
    return ast.dump(ast.parse(source)) != ast.dump(ast.parse((root / mutant.file).read_text(encoding="utf-8")))
