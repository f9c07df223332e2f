"""`make same`: whatever two checkouts compute or say differently is listed, by two that only pretend to train."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from same.__main__ import main

# A checkout that trains nothing: its command line writes and says what these values are. Runs it has it leaves alone.
USUAL = {"NAMES": ["rope", "alibi"], "LOSS": 2.847674970, "MEMORY": 0, "VERDICT": "better", "GAIN": 0.0588424984}
POSCLI = """
import json, sys, time, tomllib
from pathlib import Path
command, *words = sys.argv[1:]
out = Path(words[words.index("--out") + 1]) if "--out" in words else None
if command == "run":
    for encoding in tomllib.loads(Path(words[0]).read_text())["encodings"]:
        run = out / "runs" / encoding
        if not run.exists():
            run.mkdir(parents=True)
            (run / "config.toml").write_text(f'encoding = "{encoding}"\\n[model]\\nmemory = {MEMORY}\\n')
            (run / "train.csv").write_text(f"step,nll,seconds\\n1,{LOSS},{time.time()}\\n")
elif command == "report":
    print(f"{{'commit': {COMMIT!r}, 'gain': {GAIN}}}")
elif command == "compare":
    print(f"{words[0]} is {VERDICT} than {words[1]}")
elif words[0] == "encodings":
    known = [(name, "bias") for name in NAMES] + [("rope-2d", "grid")]
    print(json.dumps([{"name": name, "family": family, "unavailable": ""} for name, family in known]))
"""


def checkout(folder: Path, **values: object) -> Path:
    """A folder with such a poscli."""
    (folder / "poscli").mkdir(parents=True, exist_ok=True)
    said = {"COMMIT": "1f" * 5 if folder.name == "base" else "2e" * 5} | USUAL | values
    heads = "\n".join(f"{name} = {value!r}" for name, value in said.items())
    (folder / "poscli" / "__init__.py").touch()
    # Python takes a source of the same size and second for the one that it has compiled.
    shutil.rmtree(folder / "poscli" / "__pycache__", ignore_errors=True)
    (folder / "poscli" / "__main__.py").write_text(f"{heads}\n{POSCLI}")
    return folder


def compared(folder: Path, capsys: pytest.CaptureFixture[str], *suites: str) -> tuple[int, str]:
    """The exit code for the checkouts `base` and `here` in a folder, and what is printed."""
    trees = (str(folder / "base"), "--here", str(folder / "here"))
    code = main([*trees, "--to", str(folder / "recorded"), "--only", *suites])
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value", "place"),
    [
        ("LOSS", 2.847674971, "language/runs/rope/train.csv"),
        ("MEMORY", 64, "language/runs/rope/config.toml"),
        ("VERDICT", "worse", "language: compare"),
        ("GAIN", 0.0588424985, "language: terminal"),
    ],
)
def test_what_differs_is_found_although_checkouts_were_compared_before(
    name: str, value: object, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither times nor commits count; what is trained anew, because its source has changed, does."""
    checkout(tmp_path / "base")
    checkout(tmp_path / "here")
    same = (0, "the same weights, numbers and sentences\n")
    assert compared(tmp_path, capsys, "language") == same
    checkout(tmp_path / "here", **{name: value})
    code, said = compared(tmp_path, capsys, "language")
    assert code == 1
    assert f"{place}" in said
    checkout(tmp_path / "base", **{name: value})
    assert compared(tmp_path, capsys, "language") == same


def test_every_encoding_that_both_have_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And combinations, but no encoding of grids, for which there is a suite of its own."""
    checkout(tmp_path / "base", NAMES=["rope", "alibi", "old"])
    checkout(tmp_path / "here", NAMES=["alibi", "new", "rope"])
    assert compared(tmp_path, capsys, "every")[0] == 0
    for runs in (tmp_path / "recorded").glob("*/every/runs"):
        trained = {run.name for run in runs.iterdir()}
        assert {name for name in trained if not {*name} & set("+|(")} == {"rope", "alibi"}
        assert "rope+window(48)" in trained
