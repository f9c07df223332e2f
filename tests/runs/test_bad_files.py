"""Suites that cannot run and damaged runs: an error of one line, the right exit code, and nothing written."""

import os
import platform
import shutil

import pytest
from cli_runner import ALIBI, SHORT, assert_refused, cli, trained
from toys import first

from poscli.runs.lock import locked
from poscli.runs.run import open_run

SUITE = """
title = "Bad"
encodings = ["alibi"]
[train]
preset = "nano"
length = 32
batch = 4
tokens = 4_000
[extrapolate]
max_len = 128
tokens = 256
stride = 16
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


SUITES = {
    "not TOML": (SUITE + "seeds = [0", "is not TOML"),
    "no title": (SUITE.replace("title", "# title"), "the key 'title' is missing"),
    "unknown key": ("encoding = 'alibi'\n" + SUITE, ("'encoding'", "did you mean encodings?")),
    "unknown extrapolate key": (SUITE.replace("max_len", "maxlen"), ("'extrapolate.maxlen'", "did you mean max_len?")),
    "unknown table": (SUITE.replace("[train]", "[training]"), ("'training'", "did you mean train?")),
    "unknown model key": (SUITE + "[train.model]\nwidht = 64", ("'widht'", "did you mean width?")),
    "unknown recipe key": (SUITE + "[train.recipe]\nlr = 0.1", ("'lr'", "matrix_lr")),
    "unknown preset": (SUITE.replace("nano", "nanno"), ("'nanno'", "did you mean nano?")),
    "encodings as text": (SUITE.replace('["alibi"]', '"alibi"'), ("encodings = 'alibi'", "list")),
    "a part in single brackets": (SUITE + "[part]\ntrain.length = 64", "[[part]]"),
    "unknown key of a part": (SUITE + "[[part]]\ntrain.lenght = 64", ("'part.0.train.lenght'", "did you mean length?")),
    "unknown table of a part": (SUITE + "[[part]]\ntrian.length = 64", ("'part.0.trian'", "did you mean train?")),
    "no encodings": (SUITE.replace('["alibi"]', "[]"), "encodings = []"),
    "unknown encoding": (SUITE.replace('["alibi"]', '["alibi", "rpoe"]'), ("'rpoe'", "did you mean urpe or rope")),
    "encodings not text": (SUITE.replace('"alibi"', "3"), "encodings.0 = 3"),
    "no seeds": ("seeds = []\n" + SUITE, "seeds = []"),
    "text for a number": (SUITE.replace("length = 32", 'length = "long"'), "train.length = 'long'"),
    "infinity": (SUITE + "[train.recipe]\nclip = inf", ("clip = inf", "finite")),
    "evaluated below the training length": (
        SUITE.replace("max_len = 128", "max_len = 16"),
        ("16", "training length 32"),
    ),
    "stride above the training length": (SUITE.replace("stride = 16", "stride = 33"), ("33", "training length 32")),
    "budget below a stride": (SUITE.replace("tokens = 256", "tokens = 8"), ("8", "stride of 16")),
    "unknown corpus": (SUITE.replace("[train]", "[train]\ncorpus = 'stdlb'"), ("'stdlb'", "did you mean stdlib?")),
}


@pytest.mark.parametrize(("text", "words"), SUITES.values(), ids=SUITES)
def test_suites_that_cannot_run_train_nothing(folder, text, words):
    (folder / "bad.toml").write_text(text)
    assert_refused(("run", "bad.toml"), 2, words)


def test_a_suite_whose_windows_no_document_fills_trains_nothing(folder):
    (folder / "far.toml").write_text(SUITE.replace("max_len = 128", "max_len = 1_048_576"))
    assert_refused(("run", "far.toml"), 4, ("length 1048576", "held-out document", "--max-len"))


def test_a_wrong_suite_is_listed_with_its_error(folder):
    (folder / "suites").mkdir()
    (folder / "suites" / "quick.toml").write_text(SUITE)
    (folder / "suites" / "bad.toml").write_text("title = ")
    rows = {row["suite"]: row["title"] for row in cli("ls", "suites", "--json").json}
    assert rows["suites/quick.toml"] == "Bad"
    assert rows["suites/bad.toml"].startswith("unreadable: ")


# Runs that exist


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A trained and evaluated run of alibi."""
    out = tmp_path_factory.mktemp("evaluated")
    (own,) = (trained(tmp_path_factory.getbasetemp()) / "runs").glob("alibi-*")
    shutil.copytree(own, out / "runs" / own.name)
    result = cli("extrapolate", *SHORT, "--out", out)
    assert result.code == 0, result.err
    return out / "runs" / own.name


