"""Damaged runs: every command names the file and the repair, the other runs go on, and a repair restores every byte."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from cli_runner import ALIBI, NANO, SHORT, Result, cli, document, trained
from test_bad_files import DAMAGES, _flip
from toys import first

from poscli import api
from poscli.runs.run import list_runs

TABLES = ["eval.csv", "units.csv", "position.csv", "recall.csv", "answers.csv", "eval.json"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with two trained runs, one of them evaluated under another encoding, too, and its report."""
    out = tmp_path_factory.mktemp("whole") / "results"
    for own in (trained(tmp_path_factory.getbasetemp()) / "runs").glob("[al]*-*"):  # alibi and learned
        shutil.copytree(own, out / "runs" / own.name)
    result = cli("extrapolate", *SHORT, "--enc", "alibi", "--as", "none", "--out", out)
    assert result.code == 0, result.err
    assert cli("report", "--out", out).code == 0
    return out


@pytest.fixture
def out(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, ./results, which a test may damage."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(source, "results")
    return Path("results")


@pytest.fixture
def run(out: Path) -> Path:
    """The folder of the run of alibi."""
    (folder,) = out.glob("runs/alibi-*")
    return folder


def reports(out: Path) -> dict[str, bytes]:
    """What a report says: its page in Markdown, and its table."""
    return {name: (out / "report" / name).read_bytes() for name in ("report.md", "summary.csv", "tables.tex")}


def models(out: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(out.rglob("model.safetensors"))}


def reseal(folder: Path, name: str, edit: Callable[[str], str]) -> None:
    """Edit a file of a run, and put the new checksum in the place of the old one."""
    old = (folder / name).read_bytes()
    new = edit(old.decode()).encode()
    assert new != old
    (folder / name).write_bytes(new)
    manifest = folder / "MANIFEST.json"
    manifest.write_text(manifest.read_text().replace(*(hashlib.sha256(content).hexdigest() for content in (old, new))))


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


def test_a_report_goes_on_without_the_damaged_run_and_is_whole_after_the_repair(
    source: Path, out: Path, run: Path
) -> None:
    _flip(run / "eval.csv")
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
    assert reports(out) == reports(source)
    assert cli("ls", "runs").code == 0


CASES = [  # every file and every kind of damage, then every pair of them
    *zip(TABLES, list(DAMAGES)[-len(TABLES) :], strict=True),
    # A language model has no answers: that table is a line of names, without a digit.
    *((name, damage) for name in TABLES for damage in DAMAGES if (name, damage) != ("answers.csv", "a digit")),
]


@pytest.mark.parametrize(("name", "damage"), first(3, list(dict.fromkeys(CASES))))
def test_a_damaged_table_costs_only_the_evaluation(source: Path, out: Path, run: Path, name: str, damage: str) -> None:
    DAMAGES[damage](run / name)
    assert_left_out_and_repaired(source, out, run.name, name)


def edited(column: str, change: Callable[[pd.Series], pd.Series], row: int = 0) -> Callable[[str], str]:
    """An edit of one cell of a table."""

    def edit(text: str) -> str:
        lines = [line.split(",") for line in text.splitlines()]
        at = lines[0].index(column)
        lines[row + 1][at] = str(change(float(lines[row + 1][at])))
        return "".join(",".join(line) + "\n" for line in lines)

    return edit


def whole(value: float) -> int:
    return int(value) + 1


LIES = {  # consistent in themselves: every checksum is that of the edited file
    "a loss": ("eval.csv", edited("nll", lambda nll: nll + 1e-6)),
    "a perplexity": ("eval.csv", edited("ppl", lambda ppl: ppl * 1.01)),
    "bits per byte": ("eval.csv", edited("bpb", lambda bpb: bpb - 0.001)),
    "a number of tokens": ("eval.csv", edited("tokens", whole)),
    "a number of bytes": ("eval.csv", edited("bytes", whole)),
    "a gain": ("eval.csv", edited("gain", lambda _: 0.5, row=1)),
    "the length": ("eval.csv", edited("length", lambda _: 96)),
    "a row that is missing": ("eval.csv", lambda text: "".join(text.splitlines(keepends=True)[:-1])),
    "a row that is there twice": ("eval.csv", lambda text: text + text.splitlines(keepends=True)[-1]),
    "the loss of a document": ("units.csv", edited("nll", lambda nll: nll * 1.0001)),
    "a smaller loss of a document": ("units.csv", edited("nll", lambda nll: nll * 0.9999)),
    "the tokens of a document": ("units.csv", edited("tokens", whole)),
    "a document that is missing": ("units.csv", lambda text: "".join(text.splitlines(keepends=True)[:-1])),
    "a bin of positions": ("position.csv", edited("to", whole)),
    "the slope of a bin": ("position.csv", edited("tail_slope", lambda _: 9.0)),
    "the tokens of a bin": ("position.csv", edited("tokens", whole)),
    "a length without positions": ("position.csv", lambda text: text.splitlines(keepends=True)[0]),
    "another run's table": ("units.csv", lambda text: text.replace("alibi-", "rope-")),
}


@pytest.mark.parametrize("lie", LIES)
def test_tables_that_contradict_each_other_are_damaged_although_sealed(out: Path, run: Path, lie: str) -> None:
    reseal(run, *LIES[lie])
    left_out(run.name, " is wrong: ")


def test_a_record_that_was_edited_by_hand_is_damaged_although_it_can_be_read(out: Path, run: Path) -> None:
    record = json.loads((run / "eval.json").read_text())
    (run / "eval.json").write_text(json.dumps(record | {"added": "by hand"}))
    left_out(run.name, "eval.json")


def test_a_table_of_an_earlier_evaluation_is_damaged(out: Path, run: Path) -> None:
    """As from a copy that was put back in part."""
    before = (run / "recall.csv").read_bytes()
    assert cli("extrapolate", *SHORT, "--run", run.name, "--ngram", 3).code == 0
    (run / "recall.csv").write_bytes(before)
    left_out(run.name, "recall.csv is not the file that was written")


def test_an_evaluation_under_another_encoding_is_repaired_alone(source: Path, out: Path, run: Path) -> None:
    (part,) = run.glob("as/*")
    own = (run / "eval.csv").read_bytes()
    _flip(part / "units.csv")
    assert_left_out_and_repaired(source, out, f"{run.name}.as.{part.name}", f"{part.name}/units.csv")
    assert (run / "eval.csv").read_bytes() == own
    (part / "eval.json").write_text("{")  # eval.csv still says which encoding it is
    assert_left_out_and_repaired(source, out, f"{run.name}.as.{part.name}", f"{part.name}/eval.json")


def test_a_damaged_analysis_is_named_and_made_again(out: Path, run: Path) -> None:
    assert cli("extrapolate", *SHORT, "--run", run.name, "--why").code == 0
    whole = (run / "why" / "saturation.csv").read_bytes()
    _flip(run / "why" / "saturation.csv")
    line = left_out(run.name, "saturation.csv")
    assert "--why" in line
    assert cli(*command_in(line)).code == 0
    assert (run / "why" / "saturation.csv").read_bytes() == whole
    assert cli("compare", "learned", "alibi").code == 0


def test_force_measures_again_and_leaves_the_model(out: Path, run: Path) -> None:
    before, losses = models(out), {path: path.read_bytes() for path in run.glob("nll/*.parquet")}
    rows = values(out)
    again = cli("extrapolate", *SHORT, "--run", run.name, "--force")
    assert again.code == 0, again.err
    assert "already" not in again.err
    assert all(path.read_bytes() != content for path, content in losses.items())  # they hold the time it took
    assert models(out) == before
    pd.testing.assert_frame_equal(values(out), rows)
    plan = document("extrapolate", *SHORT, "--run", run.name, "--force", "--dry-run")
    assert [job["done"] for job in plan["jobs"]] == ["not evaluated"]


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
    assert "evaluated already" in cli("extrapolate", *SHORT, "--run", run.name).err
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
    assert "interrupted" in cli("extrapolate", *SHORT, "--run", run.name, "--force").err
    assert cli("generate", "--run", run.name).code == 2


@pytest.mark.parametrize("name", ["config.toml", "env.json", "MANIFEST.json", "train.csv"])
@pytest.mark.parametrize("damage", first(1, ["half a file", "gone", "empty", "nested", "a folder"]))
def test_the_command_that_trained_a_run_writes_its_damaged_files_again(
    source: Path, out: Path, run: Path, name: str, damage: str
) -> None:
    before = models(out)
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
    assert cli("extrapolate", *SHORT, "--enc", "alibi", "--as", "none").code == 0
    pd.testing.assert_frame_equal(values(out), values(source))


def test_a_trained_tokenizer_is_written_again(out: Path) -> None:
    for number in range(4):
        Path(f"{number}.txt").write_text(" ".join(f"word {number * n} and {n}" for n in range(600)))
    arguments = ("train", "--enc", "none", *NANO, "--corpus", "text:*.txt", "--tokenizer", "bpe:300")
    assert cli(*arguments).code == 0
    (run,) = out.glob("runs/none-*")
    (file,) = [path for path in run.iterdir() if path.name not in ("config.toml",) and "token" in path.name]
    whole = file.read_bytes()
    _flip(file)
    assert cli("generate", "--run", run.name).code == 5
    assert cli(*arguments).code == 0
    assert file.read_bytes() == whole
    assert cli("generate", "--run", run.name, "--tokens", 2).code == 0


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
        (("extrapolate", *SHORT), 3),
        (("extrapolate", *SHORT, "--run", other.name), 0),
        (("generate", "--run", run.name), 5),
        (("compare", "learned", run.name), 5),
    ):
        result = cli(*arguments)
        assert result.code == code, result.err
        assert_says_nothing_of_deleting(result)
    assert [each.id for each in list_runs(out / "runs")] == [other.name]


