"""Encodings from files, `my.py` and `my.py:Root`: commands take every form, and a bad file is refused in a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runner import NANO, SHORT, assert_refused, cli, forget

from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.specs import parse
from poscli.system import plugins
from poscli.system.device import device_of

OWN = """
import torch
from poscli.encodings import Encoding, Shape
from poscli.encodings.rope import RoPE  # imported, so it is not what the file defines

class _Base(Encoding):
    '''No encoding to offer: its name begins with _.'''

class Root(_Base):
    '''s_ij -= start sqrt(i - j).'''

    def __init__(self, shape: Shape, *, start: float = 1.0) -> None:
        super().__init__(shape)
        self.start = start

    def distance_bias(self, d):
        return -self.start * d[None].sqrt()
"""
FILES = {
    "my.py": OWN,
    "parts/v1-2/my.own.py": OWN,
    "two.py": OWN + "\nclass Second(Root): ...\n",
    "imported.py": "from poscli.encodings.rope import RoPE\n",
    "helper.py": "class Helper: ...\nclass Other(Helper): ...\n",
    "empty.py": "",
    "fails.py": "import there_is_no_such_module\n",
    "divides.py": "1 / 0\n",
    "syntax.py": "def f(:\n",
    "binary.py": "\0\1\2",
    "notes.txt": "hello",
    "my own.py": OWN,
    "a+b.py": OWN,
    "twice.py": OWN + "Again = Root\n",
    "task.py": "from poscli.tasks.copy import Copy\nclass Echo(Copy):\n    '''An own task.'''\n",
}
ARGUMENTS = "my.py(start=2)+window(20)"
CANONICAL = "my.py:Root(start=2.0)+window(width=20)"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file."""
    folder = tmp_path_factory.mktemp("own")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "folder.py").mkdir()
    return folder


@pytest.fixture(autouse=True)
def at_home(here: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """That folder as the current one."""
    monkeypatch.chdir(home)
    yield
    forget(home)


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("my.py", "my.py:Root"),
        ("./my.py", "my.py:Root"),
        ("my.py()", "my.py:Root"),
        ("my.py(2)", "my.py:Root(start=2.0)"),
        ("my.py(start=1)", "my.py:Root"),
        ("my.py:Root(start=2)", "my.py:Root(start=2.0)"),
        ("parts/../my.py+window(128)", "my.py:Root+window(width=128)"),
        ("rope+my.py|none", "rope+my.py:Root|none"),
        ("parts/v1-2/my.own.py", "parts/v1-2/my.own.py:Root"),
        ("urpe(base=my.py)", "urpe(base=my.py:Root)"),
        ("my:Root(2)", "my:Root(start=2.0)"),
        ("twice.py", "twice.py:Root"),
    ],
)
def test_a_file_stands_for_the_one_encoding_that_it_defines(spec: str, canonical: str) -> None:
    assert str(parse(spec)) == canonical
    assert str(parse(canonical)) == canonical


def test_a_task_may_be_a_file_too() -> None:
    request = TrainRequest(task="task.py", preset="nano", length=32, batch=2, tokens=64)
    assert resolve(request, "my.py", 0, device_of("cpu")).task == "task.py:Echo"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("two.py", ("two.py defines 2 encodings, Root and Second", "name one, as two.py:Root")),
        ("imported.py", ("imported.py defines no encoding", "no class of its own", "subclass of poscli.enc")),
        ("helper.py", ("helper.py defines no encoding", "only Helper, Other", "subclass of poscli.enc")),
        ("empty.py", ("empty.py defines no encoding", "subclass of poscli.enc")),
        ("fails.py", ("'fails.py'", "No module named 'there_is_no_such_module'", "correct that file")),
        ("divides.py", ("'divides.py'", "ZeroDivisionError: division by zero", "correct that file")),
        ("syntax.py", ("'syntax.py'", "invalid syntax (syntax.py, line 1)", "correct that file")),
        ("binary.py", ("'binary.py'", "null bytes", "correct that file")),
        ("absent.py", ("'absent.py'", "there is no file", "path/to/file.py:Class")),
        ("folder.py", ("'folder.py' is a folder", "name a Python file in it")),
        ("parts", ("'parts' is a folder", "parts/my_encoding.py")),
        (".", ("'.' is a folder", "./my_encoding.py")),
        ("notes.txt", ("'notes.txt' is not Python", "ends with .py")),
        ("my own.py", ("'my own.py' cannot be named in a spec", "rename it")),
        ("a+b.py", ("'a+b.py' cannot be named in a spec", "rename it")),
        ("my.py:", ("'my.py:'", "class after the colon is missing")),
        ("my.py:Rot", ("my.py has no attribute 'Rot'", "name another")),
        ("my.py(strat=2)", ("my.py:Root has no option 'strat'", "did you mean start?")),
    ],
)
def test_a_bad_file_is_refused_in_a_line(spec: str, words: tuple[str, ...]) -> None:
    assert_refused(("verify", spec), 2, words)
    assert_refused(("train", "--enc", "alibi", "--enc", spec, *NANO), 2, words)


