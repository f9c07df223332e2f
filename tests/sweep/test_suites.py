"""Suites: those that come with poscli can run, and one runs end to end whatever happens to single runs."""

import shutil
import signal
from pathlib import Path

import pytest
import torch
from cli_runner import ROOT, SUITE, cli, errors, snapshot
from training_faults import change_losses

from poscli.config import suite as suites
from poscli.config.resolve import resolve
from poscli.config.run import RunConfig
from poscli.evaluation.evaluate import settings_of
from poscli.evaluation.plan import Plan
from poscli.runs.run import list_runs
from poscli.specs import parse
from poscli.sweep import job
from poscli.sweep.job import Job
from poscli.system.errors import PoscliError
from poscli.tasks import open_task
from poscli.training.trainer import Trainer

CPU = torch.device("cpu")
PICTURES = {"perplexity.png", "gain.png", "position.png"}
NAMES = {"report.md", "report.html", "files.json", "summary.csv", "tables.tex"} | PICTURES
JOBS = [("none", 0), ("rope", 0), ("none", 1), ("rope", 1)]
pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(results folder, output) of the suite. Tests must not change the folder."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "tiny.toml").write_text(SUITE)
    return folder / "results", cli("run", folder / "tiny.toml", "--out", folder / "results", "--json")


def jobs_of(out):
    return [(run.config.encoding, run.config.seed) for run in list_runs(out / "runs")]


def stopped_before(*_):
    raise PoscliError("not started")


def states_of(out):
    return {(run.config.encoding, run.config.seed): run.status()["state"] for run in list_runs(out / "runs")}


@pytest.mark.parametrize("path", sorted((ROOT / "suites").glob("*.toml")), ids=lambda path: path.stem)
def test_every_suite_can_run(path, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)  # one names encodings in a file beside it
    suite = suites.load_suite(path)
    assert suite.title
    assert suite.description
    configs = [resolve(suite.train, encoding, seed, CPU) for seed in suite.seeds for encoding in suite.encodings]
    assert len(set(configs)) == len(configs) == len(suite.encodings) * len(suite.seeds)
    for part in suite.parts():
        specs = {str(each) for text in part.encodings for each in (parse(text), parse(text).in_proportion())}
        of_part = [resolve(part.train, spec, seed, CPU) for seed in part.seeds for spec in sorted(specs)]
        settings_of(of_part[0], part.extrapolate)
    if all(part.train.corpus.partition(":")[0] in ("stdlib", "bayes") for part in suite.parts()):  # which are here
        assert job.jobs_of(suite, "cpu", tmp_path / "runs", to_plan=True)  # its claims name what it measures
    if suite.train.corpus == "stdlib":
        settings = settings_of(configs[0], suite.extrapolate)
        Plan(open_task("language", "stdlib", "bytes"), settings)
        assert settings.lengths[-1] == settings.max_len  # nothing is asked for in vain


def test_a_suite_trains_evaluates_and_reports_every_job(finished):
    out, result = finished
    assert result.code == 0, result.err
    assert jobs_of(out) == JOBS  # seed by seed
    assert set(states_of(out).values()) == {"complete"}
    assert all((run.folder / "eval.csv").exists() for run in list_runs(out / "runs"))
    assert [line for line in result.err.splitlines() if line.startswith("[")] == [
        f"[{n}/4] {encoding}, seed {seed}" for n, (encoding, seed) in enumerate(JOBS, 1)
    ]
    made = result.json
    assert made["failures"] == []
    assert {(row["encoding"], row["seeds"]) for row in made["summary"]} == {("none", 2), ("rope", 2)}
    assert {Path(name) for name in made["files"]} == {out / "tiny" / name for name in NAMES}


def test_a_suite_run_again_trains_nothing_and_reports_its_own_runs_only(finished, folder, monkeypatch):
    out, first = finished
    shutil.copytree(out, folder / "results")
    before = snapshot(folder / "results" / "runs")
    monkeypatch.setattr(Trainer, "take_step", lambda self: pytest.fail("trained again"))
    monkeypatch.setattr("poscli.evaluation.measure.score", lambda *rest: pytest.fail("evaluated again"))
    again = cli("run", "tiny.toml", "--json")
    assert again.code == 0, again.err
    assert again.json["summary"] == first.json["summary"]
    assert again.err.count("nothing to train") == again.err.count("nothing to do") == 4
    assert snapshot(folder / "results" / "runs") == before
    (folder / "one.toml").write_text(SUITE.replace('"none", "rope"', '"rope"').replace("[0, 1]", "[1]"))
    made = cli("run", "one.toml", "--to", "elsewhere", "--json").json
    assert [(row["encoding"], row["seeds"]) for row in made["summary"]] == [("rope", 1)]
    assert {path.name for path in (folder / "elsewhere").iterdir()} == NAMES


