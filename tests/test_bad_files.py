"""Suites that cannot run and damaged runs: an error of one line, the right exit code, and nothing written."""

import json
import shutil

import pytest
from cli_runner import ALIBI, SHORT, assert_refused, cli, trained
from filelock import FileLock

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
    "unknown train key": (SUITE.replace("length", "lenght"), ("'train.lenght'", "did you mean length?")),
    "unknown extrapolate key": (SUITE.replace("max_len", "maxlen"), ("'extrapolate.maxlen'", "did you mean max_len?")),
    "unknown table": (SUITE.replace("[train]", "[training]"), ("'training'", "did you mean train?")),
    "unknown model key": (SUITE + "[train.model]\nwidht = 64", ("'widht'", "did you mean width?")),
    "unknown recipe key": (SUITE + "[train.recipe]\nlr = 0.1", ("'lr'", "matrix_lr")),
    "unknown preset": (SUITE.replace("nano", "nanno"), ("'nanno'", "did you mean nano?")),
    "encodings as text": (SUITE.replace('["alibi"]', '"alibi"'), ("encodings = 'alibi'", "list")),
    "no encodings": (SUITE.replace('["alibi"]', "[]"), "encodings = []"),
    "unknown encoding": (SUITE.replace('["alibi"]', '["alibi", "rpoe"]'), ("'rpoe'", "did you mean urpe or rope")),
    "encodings not text": (SUITE.replace('"alibi"', "3"), "encodings.0 = 3"),
    "negative seed": ("seeds = [0, -1]\n" + SUITE, "seed = -1"),
    "no seeds": ("seeds = []\n" + SUITE, "seeds = []"),
    "text for a number": (SUITE.replace("length = 32", 'length = "long"'), "train.length = 'long'"),
    "infinity": (SUITE + "[train.recipe]\nclip = inf", ("clip = inf", "finite")),
    "window too short": (SUITE.replace("length = 32", "length = 4"), ("train.length = 4", "8")),
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
    (folder / "far.toml").write_text(SUITE.replace("max_len = 128", "max_len = 33_554_432"))
    assert_refused(("run", "far.toml"), 4, ("length 33554432", "held-out document", "--max-len"))


def test_a_wrong_suite_is_listed_with_its_error(folder):
    (folder / "suites").mkdir()
    (folder / "suites" / "quick.toml").write_text(SUITE)
    (folder / "suites" / "bad.toml").write_text("title = ")
    rows = {row["suite"]: row["title"] for row in cli("ls", "suites", "--json").json}
    assert rows["suites/quick.toml"] == "Bad"
    assert rows["suites/bad.toml"].startswith("unreadable: ")


# Runs that exist


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return trained(tmp_path_factory.getbasetemp())


@pytest.fixture
def run(results, folder):
    """A trained and evaluated run of alibi in ./results, which a test may damage."""
    (source,) = (results / "runs").glob("alibi-*")
    return shutil.copytree(source, folder / "results" / "runs" / source.name)


def test_limits_of_an_evaluation(run):
    assert_refused(("extrapolate", "--max-len", 16), 2, ("--max-len 16", "training length 32"))
    assert_refused(("extrapolate", "--stride", 33), 2, ("--stride 33", "training length 32"))
    assert_refused(("extrapolate", "--tokens", 8), 2, ("--tokens 8", "stride of 16"))
    assert_refused(
        ("extrapolate", "--max-len", 2**25, "--tokens", 256), 4, ("33554432", "held-out document", "smaller --max-len")
    )


@pytest.mark.parametrize("command", ["extrapolate", "generate"])
def test_unknown_runs_are_refused_with_similar_names(run, command):
    assert_refused((command, "--run", "alibi-z"), 2, ("'alibi-z'", run.name))
    assert_refused((command, "--run", run.name + "x"), 2, ("did you mean", run.name))
    assert_refused((command, "--enc", "rope"), 2, ("encoding rope", "there are: alibi"))
    assert_refused((command, "--enc", "alibbi"), 2, ("'alibbi'", "did you mean alibi?"))


EDITS = {
    "another seed": ("config.toml", lambda text: text.replace("seed = 0", "seed = 7"), "edited or renamed"),
    "unknown key": ("config.toml", lambda text: text.replace("heads =", "head ="), "config.toml"),
    "half a file": ("config.toml", lambda text: text[: len(text) // 2] + "=", "config.toml"),
    "another corpus": (
        "env.json",
        lambda text: text.replace('fingerprint": "', 'fingerprint": "0'),
        "edited or renamed",
    ),
    "no environment": ("env.json", lambda text: "[]", "env.json"),
    "no status": ("status.json", lambda text: '{"state": "finished"}', "status.json"),
    "half a status": ("status.json", lambda text: text[:20], "status.json"),
}


@pytest.mark.parametrize(("name", "edit", "words"), EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("command", [("extrapolate", *SHORT), ("generate",), ("ls", "runs")], ids=lambda c: c[0])
def test_a_run_edited_by_hand(run, command, name, edit, words):
    path = run / name
    path.write_text(edit(path.read_text()))
    assert_refused(command, 5, (run.name, words, "delete"))


def test_a_run_folder_renamed(run):
    run.rename(run.with_name("best-run"))
    assert_refused(("generate",), 5, ("best-run", f"belongs to {run.name}"))


@pytest.mark.parametrize("name", ["model.safetensors", "optim.safetensors", "state.json", "MANIFEST.json"])
@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_corrupt_checkpoint(run, name, damage):
    path = next(run.glob("checkpoints/step-*")) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content) if damage == "flipped" else path.unlink()
    assert_refused(("generate",), 5, (run.name, "train again"))
    assert_refused(("extrapolate", "--max-len", 64, "--tokens", 256), 5, (run.name, "train again"))


@pytest.mark.parametrize(
    ("name", "content", "command"),
    [
        ("eval.json", "{", ("extrapolate", *SHORT)),
        ("eval.csv", "a,b\n1,2\n", ("extrapolate", *SHORT)),
        ("eval.csv", "", ("report",)),
        ("eval.csv", "a,b\n1,2\n", ("report",)),
        ("position.csv", "\0\0\0", ("report",)),
        ("train.csv", "step\nmany\n", ("ls", "runs")),
    ],
)
def test_a_corrupt_table(run, name, content, command):
    (run / name).write_text(content)
    assert_refused(command, 5, (f"{run.name}/{name}", "delete it"))


@pytest.mark.parametrize("command", [ALIBI, ("extrapolate", *SHORT)], ids=["train", "extrapolate"])
def test_a_run_that_another_process_works_on(run, command):
    with FileLock(run / ".lock"):
        assert_refused(command, 75, (run.name, "another process"))


def test_a_run_that_is_not_complete(run):
    status = json.loads((run / "status.json").read_text()) | {"state": "interrupted"}
    (run / "status.json").write_text(json.dumps(status))
    assert_refused(("extrapolate", "--run", run.name), 2, (run.name, "interrupted", "finish it"))
    assert_refused(("extrapolate",), 2, "finish it", notes=1)
    assert_refused(("generate",), 2, "complete")
