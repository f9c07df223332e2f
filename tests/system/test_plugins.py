"""Code from outside poscli: whatever is wrong with it is said in a line, and hurts nothing else."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_runner import NANO, SHORT, assert_refused, cli, errors, forget, run_of

from poscli.config.plugins import source_hashes
from poscli.config.run import PRESETS, RunConfig
from poscli.encodings import get
from poscli.encodings.registry import ENCODINGS
from poscli.specs import check, parse
from poscli.system import plugins
from poscli.system.errors import UsageError
from poscli.tasks import TASKS

CLASS = """
from poscli.encodings import Encoding

class Toy(Encoding):
    '''s -= d / 8.'''

    def distance_bias(self, d):
        return -d[None] / 8
"""
# Modules of a package that offers each under its own name -> what is said about it; "" if it can be used.
TOYS = {
    "fine": (CLASS, ""),
    "printing": ("print('a warning')\n" + CLASS, ""),
    "registering": (CLASS + "from poscli.encodings.registry import ENCODINGS\nENCODINGS.add('registering', Toy)", ""),
    "alias": ("from poscli.encodings.rope import RoPE as Toy", ""),
    "renamed": (CLASS + "    name = 'A Name'\n", ""),
    "raising": ("raise ZeroDivisionError('no luck')", "ZeroDivisionError: no luck"),
    "mute": ("class E(Exception):\n    def __str__(self): return 1 / 0\nraise E", "E without a message"),
    "importing": ("import there_is_no_such_module", "No module named 'there_is_no_such_module'"),
    "unreadable": ("def f(:", "invalid syntax"),
    "exiting": ("import sys; sys.exit(0)", "it called sys.exit(0) while it was imported"),
    "busy": ("while True: pass", "its import did not end within 0.2 seconds"),
    "sleeping": ("import time; time.sleep(600)", "its import did not end within 0.2 seconds"),
    "stubborn": (
        "import time\ntry:\n    time.sleep(600)\nexcept BaseException:\n    time.sleep(600)",
        "its import did not end within 0.2 seconds",
    ),
    "empty": ("", "has no attribute 'Toy'"),
    "function": ("def Toy(shape): ...", "it is no encoding: it must be a subclass of poscli.encodings.Encoding"),
    "taking": (
        CLASS + "from poscli.encodings import register\nregister('alibi', paper='', family='')(Toy)",
        "there is another encoding named 'alibi'",
    ),
    "misshapen": (CLASS.replace("[None]", ""), "distance_bias returns [16], not [1, 16] or [8, 16]"),
    "scalar": (CLASS.replace("-d[None] / 8", "3"), "distance_bias returns a int, not a tensor"),
    "unbuilt": (CLASS + "    def __init__(self, shape): raise KeyError('width')", "KeyError: 'width'"),
    "factual": (CLASS + "    facts = 5", "TypeError: "),
    "two words": (CLASS, "its name may hold only letters"),
    "rope": (CLASS, "the name rope belongs to poscli; to use this one, write shop_rope:Toy"),
    "twice": (CLASS, "is offered by rival 2 (rival:Toy) and toyshop 1 (shop_twice:Toy); uninstall one"),
}
BROKEN = [name for name, (_, why) in TOYS.items() if why]


def listed(name: str) -> str:
    """The name under which a toy is listed: one whose name is taken has its package added."""
    return "rope (toyshop 1)" if name == "rope" else name


def offer(folder: Path, package: str, version: str, points: dict[str, str], group: str = "poscli.encodings") -> None:
    """Install a package in a folder, as pip would, that offers plugins."""
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {package}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in points.items()))


def write_toys(folder: Path) -> None:
    for name, (code, _) in TOYS.items():
        (folder / f"shop_{name.replace(' ', '_')}.py").write_text(code + "\n")
    (folder / "rival.py").write_text(CLASS)
    offer(folder, "toyshop", "1", {name: f"shop_{name.replace(' ', '_')}:Toy" for name in TOYS})
    offer(folder, "rival", "2", {"twice": "rival:Toy"})


def discover_again(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the registry of encodings find the packages in a folder, too, until the test ends."""
    ENCODINGS.names()
    monkeypatch.syspath_prepend(folder)
    own = {name: cls for name, cls in ENCODINGS._plugins.items() if not plugins.is_outside(cls)}
    for attribute, value in {"_plugins": own, "_broken": {}, "_discovered": False}.items():
        monkeypatch.setattr(ENCODINGS, attribute, value)
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(plugins, "IMPORT_SECONDS", 0.2)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package with all toys, discovered once for all tests that only read what was found."""
    folder = tmp_path_factory.mktemp("shop")
    write_toys(folder)
    with pytest.MonkeyPatch.context() as monkeypatch:
        discover_again(monkeypatch, folder)
        yield folder


# discovery


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_listed_with_its_cause(shop: Path, name: str) -> None:
    assert listed(name) in ENCODINGS.names()
    assert ENCODINGS.broken(listed(name))
    assert TOYS[name][1] in ENCODINGS.missing(listed(name))
    if name != "rope":
        with pytest.raises(UsageError, match=name):
            ENCODINGS.get(name)


def test_the_others_stay_usable(shop: Path) -> None:
    from poscli.encodings.alibi import ALiBi
    from poscli.encodings.rope import RoPE

    assert (get("rope"), get("alibi")) == (RoPE, ALiBi)
    for name in ("fine", "printing", "registering", "alias", "renamed"):
        assert ENCODINGS.missing(name) == ""
        assert str(check(f"{name}+rope", PRESETS["nano"].shape(32))) == f"{name}+rope"


def test_commands_list_them_and_stdout_stays_json(shop: Path) -> None:
    rows = {row["name"]: row for row in cli("ls", "encodings", "--json").json}
    assert {name for name in BROKEN if rows[listed(name)]["unavailable"]} == set(BROKEN)
    assert rows["fine"]["formula"] == rows["renamed"]["formula"] == "s -= d / 8."
    checks = {row["check"]: row for row in cli("doctor", "--json").json}
    assert "no luck" in checks["encoding raising"]["detail"]
    count, _, usable = checks["encodings"]["detail"].partition(": ")
    assert "fine" in usable.split(", ")
    assert not {listed(name) for name in BROKEN} & set(usable.split(", "))
    assert int(count) == len(usable.split(", "))


@pytest.mark.parametrize("name", [*BROKEN, "fine"])
def test_verify_fails_for_a_broken_plugin(shop: Path, name: str) -> None:
    result = cli("verify", listed(name), "--json")
    (verdict,) = result.json
    if name == "fine":
        assert (result.code, verdict["status"]) == (0, "passed")
    else:
        assert (result.code, verdict["status"]) == (1, "failed")
        assert TOYS[name][1] in verdict["findings"][0]["detail"]


def test_what_was_loaded_is_known(shop: Path) -> None:
    found = {plugin["name"]: plugin for plugin in plugins.loaded()}
    assert set(found) >= {"fine", "printing", "registering"}
    assert not set(found) & set(BROKEN)
    fine = found["fine"]
    assert (fine["kind"], fine["value"], fine["distribution"]) == ("encoding", "shop_fine:Toy", "toyshop")
    assert (fine["version"], Path(fine["file"])) == ("1", shop / "shop_fine.py")
    assert (Path(fine["folder"]), len(fine["sha256"])) == (shop.resolve(), 64)


def test_ctrl_c_during_an_import_stays_ctrl_c(here: Path) -> None:
    (here / "slow.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        parse("slow:Toy")


def test_an_alarm_that_was_set_before_still_rings(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rung: list[int] = []
    (here / "toy.py").write_text(CLASS)
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        parse("toy:Toy")
        deadline = time.monotonic() + 60
        while not rung and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rung


def test_a_plugin_is_loaded_off_the_main_thread_too(here: Path) -> None:
    (here / "toy.py").write_text(CLASS)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(str(parse("toy:Toy"))))
    thread.start()
    thread.join()
    assert found == ["toy:Toy"]


def test_without_plugins_nothing_from_outside_is_loaded(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_toys(tmp_path)
    discover_again(monkeypatch, tmp_path)
    monkeypatch.setenv(plugins.SWITCH, "")
    result = cli("--no-plugins", "ls", "encodings", "--json")  # sets the variable, which processes inherit
    assert {row["name"] for row in result.json}.isdisjoint({"fine", "raising", "rope (toyshop 1)"})
    assert_refused(("verify", "shop_fine:Toy"), 2, ("'shop_fine:Toy' is a plugin", "--no-plugins"))
    monkeypatch.setenv(plugins.SWITCH, "0")
    assert str(parse("shop_fine:Toy")) == "shop_fine:Toy"


def test_an_error_of_poscli_is_not_blamed_on_a_package_that_offers_its_classes(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(here, "toyshop", "1", {"alias": "poscli.encodings.rope:RoPE"})
    discover_again(monkeypatch, here)
    assert get("alias") is get("rope")
    with pytest.raises(AttributeError) as caught:
        get("rope")(None)
    assert plugins.blame(caught.value) == ""
    assert hashes("alias") == {}


# files


def test_a_class_in_a_file_has_one_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = here / "my-own" / "v1.2"
    folder.mkdir(parents=True)
    (folder / "toy.py").write_text(CLASS)
    monkeypatch.setenv("HOME", str(here))
    absolute = folder.resolve() / "toy.py"
    for path in ("my-own/v1.2/toy.py", "./my-own/v1.2/toy.py", "my-own/../my-own/v1.2/toy.py", "~/my-own/v1.2/toy.py"):
        assert str(parse(f"rope+{path}:Toy()|none")) == "rope+my-own/v1.2/toy.py:Toy|none"
        assert get(f"{path}:Toy") is get(f"{absolute}:Toy")
    assert str(parse(f"{absolute}:Toy")) == "my-own/v1.2/toy.py:Toy"
    assert str(parse("urpe(base=./my-own/v1.2/toy.py:Toy)")) == "urpe(base=my-own/v1.2/toy.py:Toy)"
    monkeypatch.chdir(folder)
    assert str(parse("./toy.py:Toy")) == "toy.py:Toy"
    monkeypatch.chdir(folder.parent)
    (folder.parent / "elsewhere").mkdir()
    monkeypatch.chdir(folder.parent / "elsewhere")
    assert str(parse("../v1.2/toy.py:Toy")) == f"{absolute}:Toy"


def test_files_of_one_name_are_different_modules(here: Path) -> None:
    for folder in ("one", "two"):
        (here / folder).mkdir()
        (here / folder / "toy.py").write_text(CLASS + f"    facts = ('{folder}',)\n")
    assert [get(f"{folder}/toy.py:Toy").facts for folder in ("one", "two")] == [("one",), ("two",)]


# the hash of the source


def hashes(spec: str) -> dict[str, str]:
    return source_hashes(spec, "language", "bytes", PRESETS["nano"].shape(32))


def test_the_hash_covers_the_package_and_parents(here: Path) -> None:
    package = here / "kit" / "parts"
    package.mkdir(parents=True)
    (here / "parent.py").write_text(CLASS)
    (here / "kit" / "__init__.py").touch()
    (here / "kit" / "helper.py").write_text("A = 1\n")
    (package / "__init__.py").touch()
    (package / "toy.py").write_text("from parent import Toy\nclass Child(Toy): ...\n")
    (here / "unrelated.py").write_text("A = 1\n")
    seen = [hashes("rope|kit.parts.toy:Child")]
    for path in ("kit/helper.py", "parent.py", "kit/parts/toy.py", "kit/__init__.py"):
        with (here / path).open("a") as file:
            file.write("# edited\n")
        seen.append(hashes("rope|kit.parts.toy:Child"))
    assert all(list(each) == ["kit.parts.toy:Child"] for each in seen)
    assert len({each["kit.parts.toy:Child"] for each in seen}) == 5
    (here / "unrelated.py").write_text("A = 2\n")
    assert hashes("rope|kit.parts.toy:Child") == seen[-1]
    (here / "kit" / "more.py").touch()
    assert hashes("rope|kit.parts.toy:Child") != seen[-1]


def test_tasks_and_tokenizers_are_hashed_too(here: Path) -> None:
    (here / "own.py").write_text(
        "from poscli.tasks.copy import Copy\nfrom poscli.data.tokenizers.bytes import *\n"
        "from poscli.data.tokenizers import TOKENIZERS\n"
        "class Task(Copy): ...\nclass Coder(TOKENIZERS.get('bytes')): ...\n"
    )
    found = source_hashes("rope", "own:Task", "own:Coder", PRESETS["nano"].shape(32))
    assert set(found) == {"own:Task", "own:Coder"}
    assert TASKS.get("own:Task").name == "own:Task"


def test_runs_of_built_in_encodings_keep_their_names() -> None:
    assert hashes("rope+window(128)|urpe(base=t5)") == {}
    plain, other = RunConfig(encoding="rope"), RunConfig(encoding="rope", plugins={"a": "0"})
    assert plain.run_id("f") == RunConfig(encoding="rope", plugins={}).run_id("f") != other.run_id("f")
    assert len({plain, other, RunConfig(encoding="rope")}) == 2


# a trained run

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
def inside(project: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """The project as the current folder; returns a function that edits the encoding. Its source is restored."""
    monkeypatch.chdir(project)

    def edit(code: str) -> None:
        (project / "toy.py").write_text(code)
        forget(project)

    edit(TRAINED)
    yield edit
    edit(TRAINED)


def test_a_run_records_its_plugins(inside: Callable[[str], None]) -> None:
    run = run_of("results", "toy.py:Toy")
    assert run.config.plugins == hashes("toy.py:Toy")
    (plugin,) = json.loads((run.folder / "env.json").read_text())["plugins"]
    assert plugin["sha256"].startswith(run.config.plugins["toy.py:Toy"])
    assert Path(plugin["folder"]) == Path.cwd().resolve()
    assert run.folder.name.startswith("toy.py-Toy-")


def test_an_edited_encoding_is_another_run(inside: Callable[[str], None]) -> None:
    again = cli(*TRAIN, "--json", "--out", "results")
    assert "complete already" in again.err
    inside(TRAINED.replace("/ 8", "/ 9"))
    refused = cli("extrapolate", *SHORT)
    assert refused.code == 5
    (line,) = errors(refused)
    assert "the source of toy.py:Toy is not what this run was trained with" in line
    assert str(Path.cwd().resolve()) in line
    assert cli("generate", "--tokens", 2).code == 5
    new = cli(*TRAIN, "--json", "--out", "elsewhere")
    assert (new.code, len(new.json)) == (0, 1)
    assert new.json[0]["run_id"] != run_of("results", "toy.py:Toy").id


def test_runs_of_older_code_are_left_out_beside_those_of_the_new(inside: Callable[[str], None]) -> None:
    (old,) = cli(*TRAIN, "--json", "--out", "both").json
    inside(TRAINED.replace("/ 8", "/ 7"))
    (new,) = cli(*TRAIN, "--json", "--out", "both").json
    result = cli("extrapolate", *SHORT, "--json", "--out", "both")
    assert result.code == 0, result.err
    assert {row["run_id"] for row in result.json} == {new["run_id"]}
    assert f"{old['run_id']} is left out: the source of toy.py:Toy is not what this run was trained with" in result.err
    assert cli("extrapolate", *SHORT, "--run", old["run_id"], "--out", "both").code == 5


def test_an_encoding_that_is_gone_is_looked_for_where_it_was(
    inside: Callable[[str], None], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = cli("extrapolate", *SHORT, "--out", project / "results")
    assert result.code == 2
    (line,) = errors(result)
    assert f"toy.py:Toy was in {project.resolve()}: run there" in line
    assert cli("ls", "runs", "--out", project / "results").code == 0


@pytest.mark.parametrize(
    ("mode", "said"), [("exit", "called sys.exit(0)"), ("raise", "raised LookupError: nothing there")]
)
def test_a_plugin_that_fails_in_a_forward_pass_is_named(
    inside: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, mode: str, said: str
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


def test_a_failure_after_training_began_is_named_and_recorded(inside: Callable[[str], None]) -> None:
    inside(TRAINED.replace('MODE == "exit"', "self.training and len(d) > 16"))
    result = cli(*TRAIN, "--out", "begun")  # not beside the run that the other tests have in `results`
    assert result.code == 1
    assert "the encoding toy.py:Toy, which is not part of poscli, called sys.exit(0)" in result.err
    assert "failed" in cli("ls", "runs", "--out", "begun").out


def test_a_wrong_shape_is_said_before_training(inside: Callable[[str], None], project: Path) -> None:
    inside(TRAINED.replace("d[None]", "d"))
    said = "the encoding toy.py:Toy is wrong: distance_bias returns [16], not [1, 16] or [4, 16]"
    assert_refused((*TRAIN, "--out", "nowhere"), 1, said)