def test_compare_goes_on_without_the_damaged_run_and_says_so(out: Path, run: Path) -> None:
    (part,) = run.glob("as/*")
    expected = document("compare", "learned", "alibi")
    _flip(part / "eval.csv")
    result = cli("compare", "learned", "alibi", "--json")
    assert result.code == 3
    assert result.json == expected
    assert f"{part.name} is left out" in result.err


@pytest.fixture
def answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of a task with right answers, evaluated."""
    monkeypatch.chdir(tmp_path)
    assert cli("train", "--enc", "none", "--task", "recall", *NANO).code == 0
    assert cli("extrapolate", "--max-len", 64, "--tokens", 256).code == 0
    (folder,) = Path("results/runs").glob("none-*")
    return folder


def test_answers_that_contradict_the_accuracy_are_damaged(answered: Path) -> None:
    assert len(api.results("results"))  # undamaged, they agree
    reseal(answered, "answers.csv", edited("right", lambda right: 1 - right if right < 2 else right - 1))
    report = cli("report")
    assert report.code == 5
    assert "answers.csv is wrong" in report.err
    assert cli(*command_in(report.err)).code == 0
    assert len(api.results("results"))


def test_the_repairing_command_has_all_digits_of_the_settings(out: Path, run: Path) -> None:
    third = ("extrapolate", "--lengths", "1,1.3333333333333333", "--tokens", 256, "--stride", 16, "--run", run.name)
    assert cli(*third).code == 0
    settings = json.loads((run / "eval.json").read_text())["settings"]
    _flip(run / "eval.json")  # the losses still say how they were measured
    assert cli(*command_in(left_out(run.name, "eval.json"))).code == 0
    assert json.loads((run / "eval.json").read_text())["settings"] == settings
