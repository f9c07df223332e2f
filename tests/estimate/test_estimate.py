"""Before the work: how long it takes, what does not fit the memory, whether to start, dry runs, and starting anew."""

from __future__ import annotations

import itertools
import math
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cli_runner import (
    ALIBI,
    LENGTH,
    NANO,
    SHORT,
    assert_refused,
    cli,
    document,
    run_of,
    snapshot,
)

from poscli import estimate
from poscli.cli import plan
from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import CheckpointConfig, ModelConfig, RunConfig
from poscli.estimate import Pace, Work
from poscli.evaluation.plan import Measurement
from poscli.evaluation.protocol import EvaluationSettings
from poscli.model.flops import evaluation_flops, training_flops
from poscli.model.initialise import weights_of
from poscli.model.load import load_trained
from poscli.runs.run import open_run
from poscli.runs.schema import FULL
from poscli.system import memory, progress
from poscli.system.errors import PoscliError, UsageError

CPU = torch.device("cpu")
DAY = 24 * 3600.0
pytestmark = pytest.mark.usefixtures("here")  # every command runs in a folder of its own


def config(encoding="none", seed=0, **changes):
    return resolve(TrainRequest(**{"preset": "nano", "length": LENGTH, "batch": 4, **changes}), encoding, seed, CPU)


# time


def configs(encoding="none", **changes):
    return [config(encoding, **changes)]


