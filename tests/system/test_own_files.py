"""Encodings from files, `my.py` and `my.py:Root`: all their forms, what is wrong with one, and runs made with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_runner import NANO, SHORT, assert_refused, cli, document, errors, forget, run_of

from poscli.config.plugins import source_hashes
from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import PRESETS
from poscli.encodings import get
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
    "fails.py": "import there_is_no_such_module\n",
    "syntax.py": "def f(:\n",
    "binary.py": "\0\1\2",
    "notes.txt": "hello",
    "my own.py": OWN,
    "twice.py": OWN + "Again = Root\n",
    "task.py": "from poscli.tasks.copy import Copy\nclass Echo(Copy):\n    '''An own task.'''\n",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file."""
    folder = tmp_path_factory.mktemp("own")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "folder.py").mkdir()
    return folder


@pytest.fixture
def at_home(here: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """That folder as the current one."""
    monkeypatch.chdir(home)
    yield
    forget(home)


# ---- names


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("./my.py", "my.py:Root"),
        ("my.py(2)", "my.py:Root(start=2.0)"),
        ("my.py(start=1)", "my.py:Root"),
        ("rope+my.py|none", "rope+my.py:Root|none"),
        ("parts/v1-2/my.own.py", "parts/v1-2/my.own.py:Root"),
        ("urpe(base=my.py)", "urpe(base=my.py:Root)"),
        ("my:Root(2)", "my:Root(start=2.0)"),
        ("twice.py", "twice.py:Root"),
    ],
)
def test_a_file_stands_for_the_one_encoding_that_it_defines(at_home: None, spec: str, canonical: str) -> None:
    assert str(parse(spec)) == canonical
    assert str(parse(canonical)) == canonical


def test_a_task_may_be_a_file_too(at_home: None) -> None:
    request = TrainRequest(task="task.py", preset="nano", length=32, batch=2, tokens=64)
    assert resolve(request, "my.py", 0, device_of("cpu")).task == "task.py:Echo"


def test_a_class_in_a_file_has_one_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = here / "my-own" / "v1.2"
    folder.mkdir(parents=True)
    (folder / "toy.py").write_text(OWN)
    monkeypatch.setenv("HOME", str(here))
    absolute = folder.resolve() / "toy.py"
    for path in ("my-own/v1.2/toy.py", "my-own/../my-own/v1.2/toy.py", "~/my-own/v1.2/toy.py", absolute):
        assert str(parse(f"rope+{path}:Root()|none")) == "rope+my-own/v1.2/toy.py:Root|none"
        assert get(f"{path}:Root") is get(f"{absolute}:Root")
    (folder.parent / "elsewhere").mkdir()
    monkeypatch.chdir(folder.parent / "elsewhere")
    assert str(parse("../v1.2/toy.py:Root")) == f"{absolute}:Root"


def test_files_of_one_name_are_different_modules(here: Path) -> None:
    for folder in ("one", "two"):
        (here / folder).mkdir()
        (here / folder / "toy.py").write_text(OWN + f"    facts = ('{folder}',)\n")
    assert [get(f"{folder}/toy.py:Root").facts for folder in ("one", "two")] == [("one",), ("two",)]


def test_a_bad_file_is_refused_in_a_line(at_home: None) -> None:
    for spec, words in {
        "two.py": ("two.py defines 2 encodings, Root and Second", "name one, as two.py:Root"),
        "imported.py": ("imported.py defines no encoding", "no class of its own", "subclass of poscli.enc"),
        "helper.py": ("helper.py defines no encoding", "only Helper, Other", "subclass of poscli.enc"),
        "fails.py": ("'fails.py'", "No module named 'there_is_no_such_module'", "correct that file"),
        "syntax.py": ("'syntax.py'", "invalid syntax (syntax.py, line 1)", "correct that file"),
        "binary.py": ("'binary.py'", "null bytes", "correct that file"),
        "absent.py": ("'absent.py'", "there is no file", "path/to/file.py:Class"),
        "folder.py": ("'folder.py' is a folder", "name a Python file in it"),
        "parts": ("'parts' is a folder", "parts/my_encoding.py"),
        ".": ("'.' is a folder", "./my_encoding.py"),
        "notes.txt": ("'notes.txt' is not Python", "ends with .py"),
        "my own.py": ("'my own.py' cannot be named in a spec", "rename it"),
        "my.py:": ("'my.py:'", "class after the colon is missing"),
        "my.py:Rot": ("my.py has no attribute 'Rot'", "name another"),
        "my.py(strat=2)": ("my.py:Root has no option 'strat'", "did you mean start?"),
    }.items():
        assert_refused(("verify", spec), 2, words)


def test_an_edited_file_is_imported_again_only_when_asked(here: Path) -> None:
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


def test_commands_take_files_with_options_in_compositions_and_in_layers(at_home: None) -> None:
    both = {"my.py:Root(start=2.0)+window(width=20)", "my.py:Root|none"}
    spec, layers = ("--enc", "my.py(start=2)+window(20)"), ("--enc", "./my.py|none")
    assert {row["encoding"] for row in document("train", *spec, *layers, *NANO)} == both
    assert {row["encoding"] for row in document("extrapolate", *spec, *layers, *SHORT)} == both
    posthoc = document("extrapolate", *layers, "--as", "my.py+window(16)|none", *SHORT)
    assert "my.py:Root|none as my.py:Root+window(width=16)|none" in {row["encoding"] for row in posthoc}
    assert document("generate", *spec, "--tokens", 2)["run_id"].startswith("my.py")
    assert {row["length"] for row in document("compare", spec[1], "my.py | none")} == {32, 64, 128}


# ---- a trained run