def test_one_failing_run_does_not_stop_the_others(folder, monkeypatch):
    """Where all fail, there is no report. When what made a run fail has passed, the same command makes it up."""
    (folder / "tiny.toml").write_text(SUITE.replace("[0, 1]", "[1]"))
    (folder / "one.toml").write_text(SUITE.replace('"none", "rope"', '"none"'))

    def fails(self):
        if (self.config.encoding, self.step) == ("none", 3):
            raise RuntimeError("the disk is on fire\nthe second line")
        return original(self)

    original = Trainer.take_step
    cause = "RuntimeError: the disk is on fire the second line"
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "take_step", fails)
        result, nothing = cli("run", "tiny.toml", "--json"), cli("run", "one.toml", "--json")
    assert (result.code, nothing.code) == (3, 1)
    (failure,) = result.json["failures"]
    assert (failure["encoding"], failure["seed"]) == ("none", "1")
    assert failure["error"].startswith(f"{cause} (a bug of poscli")
    assert errors(result) == [f"error: none, seed 1: {failure['error']}"]
    assert [row["encoding"] for row in result.json["summary"]] == ["rope"]
    assert {path.name for path in (folder / "results" / "tiny").iterdir()} == NAMES
    assert states_of(folder / "results")["none", 1] == "failed"
    assert f"every run of the suite failed; the first: {cause[:35]}" in nothing.json["error"]
    assert not (folder / "results" / "one").exists()
    result = cli("run", "tiny.toml", "--json")
    assert result.code == 0
    assert {row["encoding"] for row in result.json["summary"]} == {"none", "rope"}
    assert states_of(folder / "results")["none", 1] == "complete"


def test_a_diverged_run_is_a_row_and_an_exit_code(folder, monkeypatch):
    (folder / "tiny.toml").write_text(SUITE.replace("[0, 1]", "[0]"))

    def poisoned(trainer, loss):
        return loss() * (float("nan") if trainer.config.encoding == "none" and trainer.step == 2 else 1.0)

    change_losses(poisoned, monkeypatch.setattr)
    result = cli("run", "tiny.toml", "--json")
    assert result.code == 3
    assert result.json["failures"] == []
    verdicts = {row["encoding"]: row["verdict"] for row in result.json["summary"]}
    assert verdicts["none"] == "diverged"
    assert verdicts["rope"] != "diverged"
    assert "diverged" in (folder / "results" / "tiny" / "report.md").read_text()
    planned = cli("run", "tiny.toml", "--dry-run", "--json").json["jobs"]
    assert {job["encoding"]: job["done"] for job in planned} == {
        "none": "diverged, evaluated",
        "rope": "complete, evaluated",
    }


def test_a_signal_stops_the_suite_and_the_same_command_goes_on(folder, monkeypatch, finished):
    def stopped(self):
        if (self.config.encoding, self.config.seed, self.step) == ("rope", 0, 7):
            signal.raise_signal(signal.SIGTERM)
        return original(self)

    original = Trainer.take_step
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "take_step", stopped)
        result = cli("run", "tiny.toml")
    assert result.code == 143
    assert "error: stopped at step 8 of 20; the same command goes on from there" in result.err
    assert states_of(folder / "results") == {("none", 0): "complete", ("rope", 0): "interrupted"}
    result = cli("run", "tiny.toml", "--json")
    assert result.code == 0
    assert "going on from step 8 of 20" in result.err
    assert result.json["summary"] == finished[1].json["summary"]  # to the last bit


def test_each_part_is_told_what_its_own_seeds_can_tell_apart(folder, monkeypatch):
    """And where a part has one encoding, nothing is said of it."""
    parts = "\n[[part]]\nseeds = [2]\n[[part]]\ntrain.length = 48\nencodings = ['none']\n[[part]]\ntrain.length = 40\n"
    (folder / "parts.toml").write_text(SUITE.replace("[0, 1]", "[0, 1, 2]") + parts)
    monkeypatch.setattr("poscli.cli.screen.run_shown", stopped_before)
    result = cli("run", "parts.toml")
    told = [line for line in result.err.splitlines() if "a true difference of" in line]
    assert [line.split(" and ")[0] for line in told] == ["stdlib: with 1 seed", "stdlib: with 3 seeds"]


def test_a_job_that_two_parts_have_is_done_once(folder):
    parts = "\n[[part]]\ntrain.batch = 4\n[[part]]\ntrain.length = 32\n"
    (folder / "parts.toml").write_text(SUITE + parts)
    jobs = cli("run", "parts.toml", "--dry-run", "--json").json["jobs"]
    assert sorted((job["encoding"], job["seed"]) for job in jobs) == [(e, s) for e in ("none", "rope") for s in (0, 1)]


def test_a_corpus_by_a_relative_path_is_the_same_for_suites_and_commands(folder, monkeypatch):
    monkeypatch.setenv("POSCLI_CACHE", str(folder / "cache"))
    (folder / "text.txt").write_text("\n".join(f"{n} bottles of beer on the wall" for n in range(400)))
    train = 'seeds = [0]\n[train]\ncorpus = "text:text.txt"'
    (folder / "one.toml").write_text(
        SUITE.replace("seeds = [0, 1]\n[train]", train).replace('"none", "rope"', '"none"')
    )
    assert cli("run", "one.toml").code == 0
    (run,) = list_runs(folder / "results" / "runs")
    assert run.config.corpus == f"text:{folder / 'text.txt'}"
    nano = ("--preset", "nano", "--length", 32, "--batch", 4, "--tokens", 2560)
    result = cli("train", "--enc", "none", *nano, "--corpus", "text:text.txt", "--json")
    assert result.json[0]["run_id"] == run.id
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")  # where text.txt is not
    assert cli("extrapolate", "--max-len", 32, "--tokens", 64, "--out", folder / "results").code == 0


def test_a_job_names_its_corpus_unless_it_is_the_usual_one() -> None:
    def label(corpus: str) -> str:
        return Job(config=RunConfig(encoding="rope", corpus=corpus), runs=Path("runs")).label

    assert label("stdlib") == "rope, seed 0"
    assert label("passkey") == "rope, seed 0 on passkey"
    assert label(f"text:{'x' * 80}/books.txt").endswith("x/books.txt")
    assert len(label(f"text:{'x' * 80}/books.txt")) == len("rope, seed 0 on ") + 40
