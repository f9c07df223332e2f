"""`poscli extrapolate --model --why`: why a checkpoint breaks on long windows, and how much of them it uses."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from checkpoints import LENGTH, make
from cli_runner import Result, cli

from poscli.runs.run import list_runs
from poscli.runs.schema import DETAILS, read_table
from poscli.why.attribution import CAUSES

LONGEST = 4


def explained(place: Path, *models: str) -> Result:
    named = [option for name in models for option in ("--model", place / name)]
    text = ("--corpus", f"jsonl:{place / 'text.jsonl'}", "--max-len", f"{LONGEST}x", "--tokens", 256, "--stride", 32)
    return cli("extrapolate", *named, *text, "--why", "--yes", "--out", place / "explained")


@pytest.fixture(scope="module")
def results(place: Path) -> Path:
    """A folder with the analyses of three checkpoints."""
    make("mistral", place / "mistral")  # whose window hides the first tokens
    result = explained(place, "llama", "bloom", "mistral")
    assert result.code == 0, result.err
    return place / "explained"


def table(results: Path, name: str, of: str) -> pd.DataFrame:
    (folder,) = [run.folder for run in list_runs(results / "runs") if run.id.startswith(f"{of}-")]
    return read_table(folder / f"why/{name}.csv", DETAILS[f"why/{name}"])


def test_every_change_is_made_or_void_by_definition(results: Path) -> None:
    for model, void in (("llama", {"offset", "sinkless"}), ("bloom", {"offset", "sinkless"}), ("mistral", {"offset"})):
        changes = table(results, "attribution", model).set_index("change")
        assert set(changes.index) == {"base", "full", *CAUSES}
        assert set(changes.index[changes["status"] == "void"]) == void
        assert (changes["status"].isin(["ok", "void"])).all(), changes[["status", "reason"]]
        assert changes["length"].unique().tolist() == [LONGEST * LENGTH]
        harms = changes.loc[["full", "gap", "crowd"], "harm"].abs()
        assert (harms > 1e-4).all(), harms  # each of them changes something


def test_windows_and_replaced_text_are_measured_and_gradients_are_not(results: Path) -> None:
    windows = table(results, "saturation", "llama")
    assert windows["window"].tolist() == [LENGTH // 16 * 2**n for n in range(7)]
    assert set(table(results, "receptive", "llama")["method"]) == {"replace"}
    assert table(results, "dilution", "llama").empty


def test_the_report_says_it_and_leaves_out_what_was_not_looked_at(results: Path) -> None:
    result = cli("report", "--mix", "--out", results)
    assert result.code == 0, result.err
    text = (results / "report" / "report.md").read_text()
    assert "| encoding | saturates at | text beyond L replaced |" in text
    assert "gradient beyond L" not in text
    again = explained(results.parent, "llama")
    assert "is explained already" in again.err
