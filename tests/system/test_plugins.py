"""Packages from outside poscli: whatever is wrong with a plugin is said in a line, and hurts nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runner import NANO, assert_refused, cli, environment, errors, in_new_process

from poscli.config.plugins import source_hashes
from poscli.config.run import PRESETS
from poscli.encodings import get
from poscli.encodings.registry import ENCODINGS
from poscli.specs import check, parse
from poscli.system import plugins, signals
from poscli.system.errors import PluginError, UsageError
from poscli.system.registry import Registry, subclass_of
from poscli.tasks import TASKS

LIMIT = 1.5  # seconds for the import of a toy: enough for the good ones on a busy machine

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
    "busy": ("while True: pass", f"its import did not end within {LIMIT} seconds"),
    "sleeping": ("import time; time.sleep(600)", f"its import did not end within {LIMIT} seconds"),
    "stubborn": (
        "import time\ntry:\n    time.sleep(600)\nexcept BaseException:\n    time.sleep(600)",
        f"its import did not end within {LIMIT} seconds",
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
    "shared": (CLASS + "    proportions = {'far': 'a half'}", "`proportions` must be a mapping with numbers"),
    "two words": (CLASS, "its name may hold only letters"),
    "rope": (CLASS, "the name rope belongs to poscli; to use this one, write shop_rope:Toy"),
    "twice": (CLASS, "is offered by rival 2 (rival:Toy) and toyshop 1 (shop_twice:Toy); uninstall one"),
}
BROKEN = {name: cause for name, (_, cause) in TOYS.items() if cause}
LISTED = {name: "rope (toyshop 1)" if name == "rope" else name for name in BROKEN}  # its name is taken


def offer(folder: Path, package: str, version: str, points: dict[str, str], group: str = "poscli.encodings") -> None:
    """Install a package in a folder, as pip would, that offers encodings, or what else a group of plugins has."""
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {package}\nVersion: {version}\n")
    lines = [f"{name} = {value}\n" for name, value in points.items()]
    (info / "entry_points.txt").write_text(f"[{group}]\n" + "".join(lines))


def discover_again(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the registry of encodings find the packages in a folder, too, until the test ends."""
    ENCODINGS.names()
    monkeypatch.syspath_prepend(folder)
    ours = {name: cls for name, cls in ENCODINGS._plugins.items() if not plugins.is_outside(cls)}
    for attribute, value in {"_plugins": ours, "_broken": {}, "_discovered": False}.items():
        monkeypatch.setattr(ENCODINGS, attribute, value)
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(plugins, "IMPORT_SECONDS", LIMIT)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package with all toys, discovered once for all tests that only read what was found."""
    folder = tmp_path_factory.mktemp("shop")
    for name, (code, _) in TOYS.items():
        (folder / f"shop_{name.replace(' ', '_')}.py").write_text(code + "\n")
    (folder / "rival.py").write_text(CLASS)
    offer(folder, "toyshop", "1", {name: f"shop_{name.replace(' ', '_')}:Toy" for name in TOYS})
    offer(folder, "rival", "2", {"twice": "rival:Toy"})
    with pytest.MonkeyPatch.context() as monkeypatch:
        discover_again(monkeypatch, folder)
        ENCODINGS.names()  # imports them all
        monkeypatch.setattr(plugins, "IMPORT_SECONDS", 10.0)  # what the tests import may take its time
        yield folder


# ---- discovery


def test_broken_plugins_are_listed_with_their_cause_and_the_others_stay_usable(shop: Path) -> None:
    from poscli.encodings.alibi import ALiBi
    from poscli.encodings.rope import RoPE

    for name, cause in BROKEN.items():
        assert ENCODINGS.broken(LISTED[name])
        assert cause in ENCODINGS.missing(LISTED[name])
        if name != "rope":
            with pytest.raises(UsageError, match=name):
                ENCODINGS.get(name)
    assert (get("rope"), get("alibi")) == (RoPE, ALiBi)
    for name in TOYS.keys() - BROKEN.keys():
        assert ENCODINGS.missing(name) == ""
        assert str(check(f"{name}+rope", PRESETS["nano"].shape(32))) == f"{name}+rope"


def test_commands_list_them_and_stdout_stays_json(shop: Path) -> None:
    rows = {row["name"]: row for row in cli("ls", "encodings", "--json").json}
    assert all(rows[LISTED[name]]["unavailable"] for name in BROKEN)
    assert rows["fine"]["formula"] == rows["renamed"]["formula"] == "s -= d / 8."
    checks = {row["check"]: row for row in cli("doctor", "--json").json}
    assert "no luck" in checks["encoding raising"]["detail"]
    count, _, usable = checks["encodings"]["detail"].partition(": ")
    assert "fine" in usable.split(", ")
    assert not {*LISTED.values()} & {*usable.split(", ")}
    assert int(count) == len(usable.split(", "))
    result = cli("verify", "fine", *LISTED.values(), "--json")
    assert result.code == 1
    fine, *failed = result.json
    assert fine["status"] == "passed"
    for verdict, cause in zip(failed, BROKEN.values(), strict=True):
        assert verdict["status"] == "failed"
        assert cause in verdict["findings"][0]["detail"]


def test_doctor_lists_broken_plugins_of_every_kind(tmp_path: Path) -> None:
    kinds = {
        "layout": "poscli.layouts",
        "task": "poscli.tasks",
        "tokenizer": "poscli.data.tokenizers",
        "known-limit source": "poscli.data.known_limit",
        "protocol": "poscli.evaluation.protocols",
        "baseline": "poscli.evaluation.baselines",
        "command": "poscli.cli.commands",
    }
    for number, group in enumerate(kinds.values()):
        offer(tmp_path, f"shop{number}", "1", {"odd": "there_is_no_such_module:Odd"}, group)
    (result,) = in_new_process(tmp_path, [("doctor", "--json")], os.pathsep.join([str(tmp_path), *sys.path]))
    checks = {row["check"]: row["detail"] for row in result.json}
    for kind in kinds:
        assert "there_is_no_such_module" in checks[f"{kind} odd"]


def test_what_was_loaded_is_known(shop: Path) -> None:
    loaded = {plugin["name"]: plugin for plugin in plugins.loaded()}
    assert {*loaded} >= {"fine", "printing", "registering"}
    assert not {*loaded} & {*BROKEN}
    fine = loaded["fine"]
    assert (fine["kind"], fine["value"], fine["distribution"]) == ("encoding", "shop_fine:Toy", "toyshop")
    assert (fine["version"], Path(fine["file"])) == ("1", shop / "shop_fine.py")
    assert (Path(fine["folder"]), len(fine["sha256"])) == (shop.resolve(), 64)


def test_without_plugins_nothing_from_outside_is_loaded(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "shop_fine.py").write_text(CLASS)
    offer(here, "toyshop", "1", {"fine": "shop_fine:Toy", "raising": "shop_raising:Toy"})
    discover_again(monkeypatch, here)
    monkeypatch.setenv(plugins.SWITCH, "")
    result = cli("--no-plugins", "ls", "encodings", "--json")  # sets the variable, which processes inherit
    assert {row["name"] for row in result.json}.isdisjoint({"fine", "raising"})
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


def test_a_name_needs_its_package_and_a_value_an_object_of_its_kind(here: Path) -> None:
    registry: Registry[type] = Registry("thing", "poscli.data.known_limit", subclass_of(dict), "it must be a dict")
    registry.add("one", dict, needs=("there_is_no_such_module", "ode"))
    assert registry.add("two", dict, needs=("json", "ode")) is registry.get("two")
    for name, words in (
        ("one", r"^one needs there_is_no_such_module: pip install 'poscli\[ode\]'"),
        ("collections:deque", r"^'collections:deque' is no thing: it must be a dict$"),
        ("a\0.py:Toy", "cannot load the thing"),
    ):
        with pytest.raises(UsageError, match=words):
            registry.get(name)


def test_a_package_that_ends_the_process_with_success_has_failed() -> None:
    with pytest.raises(PluginError, match=r"a package that poscli uses called sys\.exit\(0\)"), plugins.blamed():
        sys.exit(0)
    with pytest.raises(SystemExit), plugins.blamed():
        sys.exit(1)


# ---- imports


def test_ctrl_c_during_an_import_stays_ctrl_c(here: Path) -> None:
    (here / "slow.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        parse("slow:Toy")


def test_an_alarm_that_was_set_before_still_rings(here: Path) -> None:
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
    parsed: list[str] = []
    thread = threading.Thread(target=lambda: parsed.append(str(parse("toy:Toy"))))
    thread.start()
    thread.join()
    assert parsed == ["toy:Toy"]


# ---- the hash of the source


def hashes(spec: str) -> dict[str, str]:
    return source_hashes(spec, "language", "bytes", PRESETS["nano"].shape(32))


def test_the_hash_covers_the_package_and_parents(here: Path) -> None:
    package = here / "kit" / "parts"
    package.mkdir(parents=True)
    (here / "parent.py").write_text(CLASS)
    (here / "kit" / "__init__.py").write_text(CLASS.replace("Toy", "Child"))
    (here / "kit" / "helper.py").write_text("A = 1\n")
    (package / "__init__.py").touch()
    (package / "toy.py").write_text("from parent import Toy\nclass Child(Toy): ...\n")
    (here / "space").mkdir()  # without __init__.py, so that its modules do not belong together
    (here / "space" / "toy.py").write_text(CLASS)
    alone = hashes("space.toy:Toy")
    (here / "space" / "other.py").touch()
    assert hashes("space.toy:Toy") == alone
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
    whole = hashes("kit:Child")  # a class of the package itself
    (here / "kit" / "more.py").touch()
    assert hashes("rope|kit.parts.toy:Child") != seen[-1]
    assert hashes("kit:Child") != whole
    assert {len(each) for each in (*alone.values(), *whole.values())} == {16}


def test_tasks_and_tokenizers_are_hashed_and_what_is_built_in_is_not(here: Path) -> None:
    (here / "own.py").write_text(
        "from poscli.tasks.copy import Copy\nfrom poscli.data.tokenizers.bytes import *\n"
        "from poscli.data.tokenizers import TOKENIZERS\n"
        "class Task(Copy): ...\nclass Coder(TOKENIZERS.get('bytes')): ...\n"
    )
    assert source_hashes("rope", "own:Task", "own:Coder", PRESETS["nano"].shape(32)).keys() == {"own:Task", "own:Coder"}
    assert TASKS.get("own:Task").name == "own:Task"
    assert hashes("rope+window(128)|urpe(base=t5)") == {}


# ---- plugins that print, leave, or break something else

PRINTING = """
import os, subprocess, sys
print("while imported")
subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
""" + CLASS.replace(
    "        return", "        print('in a forward pass'); os.write(1, b'from C'); sys.stdout.flush()\n        return"
)
LEAVING = {
    "while imported": ("import os\nos._exit(0)\n" + CLASS, 2, "it called os._exit(0) while it was imported"),
    "under another name": ("from os import _exit as bye\nbye(0)\n" + CLASS, 2, "called os._exit(0) while it was"),
    "in a forward pass": (
        CLASS.replace("        return", "        import os; os._exit(0)\n        return"),
        1,
        "the encoding toy.py:Toy, which is not part of poscli, called os._exit(0) (toy.py, line ",
    ),
}


def test_stdout_is_one_document_whatever_a_plugin_prints(here: Path) -> None:
    (here / "toy.py").write_text(PRINTING)
    command = [sys.executable, "-m", "poscli", "train", "--enc", "toy.py", *map(str, NANO), "--dry-run", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["jobs"][0]["encoding"] == "toy.py:Toy"
    for printed in ("while imported", "from a child", "in a forward pass", "from C"):
        assert printed not in done.stdout
        assert printed in done.stderr


@pytest.mark.parametrize("when", LEAVING)
def test_a_plugin_that_leaves_the_process_has_failed(here: Path, when: str) -> None:
    code, exit_code, said = LEAVING[when]
    (here / "toy.py").write_text(code)
    result = cli("train", "--enc", "toy.py", *NANO, "--json")
    assert result.code == exit_code
    (line,) = errors(result)
    assert said in line


FORKS = """
import os
if (child := os.fork()) == 0:
    os._exit(7)
