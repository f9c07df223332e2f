"""The examples of CONTRIBUTING.md, one plugin of each kind, work in a copy of poscli without any other change."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_runner import BRIEF, NANO, ROOT, environment, in_a_copy
from toys import make

from poscli.attention import choose

# An encoding and layouts that another installed package offers through entry points.
VISITOR = """
from poscli.encodings import Encoding
from poscli.layouts import Layout

class Visitor(Encoding):
    \"\"\"Nothing at all.\"\"\"

GUESTS = Layout(spec="visitor|none", paper="nowhere", note="The encoding of this package on every second layer.")
LOST = Layout(spec="vistor|guests", paper="", note="")
LOOP = Layout(spec="loop", paper="", note="")
WORD = "visitor|none"
"""
ENTRY_POINTS = """
[poscli.encodings]
visitor = visiting:Visitor
[poscli.layouts]
guests = visiting:GUESTS
lost = visiting:LOST
loop = visiting:LOOP
word = visiting:WORD
rope = visiting:GUESTS
swan = visiting:GUESTS
"""
FEW = (*NANO, "--tokens", "1k")  # what is trained need not be good
BASELINES = ("--baseline", "half", "--baseline", "sink(4)+window")
POOL = """
import torch
from pathlib import Path
from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.resolve import resolve
from poscli.sweep.drive import Watcher, run_jobs
from poscli.sweep.job import Job
from pool import Pool
if __name__ == "__main__":
    config = resolve(TrainRequest(preset="nano", length=32, batch=4, tokens=256), "root", 0, torch.device("cpu"))
    job = Job(config=config, extrapolate=ExtrapolateRequest(max_len=64, tokens=64, stride=16), runs=Path("jobs"))
    with Pool() as pool:
        results = run_jobs([job], pool, Watcher())
    assert not results.failures, results.failures
    print(results.folders[0] / "eval.csv")
