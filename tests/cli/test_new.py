"""`poscli new`: the files that it writes work as they are, and their tests fail on a wrong formula."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from cli_runner import assert_refused, cli, errors

from poscli.cli.commands.new import LONGEST, Start

TESTS = ("test_attention_follows_the_formula", "test_it_does_what_every_encoding_must_do")
# For each kind, a piece of its formula and another in its place: the first test must fail.
WRONG = {
    Start.BIAS: ("d.sqrt()", "d.float()"),
    Start.ABSOLUTE: ("(angle + self.phi).sin()", "(angle - self.phi).sin()"),
    Start.ROTARY: ("b * cos + a * sin", "b * cos - a * sin"),
    Start.RELATIVE: ("max=self.clip", "max=self.clip - 1"),
}


@pytest.fixture(autouse=True)
def importable(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let modules of the current folder be imported."""
    monkeypatch.syspath_prepend(here)
    # Python's cache of compiled files misses a change of a file within the same second.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def module(path: Path) -> ModuleType:
    """The module in a file, imported anew together with the encoding that it imports."""
    sys.modules.pop(path.stem.removeprefix("test_"), None)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    exec(compile(path.read_text(), str(path), "exec"), vars(loaded))
    return loaded


@pytest.mark.parametrize("kind", list(Start))
def test_the_files_work_as_they_are(here: Path, kind: Start) -> None:
    result = cli("new", "my-Own_2", "--kind", kind, "--json")
    assert result.code == 0, result.err
    assert result.json["files"] == ["my_Own_2.py", "test_my_Own_2.py"]
    assert (result.json["encoding"], result.json["class"]) == ("my_Own_2.py", "MyOwn2")
    written, code = module(Path("test_my_Own_2.py")), Path("my_Own_2.py").read_text()
    assert [name for name in vars(written) if name.startswith("test_")] == list(TESTS)
    for name in TESTS:
        vars(written)[name]()
    right, wrong = WRONG[kind]
    assert code.count(right) == 1
    Path("my_Own_2.py").write_text(code.replace(right, wrong))
    with pytest.raises(AssertionError):
        vars(module(Path("test_my_Own_2.py")))[TESTS[0]]()


@pytest.mark.parametrize("kind", list(Start))
def test_the_encoding_is_short_and_fits_the_longest_name(kind: Start) -> None:
    assert cli("new", "a" * LONGEST, "--kind", kind).code == 0
    code, test = (Path(f"{start}{'a' * LONGEST}.py").read_text() for start in ("", "test_"))
    assert len(code.splitlines()) < 30
    assert max(map(len, [*code.splitlines(), *test.splitlines()])) <= 120
    assert "nn.Parameter" in code
    assert re.search(r"shape: Shape, \*, \w+: (float|int) = ", code)
    assert "poscli.equation.blanks" in code


def test_the_encoding_can_be_verified_by_its_file_with_an_option() -> None:
    assert cli("new", "freshly-made").code == 0
    (verdict,) = cli("verify", "freshly_made.py(2)", "--json").json
    assert verdict["status"] == "passed"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my own", ("'my own' cannot name an encoding", "such as my-encoding")),
        ("", "NAME '' is empty"),
        ("../up", "letters, digits, - and _"),
        ("a" * (LONGEST + 1), f"at most {LONGEST}"),
        ("ALiBi", "'ALiBi' is the name of an encoding"),
        ("rope_linear", "such as my-rope-linear"),
        ("encoding", "would hide"),
        ("random", "'random' would hide"),
    ],
)
def test_bad_names_are_refused(name: str, words: str | tuple[str, ...]) -> None:
    assert_refused(("new", name), 2, words)


def test_files_are_not_overwritten_unless_asked(here: Path) -> None:
    assert cli("new", "freshly-made").code == 0
    Path("freshly_made.py").write_text("# edited")
    assert_refused(("new", "freshly-made"), 2, ("freshly_made.py exists already", "--force"))
    Path("freshly_made.py").unlink()
    assert_refused(("new", "freshly-made"), 2, ("test_freshly_made.py exists already", "--force"))
    Path("freshly_made.py").write_text("# edited")
    assert cli("new", "freshly-made", "--force", "--kind", "relative").code == 0
    assert "relative_keys" in Path("freshly_made.py").read_text()
    assert cli("new", "freshly-made", "--to", "other").code == 0  # elsewhere it is another file


def test_a_file_that_cannot_be_written_is_named(here: Path) -> None:
    (here / "freshly_made.py").mkdir()
    result = cli("new", "freshly-made", "--force")
    assert (result.code, len(errors(result))) == (1, 1)
    assert "cannot write freshly_made.py" in result.err