CODE = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_process_that_a_plugin_forks_may_leave_and_so_may_poscli(here: Path) -> None:
    (here / "forks.py").write_text(FORKS)
    assert plugins.load_module("forks.py").CODE == 7
    if (child := os.fork()) == 0:
        signals.end_silently()
        with plugins.contained():  # as a second Ctrl-C while a plugin is imported
            signals.leave(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_of_many_plugins_an_error_names_the_latest_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_run", {})
    assert plugins.suspects() == ""
    for name in ("one.py", "two.py", "three.py", "two.py"):
        plugins.will_run(name)
    assert plugins.suspects().endswith(" has been loaded: two.py and three.py and one.py")
    for name in ("four.py", "five.py"):
        plugins.will_run(name)
    assert plugins.suspects().endswith(" has been loaded: five.py and four.py and two.py and 2 more")


@pytest.mark.parametrize("loads", [True, False])
def test_a_plugin_that_breaks_something_else_is_named(here: Path, loads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_run", {})
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # restored when the test ends
    (here / "toy.py").write_text("import sys\nsys.excepthook = 5\n" + (CLASS if loads else "raise KeyError"))

    def broken(*_: object, **__: object) -> None:
        raise TypeError("'int' object is not callable")

    monkeypatch.setattr("poscli.estimate.trainings", broken)
    assert cli("train", "--enc", "toy.py", *NANO).code == (1 if loads else 2)
    result = cli("train", "--enc", "toy.py" if loads else "rope", *NANO)
    assert result.code == 1
    (line,) = errors(result)
    said = "TypeError: 'int' object is not callable (a bug of poscli, or of what is not part of it and has been loaded"
    assert said in line
    assert ": toy.py" in line
