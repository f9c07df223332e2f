"""`poscli extrapolate --why`, from the command line to the tables, and what a report makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from books import write_books
from cli_runner import LENGTH, NANO, cli

from poscli.runs.run import list_runs
from poscli.runs.schema import DETAILS, read_table
from poscli.system.errors import Interrupted

WHY = ("extrapolate", "--max-len", 8 * LENGTH, "--stride", 16, "--tokens", 512, "--why")
TABLES = {name for name in DETAILS if name.startswith("why/")}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSCLI_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with alibi, sinusoidal and a table that ends at L, explained; and a judge trained at 8 L."""
    out, books = tmp_path_factory.mktemp("results"), write_books(tmp_path_factory.mktemp("corpus") / "books")
    corpus = ("--corpus", f"text:{books}", "--out", out)
    encodings = [word for name in ("alibi", "sinusoidal", "learned") for word in ("--enc", name)]
    long = ("--preset", "nano", "--length", 8 * LENGTH, "--batch", 1, "--tokens", "2k")
    judge = ("train", "--enc", "t5", *long, *corpus)
    for command in (("train", *encodings, *NANO, *corpus), judge):
        result = cli(*command)
        assert result.code == 0, result.err
    result = cli(*WHY, "--enc", "alibi", "--enc", "sinusoidal", "--enc", "learned", "--out", out)
    assert result.code == 0, result.err
    assert "no why/attribution" not in result.err
    return out


def folder_of(out: Path, encoding: str) -> Path:
    (run,) = [run for run in list_runs(out / "runs") if run.config.encoding == encoding]
    return run.folder


@pytest.mark.parametrize("encoding", ["alibi", "sinusoidal"])
def test_every_table_is_written_with_its_columns(results: Path, encoding: str) -> None:
    folder = folder_of(results, encoding)
    for name in TABLES - {"why/key_tokens"}:
        table = read_table(folder / f"{name}.csv", DETAILS[name])
        assert len(table)
        assert set(table["run_id"]) == {folder.name}
    changes = read_table(folder / "why/attribution.csv", DETAILS["why/attribution"]).set_index("change")
    assert changes.loc["full", "length"] == 4 * LENGTH
    void = changes.loc["offset" if encoding == "alibi" else "crowd", "status"]
    assert void == "void"


def table_of(out: Path, encoding: str, name: str) -> pd.DataFrame:
    return read_table(folder_of(out, encoding) / f"why/{name}.csv", DETAILS[f"why/{name}"])


