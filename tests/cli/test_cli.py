"""What commands print on each stream, as text and as JSON; what they leave alone; what `generate` writes."""

import codecs
import errno
import re
from pathlib import Path

import pytest
import torch
from cli_runner import (
    COMMANDS,
    LENGTH,
    NANO,
    SHORT,
    assert_plain,
    cli,
    document,
    run_of,
    snapshot,
    trained,
)
from toys import perturbed, rounding

import poscli
from poscli import encodings
from poscli.data.tokenizers.bytes import END
from poscli.model.generate import generate
from poscli.model.load import load_trained
from poscli.model.transformer import Model
from poscli.runs.run import list_runs
from poscli.system import progress
from poscli.tasks import TASKS
from poscli.training.trainer import Trainer


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every command runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSCLI_QUIET", "")  # restored afterwards: --quiet sets it
    return tmp_path


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Runs of alibi, learned and sinusoidal, trained and evaluated. Tests must not change them."""
    return trained(tmp_path_factory.getbasetemp())


# One JSON document


def test_json_of_a_run_that_diverged():
    arguments = ("train", "--enc", "none", *NANO, "--set", "matrix_lr=1e30")
    result = cli(*arguments, "--json")
    assert result.code == 3
    (row,) = result.json
    assert row["status"] == "diverged"
    assert row["bpb"] is None
    assert "not finite at step" in row["message"]
    again = cli(*arguments)
    assert again.code == 3
    assert "diverged, no finite loss" in again.out


def test_json_of_ls_encodings():
    rows = {row["name"]: row for row in document("ls", "encodings")}
    assert sorted(rows) == encodings.names()
    assert rows["rope"]["options"] == {"base": 10000.0, "layout": "half", "fraction": 1.0}
    assert rows["clipped"]["options"] == {"clip": 16}
    assert rows["alibi"]["options"] == {"trainable": "false", "most": 8.0, "scale": 1.0, "before_scale": "false"}
    assert rows["t5"]["parameters"] == 8 * 32
    assert rows["path"]["engine"] == "blocks"
    assert "needs whole rows of scores" in rows["path"]["reason"]
    for row in rows.values():
        assert row["formula"]
        assert "\n" not in row["formula"]


def test_json_of_doctor(folder):
    checks = {check["check"]: check for check in document("doctor")}
    assert {check["state"] for check in checks.values()} <= {"ok", "missing", "untried"}
    assert checks["poscli"]["detail"].startswith(poscli.__version__)
    assert checks["torch"]["detail"].startswith(torch.__version__)
    assert checks["cuda"]["state"] == ("ok" if torch.cuda.is_available() else "missing")
    assert "held out" in checks["default corpus"]["detail"]
    assert list(folder.iterdir()) == []  # doctor writes nothing


def test_doctor_really_writes(folder, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(full))
    result = cli("doctor")
    assert result.code == 1
    assert "cannot be written (No space left on device); choose another folder" in " ".join(result.out.split())
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="this system has no /proc")
def test_doctor_is_not_deceived_by_permissions():
    """The user root may write everywhere, says the system."""
    result = cli("doctor", "--out", "/proc/x")
    assert result.code == 1
    assert re.search(r"results +broken +/proc cannot be written", result.out)


def test_doctor_names_plugins_that_are_broken(monkeypatch):
    monkeypatch.setitem(TASKS._broken, "theirs", "cannot be imported from theirs:Task: No module named 'theirs'")
    (check,) = [check for check in document("doctor") if check["check"] == "task theirs"]
    assert check["state"] == "missing"
    assert "No module named 'theirs'" in check["detail"]


# Text for people


def test_results_are_on_stdout_and_notes_on_stderr(results, folder):
    tables = {
        ("ls", "runs"): (["alibi", "complete"], []),
        ("train", "--enc", "alibi", *NANO): (["complete"], [f"next: poscli extrapolate --max-len {16 * LENGTH}"]),
        ("extrapolate", *SHORT): (["alibi", "unsupported"], ["evaluated already", "next: poscli report"]),
        ("report", "--to", str(folder / "report")): (["alibi", "learned"], ["wrote ", "report.md"]),
        ("generate", "--enc", "alibi", "--tokens", "5", "--prompt", "class "): (["class "], ["5 tokens", "ms each"]),
    }
    for arguments, (out, err) in tables.items():
        result = cli(*arguments, "--out", results)
        assert result.code == 0
        for word in out:
            assert word in result.out
        for word in err:
            assert word in result.err
            assert word not in result.out
        assert_plain(result)


def test_progress_is_on_stderr_unless_quiet(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    loud = cli("train", "--enc", "none", *NANO)
    assert re.search(r"^train none +\d+%", loud.err, re.MULTILINE)
    assert "%" not in loud.out
    quiet = cli("train", "--enc", "alibi", *NANO, "--quiet")
    assert quiet.code == 0
    assert "%" not in quiet.err
    assert re.search(r"^extrapolate none +\d+%", cli("extrapolate", *SHORT, "--enc", "none").err, re.MULTILINE) is None
    monkeypatch.setenv("POSCLI_QUIET", "")
    assert re.search(r"^extrapolate alibi +\d+%", cli("extrapolate", *SHORT, "--enc", "alibi").err, re.MULTILINE)


def test_no_color_is_plain_even_on_a_terminal(monkeypatch):
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")  # Rich then takes stdout for a terminal
    assert "\x1b[" in cli("ls", "corpora").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert_plain(cli("ls", "corpora"))


def test_help_of_the_program_names_every_command():
    for arguments in (("--help",), ()):
        result = cli(*arguments)
        assert result.code == 0
        assert "Usage: poscli [OPTIONS] COMMAND" in result.out
        assert result.err == ""
        for command in COMMANDS:
            assert re.search(rf"\b{command}\b", result.out)


def test_version():
    result = cli("--version")
    assert (result.code, result.out) == (0, f"poscli {poscli.__version__}\n")


# Doing nothing twice


def test_the_same_command_again_does_nothing_and_says_so(results, monkeypatch):
    before = snapshot(results)
    monkeypatch.setattr(Trainer, "take_step", lambda self: pytest.fail("trained again"))
    monkeypatch.setattr("poscli.evaluation.measure.score", lambda *rest: pytest.fail("evaluated again"))
    again = cli("train", "--enc", "alibi", *NANO, "--out", results)
    assert again.code == 0
    assert "is complete already: nothing to train" in again.err
    again = cli("extrapolate", *SHORT, "--out", results)
    assert again.code == 0
    assert again.err.count("is evaluated already: nothing to do") == 3
    assert snapshot(results) == before


def test_the_spelling_of_a_spec_does_not_matter(results, monkeypatch):
    monkeypatch.setattr(Trainer, "take_step", lambda self: pytest.fail("trained again"))
    result = cli("train", "--enc", " alibi( trainable = False ) ", *NANO, "--out", results, "--json")
    assert result.json[0]["run_id"] == run_of(results, "alibi").id


def test_runs_are_selected_by_encoding_and_by_the_beginning_of_their_id(results):
    def chosen(*arguments):
        return {row["encoding"] for row in document("extrapolate", *SHORT, *arguments, "--out", results)}

    assert chosen() == {"alibi", "learned", "sinusoidal"}
    assert chosen("--enc", "alibi(trainable=false)") == {"alibi"}
    assert chosen("--enc", "alibi", "--enc", "learned") == {"alibi", "learned"}
    assert chosen("--run", "sinus") == {"sinusoidal"}
    assert chosen("--run", run_of(results, "learned").id) == {"learned"}


def test_extrapolate_leaves_out_what_is_not_trained_to_its_end(folder):
    document("train", "--enc", "none", "--enc", "alibi", *NANO)
    run = run_of("results", "none")
    run.set_status("interrupted", 3)
    result = cli("extrapolate", "--max-len", 32, "--tokens", 64, "--json")
    assert result.code == 0
    assert {row["encoding"] for row in result.json} == {"alibi"}
    assert f"{run.id} is interrupted and left out" in result.err


def test_extrapolate_tells_programs_that_a_run_gave_nothing():
    assert cli("train", "--enc", "none", *NANO).code == 0
    assert cli("train", "--enc", "none", *NANO, "--seed", 1, "--set", "matrix_lr=1e30").code == 3
    assert cli("extrapolate", "--max-len", 64, "--tokens", 64).code == 3


# Generating


def greedy(model: Model, prompt: bytes, count: int) -> str:
    """The text that decoding at temperature 0 makes; every byte must be the likeliest in a pass over the whole text.

    Decoding and the whole pass round differently: the likeliest two may change places within twice the rounding.
    """
    made = list(generate(model, prompt, END, tokens=count, temperature=0, seed=0))
    text = torch.tensor([[END, *prompt, *made]])
    with torch.no_grad():
        logits = model(text[:, :-1])[0, len(prompt) :]
        behind = logits.amax(dim=-1) - logits[torch.arange(len(made)), made]
        assert float(behind.max()) <= 2 * rounding(model, text[:, :-1])
    return codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(made))


@pytest.mark.parametrize("encoding", ["alibi", "sinusoidal"])
def test_generate_at_temperature_0_is_the_greedy_decode(results, encoding, monkeypatch):
    model = perturbed(load_trained(run_of(results, encoding), torch.device("cpu")))  # else it is all spaces
    monkeypatch.setattr("poscli.model.load.load_trained", lambda run, device: model)
    expected = greedy(model, b"def f(", 2 * LENGTH)
    assert len(set(expected)) > 8
    arguments = ("generate", "--enc", encoding, "--out", results, "--prompt", "def f(", "--tokens", 2 * LENGTH)
    assert document(*arguments, "--temperature", 0)["text"] == expected
    assert cli(*arguments, "--temperature", 0).out == f"def f({expected}\n"


def test_a_prompt_that_does_not_fit_the_memory_is_refused(results, monkeypatch):
    monkeypatch.setattr("poscli.system.memory.free_memory", lambda device: 1000.0)
    result = cli("generate", "--enc", "alibi", "--out", results, "--prompt", 99 * "x")
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    assert line.startswith("error: reading 100 tokens with alibi needs about ")
    assert "give a shorter --prompt" in line


@pytest.mark.parametrize("option", [("--rows", 4), ("--side", 8), ("--image", 1), ("--to", "file.png")])
def test_options_of_images_are_refused_for_text(results, option):
    result = cli("generate", "--enc", "alibi", "--out", results, *option)
    assert result.code == 2
    assert f"was trained on text, for which {option[0]} means nothing" in result.err


def test_generate_stops_with_a_note_where_learned_positions_end(results):
    arguments = ("generate", "--enc", "learned", "--out", results, "--prompt", "ab", "--temperature", 0)
    made = document(*arguments)
    assert made["tokens"] == LENGTH - 3 + 1  # END and the prompt fill three positions; the last one still predicts
    assert made["text"] == greedy(load_trained(run_of(results, "learned"), torch.device("cpu")), b"ab", made["tokens"])
    assert f"stopped: learned has {LENGTH} positions" in made["note"]
    result = cli(*arguments)
    assert result.code == 0
    assert made["note"] in result.err


def test_generate_draws_from_its_seed(results):
    def text(*arguments):
        chosen = ("--enc", "alibi", "--out", results, "--tokens", 40)
        return document("generate", *chosen, *arguments)["text"]

    assert text("--seed", 1) == text("--seed", 1)
    assert text("--seed", 1) != text("--seed", 2)
    assert text("--seed", 1, "--temperature", 0) == text("--seed", 2, "--temperature", 0)


def test_a_prompt_that_is_not_utf8_reaches_the_model_as_typed(results, monkeypatch):
    begun = []
    real = poscli.model.generate.generate
    monkeypatch.setattr(
        "poscli.model.generate.generate", lambda m, ids, *a, **k: begun.append(ids) or real(m, ids, *a, **k)
    )
    arguments = ("generate", "--enc", "alibi", "--out", results, "--tokens", 3, "--prompt", "a\udcff\x1b")
    assert cli(*arguments).out.startswith("a\ufffd\x1b")
    assert document(*arguments)["prompt"] == "a\udcff\x1b"
    assert begun == [[97, 255, 27]] * 2


def test_generate_takes_the_newest_complete_run(folder):
    document("train", "--enc", "none", *NANO)
    document("train", "--enc", "none", *NANO, "--seed", 1)
    old, new = list_runs(folder / "results" / "runs")
    assert document("generate", "--tokens", 1)["run_id"] == new.id
    assert document("generate", "--tokens", 1, "--run", old.id)["run_id"] == old.id
