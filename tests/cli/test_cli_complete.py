"""What shells offer at the Tab key: the names there are, without importing anything slow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import ROOT, environment

from poscli.cli import complete
from poscli.data import CORPORA, TOKENIZERS
from poscli.encodings.registry import ENCODINGS
from poscli.evaluation.baseline import BASELINES
from poscli.evaluation.protocol import PROTOCOLS
from poscli.layouts import LAYOUTS
from poscli.system.registry import Registry
from poscli.tasks import TASKS

# Prints the answers to lines that end at the cursor, and whether torch was needed.
ASK = """
import contextlib, io, json, os, sys
from poscli.cli import main
answers = []
os.environ["_POSCLI_COMPLETE"] = "complete_bash"
for line in json.loads(sys.argv.pop()):
    words = line.split(" ")
    os.environ |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    sys.argv = ["poscli"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main()
    answers.append(out.getvalue().split())
print(json.dumps([answers, "torch" in sys.modules]))
"""


@pytest.mark.parametrize(
    "registry", [ENCODINGS, LAYOUTS, TASKS, CORPORA, TOKENIZERS, PROTOCOLS, BASELINES], ids=lambda r: r.kind
)
def test_the_names_in_the_files_are_those_that_are_registered(registry: Registry) -> None:  # type: ignore[type-arg]
    assert complete.registered(registry.package) == registry.names()


def test_a_shell_gets_names_runs_and_suites(tmp_path: Path) -> None:
    for name in ("alibi-1", "rope-2"):
        (tmp_path / "elsewhere" / "runs" / name).mkdir(parents=True)
        (tmp_path / "elsewhere" / "runs" / name / "config.toml").touch()
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "mine.toml").touch()
    expected = {
        "poscli tr": ["train"],
        "poscli train --enc rope-d": ["rope-dropped", "rope-dynamic"],
        "poscli train --enc sw": ["swan", "swin-2d"],
        "poscli train --task ": TASKS.names(),
        "poscli train --corpus st": ["stdlib"],
        "poscli train --preset na": ["nano"],
        "poscli extrapolate --as yar": ["yarn"],
        "poscli extrapolate --protocol sl": ["sliding"],
        "poscli generate --out elsewhere --run ": ["alibi-1", "rope-2"],
        "poscli rm --out elsewhere al": ["alibi-1"],
        "poscli run sui": ["suites/mine.toml"],
        "poscli bench --enc alib": ["alibi", "alibi-2d"],
        "poscli ls enc": ["encodings"],
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(list(expected))],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(ROOT)),
    )
    answers, slow = json.loads(done.stdout)
    assert dict(zip(expected, answers, strict=True)) == expected
    assert not slow