@pytest.mark.parametrize("encoding", ["alibi", "sinusoidal"])
def test_tables_are_of_the_windows_that_the_documentation_names(results: Path, encoding: str) -> None:
    """4 L for what is computed eagerly, else the longest; L / 8 tokens are scored at the end of each window."""
    scored = LENGTH // 8
    changes = table_of(results, encoding, "attribution").set_index("change")
    assert changes[["train_length", "length"]].drop_duplicates().to_numpy().tolist() == [[LENGTH, 4 * LENGTH]]
    field = table_of(results, encoding, "receptive")
    assert field[field["method"] == "gradient"]["to"].max() == 4 * LENGTH - 1
    replaced = field[field["method"] == "replace"]
    assert (replaced["to"] == 4 * LENGTH - scored).all()
    assert (replaced["tokens"] == replaced["windows"] * scored).all()
    enough = table_of(results, encoding, "saturation")
    assert enough["window"].tolist() == [LENGTH // 16 * 2**n for n in range(8)]
    assert (enough["tokens"] % scored == 0).all()
    assert set(table_of(results, encoding, "dilution")["window"]) == {LENGTH * 2**n for n in range(4)}


def test_an_encoding_that_ends_at_the_training_length_says_why_it_has_no_numbers(results: Path) -> None:
    changes = read_table(folder_of(results, "learned") / "why/attribution.csv", DETAILS["why/attribution"])
    full = changes.set_index("change").loc["full"]
    assert full["status"] == "unsupported"
    assert np.isnan(full["nll"])
    assert not len(read_table(folder_of(results, "learned") / "why/saturation.csv", DETAILS["why/saturation"]))


def test_the_same_command_does_nothing_twice_and_other_settings_are_explained_anew(results: Path) -> None:
    again = cli(*WHY, "--enc", "alibi", "--out", results)
    assert "is explained already: nothing to do" in again.err
    record = json.loads((folder_of(results, "alibi") / "why.json").read_text())
    assert record["max_len"] == 8 * LENGTH


def test_key_tokens_need_a_judge(results: Path) -> None:
    judge = folder_of(results, "t5").name
    result = cli(*WHY, "--enc", "sinusoidal", "--judge", judge, "--out", results)
    assert result.code == 0, result.err
    table = read_table(folder_of(results, "sinusoidal") / "why/key_tokens.csv", DETAILS["why/key_tokens"])
    assert set(table["kind"]) == {"key", "other"}
    again = cli(*WHY, "--enc", "sinusoidal", "--judge", judge, "--out", results)
    assert "is explained already: nothing to do" in again.err  # by the same judge
    assert table.set_index("kind").loc["key", "reason"]  # a judge of a few steps finds no key tokens
    # All windows of the short text are read, so that the tokens are those of saturation, and so is their mean loss.
    longest = table_of(results, "sinusoidal", "saturation").iloc[-1]
    assert table["tokens"].sum() == longest["tokens"]
    assert table.set_index("kind").loc["other", "nll"] == pytest.approx(longest["nll"], rel=1e-4)
    wrong = cli(*WHY, "--enc", "sinusoidal", "--judge", folder_of(results, "alibi").name, "--out", results)
    assert wrong.code == 2
    assert str(8 * LENGTH) in wrong.err
    assert len(wrong.err.splitlines()) == 1  # before anything is evaluated
    itself = cli(*WHY, "--enc", "t5", "--judge", judge, "--out", results)
    assert (itself.code, f"{judge} is the judge, and does not judge itself" in itself.err) == (0, True)
    assert not (folder_of(results, "t5") / "why.json").exists()
    alone = cli(*WHY[:-1], "--judge", judge, "--out", results)
    assert (alone.code, alone.err) == (2, f"error: --judge {judge} judges the key tokens of --why; give --why too\n")
    unknown = cli(*WHY, "--judge", "nobody", "--out", results)
    assert unknown.code == 2
    assert "there is no run 'nobody'" in unknown.err


def test_a_report_tells_what_breaks_and_how_much_of_a_window_is_used(results: Path, tmp_path: Path) -> None:
    result = cli("report", "--out", results, "--to", tmp_path / "report")
    assert result.code == 0, result.err
    page = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "### Why do they break?" in page
    assert "### How much of a long window is used?" in page
    assert "| position (offset) |" in page
    compared = cli("report", "--out", results, "--to", tmp_path / "report", "--baseline", "alibi")
    assert "Compared with alibi" in compared.out
    wrong = cli("report", "--out", results, "--to", tmp_path / "report", "--baseline", "alibo")
    assert wrong.code == 2
    assert "no run has this encoding" in wrong.err


def test_a_comparison_on_the_command_line(results: Path) -> None:
    table = json.loads(cli("compare", "alibi", "sinusoidal", "--out", results, "--json").out)
    assert [row["length"] for row in table] == [LENGTH, 2 * LENGTH, 4 * LENGTH, 8 * LENGTH]
    assert {row["word"] for row in table} <= {"better", "worse", "within noise"}
    shown = cli("compare", "alibi", "sinusoidal", "--out", results)
    assert "over documents only" in shown.err
    wrong = cli("compare", "alibi", "sinus", "--protocol", "answer", "--out", results)
    assert wrong.code == 2


def test_an_interruption_keeps_the_evaluation_and_the_same_command_goes_on(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of --why count only once why.json is there."""
    from poscli.why import explain

    folder = folder_of(results, "alibi")
    (folder / "why.json").unlink(missing_ok=True)
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    manifest.pop("why.json", None)
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))

    def interrupted(*_: object) -> None:
        raise Interrupted("stopped after why/attribution; the same command begins these analyses anew", 2)

    monkeypatch.setattr(explain, "saturation", interrupted)
    result = cli(*WHY, "--enc", "alibi", "--out", results)
    assert result.code == 130
    assert not (folder / "why.json").exists()
    monkeypatch.undo()
    assert cli(*WHY, "--enc", "alibi", "--out", results).code == 0
    assert (folder / "why.json").exists()
