"""Damaged runs: commands name the file and what repairs it, the other runs go on, and a repair restores every byte."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from cli_runner import ALIBI, NANO, SHORT, Result, assert_refused, cli, document
from toys import first

from poscli import api
from poscli.runs.lock import locked
from poscli.runs.run import list_runs, open_run

LS_RUNS, REPORT, GENERATE, EXTRAPOLATE = ("ls", "runs"), ("report",), ("generate",), ("extrapolate", *SHORT)
COMPARE = ("compare", "alibi", "alibi-")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, results: Path) -> Path:
    """A results folder with two trained runs, one of them evaluated under another encoding, too, and its report."""
    out = tmp_path_factory.mktemp("whole") / "results"
    for folder in (results / "runs").glob("[al]*-*"):  # alibi and learned
        shutil.copytree(folder, out / "runs" / folder.name)
    result = cli("extrapolate", *SHORT, "--enc", "alibi", "--as", "none", "--out", out)
    assert result.code == 0, result.err
    assert cli("report", "--out", out).code == 0
    return out


@pytest.fixture
def out(source: Path, here: Path) -> Path:
    """A copy of that folder, ./results, which a test may damage."""
    shutil.copytree(source, "results")
    return Path("results")


@pytest.fixture
def run(out: Path) -> Path:
    """The folder of the run of alibi."""
    (folder,) = out.glob("runs/alibi-*")
    return folder


@pytest.fixture
def only(out: Path, run: Path) -> Path:
    """The folder of the run of alibi where there is no other one, nor another evaluation of it."""
    shutil.rmtree(run / "as")
    for other in out.glob("runs/learned-*"):
        shutil.rmtree(other)
    return run


def change_digit(path: Path) -> None:
    """Change the last digit of the file."""
    text = path.read_text()
    at = max(n for n, sign in enumerate(text) if sign.isdecimal())
    path.write_text(f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}")


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a digit": change_digit,
    "half a file": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "the last row": lambda path: path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1])),
    "empty": lambda path: path.write_text(""),
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe" + path.read_bytes()),
    "nested": lambda path: path.write_text("[" * 100_000),
    "no object": lambda path: path.write_text("[1]"),
    "another table": lambda path: path.write_text("a,b\n1,2\n"),
    "a folder": make_folder,
    "a symlink to itself": make_loop,
    "gone": lambda path: path.unlink(),
}


def models(out: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(out.rglob("model.safetensors"))}


def command_in(text: str) -> tuple[str, ...]:
    """The words of the command that a message ends with."""
    words = shlex.split(text.partition("repair it: poscli ")[2].splitlines()[0])
    assert words[0] == "extrapolate", text
    return tuple(words)


def assert_says_nothing_of_deleting(*results: Result) -> None:
    for result in results:
        assert "delete" not in result.err
        assert "a bug of poscli" not in result.err


def values(out: Path) -> pd.DataFrame:
    """All evaluations in a folder, without what differs between two equal ones."""
    rows = api.results(out).drop(columns=["seconds", "tokens_per_s", "peak_mb"])
    return rows.sort_values(["run_id", "length", "protocol", "variant"], ignore_index=True)


def left_out(run_id: str, file: str) -> str:
    """What is said of the only damaged run when all results are read, which goes on without it."""
    with contextlib.redirect_stderr(io.StringIO()) as err:
        rows = api.results("results")
    assert run_id not in set(rows["run_id"])
    (line,) = [line for line in err.getvalue().splitlines() if f"{run_id} is left out" in line]
    assert file in line
    assert "delete" not in line
    return line


def assert_left_out_and_repaired(source: Path, out: Path, run_id: str, file: str) -> None:
    """The run is named with what repairs it, and all is as it was after that."""
    before = models(out)
    repaired = cli(*command_in(left_out(run_id, file)))
    assert repaired.code == 0, repaired.err
    assert sum("again" in line and run_id in line for line in repaired.err.splitlines()) == 1
    assert_says_nothing_of_deleting(repaired)
    assert models(out) == before
    pd.testing.assert_frame_equal(values(out), values(source))


# ---- the only run is damaged: nothing is reported

READ_BY = {  # which commands have nothing left to show or to do if a file of the only run is damaged
    "config.toml": (LS_RUNS, REPORT, GENERATE, EXTRAPOLATE),
    "env.json": (LS_RUNS, REPORT, GENERATE, EXTRAPOLATE),
    "MANIFEST.json": (LS_RUNS, REPORT, GENERATE, EXTRAPOLATE),
    "train.csv": (REPORT,),
    "eval.csv": (REPORT, COMPARE),
    "position.csv": (REPORT,),
    "units.csv": (REPORT, COMPARE),
    "recall.csv": (REPORT, COMPARE),
    "eval.json": (REPORT,),
}
CASES = [  # every file and every kind of damage, then every pair of them
    *zip([*READ_BY, "eval.csv", "units.csv"], DAMAGES, strict=True),
    *((name, damage) for name in READ_BY for damage in DAMAGES),
]


@pytest.mark.parametrize(("name", "damage"), first(len(DAMAGES), list(dict.fromkeys(CASES))))
def test_a_damaged_file_is_named_and_nothing_is_reported(only: Path, name: str, damage: str) -> None:
    DAMAGES[damage](only / name)
    if (name, damage) == ("MANIFEST.json", "a digit"):
        return  # it may be the sum of content that was replaced, which nothing reads
    for command in READ_BY[name]:
        assert_refused(command, 5, only.name)


def test_an_evaluation_without_its_settings_is_made_again(only: Path) -> None:
    """From the stored losses, timing included; damaged losses are measured again."""
    before = (only / "eval.csv").read_bytes()
    (only / "eval.json").unlink()
    assert_refused(REPORT, 5, (only.name, "eval.json is missing", "poscli extrapolate --run"))
    assert cli(*EXTRAPOLATE).code == 0
    assert (only / "eval.csv").read_bytes() == before
    (only / "eval.json").unlink()
    (losses,) = only.glob("nll/64.parquet")
    flip_bit(losses)
    result = cli(*EXTRAPOLATE)
    assert result.code == 0
    assert f"{losses.name} is not the file that was written" in result.err
    assert "measuring it again" in result.err


def test_results_without_a_configuration_are_refused(only: Path) -> None:
    shutil.rmtree(only / "checkpoints")
    for name in ("config.toml", "env.json", "MANIFEST.json"):
        (only / name).unlink()
    assert_refused(REPORT, 5, (only.name, "config.toml is missing"))


def test_a_folder_that_was_only_begun_is_not_a_run_and_one_that_was_renamed_is_refused(only: Path) -> None:
    (only.parent / "rope-12345678").mkdir()
    (only.parent / "rope-12345678" / "env.json").write_text("{}")
    assert len(cli("ls", "runs", "--json").json) == 1
    only.rename(only.with_name("best-run"))
    assert_refused(GENERATE, 5, ("best-run", f"belongs to {only.name}"))


@pytest.mark.parametrize("command", [ALIBI, EXTRAPOLATE], ids=["train", "extrapolate"])
def test_a_run_that_another_process_works_on(only: Path, command: tuple[object, ...]) -> None:
    with locked(only):
        assert_refused(command, 75, (only.name, f"process {os.getpid()} on {platform.node()}", "`poscli"))


def test_a_run_that_is_not_complete(only: Path) -> None:
    """It is interrupted also where its process was killed while it trained."""
    run = open_run(only)
    run.set_status("training", 3)
    assert run.status()["state"] == "interrupted"
    with run.locked():
        assert run.status()["state"] == "training"
        assert_refused(("extrapolate", "--run", run.id), 75, f"{run.id} is being trained by process {os.getpid()}")
    for options in ((), ("--dry-run",), ("--force",)):
        assert_refused(("extrapolate", "--run", run.id, *options), 2, (run.id, "is interrupted", "finish it"))
    assert_refused(("extrapolate",), 2, "finish it", notes=1)
    assert_refused(GENERATE, 2, "complete")


# ---- checkpoints


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", flip_bit),
        ("model.safetensors", DAMAGES["gone"]),
        *first(0, [("model.safetensors", make_folder), ("MANIFEST.json", DAMAGES["gone"])]),
    ],
)
def test_a_damaged_model_is_not_used_and_training_repairs_it(
    only: Path, name: str, damage: Callable[[Path], object]
) -> None:
    (folder,) = only.glob("checkpoints/step-*")
    weights = (folder / "model.safetensors").read_bytes()
    damage(folder / name)
    assert_refused(GENERATE, 5, (only.name, "repeat the command that trained it"))
    assert_refused(("extrapolate", "--max-len", 64, "--tokens", 256), 5, (only.name, folder.name))
    result = cli(*ALIBI)
    assert result.code == 0
    assert f"{folder.name} is damaged" in result.err
    assert (folder / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("name", ["optim.safetensors", "state.json"])
@pytest.mark.parametrize("damage", first(1, [flip_bit, DAMAGES["gone"], make_folder]))
def test_what_only_training_needs_stops_nothing_else_and_training_repairs_it(
    only: Path, name: str, damage: Callable[[Path], object]
) -> None:
    (folder,) = only.glob("checkpoints/step-*")
    weights, text = (folder / "model.safetensors").read_bytes(), (*GENERATE, "--tokens", 20, "--temperature", 0)
    before = cli(*text).out
    damage(folder / name)
    assert cli(*text).out == before
    assert cli("extrapolate", "--max-len", 32, "--tokens", 64, "--stride", 16).code == 0
    assert f"{folder.name} is damaged" in cli(*ALIBI).err
    assert (folder / "model.safetensors").read_bytes() == weights
    assert "already" in cli(*ALIBI).err


def test_a_trained_tokenizer_is_written_again(out: Path) -> None:
    for number in range(4):
        Path(f"{number}.txt").write_text(" ".join(f"word {number * n} and {n}" for n in range(600)))
    arguments = ("train", "--enc", "none", *NANO, "--corpus", "text:*.txt", "--tokenizer", "bpe:300")
    assert cli(*arguments).code == 0
    (run,) = out.glob("runs/none-*")
    (file,) = run.glob("*token*")
    whole = file.read_bytes()
    flip_bit(file)
    assert cli("generate", "--run", run.name).code == 5
    assert cli(*arguments).code == 0
    assert file.read_bytes() == whole
    assert cli("generate", "--run", run.name, "--tokens", 2).code == 0


# ---- evaluations beside others

TABLES = ["eval.csv", "units.csv", "position.csv", "recall.csv", "answers.csv", "eval.json"]


@pytest.mark.parametrize(("name", "damage"), first(2, [*zip(TABLES, list(DAMAGES)[-len(TABLES) :], strict=True)]))
def test_a_damaged_table_costs_only_the_evaluation(source: Path, out: Path, run: Path, name: str, damage: str) -> None:
    DAMAGES[damage](run / name)
    assert_left_out_and_repaired(source, out, run.name, name)


def test_a_report_goes_on_without_the_damaged_run_and_is_whole_after_the_repair(
    source: Path, out: Path, run: Path
) -> None:
    flip_bit(run / "eval.csv")
    report = cli("report", "--json")
    assert report.code == 3, report.err
    (left,) = report.json["left_out"]
    assert left["run_id"] == run.name
    assert "eval.csv" in left["error"]
    assert f"{run.name} is left out: {left['error']}" in report.err
    assert left["error"] in (out / "report" / "report.md").read_text()
    assert {row["encoding"] for row in report.json["summary"]} == {"alibi as none", "learned"}
    listed = cli("ls", "runs", "--json")
    assert listed.code == 3
    assert [row["damaged"] for row in listed.json if row["damaged"]] == [left["error"]]
    assert cli(*command_in(left["error"])).code == 0
    assert cli("report").code == 0
    for name in ("report.md", "summary.csv", "tables.tex"):
        assert (out / "report" / name).read_bytes() == (source / "report" / name).read_bytes()
    assert cli("ls", "runs").code == 0


def test_what_can_be_read_and_is_not_what_was_written_is_damaged(out: Path, run: Path) -> None:
    """A record that was edited by hand, and a table of an earlier evaluation, as from a copy put back in part."""
    record = (run / "eval.json").read_bytes()
    (run / "eval.json").write_text(json.dumps(json.loads(record) | {"added": "by hand"}))
    left_out(run.name, "eval.json")
    (run / "eval.json").write_bytes(record)
    before = (run / "recall.csv").read_bytes()
    assert cli(*EXTRAPOLATE, "--run", run.name, "--ngram", 3).code == 0
    (run / "recall.csv").write_bytes(before)
    left_out(run.name, "recall.csv is not the file that was written")


def test_an_evaluation_under_another_encoding_is_repaired_alone(source: Path, out: Path, run: Path) -> None:
    """Also where only its table still says which encoding it is. Meanwhile `compare` goes on without it."""
    (part,) = run.glob("as/*")
    table, compared = (run / "eval.csv").read_bytes(), document("compare", "learned", "alibi")
    flip_bit(part / "units.csv")
    result = cli("compare", "learned", "alibi", "--json")
    assert (result.code, result.json) == (3, compared)
    assert f"{part.name} is left out" in result.err
    assert_left_out_and_repaired(source, out, f"{run.name}.as.{part.name}", f"{part.name}/units.csv")
    assert (run / "eval.csv").read_bytes() == table
    (part / "eval.json").write_text("{")
    assert_left_out_and_repaired(source, out, f"{run.name}.as.{part.name}", f"{part.name}/eval.json")


def test_a_damaged_analysis_is_named_and_made_again(out: Path, run: Path) -> None:
    assert cli(*EXTRAPOLATE, "--run", run.name, "--why").code == 0
    whole = (run / "why" / "saturation.csv").read_bytes()
    flip_bit(run / "why" / "saturation.csv")
    line = left_out(run.name, "saturation.csv")
    assert "--why" in line
    assert cli(*command_in(line)).code == 0
    assert (run / "why" / "saturation.csv").read_bytes() == whole


def test_the_repairing_command_has_all_digits_of_the_settings(out: Path, run: Path) -> None:
    third = ("extrapolate", "--lengths", "1,1.3333333333333333", "--tokens", 256, "--stride", 16, "--run", run.name)
    assert cli(*third).code == 0
    settings = json.loads((run / "eval.json").read_text())["settings"]
    flip_bit(run / "eval.json")  # the losses still say how they were measured
    assert cli(*command_in(left_out(run.name, "eval.json"))).code == 0
    assert json.loads((run / "eval.json").read_text())["settings"] == settings


def test_force_measures_again_and_leaves_the_model(out: Path, run: Path) -> None:
    before, losses = models(out), {path: path.read_bytes() for path in run.glob("nll/*.parquet")}
    rows = values(out)
    again = cli(*EXTRAPOLATE, "--run", run.name, "--force")
    assert again.code == 0, again.err
    assert "already" not in again.err
    assert all(path.read_bytes() != content for path, content in losses.items())  # they hold the time it took
    assert models(out) == before
    pd.testing.assert_frame_equal(values(out), rows)
    (model,) = run.glob("checkpoints/step-*/model.safetensors")
    whole = model.read_bytes()
    model.write_bytes(whole[:-1])  # nothing is thrown away before there is something to measure
    assert_refused((*EXTRAPOLATE, "--run", run.name, "--force"), 5, (run.name, "repeat the command"))
    pd.testing.assert_frame_equal(values(out), rows)
    model.write_bytes(whole)
    plan = document(*EXTRAPOLATE, "--run", run.name, "--force", "--dry-run")
    assert [job["done"] for job in plan["jobs"]] == ["not evaluated"]


def test_a_run_whose_evaluation_is_made_anew_is_not_called_damaged_meanwhile(
    out: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("poscli.evaluation.evaluate.Evaluation.measure", stopped)
        assert cli(*EXTRAPOLATE, "--run", run.name, "--force").code == 130
    (row,) = [each for each in document("ls", "runs") if each["run_id"] == run.name]
    assert row["damaged"] == ""


# ---- what the run itself is known by


@pytest.mark.parametrize("damage", ["gone", "a digit", *first(0, [name for name in DAMAGES if name != "gone"])])
def test_all_commands_take_the_state_of_a_run_from_its_checkpoints_if_its_status_is_damaged(
    out: Path, run: Path, damage: str
) -> None:
    status = json.loads((run / "status.json").read_text())
    before = models(out)
    DAMAGES[damage](run / "status.json")
    listed = cli("ls", "runs", "--json")
    (row,) = [row for row in listed.json if row["run_id"] == run.name]
    assert (listed.code, row["state"], row["step"], row["steps"]) == (3, "complete", status["step"], status["steps"])
    assert "status.json" in row["damaged"]
    assert run.name in set(api.results(out)["run_id"])
    assert cli("generate", "--run", run.name, "--tokens", 2).code == 0
    assert "evaluated already" in cli(*EXTRAPOLATE, "--run", run.name).err
    assert cli(*ALIBI).code == 0  # which writes it again
    assert json.loads((run / "status.json").read_text())["state"] == "complete"
    assert cli("ls", "runs").code == 0
    assert models(out) == before


def test_a_training_that_was_stopped_is_unfinished_for_all_commands_without_its_status(out: Path, run: Path) -> None:
    """Its last checkpoint is one of fewer steps."""
    (last,) = run.glob("checkpoints/step-*")
    last.rename(last.with_name("step-7"))
    (run / "status.json").unlink()
    (row,) = [row for row in cli("ls", "runs", "--json").json if row["run_id"] == run.name]
    assert (row["state"], row["step"]) == ("interrupted", 7)
    assert "interrupted" in cli(*EXTRAPOLATE, "--run", run.name, "--force").err
    assert cli("generate", "--run", run.name).code == 2


@pytest.mark.parametrize("name", ["config.toml", "env.json", "MANIFEST.json", "train.csv"])
@pytest.mark.parametrize("damage", first(1, ["half a file", "gone", "empty", "nested", "a folder"]))
def test_the_command_that_trained_a_run_writes_its_damaged_files_again(
    source: Path, out: Path, run: Path, name: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine. It did not train the model, so that nobody knows who did if env.json is lost."""
    monkeypatch.setenv("POSCLI_MACHINE", "another")
    before, env = models(out), json.loads((run / "env.json").read_text())
    DAMAGES[damage](run / name)
    listed = cli("ls", "runs", "--json")
    assert listed.code == 3
    (damaged,) = [row for row in listed.json if row["damaged"]]
    assert damaged["run_id"] == run.name
    assert "repeat the command" in damaged["damaged"]
    again = cli(*ALIBI)
    assert again.code == 0, again.err
    assert_says_nothing_of_deleting(listed, again)
    assert models(out) == before
    made = json.loads((run / "env.json").read_text())
    monkeypatch.delenv("POSCLI_MACHINE")
    assert (made["machine"], made["code"]) == (("", "") if name == "env.json" else (env["machine"], env["code"]))
    assert cli(*EXTRAPOLATE, "--enc", "alibi", "--as", "none").code == 0
    pd.testing.assert_frame_equal(values(out), values(source))


def test_a_run_in_the_place_of_another_is_not_overwritten(out: Path, run: Path) -> None:
    (other,) = out.glob("runs/learned-*")
    shutil.rmtree(run)
    other.rename(run)  # whole, and of another encoding
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and ".lock" not in path.name}
    result = cli(*ALIBI)
    assert result.code == 5
    assert other.name in result.err
    assert {path: path.read_bytes() for path in before} == before


def test_a_damaged_run_stops_no_command_that_is_about_others(out: Path, run: Path) -> None:
    (run / "env.json").unlink()
    (other,) = out.glob("runs/learned-*")
    for arguments, code in (
        (("generate", "--tokens", 2), 0),
        (("generate", "--run", other.name, "--tokens", 2), 0),
        (EXTRAPOLATE, 3),
        ((*EXTRAPOLATE, "--run", other.name), 0),
        (("generate", "--run", run.name), 5),
        (("compare", "learned", run.name), 5),
    ):
        result = cli(*arguments)
        assert result.code == code, result.err
        assert_says_nothing_of_deleting(result)
    assert [each.id for each in list_runs(out / "runs")] == [other.name]
