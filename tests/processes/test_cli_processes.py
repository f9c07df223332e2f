"""Commands in processes of their own: what they import, and signals while a model is trained."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from cli_runner import COMMANDS, LENGTH, LS, NANO, cli, document, environment, run_of, shell
from toys import first

from poscli.training.trainer import Trainer


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every command runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSCLI_QUIET", "")  # restored afterwards: --quiet sets it
    return tmp_path


HEAVY = ["torch", "numpy", "pandas", "matplotlib", "scipy", "pyarrow", "datasets", "transformers"]
LAZY = """
import contextlib, io, json, sys
from poscli.cli import main
found = {}
for arguments in json.loads(sys.argv.pop()):
    sys.argv = ["poscli", *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            found[" ".join(arguments)] = [end.code, [name for name in %r if name in sys.modules]]
print(json.dumps(found))
"""


def test_help_and_mistyped_commands_import_nothing_heavy():
    helps = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS), *(["ls", w, "--help"] for w in LS)]
    wrong = [["frobnicate"], ["train", "--lenght", "3"], ["train"], ["train", "--enc", "alibi", "--tokens", "lots"]]
    done = subprocess.run(
        [sys.executable, "-c", LAZY % HEAVY, json.dumps(helps + wrong)],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    expected = {" ".join(a): [0, []] for a in helps} | {" ".join(a): [2, []] for a in wrong}
    assert json.loads(done.stdout) == expected


def test_python_m_poscli_is_poscli():
    result = shell("ls", "corpora", "--json")
    assert result.code == 0
    assert result.json == document("ls", "corpora")
    assert result.err == ""


def start(*arguments):
    """Start a training process, and return it once it takes steps."""
    process = subprocess.Popen(
        [sys.executable, "-m", "poscli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        for path in Path("results/runs").glob("*/status.json"):
            if json.loads(path.read_text())["state"] == "training":
                time.sleep(0.1)
                return process
        time.sleep(0.01)
    process.kill()
    raise AssertionError(process.communicate())


@pytest.mark.parametrize(("signum", "code"), first(1, [(signal.SIGTERM, 143), (signal.SIGINT, 130)]))
def test_signals_stop_training_and_the_same_command_goes_on(folder, signum, code):
    shape = ("--preset", "nano", "--layers", 1, "--length", LENGTH, "--batch", 1)
    command = ("train", "--enc", "none", *shape, "--tokens", 390 * LENGTH)  # a second or more
    process = start(*command)
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert out == ""
    assert re.search(r"^error: stopped at step \d+ of 390; the same command goes on from there$", err, re.MULTILINE)
    assert "Traceback" not in err
    status = run_of("results", "none").status()
    assert status["state"] == "interrupted"
    assert 0 < status["step"] < 390
    (row,) = document("ls", "runs")
    assert (row["state"], row["step"]) == ("interrupted", status["step"])
    result = cli(*command, "--json")
    assert result.code == 0
    assert f"going on from step {status['step']} of 390" in result.err
    assert result.json[0]["status"] == "complete"
    assert pd.read_csv(run_of("results", "none").train_csv)["step"].is_monotonic_increasing


def test_a_run_stopped_before_its_first_logged_step_can_be_listed(monkeypatch):
    def one_step(self):
        signal.raise_signal(signal.SIGINT)
        return original(self)

    original = Trainer.take_step
    monkeypatch.setattr(Trainer, "take_step", one_step)
    assert cli("train", "--enc", "none", *NANO[:-1], "1M").code == 130
    (row,) = document("ls", "runs")
    assert (row["state"], row["step"], row["bpb"]) == ("interrupted", 1, None)