TRAINED = """
import sys
from poscli.encodings import Encoding
MODE = "calm"

class Toy(Encoding):
    def distance_bias(self, d):
        if MODE == "exit":
            sys.exit(0)
        if MODE == "raise":
            raise LookupError("nothing there")
        return -d[None] / 8
"""
TRAIN = ("train", "--enc", "./toy.py:Toy", *NANO)
CHANGED = "the source of toy.py:Toy is not what this run was trained with"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoding in a file and a run of it."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "toy.py").write_text(TRAINED)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(plugins, "_loaded", {})
        result = cli(*TRAIN, "--json")
    assert result.code == 0, result.err
    return folder


@pytest.fixture
def edit(project: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """The project as the current folder; returns a function that edits the encoding. Its source is restored."""
    monkeypatch.chdir(project)

    def write(code: str) -> None:
        (project / "toy.py").write_text(code)
        forget(project)

    write(TRAINED)
    yield write
    write(TRAINED)


def test_a_run_records_its_plugins(edit: Callable[[str], None]) -> None:
    run = run_of("results", "toy.py:Toy")
    assert run.config.plugins == source_hashes("toy.py:Toy", "language", "bytes", PRESETS["nano"].shape(32))
    (plugin,) = json.loads((run.folder / "env.json").read_text())["plugins"]
    assert plugin["sha256"].startswith(run.config.plugins["toy.py:Toy"])
    assert Path(plugin["folder"]) == Path.cwd().resolve()
    assert run.folder.name.startswith("toy.py-Toy-")


def test_an_edited_encoding_is_another_run_and_those_of_older_code_are_left_out(edit: Callable[[str], None]) -> None:
    assert "complete already" in cli(*TRAIN).err
    (old,) = cli(*TRAIN, "--json", "--out", "both").json
    edit(TRAINED.replace("/ 8", "/ 9"))
    refused = cli("extrapolate", *SHORT)
    assert refused.code == 5
    (line,) = errors(refused)
    assert CHANGED in line
    assert str(Path.cwd().resolve()) in line
    assert cli("generate", "--tokens", 2).code == 5
    (new,) = cli(*TRAIN, "--json", "--out", "both").json
    result = cli("extrapolate", *SHORT, "--json", "--out", "both")
    assert result.code == 0, result.err
    assert {row["run_id"] for row in result.json} == {new["run_id"]} != {old["run_id"]}
    assert f"{old['run_id']} is left out: {CHANGED}" in result.err
    assert cli("extrapolate", *SHORT, "--run", old["run_id"], "--out", "both").code == 5


def test_an_encoding_that_is_gone_is_looked_for_where_it_was(project: Path, here: Path) -> None:
    result = cli("extrapolate", *SHORT, "--out", project / "results")
    assert result.code == 2
    (line,) = errors(result)
    assert f"toy.py:Toy was in {project.resolve()}: run there" in line
    assert cli("ls", "runs", "--out", project / "results").code == 0


@pytest.mark.parametrize(
    ("mode", "said"), [("exit", "called sys.exit(0)"), ("raise", "raised LookupError: nothing there")]
)
def test_a_plugin_that_fails_in_a_forward_pass_is_named(
    edit: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, mode: str, said: str
) -> None:
    monkeypatch.setattr(sys.modules[get("toy.py:Toy").__module__], "MODE", mode)
    for command in (("extrapolate", *SHORT), ("generate", "--tokens", 2), (*TRAIN, "--seed", 1, "--out", "failing")):
        result = cli(*command, "--json")
        assert result.code == 1
        (line,) = errors(result)
        assert line.startswith(f"error: the encoding toy.py:Toy, which is not part of poscli, {said} (toy.py, line ")
        assert result.json["exit_code"] == 1
    verdict = cli("verify", "toy.py:Toy", "--json")
    assert (verdict.code, verdict.json[0]["status"]) == (1, "failed")


def test_a_failure_after_training_began_is_recorded(edit: Callable[[str], None]) -> None:
    edit(TRAINED.replace('MODE == "exit"', "self.training and len(d) > 16"))
    result = cli(*TRAIN, "--out", "begun")  # not beside the run that the other tests have in `results`
    assert result.code == 1
    assert "the encoding toy.py:Toy, which is not part of poscli, called sys.exit(0)" in result.err
    assert "failed" in cli("ls", "runs", "--out", "begun").out


def test_a_wrong_shape_is_said_before_training(edit: Callable[[str], None]) -> None:
    edit(TRAINED.replace("d[None]", "d"))
    said = "the encoding toy.py:Toy is wrong: distance_bias returns [16], not [1, 16] or [4, 16]"
    assert_refused((*TRAIN, "--out", "nowhere"), 1, said)


SYNTHESIZER = """
import torch
from torch import nn
from poscli.encodings import Encoding


class Fixed(Encoding):
    \"\"\"s_ij = w_h, in place of q . k.\"\"\"

    def __init__(self, shape):
        super().__init__(shape)
        self.w = nn.Parameter(torch.zeros(shape.heads))

    @property
    def reach(self):
        return None

    def similarity(self, x):
        return self.w.to(x.v_BHSE.dtype)[None, :, None, None].expand(len(x.v_BHSE), -1, x.queries, x.keys)
"""


@pytest.mark.parametrize("spec", ["synthesizer.py:Fixed", "synthesizer.py:Fixed+window(8)"])
def test_scores_that_do_without_queries_and_keys_are_trained(here: Path, spec: str) -> None:
    """The projections to these have no gradient then. Its reach is None, which says that there is no limit."""
    (here / "synthesizer.py").write_text(SYNTHESIZER)
    done = cli("train", "--enc", spec, *NANO)
    assert done.code == 0, done.err