"""


def examples() -> dict[str, str]:
    """The code of CONTRIBUTING.md, by the file that its first line names."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == text.count("```python")
    return dict(blocks)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A copy of poscli with every example in place."""
    home = tmp_path_factory.mktemp("contributing")
    shutil.copytree(ROOT / "poscli", home / "poscli", ignore=shutil.ignore_patterns("__pycache__"))
    for path, code in examples().items():
        assert not (home / path).exists(), f"{path} is one of poscli's own files"
        (home / path).write_text(code)
    (home / "visiting.py").write_text(VISITOR)
    package = home / "visiting-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: visiting\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(ENTRY_POINTS)
    words = "\n\n".join(f"paragraph {n}:    " + "some words    of text " * 20 for n in range(60))
    (home / "text.txt").write_text(words)
    return home


@pytest.fixture(scope="module")
def results(home) -> list[Any]:
    """The JSON documents of the commands, each of which succeeded."""
    language, task = ("--out", "language"), ("--out", "task")
    commands = [
        ("ls", "encodings"), ("ls", "tasks"), ("ls", "tokenizers"), ("ls", "corpora"),
        ("verify", "root(start=0.5)", "visitor"),
        ("train", "--enc", "root", *FEW, "--tokenizer", "indents", "--corpus", "paragraphs:text.txt", *language),
        ("extrapolate", *BRIEF, "--protocol", "opening", *BASELINES, *language),
        ("report", *language),
        ("generate", "--enc", "root", "--tokens", 5, *language),
        ("train", "--enc", "root", *FEW, "--task", "reverse", *task),
        ("extrapolate", *BRIEF, *task),
        ("train", "--enc", "root", *NANO, "--corpus", "bayes:coin(heads=0.9)", "--out", "coin"),
        ("verify", "salient", "root+salient"),
        ("train", "--enc", "root+salient", *FEW, "--out", "blank"),
        ("extrapolate", *BRIEF, "--out", "blank"),
        ("ls", "layouts"), ("verify", "every-third", "guests+window(8)"),
        ("train", "--enc", "every-third", "--enc", "guests", "--enc", "rope", *FEW, "--layers", 3, "--out", "layouts"),
    ]  # fmt: skip
    done = in_a_copy(home, commands)
    assert [each["code"] for each in done] == [0] * len(commands)
    return [each["out"] for each in done]


def test_each_is_listed(results) -> None:
    encodings, tasks, tokenizers, corpora = results[:4]
    rows = {row["name"]: row for row in encodings}
    assert (rows["root"]["tier"], rows["root"]["engine"], rows["root"]["options"]) == (
        "distance",
        choose(make("alibi")).name,
        {"start": 1.0},
    )
    assert (rows["visitor"]["family"], rows["visitor"]["paper"]) == ("external", "")
    assert "reverse" in {row["task"] for row in tasks}
    assert "indents" in {row["tokenizer"] for row in tokenizers}
    assert "paragraphs:PATH" in {row["corpus"] for row in corpora}


def test_layouts_are_listed_verified_and_trained(results) -> None:
    listed, verified, trained = results[15:]
    rows = {row["layout"]: row for row in listed}
    assert {name: (rows[name]["spec"], rows[name]["layers"]) for name in ("every-third", "guests")} == {
        "every-third": ("rope|rope|none", 3),
        "guests": ("visitor|none", 2),
    }
    for name, cause in {
        "lost": "the layout lost cannot be used: there is no encoding 'vistor': did you mean visitor?",
        "loop": "the layout loop cannot be used: there is no encoding 'loop'",
        "word": "it is no layout: it must be an instance of poscli.layouts.Layout",
        "rope": "the name rope belongs to an encoding",
        "swan (visiting 1.0)": "the name swan belongs to poscli",
    }.items():
        assert cause in rows[name]["unavailable"], name
    assert [verdict["status"] for verdict in verified] == ["passed", "passed"], verified
    assert [run["encoding"] for run in trained] == ["rope|rope|none", "visitor|none", "rope"]


def test_an_encoding_is_verified_and_trained_on_a_corpus_and_a_tokenizer_from_outside(results) -> None:
    verified, (trained,) = results[4:6]
    assert [verdict["status"] for verdict in verified] == ["passed", "passed"], verified
    assert trained["status"] == "complete"


def test_protocols_and_baselines_are_rows_like_the_others_and_a_report_explains_them(home, results) -> None:
    rows, report = results[6:8]
    assert all(row["status"] == "ok" for row in rows)
    assert {row["protocol"] for row in rows} == {"nonoverlapping", "sliding", "fixed", "opening"}
    assert {row["variant"] for row in rows} == {"full", "crop", "window", "half", "sink(4)+window"}
    assert all(row["bytes"] > row["tokens"] for row in rows)  # an indent is four bytes
    assert {row["encoding"] for row in report["summary"]} == {"root"}
    text = (home / "language" / "report" / "report.md").read_text(encoding="utf-8")
    assert "**opening**: the first l tokens of every document" in text
    assert "**half** is the same model with its window cut to L/2" in text
    assert "sink(4)+window" in text.replace("\\", "")


def test_a_task_from_outside_is_trained_and_scored(results) -> None:
    (trained,), rows = results[9:11]
    assert trained["status"] == "complete"
    assert {row["corpus"] for row in rows} == {"reverse"}
    assert all(0 <= row["accuracy"] <= 1 for row in rows)


def test_a_text_of_known_limit_from_outside_is_trained_on(results) -> None:
    (trained,), listed = results[11], {row["corpus"]: row["what"] for row in results[3]}
    assert "coin" in listed["bayes:NAME(options)"]
    best = -0.9 * math.log2(0.9) - 0.1 * math.log2(0.1)
    assert trained["status"] == "complete"
    assert best - 0.05 < trained["bpb"] < best + 0.5


def test_an_encoding_with_a_blank_of_its_own_is_verified_composed_trained_and_evaluated(results) -> None:
    row = next(row for row in results[0] if row["name"] == "salient")
    assert (row["tier"], row["acts_on"], row["engine"]) == ("pair", ["salience"], "blocks")
    verified, (trained,), rows = results[12:15]
    assert [verdict["status"] for verdict in verified] == ["passed", "passed"], verified
    assert trained["status"] == "complete"
    assert rows
    assert all(row["status"] == "ok" and "blocks" in row["engine"] for row in rows)


@pytest.mark.wide
def test_a_runner_from_outside_runs_a_job(home) -> None:
    environ = environment(PYTHONPATH=str(home))
    done = subprocess.run([sys.executable, "-c", POOL], cwd=home, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "root" in (home / done.stdout.splitlines()[-1]).read_text(encoding="utf-8")