@pytest.fixture
def run(source, folder):
    """The run in ./results, which a test may damage."""
    return shutil.copytree(source, folder / "results" / "runs" / source.name)


def test_a_run_is_not_compared_with_itself(run):
    assert_refused(
        ("compare", "alibi", run.name), 2, (f"both names mean {run.name}, and no run is compared with itself",)
    )


@pytest.mark.parametrize("command", ["extrapolate", "generate"])
def test_unknown_runs_are_refused_with_similar_names(run, command):
    assert_refused((command, "--run", "alibi-z"), 2, ("'alibi-z'", run.name))
    assert_refused((command, "--run", run.name + "x"), 2, ("did you mean", run.name))
    assert_refused((command, "--enc", "rope"), 2, ("encoding rope", "there are: alibi"))
    assert_refused((command, "--enc", "alibbi"), 2, ("'alibbi'", "did you mean alibi or alibi-2d?"))


def _digit(path):
    """Change the last digit of the file."""
    text = path.read_text()
    at = max(n for n, sign in enumerate(text) if sign.isdecimal())
    path.write_text(f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}")


def _folder(path):
    path.unlink()
    path.mkdir()


def _loop(path):
    path.unlink()
    path.symlink_to(path)


DAMAGES = {
    "a digit": _digit,
    "half a file": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "the last row": lambda path: path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1])),
    "empty": lambda path: path.write_text(""),
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe" + path.read_bytes()),
    "nested": lambda path: path.write_text("[" * 100_000),
    "no object": lambda path: path.write_text("[1]"),
    "another table": lambda path: path.write_text("a,b\n1,2\n"),
    "a folder": _folder,
    "a symlink to itself": _loop,
    "gone": lambda path: path.unlink(),
}
COMPARE = ("compare", "alibi", "alibi-")
LS_RUNS, REPORT, GENERATE, EXTRAPOLATE = ("ls", "runs"), ("report",), ("generate",), ("extrapolate", *SHORT)
READ_BY = {  # which commands have nothing left to show or to do if a file of the only run is damaged
    "config.toml": (LS_RUNS, REPORT, GENERATE, EXTRAPOLATE),
    "env.json": (LS_RUNS, REPORT, GENERATE, EXTRAPOLATE),
    "MANIFEST.json": (LS_RUNS, REPORT, GENERATE, EXTRAPOLATE),
    "train.csv": (REPORT,),
    "eval.csv": (REPORT, COMPARE),
    "position.csv": (REPORT,),
    "units.csv": (REPORT, COMPARE),
    "recall.csv": (REPORT, COMPARE),
    "eval.json": (REPORT,),
}


CASES = [  # every file and every kind of damage, then every pair of them
    *zip([*READ_BY, "eval.csv", "units.csv"], DAMAGES, strict=True),
    *((name, damage) for name in READ_BY for damage in DAMAGES),
]


@pytest.mark.parametrize(("name", "damage"), first(len(DAMAGES), list(dict.fromkeys(CASES))))
def test_a_damaged_file_is_named_and_nothing_is_reported(run, name, damage):
    DAMAGES[damage](run / name)
    if (name, damage) == ("MANIFEST.json", "a digit"):
        return  # it may be the sum of content that was replaced, which nothing reads
    for command in READ_BY[name]:
        assert_refused(command, 5, run.name)


def test_an_evaluation_without_its_settings_is_made_again(run):
    (run / "eval.json").unlink()
    assert_refused(REPORT, 5, (run.name, "eval.json is missing", "poscli extrapolate --run"))
    before = (run / "eval.csv").read_bytes()
    assert cli(*EXTRAPOLATE).code == 0
    assert (run / "eval.csv").read_bytes() == before  # from the stored losses, timing included


