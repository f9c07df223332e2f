"""Whole reports of every kind of results: text, tables, pictures, the page's data and the terminal.

Of kinds that differ from others in what is said, and not in how, only report.md and the answers are kept.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawn import drawn
from fake_explained import HARMS, explained, recall_of, with_optimum
from fake_pages import fake_runs, fake_tables, tables_with_holes, task_tables
from fake_results import BEHAVIOUR, LN2, of_two_tokenizers, results, units_of
from lines import outline
from rich.console import Console
from torture.reports import undrawn

from poscli.config.run import CheckpointConfig
from poscli.report import About, Report, build_report, terminal
from poscli.report.collect import Trained

LOOKS_AT_PICTURES = True
Tables = tuple[pd.DataFrame, pd.DataFrame, dict[str, pd.DataFrame]]
Say = Callable[..., None]


def some(*names: str) -> dict[str, Any]:
    return {name: BEHAVIOUR[name] for name in names}


def language() -> Tables:
    """Three seeds, an encoding that ends at L, and a length that is no power of two times L."""
    return fake_tables(some("alibi", "learned", "rope", "t5(buckets=32)"), (256, 512, 2304))


def grid() -> Tables:
    """Images, whose unit is the cell."""
    rows, positions, details = fake_tables(some("alibi", "rope"), (256, 1024))
    return rows.assign(corpus="images"), positions, details


def sections() -> Tables:
    """Two corpora with different encodings."""
    rows, positions, details = fake_tables(some("alibi", "none", "rope"), (256, 512))
    other = rows["encoding"] != "none"
    return pd.concat([rows, rows[other].assign(corpus="text:other", nll=rows["nll"] + 0.01)]), positions, details


def alone() -> Tables:
    """One encoding, one seed."""
    rows, positions, details = fake_tables({"kerple-log": (1.4, lambda octaves: 0.01 * octaves)}, (256, 4096))
    one = {name: table[table["seed"] == 1] for name, table in details.items()}
    return rows[rows["seed"] == 1], positions[positions["seed"] == 1], one


def everything() -> Tables:
    """Seven encodings with every table of --why, text that recurs, and known limits."""
    shapes = BEHAVIOUR | {"fire": (1.37, lambda octaves: -0.07 * octaves)}
    rows, positions, details = fake_tables({name: shapes[name] for name in HARMS}, (256, 512, 1024))
    recall = recall_of(rows, {64: 0.0, 128: 0.05, 256: 0.2, 512: 0.157})
    return with_optimum(rows, 0.1).assign(blind=1.22), positions, details | explained(rows) | {"recall": recall}


def unharmed() -> Tables:
    """One seed of two encodings that no window harms; the judge finds few tokens, and nothing recurs far back."""
    rows, positions, details = everything()
    names = ["alibi", "t5(buckets=32)"]
    tables = {name: each[each["encoding"].isin(names) & (each["seed"] == 0)] for name, each in details.items()}
    rows = rows[rows["encoding"].isin(names) & (rows["seed"] == 0)]
    few = tables["why/key_tokens"].assign(gain=math.nan, gain_low=math.nan, gain_high=math.nan)
    tables |= {"recall": recall_of(rows, {32: 0.5, 128: 0.3}), "why/key_tokens": few}
    return with_optimum(rows, 1e-4), positions, tables


def undecided() -> Tables:
    """Two seeds whose rankings differ between protocols; text recurs beyond L, and nobody copies it."""
    rows, positions, _ = fake_tables(some("alibi", "none", "t5(buckets=32)"), (256, 512, 4096))
    rows = rows[rows["seed"] < 2]
    swapped = (rows["protocol"] == "nonoverlapping") & (rows["encoding"] == "alibi")
    rows = rows.assign(bpb=rows["bpb"] + 0.2 * swapped, nll=rows["nll"] + 0.2 * LN2 * swapped)
    return rows, positions, {"units": units_of(rows), "recall": recall_of(rows, {128: 0.5, 256: 0.02})}


def by_gap() -> Tables:
    """A task that nobody solves, asked for by how far back the answer lies; some bins are small."""
    rows, positions, details = task_tables()
    rows, answered = rows[rows["seed"] < 2], details["answers"].query("seed < 2")
    answered = answered.assign(by="gap", right=answered["right"] // 2)
    answered = answered.assign(tokens=np.where(answered["from"] == 80, 1, 4))
    answered = answered.assign(right=np.minimum(answered["right"], answered["tokens"]))
    totals = answered.groupby(["run_id", "length"])[["right", "tokens"]].sum()
    shares = (totals["right"] / totals["tokens"]).rename("accuracy").reset_index()
    rows = rows.drop(columns="accuracy").merge(shares, how="left", on=["run_id", "length"])
    return rows, positions, details | {"answers": answered}


def two_tokenizers() -> Tables:
    """Runs on bytes and on tokens of four bytes, which only bits per byte compare."""
    rows, positions = of_two_tokenizers()
    rows = rows[rows["length"] <= 1024]
    units = units_of(rows)
    units = units.assign(bytes=units["tokens"] * (1 + 3 * (units["fingerprint"] == "77aa88bb99cc")))
    return rows, positions, {"units": units, "recall": recall_of(rows, {256: 0.5})}


def checkpoint() -> Tables:
    """One model under several encodings, measured once."""
    names = {"alibi": "llama as alibi", "none": "llama as none", "rope": "llama"}
    rows, positions, details = fake_tables(some("alibi", "none", "rope"), (256, 1024))
    rows, positions, *tables = (
        each[each["seed"] == 0].replace({"encoding": names}) for each in (rows, positions, details["units"])
    )
    return rows, positions, {"units": tables[0]}


def guessing() -> Tables:
    """Four encodings that predict no better than a guess, beside two that were trained."""
    rows, positions, details = fake_tables()
    untrained = rows["encoding"].isin(["alibi", "rope", "t5(buckets=32)", "sinusoidal"])
    return rows.assign(guess_gain_low=rows["guess_gain_low"].mask(untrained, -0.1)), positions, details


def undertrained() -> Tables:
    """Two encodings that are too far behind at L, of which one may not be, beside two that are ranked."""
    shapes = some("alibi", "rope") | {
        "none": (1.385 + math.log(1.4), lambda octaves: 0.2 * octaves),
        "sinusoidal": (1.36 + math.log(1.26), lambda octaves: -0.1 * octaves),
    }
    rows, positions, details = fake_tables(shapes, (256, 1024))
    noise = np.where(details["units"]["unit"].astype(int) % 2, 0.2, -0.2)
    noise *= details["units"]["encoding"] == "sinusoidal"
    return rows, positions, details | {"units": details["units"].assign(nll=details["units"]["nll"] + noise)}


def failures() -> Tables:
    """Nothing but failures."""
    rows, positions, _ = fake_tables(some("alibi", "rope"), (256, 1024))
    lost = ["nll", "bpb", "ppl", "nll_low", "nll_high", "gain", "gain_low", "gain_high"]
    return rows.assign(status="oom", reason="no memory", **dict.fromkeys(lost, math.nan)), positions.iloc[:0], {}


def many_encodings() -> Tables:
    """44 encodings, of which more share each fate than a sentence names."""
    names = [f"e{n:02}" for n in range(44)]
    gains = {0: 0.05, 1: -0.3, 2: -0.03, 3: 0.0}  # nats at 4 L; those of every fourth are unclear
    shapes: dict[str, Any] = {}
    for n, name in enumerate(names):
        line = (lambda gain: lambda octaves: gain * octaves / 2)(gains[n % 4])
        shapes[name] = (1.25 + 0.15 * (n % 4 == 2) + 0.001 * n, None if n in (3, 7, 11, 15, 19) else line)
    rows, positions = results(shapes, lengths=(256, 1024))
    kind = rows["encoding"].map({name: n % 4 for n, name in enumerate(names)})
    swapped = (rows["protocol"] == "nonoverlapping") & rows["encoding"].eq("e00")
    ends = {"gain_low": rows["gain"] - 0.1, "gain_high": rows["gain"] + 0.1}
    rows = rows.assign(
        bpb=rows["bpb"] + 0.3 * swapped,
        guess_gain_low=rows["guess_gain_low"].mask(kind == 3, -0.1),
        **{name: rows[name].mask(kind == 2, end) for name, end in ends.items()},
    )
    harms = {name: HARMS["rope" if n < 12 else "alibi"] for n, name in enumerate(names)}
    return rows, positions, explained(rows, harms) | {"recall": recall_of(rows, {64: 0.5, 256: 0.5, 512: 0.4})}


WHOLE: dict[str, tuple[Callable[[], Tables], dict[str, Any]]] = {
    "language": (language, {}),
    "task": (task_tables, {}),
    "alone": (alone, {}),
    "holes": (tables_with_holes, {}),
    "everything": (everything, {"baseline": "rope"}),
}
TEXTS: dict[str, tuple[Callable[[], Tables], dict[str, Any]]] = {
    "grid": (grid, {}),
    "sections": (sections, {}),
    "unharmed": (unharmed, {"baseline": "alibi"}),
    "undecided": (undecided, {"baseline": "none"}),
    "by-gap": (by_gap, {"baseline": "rope"}),
    "two-tokenizers": (two_tokenizers, {"mix": True, "baseline": "rope [bytes]"}),
    "checkpoint": (checkpoint, {}),
    "guessing": (guessing, {}),
    "undertrained": (undertrained, {}),
    "failures": (failures, {}),
    "many": (many_encodings, {}),
}


def runs_of(rows: pd.DataFrame, kind: str) -> dict[str, Trained]:
    """What training took; of a checkpoint nothing, and of encodings that guess there are logs."""
    known = fake_runs(rows)
    if kind == "checkpoint":
        source = CheckpointConfig(name="llama", source="hf:org/llama@main", digest="d", parameters=7)
        known = {
            run: replace(each, config=each.config.model_copy(update={"checkpoint": source}), seconds=math.nan, tokens=0)
            for run, each in known.items()
        }
    if kind == "guessing":
        falls = tuple((1000 * (n + 1), 5.0 - 0.4 * math.log(n + 1)) for n in range(40))
        known = {run: replace(each, curve=falls) for run, each in known.items()}
    return known


def built(folder: Path, kind: str) -> Report:
    make, options = (WHOLE | TEXTS)[kind]
    rows, positions, details = make()
    left_out = [f"{Path.cwd()}/runs/rope-1: damaged"] if kind == "failures" else []
    about = About(title=f"A report of {kind}", description="all that it says", left_out=left_out)
    runs = runs_of(rows, kind)
    return build_report(rows, positions, folder, details=details, runs=runs, about=about, **options)


@pytest.mark.parametrize("kind", WHOLE)
def test_a_report(kind: str, tmp_path: Path, snapshot: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poscli.drawing.page.written", lambda figure, _: drawn(figure).encode())
    report = built(tmp_path, kind)
    console = Console(width=160, file=io.StringIO(), no_color=True)
    terminal.print_report(report, console)
    parts = {"the terminal": console.file.getvalue()}  # type: ignore[attr-defined]
    parts |= {path.name: path.read_text(encoding="utf-8") for path in sorted(tmp_path.iterdir())}
    parts["files.json"] = "\n".join(json.loads(parts["files.json"]))
    page = parts.pop("report.html")
    for name, text in re.findall(r'<script type="application/json" id="(\w+)">(.*?)</script>', page, re.DOTALL):
        parts[f"{name} of the page"] = "\n".join(outline(json.loads(text)))
    parts["the page without scripts"] = re.sub(r"<script.*?</script>", "", page.partition("<body")[2], flags=re.DOTALL)
    snapshot("".join(f"##### {part}\n{text.rstrip()}\n\n" for part, text in parts.items()), kind, rounded=True)


@pytest.mark.parametrize("kind", TEXTS)
def test_the_text_of_a_report(kind: str, tmp_path: Path, snapshot: Say) -> None:
    with undrawn():
        report = built(tmp_path, kind)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for section in report.sections:
        text += "".join(f"\n{each.name}: {each.answer.text} {list(each.answer.best)}" for each in section.protocols)
        text += "".join(f"\n{question} {told}" for question, told in section.answer.facts)
    if kind == "many":
        text = "\n".join(line for line in text.splitlines() if re.search(r"\be\d\d\b", line) and line[:3] != "| e")
        text += "\nlooks: " + " ".join(f"{each.color}/{each.dash}{'!' * each.strong}" for each in section.encodings)
    snapshot(text.replace(str(tmp_path), "FOLDER"), f"text-{kind}", rounded=True)


def test_a_report_as_json_has_the_numbers_of_the_page(tmp_path: Path) -> None:
    with undrawn():
        report = built(tmp_path, "everything")
    (section,) = json.loads(json.dumps(report.json(), allow_nan=False))["sections"]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    (shown,) = json.loads(re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)[0])["sections"]
    assert [each["name"] for each in section["encodings"]] == [each["name"] for each in shown["encodings"]]
    for harms, others in zip(section["harms"], shown["attribution"], strict=True):
        for values, rounded in zip(harms["values"], others["values"], strict=True):
            assert values == [each if each is None else pytest.approx(each, abs=1e-5) for each in rounded]