@pytest.fixture
def measured(monkeypatch):
    """Measuring a step takes 10 seconds and finds 0.5, and a pass 1e-3 per token and 1e-6 per token of the window.

    Windows that are measured at their end only take half of that.
    """
    asked, clock = [], [0.0]

    def step(config, task, device):
        asked.append(f"step of {config.encoding}")
        clock[0] += 10
        return 0.5

    def windows(config, task, device):
        asked.append(f"pass of {config.encoding}")
        return (1e-3, 1e-6), (0.5e-3, 0.5e-6)

    monkeypatch.setattr(estimate, "measured_step", step)
    monkeypatch.setattr(estimate, "measured_pass", windows)
    monkeypatch.setattr(estimate, "counted_step", lambda config, task, device: 0.1)
    monkeypatch.setattr(estimate, "counted_evaluation", lambda config, task, windows, device: 2.0 * bool(windows))
    monkeypatch.setattr(estimate, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return asked


def test_short_trainings_are_counted_and_long_ones_measured(task, measured, tmp_path):
    def seconds(**changes):
        made = estimate.trainings(configs(**changes), task, tmp_path, CPU, anew=False)
        return made[0].seconds, made[0].steps

    few, steps = seconds(tokens=128 * 100)
    assert (few, measured) == (pytest.approx(estimate.BEGIN_SECONDS + 0.1 * steps), [])
    many, steps = seconds(tokens=128 * 10_000)
    assert (many, measured) == (pytest.approx(estimate.BEGIN_SECONDS + 0.5 * steps), ["step of none"])
    large = configs("gaussian(terms=100000)", tokens=4096)  # an encoding larger than the model is measured in any case
    estimate.trainings(large, task, tmp_path, CPU, anew=False)
    assert measured[1:] == ["step of gaussian(terms=100000)"]


def test_seeds_share_a_measurement_and_what_is_not_measured_is_scaled(task, measured):
    """After 15 seconds two steps are measured, each five times as long as counted, and so is the third."""
    pace = Pace(15.0)
    made = [config(encoding, seed=seed) for encoding in ("alibi", "rope", "t5") for seed in (0, 1)]
    seconds = [pace.seconds(Work(each, task, CPU, steps=10)) for each in made]
    assert seconds == pytest.approx([estimate.BEGIN_SECONDS + 5] * 6)
    assert measured == ["step of alibi", "step of rope"]
    assert pace.seconds(Work(made[0], task, CPU)) == 0


def test_the_time_of_an_evaluation_follows_from_its_windows(task, measured):
    """Under a baseline with a model of its own, later tokens of a window attend to L tokens, as many as the L-th."""
    windows = {
        Measurement(32, 0, FULL): (3, 0),
        Measurement(64, 0, FULL): (1, 4),
        Measurement(64, 0, "window"): (0, 2),
    }
    attended = (LENGTH * LENGTH + 2 * LENGTH * (64 - LENGTH)) / 64
    passes = 3 * 32 * (1e-3 + 32e-6) + (1 + 4 / 2) * 64 * (1e-3 + 64e-6) + 2 / 2 * 64 * (1e-3 + attended * 1e-6)
    pace = Pace(15.0)
    alone = pace.seconds(Work(config(), task, CPU, windows=windows))
    assert alone == pytest.approx(estimate.STATISTICS_SECONDS + passes)
    assert pace.seconds(Work(config(), task, CPU, windows=windows, share=1.5)) == pytest.approx(1.5 * alone)
    named = CheckpointConfig(name="a", source="b", digest="c", parameters=10**9)
    checkpoint = config().model_copy(update={"checkpoint": named})
    counted = pace.seconds(Work(checkpoint, task, CPU, windows=windows))
    assert (counted, measured) == (pytest.approx(estimate.STATISTICS_SECONDS + 2), ["pass of none"])


def test_operations_are_counted_for_all_tokens_of_a_step_and_of_every_window(task, monkeypatch):
    """A core makes 40e9 operations per second, a GPU 5e12; a layer starts in 1 ms, three times in training."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    for batch in (1, 6):
        made = config(batch=batch)
        flops = batch * LENGTH * training_flops(made.model, task.vocab, LENGTH)
        started = 3e-3 * made.model.layers
        assert estimate.counted_step(made, task, CPU) == pytest.approx(flops / 80e9 + started)
        assert estimate.counted_step(made, task, torch.device("cuda")) == pytest.approx(flops / 5e12 + started)
    passes = 3 * 8192 * evaluation_flops(made.model, task.vocab, 8192) / 80e9 + 3e-3 * made.model.layers
    windows = {Measurement(8192, 0, FULL): (1, 2)}
    assert estimate.counted_evaluation(made, task, windows, CPU) == pytest.approx(passes)


@pytest.mark.parametrize("encoding", ["randomized+rope", "alibi"])
def test_measuring_a_step_changes_no_bit_of_a_run(encoding, monkeypatch):
    memory = ("--memory", 16) if encoding == "alibi" else ()
    command = ("train", "--enc", encoding, *NANO, *memory, "--seed", 3)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert cli(*command, "--out", "plain").code == 0
    monkeypatch.setattr(plan, "ASKED_FROM", 0.0)
    measured = []
    original = estimate.measured_step
    monkeypatch.setattr(estimate, "measured_step", lambda *a: measured.append(original(*a)) or measured[-1])
    assert cli(*command, "--out", "measured", "--yes").code == 0
    assert len(measured) == 1
    assert measured[0] > 0
    assert torch.equal(torch.get_rng_state(), before)
    (plain, other) = (next(Path(out, "runs").glob("*/config.toml")).parent for out in ("plain", "measured"))
    weights, others = (weights_of(load_trained(open_run(run), CPU)) for run in (plain, other))
    assert all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.parametrize(
    ("steps", "measured", "unused"),
    [
        ((0.5, 0.25), 0.25, 0),
        ((5.0, 0.25), 5.0, 1),
        ((1.0, 0.25), 0.25, 0),
        ((0.2, 0.1, 0.15, 0.1, 9.0), 0.1, 1),
        ((0.04, 0.01, 0.03, *[0.02] * 10), 0.02, 1),
    ],
)
def test_steps_are_measured_for_half_a_second_at_most_12_and_one_if_it_is_long(
    steps, measured, unused, task, monkeypatch
):
    """The median of all but the first, which also loads kernels."""
    clock, left = [100.0], list(steps)
    monkeypatch.setattr(estimate, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    original = estimate.Optimizer.step

    def step(optimizer, number):
        clock[0] += left.pop(0)
        original(optimizer, number)

    monkeypatch.setattr(estimate.Optimizer, "step", step)
    assert estimate.measured_step(config(), task, CPU) == pytest.approx(measured)
    assert len(left) == unused


def test_the_time_of_a_step_grows_with_its_windows(task, monkeypatch):
    """At most PROBE_TOKENS are read by a measured step; here two windows of eight, in a clock that ticks each look."""
    monkeypatch.setattr(estimate, "PROBE_TOKENS", 2 * LENGTH)
    sizes = []
    original = task.batch
    monkeypatch.setattr(task, "batch", lambda **asked: sizes.append(asked["size"]) or original(**asked))
    clock = itertools.count(step=5.0)
    monkeypatch.setattr(estimate, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(estimate, "PROBE_SECONDS", math.inf)
    eight = estimate.measured_step(config(batch=8), task, CPU)
    two = estimate.measured_step(config(batch=2), task, CPU)
    assert (sizes, eight) == ([2, 2], pytest.approx(4 * two, rel=0.1))


@pytest.mark.parametrize("encoding", ["none", "learned"])  # learned has no positions beyond L to time
def test_a_pass_costs_by_its_tokens_and_by_the_length_of_its_windows(encoding, task):
    for by_token, by_length in estimate.measured_pass(config(encoding), task, CPU):
        assert 0 < by_token + 10 * LENGTH * by_length < 1  # however long this machine takes, no window costs nothing
        assert min(by_token, by_length) >= 0


@pytest.mark.parametrize(
    ("seconds", "by_token", "by_length"),
    [
        ((0.1, 0.4, 0.1, 2.0), (0.4 - 0.1 / 3) / 64, 0.1 / 64 / (3 * 64)),
        ((0.1, 0.4, 0.1, 1.2), 0.4 / 64, 0.0),  # of long windows a token costs less
        ((0.1, 0.1, 3.2), 0.0, 0.7 / 64 / (3 * 64)),  # a second pass is not made if the first takes more than a second
        ((1.0, 0.4, 0.1, 2.0), (0.4 - 0.1 / 3) / 64, 0.1 / 64 / (3 * 64)),
    ],
)
def test_the_costs_of_a_pass_are_those_of_windows_of_two_lengths(seconds, by_token, by_length, task, monkeypatch):
    """One of 64 tokens and one of 256, each read twice; the second time counts. No cost is below zero.

    The same is done for windows that are measured at their end only, which here take as long.
    """
    for name in ("PASS_TOKENS", "SHORT"):
        monkeypatch.setattr(estimate, name, 64)
    looks = iter(list(itertools.accumulate(each for second in 2 * seconds for each in (0.5, second))))
    monkeypatch.setattr(estimate, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    for pace in estimate.measured_pass(config(), task, CPU):
        assert pace == pytest.approx((by_token, by_length))


# memory


@pytest.mark.parametrize(
    ("free", "window", "losses"),
    [
        (2.0**40, "", ""),
        (2.0**33, "needs about 24.9 GiB, 8.0 GiB are free", "needs about 16.0 GiB, 8.0 GiB are free; lower --tokens"),
    ],
)
def test_what_certainly_does_not_fit_is_refused(free, window, losses, task, monkeypatch):
    large = ModelConfig(layers=24, width=768, heads=12, mlp=2048)
    made = RunConfig(encoding="rope", length=8, model=large)
    monkeypatch.setattr(memory, "free_memory", lambda _: free)
    assert estimate.unaffordable_window(made, 2**18, CPU, batch=2) == window
    for option, more in (("--max-len", {}), ("--lengths", {"ratios": (1, 2**17)})):
        settings = EvaluationSettings(train_length=8, max_len=2**20, tokens=64, stride=4, **more)
        refused = nullcontext() if not window else pytest.raises(UsageError, match=f"48.9 GiB.*lower {option}$")
        with refused:
            estimate.refuse_unaffordable_windows(made, settings, CPU)
    with nullcontext() if not losses else pytest.raises(UsageError, match=losses):
        estimate.refuse_unaffordable_losses(task, {Measurement(32, 0, "full"): (2**26, 2**26)})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("free_memory", lambda _: 2.0**20, r"^training none needs more than .* are free; lower --batch"),
        ("PROBE_SECONDS", -1.0, None),  # a step that takes too long counts as three forward passes
        ("fresh_model", RuntimeError("DefaultCPUAllocator: can't allocate memory"), "needs more than"),
        ("fresh_model", RuntimeError("shape mismatch"), "^shape mismatch"),
    ],
)
def test_a_step_that_does_not_fit_memory_or_patience_is_stopped(name, value, says, task, monkeypatch):
    monkeypatch.setattr(estimate, name, raising(value) if isinstance(value, Exception) else value)
    if says is None:
        assert estimate.measured_step(config(), task, CPU) == -3.0
        return
    with pytest.raises((UsageError, RuntimeError), match=says) as caught:
        estimate.measured_step(config(batch=64), task, CPU)
    assert isinstance(caught.value, UsageError) == ("shape" not in says)


# the question


@pytest.mark.parametrize(
    ("seconds", "yes", "terminal", "answer", "says"),
    [
        (3000, False, False, None, ""),
        (2 * 3600, False, False, None, "this takes about 2:00:00; lower --tokens, or give --yes to start all the same"),
        (3 * DAY, True, False, None, ""),
        (70 * DAY, True, True, None, ""),
        (3000, False, True, None, ""),
        (2 * 3600, False, True, True, "this takes about 2:00:00. Start?"),
        (2 * 3600, False, True, False, "not started; lower --tokens"),
        (70 * DAY, False, False, None, "this takes about 70 days; lower --tokens, or give --yes to start all the same"),
        (1e17, False, True, None, "this takes about 1,000 years or more; lower --tokens, or give --yes"),
    ],
)
def test_long_work_starts_after_a_question(seconds, yes, terminal, answer, says, monkeypatch):
    """Months of it, and hours in a pipe, where nobody could answer, start only if they are asked for."""
    said = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: terminal)
    monkeypatch.setattr(plan, "err", SimpleNamespace(is_terminal=terminal))
    monkeypatch.setattr("typer.confirm", lambda words, err: said.append(words) or answer)
    try:
        plan.confirm(seconds, "--tokens", yes=yes)
    except PoscliError as error:
        said.append(str(error))
    assert len(said) == bool(says) + (answer is False)
    assert says in "".join(said)


@pytest.mark.parametrize("longest", [10**9, 10**12])
def test_a_length_that_cannot_fit_is_refused_before_its_text_is_made(longest, monkeypatch):
    """The task makes a text for every length, which would fill the memory before any model does."""
    assert cli("train", "--enc", "none", "--task", "copy", *NANO).code == 0
    monkeypatch.setattr(memory, "free_memory", lambda _: 16 * 2.0**30)  # the message says it, and it changes
    assert_refused(("extrapolate", "--max-len", longest), 2, ("needs about", "are free; lower --max-len"))


def test_durations_are_rounded_before_they_are_split_into_hours_and_minutes():
    seconds = (59.6, 3599.7, DAY, 2 * DAY)
    assert [progress.duration(each) for each in seconds] == ["1:00", "1:00:00", "24:00:00", "2 days"]


# dry runs


def test_a_dry_run_writes_nothing(here):
    command = ("train", "--enc", "rope", *NANO, "--dry-run")
    found = document(*command)
    assert {"rope", "total", "begun"} <= set(cli(*command).out.split())
    assert snapshot(here) == {}
    (job,) = [job for job in found["jobs"] if job["encoding"] == "rope"]
    assert job["done"] == "not begun"
    assert (job["parameters"], job["seed"]) == (139_712, 0)
    assert job["seconds"] > 0
    assert found["seconds"] == pytest.approx(sum(job["seconds"] for job in found["jobs"]))


def test_a_dry_run_says_what_is_done(results, here):
    shutil.copytree(results, here / "results")
    run = run_of("results", "alibi")
    before = snapshot(here)
    found = document("train", "--enc", "alibi", "--enc", "none", *NANO, "--dry-run")
    assert [job["done"] for job in found["jobs"]] == ["complete", "not begun"]
    assert found["jobs"][0]["seconds"] == 0
    again = document(*ALIBI, "--dry-run", "--force")
    assert again["jobs"][0]["done"] == "not begun"
    evaluated = document("extrapolate", *SHORT, "--dry-run")
    assert {job["done"] for job in evaluated["jobs"]} == {"evaluated"}
    assert evaluated["seconds"] == 0
    unexplained = document("extrapolate", *SHORT, "--why", "--dry-run")
    assert {job["done"] for job in unexplained["jobs"]} == {"evaluated, not explained"}
    assert all(job["seconds"] > 0 for job in unexplained["jobs"])
    longer = document("extrapolate", "--max-len", 64, "--dry-run")
    assert {job["done"] for job in longer["jobs"]} == {"not evaluated"}
    assert snapshot(here) == before
    run.set_status("interrupted", 20)
    assert document(*ALIBI, "--dry-run")["jobs"][0]["done"] == "step 20 of 31"


@pytest.mark.parametrize("state", ["diverged", "oom", "failed"])
def test_what_a_run_without_a_model_cannot_do_takes_no_time(state, results, here):
    """Unless a suite trains it to its end first: of the three, only what diverged stays as it is."""
    shutil.copytree(results, here / "results")
    run_of("results", "alibi").set_status(state, 20)
    suite = 'title = "One"\nencodings = ["alibi"]\ntrain = {preset = "nano", length = 32, batch = 4, tokens = 4_000}\n'
    Path("suite.toml").write_text(f"{suite}extrapolate = {{max_len = 64, why = true}}\n")
    (alone,) = document("extrapolate", "--enc", "alibi", "--why", "--dry-run")["jobs"]
    assert (alone["done"], alone["seconds"]) == ("not evaluated", 0)
    (job,) = document("run", "suite.toml", "--dry-run")["jobs"]
    assert (job["done"], job["seconds"] == 0) == (
        {"diverged": "diverged"}.get(state, "step 20 of 31"),
        state == "diverged",
    )


# starting anew


def test_force_trains_again_and_only_these_runs():
    for encoding in ("alibi", "learned"):
        assert cli("train", "--enc", encoding, *NANO).code == 0
    before = {path: path.stat().st_mtime_ns for path in Path("results/runs").glob("*/config.toml")}
    result = cli(*ALIBI, "--force")
    assert result.code == 0
    assert result.err.count("deleted ") == 1
    kept = [path.parent.name for path in before if before[path] == path.stat().st_mtime_ns]
    assert [name.partition("-")[0] for name in kept] == ["learned"]


def raising(error):
    def fail(*_, **__):
        raise error

    return fail