def test_an_edited_file_is_imported_again_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for start in (1, 2, 3):  # of equal size, within a second: Python's cache of compiled files would miss the change
        Path("my.py").write_text(OWN.replace("float = 1.0", f"float = {start}.0"))
        plugins.forget_edited()
        assert plugins.load_object("my.py:Root") is plugins.load_object("my.py:Root")
        assert plugins.load_object("my.py:Root").options()["start"].default == start
    Path("my.py").write_text(OWN)
    assert plugins.load_object("my.py:Root").options()["start"].default == 3
    Path("my.py").unlink()
    plugins.forget_edited()
    with pytest.raises(plugins.LoadError, match="there is no file"):
        plugins.load_object("my.py:Root")


def documents(**commands: tuple[object, ...]) -> dict[str, Any]:
    """The JSON documents of commands, each of which succeeds, by name."""
    done = {name: cli(*command, "--json") for name, command in commands.items()}
    assert {name: result.err for name, result in done.items() if result.code} == {}
    return {name: result.json for name, result in done.items()}


def test_commands_take_files_with_options_in_compositions_and_in_layers() -> None:
    results = documents(
        train=("train", "--enc", ARGUMENTS, "--enc", "my.py|none", *NANO),
        extrapolate=("extrapolate", "--enc", ARGUMENTS, "--enc", "./my.py|none", *SHORT),
        posthoc=("extrapolate", "--enc", "my.py|none", "--as", "my.py+window(16)|none", *SHORT),
        generate=("generate", "--enc", ARGUMENTS, "--tokens", 2),
        compare=("compare", ARGUMENTS, "my.py | none"),
    )
    both = {CANONICAL, "my.py:Root|none"}
    assert {row["encoding"] for row in results["train"]} == both
    assert {row["encoding"] for row in results["extrapolate"]} == both
    assert "my.py:Root|none as my.py:Root+window(width=16)|none" in {row["encoding"] for row in results["posthoc"]}
    assert {row["length"] for row in results["compare"]} == {32, 64, 128}


@pytest.mark.wide
def test_suites_and_the_bench_take_files_too() -> None:
    Path("suite.toml").write_text(
        "title = 'own'\nencodings = ['my.py', 'none']\n[train]\npreset = 'nano'\nlength = 32\nbatch = 4\n"
        "tokens = 1280\n[extrapolate]\nmax_len = 64\ntokens = 64\nstride = 16\nas = ['my.py+window(20)']\n"
    )
    once = ("--train-length", 32, "--batch", 2, "--lengths", 32, "--past", 32, "--repeats", 1, "--seconds", 0.1)
    results = documents(
        bench=("bench", "--enc", "my.py", "--preset", "nano", "--device", "cpu", *once),
        run=("run", "suite.toml", "--out", "suite"),
        report=("report", "--out", "suite", "--baseline", "./my.py"),
    )
    assert "my.py:Root" in {row["encoding"] for row in results["bench"]["rows"]}
    for name in ("run", "report"):
        reported = {row["encoding"] for row in results[name]["summary"]}
        assert reported == {"none", "my.py:Root", "my.py:Root as my.py:Root+window(width=20)"}