def test_damaged_losses_are_measured_again(run):
    (run / "eval.json").unlink()
    (losses,) = run.glob("nll/64.parquet")
    _flip(losses)
    result = cli(*EXTRAPOLATE)
    assert result.code == 0
    assert f"{losses.name} is not the file that was written" in result.err
    assert "measuring it again" in result.err


def test_results_without_a_configuration_are_refused(run):
    shutil.rmtree(run / "checkpoints")
    for name in ("config.toml", "env.json", "MANIFEST.json"):
        (run / name).unlink()
    assert_refused(REPORT, 5, (run.name, "config.toml is missing"))


def test_a_folder_that_was_only_begun_is_no_run(run):
    (run.parent / "rope-12345678").mkdir()
    (run.parent / "rope-12345678" / "env.json").write_text("{}")
    assert len(cli("ls", "runs", "--json").json) == 1


def test_a_run_folder_renamed(run):
    run.rename(run.with_name("best-run"))
    assert_refused(("generate",), 5, ("best-run", f"belongs to {run.name}"))


def test_a_run_of_another_version(run):
    path = run / "env.json"
    path.write_text(path.read_text().replace('"schema": 4', '"schema": 2'))
    (run / "MANIFEST.json").unlink()
    assert_refused(LS_RUNS, 5, (run.name, "another version", "schema 2", "this one has 4"))


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _last_checkpoint(run):
    return max(run.glob("checkpoints/step-*"), key=lambda path: int(path.name.removeprefix("step-")))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", _flip),
        ("model.safetensors", DAMAGES["gone"]),
        *first(0, [("model.safetensors", _folder), ("MANIFEST.json", DAMAGES["gone"]), ("MANIFEST.json", _folder)]),
    ],
)
def test_a_damaged_model_is_not_used_and_training_repairs_it(run, name, damage):
    folder = _last_checkpoint(run)
    weights = (folder / "model.safetensors").read_bytes()
    damage(folder / name)
    assert_refused(("generate",), 5, (run.name, "repeat the command that trained it"))
    assert_refused(("extrapolate", "--max-len", 64, "--tokens", 256), 5, (run.name, folder.name))
    result = cli(*ALIBI)
    assert result.code == 0
    assert f"{folder.name} is damaged" in result.err
    assert (folder / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("name", ["optim.safetensors", "state.json"])
@pytest.mark.parametrize("damage", first(1, [_flip, DAMAGES["gone"], _folder]))
def test_what_only_training_needs_stops_nothing_else_and_training_repairs_it(run, name, damage):
    folder = _last_checkpoint(run)
    weights, text = (folder / "model.safetensors").read_bytes(), ("generate", "--tokens", 20, "--temperature", 0)
    before = cli(*text).out
    damage(folder / name)
    assert cli(*text).out == before
    assert cli("extrapolate", "--max-len", 32, "--tokens", 64, "--stride", 16).code == 0
    assert f"{folder.name} is damaged" in cli(*ALIBI).err
    assert (folder / "model.safetensors").read_bytes() == weights
    assert "already" in cli(*ALIBI).err


@pytest.mark.parametrize("command", [ALIBI, ("extrapolate", *SHORT)], ids=["train", "extrapolate"])
def test_a_run_that_another_process_works_on(run, command):
    with locked(run):
        assert_refused(command, 75, (run.name, f"process {os.getpid()} on {platform.node()}", "`poscli"))


def test_a_run_that_is_not_complete(run):
    opened = open_run(run)
    opened.set_status("interrupted", 3)
    assert_refused(("extrapolate", "--run", run.name), 2, (run.name, "interrupted", "finish it"))
    assert_refused(("extrapolate",), 2, "finish it", notes=1)
    assert_refused(("generate",), 2, "complete")


def test_a_run_whose_process_was_killed_is_interrupted(run):
    opened = open_run(run)
    opened.set_status("training", 3)
    assert opened.status()["state"] == "interrupted"
    with opened.locked():
        assert opened.status()["state"] == "training"
