"""`poscli extrapolate --why`, from the command line to the tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from books import write_books
from cli_runner import LENGTH, NANO, cli

from poscli.runs.run import list_runs
from poscli.runs.schema import DETAILS, read_table
from poscli.system.errors import Interrupted
from poscli.why import explain

WHY = ("extrapolate", "--max-len", 8 * LENGTH, "--stride", 16, "--tokens", 512, "--why")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with alibi, explained, sinusoidal, and t5, trained at 8 L to judge. A test may change alibi's files."""
    out = tmp_path_factory.mktemp("results")
    corpus = ("--corpus", f"text:{write_books(out / 'books')}", "--out", out)
    long = ("--preset", "nano", "--length", 8 * LENGTH, "--batch", 1, "--tokens", "2k")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSCLI_CACHE", str(out / "cache"))
        for command in (
            ("train", "--enc", "alibi", "--enc", "sinusoidal", *NANO, *corpus),
            ("train", "--enc", "t5", *long, *corpus),
            (*WHY, "--enc", "alibi", "--out", out),
        ):
            result = cli(*command)
            assert result.code == 0, result.err
        yield out


def folder_of(out: Path, encoding: str) -> Path:
    (run,) = [run for run in list_runs(out / "runs") if run.config.encoding == encoding]
    return run.folder


def table_of(out: Path, encoding: str, name: str) -> pd.DataFrame:
    return read_table(folder_of(out, encoding) / f"why/{name}.csv", DETAILS[f"why/{name}"])


def test_tables_are_of_the_windows_that_the_documentation_names(results: Path) -> None:
    """4 L for what is computed eagerly, else the longest; L / 8 tokens are scored at the end of each window."""
    scored, run_id = LENGTH // 8, folder_of(results, "alibi").name
    changes = table_of(results, "alibi", "attribution").set_index("change")
    assert changes[["run_id", "train_length", "length"]].drop_duplicates().to_numpy().tolist() == [
        [run_id, LENGTH, 4 * LENGTH]
    ]
    field = table_of(results, "alibi", "receptive")
    assert field[field["method"] == "gradient"]["to"].max() == 4 * LENGTH - 1
    replaced = field[field["method"] == "replace"]
    assert (replaced["to"] == 4 * LENGTH - scored).all()
    assert (replaced["tokens"] == replaced["windows"] * scored).all()
    enough = table_of(results, "alibi", "saturation")
    assert enough["window"].tolist() == [LENGTH // 16 * 2**n for n in range(8)]
    assert (enough["tokens"] % scored == 0).all()
    assert set(table_of(results, "alibi", "dilution")["window"]) == {LENGTH * 2**n for n in range(4)}


def test_a_long_window_is_read_for_the_reasons_whatever_lengths_were_evaluated(results: Path, tmp_path: Path) -> None:
    shutil.copytree(folder_of(results, "sinusoidal"), tmp_path / "runs" / folder_of(results, "sinusoidal").name)
    assert cli("extrapolate", "--lengths", "1,8", "--why", "--smoke", "--out", tmp_path).code == 0
    changes = table_of(tmp_path, "sinusoidal", "attribution").set_index("change")
    assert set(changes["length"]) == {4 * LENGTH}
    assert changes.loc["full", "harm"] != 0


def test_how_the_longest_window_is_used_is_told_whatever_its_length(results: Path, tmp_path: Path) -> None:
    shutil.copytree(folder_of(results, "sinusoidal"), tmp_path / "runs" / folder_of(results, "sinusoidal").name)
    assert cli("extrapolate", "--lengths", "1,3", "--why", "--smoke", "--out", tmp_path).code == 0
    assert set(table_of(tmp_path, "sinusoidal", "dilution")["window"]) == {LENGTH, 2 * LENGTH, 3 * LENGTH}
    assert cli("report", "--out", tmp_path).code == 0
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert f"entropy at {3 * LENGTH}" in text
    assert f"mass beyond L at {3 * LENGTH}" in text


def test_the_model_that_was_evaluated_is_explained_with_its_searched_constants(results: Path, tmp_path: Path) -> None:
    corpus = ("--corpus", f"text:{results / 'books'}", "--out", tmp_path)
    assert cli("train", "--enc", "none+temper(search=2)", *NANO, *corpus).code == 0
    assert "temper was fitted to" in cli(*WHY[:-1], "--out", tmp_path).err
    result = cli(*WHY, "--out", tmp_path)
    assert result.code == 0
    assert "is evaluated already" in result.err
    assert "temper was fitted to" in result.err


def test_key_tokens_need_a_judge(results: Path) -> None:
    judge = folder_of(results, "t5").name
    command = (*WHY, "--enc", "sinusoidal", "--judge", judge, "--out", results)
    assert cli(*command).code == 0
    table = table_of(results, "sinusoidal", "key_tokens").set_index("kind")
    assert "is explained already: nothing to do" in cli(*command).err
    assert table.loc["key", "reason"]  # a judge of a few steps finds no key tokens
    # All windows of the short text are read, so that the tokens are those of saturation, and so is their mean loss.
    longest = table_of(results, "sinusoidal", "saturation").iloc[-1]
    assert table["tokens"].sum() == longest["tokens"]
    assert table.loc["other", "nll"] == pytest.approx(longest["nll"], rel=1e-4)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ((*WHY, "--judge", "ALIBI"), "trained on windows of 32 tokens; train one with --length 256"),
        ((*WHY[:-1], "--judge", "ALIBI"), "judges the key tokens of --why; give --why too"),
        ((*WHY, "--judge", "nobody"), "there is no run 'nobody'"),
        ((*WHY, "--max-len", 4 * LENGTH, "--judge", "T5"), "key tokens need windows of 256 tokens"),
    ],
)
def test_what_cannot_judge_is_refused_before_anything_is_evaluated(
    results: Path, command: tuple[str, ...], says: str
) -> None:
    runs = {"ALIBI": folder_of(results, "alibi").name, "T5": folder_of(results, "t5").name}
    result = cli(*(runs.get(str(word), word) for word in command), "--enc", "sinusoidal", "--out", results)
    assert result.code == 2
    assert says in result.err
    assert len(result.err.splitlines()) == 1


def test_an_interruption_keeps_the_evaluation_and_the_same_command_goes_on(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of --why count only once why.json is there."""
    folder = folder_of(results, "alibi")
    (folder / "why.json").unlink(missing_ok=True)
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    manifest.pop("why.json", None)
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))

    def interrupted(*_: object) -> None:
        raise Interrupted("stopped after why/attribution; the same command begins these analyses anew", 2)

    with monkeypatch.context() as patch:
        patch.setattr(explain, "saturation", interrupted)
        assert cli(*WHY, "--enc", "alibi", "--out", results).code == 130
    assert not (folder / "why.json").exists()
    assert cli(*WHY, "--enc", "alibi", "--out", results).code == 0
    assert (folder / "why.json").exists()
    result = cli("report", "--out", results, "--to", results / "report")
    assert result.code == 0, result.err
    assert "### Why do they break?" in (results / "report" / "report.md").read_text(encoding="utf-8")
