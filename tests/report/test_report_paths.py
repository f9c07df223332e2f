"""A report may be sent to others: no file of it says where the files of this machine lie."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pandas as pd
import pytest
from fake_results import BEHAVIOUR, results

from poscli.config.run import CheckpointConfig, RunConfig
from poscli.report import About, build_report, write_site
from poscli.report.collect import Trained, shown

OWN = """
from poscli import api

class Own(api.Encoding):
    '''s -= d / 8.'''

    def distance_bias(self, d):
        return -d[None] / 8
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A project, which is the current folder, a home, and a folder beside them, each with an encoding and a text."""
    found = {name: tmp_path / "machine of me" / name for name in ("project", "home", "elsewhere")}
    for folder in found.values():
        folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(found["home"]))
    monkeypatch.chdir(found["project"])
    return found


def test_no_file_of_a_report_holds_an_absolute_path(places: dict[str, Path], tmp_path: Path) -> None:
    out, evaluated, runs = places["project"] / "results", [], {}
    (places["home"] / "toy.py").write_text(OWN)
    shapes = {f"{places['home']}/toy.py:Own": BEHAVIOUR["rope"]}
    for number, folder in enumerate(places.values()):
        corpus = f"text:{folder}/my texts/a.txt"
        rows, positions = results(shapes, corpus=corpus, fingerprint=str(number) * 12, lengths=(256, 512))
        evaluated.append((rows, positions))
        checkpoint = CheckpointConfig(name="llama", source=f"{folder}/llama", digest="0", parameters=1)
        config = RunConfig(encoding="rope", corpus=corpus, checkpoint=checkpoint if number else None)
        runs[rows["run_id"].iloc[0]] = Trained(config, {"baselines": [f"{folder}/base.py:Mine"]})
    rows, positions = (pd.concat(tables) for tables in zip(*evaluated, strict=True))
    damaged = tmp_path / "runs" / "eval.csv"
    left_out = [f"rope, seed 0: cannot write {out}/runs/rope: No space left on device", f"t5-1: {damaged} was changed"]
    rows.loc[rows["length"] == 512, ["status", "reason"]] = ["failed", f"{damaged} is not a table; see https://x.org/a"]
    about = About(left_out=left_out)
    made = build_report(rows, positions, out / "report", runs=runs, about=about)
    files = [*made.files, *write_site(made, out / "site")]
    assert {path.suffix for path in files} >= {".html", ".md", ".csv", ".tex", ".json"}
    texts = {path.name: path.read_bytes().decode(errors="ignore") for path in files}
    assert "is not a table; see https://x.org/a" in texts["summary.csv"]
    for name, text in texts.items():
        for secret in (*places.values(), damaged):
            assert str(secret) not in text, name
            assert str(secret).replace("_", r"\_") not in text, name
    for told in ("text:my texts/a.txt", "text:~/my texts/a.txt", "text:../elsewhere/my texts/a.txt", "~/toy.py:Own"):
        assert told in texts["summary.csv"]
        assert told in texts["report.html"]


def test_messages_hold_no_absolute_path_and_stay_whole() -> None:
    there = os.path.relpath("/mnt/results/eval.csv")
    for before in ("", "alibi-1: ", "cannot read ", "rope+t5(base="):
        for after in (" was changed", ": no such file; see https://x.org/a//b (1/2 of 3 / 4)", "", "."):
            assert shown(f"{before}/mnt/results/eval.csv{after}", message=True) == f"{before}{there}{after}"


def test_the_command_of_a_report_names_the_same_file(places: dict[str, Path]) -> None:
    """Every spelling leads back to the file, from the current folder."""
    for folder in places.values():
        path = folder / "my texts" / "a.txt"
        word = shlex.split(shown(f"poscli train --corpus {shlex.quote(f'text:{path}')}"))[-1]
        assert Path(word.removeprefix("text:")).expanduser().resolve() == path.resolve()
        spec = shown(f"rope+urpe(base={places['project']}/toy.py:Own)|none")
        assert spec == "rope+urpe(base=toy.py:Own)|none"
    inside = f"text:/var{places['project']}/a.txt"  # a path in whose middle the current folder stands
    assert Path(shown(inside).removeprefix("text:")).resolve() == Path(f"/var{places['project']}/a.txt").resolve()
    for text in ("hf:ORG/NAME@main", "https://x.org/a", "1/2 of 3 / 4", "alibi", "as/none"):
        assert shown(text) == text
