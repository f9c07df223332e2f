"""Commands as people and programs use them: what they select, repeat, leave alone, and what `generate` writes."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runner import BRIEF, LENGTH, NANO, SHORT, assert_plain, cli, document, run_of, snapshot
from toys import perturbed, rounding

import poscli
from poscli.data.tokenizers.bytes import END
from poscli.model.generate import generate
from poscli.model.load import load_trained
from poscli.model.transformer import Model
from poscli.runs.run import list_runs
from poscli.system import progress
from poscli.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("here")  # every command runs in a folder of its own


# ---- all commands


def test_help_and_version() -> None:
    assert cli("--version").out == f"poscli {poscli.__version__}\n"
    assert cli().out == cli("--help").out
    assert "Usage: poscli [OPTIONS] COMMAND" in cli().out


def test_no_color_is_plain_even_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # Rich then takes stdout for a terminal
    assert "\x1b[" in cli("ls", "corpora").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert_plain(cli("ls", "corpora"))


def test_doctor_says_what_works_and_writes_nothing(here: Path) -> None:
    checks = {check["check"]: check for check in document("doctor")}
    assert {check["state"] for check in checks.values()} <= {"ok", "missing", "untried"}
    assert checks["poscli"]["detail"].startswith(poscli.__version__)
    assert checks["torch"]["detail"].startswith(torch.__version__)
    assert checks["cuda"]["state"] == ("ok" if torch.cuda.is_available() else "missing")
    assert "held out" in checks["default corpus"]["detail"]
    assert list(here.iterdir()) == []


def test_doctor_tries_to_write(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user root may write everywhere, says the system, also in /proc."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if Path("/proc/self").exists():
        assert re.search(r"results +broken +/proc cannot be written", cli("doctor", "--out", "/proc/x").out)
    monkeypatch.setattr("os.fsync", full)
    result = cli("doctor")
    assert result.code == 1
    assert "cannot be written (No space left on device); choose another folder" in " ".join(result.out.split())
    assert list(here.iterdir()) == []


# ---- training and evaluation


def test_progress_is_on_stderr_unless_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    loud = cli("train", "--enc", "none", *NANO)
    assert re.search(r"^train none +\d+%", loud.err, re.MULTILINE)
    assert "%" not in loud.out
    assert re.search(r"^extrapolate none +\d+%", cli("extrapolate", *BRIEF).err, re.MULTILINE)
    for command in (("train", "--enc", "alibi", *NANO), ("extrapolate", *BRIEF)):
        quiet = cli(*command, "--quiet")
        assert quiet.code == 0
        assert "%" not in quiet.err


def test_a_run_that_diverged_has_no_numbers_and_an_exit_code_also_where_it_is_evaluated() -> None:
    assert cli("train", "--enc", "none", *NANO).code == 0
    diverging = ("train", "--enc", "none", *NANO, "--seed", 1, "--set", "matrix_lr=1e30")
    result = cli(*diverging, "--json")
    assert result.code == 3
    (row,) = result.json
    assert (row["status"], row["bpb"]) == ("diverged", None)
    assert "not finite at step" in row["message"]
    again = cli(*diverging)
    assert again.code == 3
    assert "diverged, no finite loss" in again.out
    assert cli("extrapolate", "--max-len", 64, "--tokens", 64).code == 3


def test_the_same_command_again_does_nothing_and_says_so(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it spells a spec in another way."""
    before = snapshot(results)
    monkeypatch.setattr(Trainer, "take_step", lambda self: pytest.fail("trained again"))
    monkeypatch.setattr("poscli.evaluation.measure.score", lambda *rest: pytest.fail("evaluated again"))
    again = cli("train", "--enc", " alibi( trainable = False ) ", *NANO, "--out", results)
    assert again.code == 0
    assert f"{run_of(results, 'alibi').id} is complete already: nothing to train" in again.err
    again = cli("extrapolate", *SHORT, "--out", results)
    assert again.code == 0
    assert again.err.count("is evaluated already: nothing to do") == 3
    assert snapshot(results) == before


def test_another_evaluation_of_a_run_is_said_to_replace_the_one_before(results: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(results, tmp_path / "results")
    other = cli("extrapolate", "--enc", "alibi", *SHORT, "--stride", 2, "--out", copy)
    assert (other.code, other.err.count("these results replace that evaluation")) == (0, 1)
    assert "replace" not in cli("extrapolate", "--enc", "alibi", *SHORT, "--stride", 2, "--force", "--out", copy).err
    more = cli("extrapolate", "--enc", "alibi", *SHORT, "--stride", 2, "--tokens", 512, "--out", copy)
    assert (more.code, "replace" in more.err) == (0, False)


def test_runs_are_selected_by_encoding_and_by_the_beginning_of_their_id(results: Path) -> None:
    def chosen(*arguments: str) -> set[str]:
        return {row["encoding"] for row in document("extrapolate", *SHORT, *arguments, "--out", results)}

    assert chosen("--enc", "alibi(trainable=false)") == {"alibi"}
    assert chosen("--enc", "alibi", "--enc", "learned") == {"alibi", "learned"}
    assert chosen("--run", "sinus") == {"sinusoidal"}
    learned = run_of(results, "learned").id
    assert chosen("--run", learned) == {"learned"}
    assert f"did you mean {learned}" in cli("generate", "--run", f"{learned}x", "--out", results).err
    itself = cli("compare", "learned", learned, "--out", results)
    assert (itself.code, f"both names mean {learned}, and no run is compared with itself" in itself.err) == (2, True)


def test_extrapolate_leaves_out_what_is_not_trained_to_its_end() -> None:
    document("train", "--enc", "none", "--enc", "alibi", *NANO)
    run = run_of("results", "none")
    run.set_status("interrupted", 3)
    result = cli("extrapolate", "--max-len", 32, "--tokens", 64, "--json")
    assert result.code == 0
    assert {row["encoding"] for row in result.json} == {"alibi"}
    assert f"{run.id} is interrupted and left out" in result.err


# ---- generate


def greedy(model: Model, prompt: bytes, count: int) -> str:
    """The text that decoding at temperature 0 makes; every byte must be the likeliest in a pass over the whole text.

    Decoding and the whole pass round differently: the likeliest two may change places within twice the rounding.
    """
    made = list(generate(model, [END, *prompt], [END], tokens=count, temperature=0, seed=0))
    text = torch.tensor([[END, *prompt, *made]])
    with torch.no_grad():
        logits = model(text[:, :-1])[0, len(prompt) :]
        behind = logits.amax(dim=-1) - logits[torch.arange(len(made)), made]
        assert float(behind.max()) <= 2 * rounding(model, text[:, :-1])
    return bytes(made).decode(errors="replace")


def test_generate_shows_the_beginning_of_a_character_that_does_not_end(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poscli.model.generate.generate", lambda *_, **__: iter([ord("H"), 0xC3]))
    arguments = ("generate", "--enc", "alibi", "--out", results, "--prompt", "")
    assert document(*arguments)["text"] == "H\N{REPLACEMENT CHARACTER}"
    assert cli(*arguments).out == "H\N{REPLACEMENT CHARACTER}\n"


@pytest.mark.parametrize("encoding", ["alibi", "sinusoidal"])
def test_generate_at_temperature_0_is_the_greedy_decode(
    results: Path, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = perturbed(load_trained(run_of(results, encoding), torch.device("cpu")))  # else it is all spaces
    monkeypatch.setattr("poscli.model.load.load_trained", lambda run, device: model)
    expected = greedy(model, b"def f(", 2 * LENGTH)
    assert len(set(expected)) > 8
    arguments = ("generate", "--enc", encoding, "--out", results, "--prompt", "def f(", "--tokens", 2 * LENGTH)
    assert document(*arguments, "--temperature", 0)["text"] == expected
    assert cli(*arguments, "--temperature", 0).out == f"def f({expected}\n"


def test_generate_stops_with_a_note_where_learned_positions_end(results: Path) -> None:
    arguments = ("generate", "--enc", "learned", "--out", results, "--prompt", "ab", "--temperature", 0)
    made = document(*arguments)
    assert made["tokens"] == LENGTH - 3 + 1  # END and the prompt fill three positions; the last one still predicts
    assert made["text"] == greedy(load_trained(run_of(results, "learned"), torch.device("cpu")), b"ab", made["tokens"])
    assert f"stopped: learned has {LENGTH} positions" in made["note"]
    assert made["note"] in cli(*arguments).err
    full = "x" * (2 * LENGTH)  # leaves no position for a first token
    assert cli("generate", "--enc", "learned", "--out", results, "--prompt", full).out == f"{full}\n"


def test_generate_draws_from_its_seed(results: Path) -> None:
    def text(seed: int) -> str:
        return document("generate", "--enc", "alibi", "--out", results, "--tokens", 40, "--seed", seed)["text"]

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_generate_goes_on_far_into_a_text_and_says_how_it_repeats_itself(results: Path) -> None:
    asked = ("generate", "--enc", "alibi", "--out", results, "--temperature", 0, "--tokens", 2 * LENGTH)
    made = document(*asked, "--after", LENGTH - 9)
    assert (made["prompt"], made["read"], made["encoding"]) == ("", LENGTH - 8, "alibi")
    stretches = [(each["begin"], each["end"]) for each in made["repeated"]]
    assert stretches == [(LENGTH - 8, LENGTH), (LENGTH, 2 * LENGTH), (2 * LENGTH, 3 * LENGTH - 8)]
    said = cli(*asked, "--after", LENGTH - 9).err
    assert f"% of tokens {LENGTH} to {2 * LENGTH}" in said
    assert document(*asked, "--as", "alibi+window(4)", "--prompt", "def f(")["encoding"] == "alibi+window(width=4)"


def test_a_prompt_that_is_not_utf8_reaches_the_model_as_typed(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[int]] = []

    def watched(model: Model, ids: list[int], *rest: Any, **options: Any) -> Any:
        begun.append(ids)
        return generate(model, ids, *rest, **options)

    monkeypatch.setattr("poscli.model.generate.generate", watched)
    arguments = ("generate", "--enc", "alibi", "--out", results, "--tokens", 3, "--prompt", "a\udcff\x1b")
    assert cli(*arguments).out.startswith("a\ufffd\x1b")
    assert document(*arguments)["prompt"] == "a\ufffd\x1b"  # which every reader of JSON takes
    assert begun == [[END, 97, 255, 27]] * 2


def test_what_generate_refuses(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ("generate", "--enc", "alibi", "--out", results)
    for option in (("--side", 8), ("--image", 1), ("--to", "file.png")):
        result = cli(*chosen, *option)
        assert result.code == 2
        assert f"was trained on text, for which {option[0]} means nothing" in result.err
    assert "--to . is a folder" in cli("generate", "--to", ".").err
    monkeypatch.setattr("poscli.system.memory.free_memory", lambda device: 1000.0)
    result = cli(*chosen, "--prompt", 99 * "x")
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    assert line.startswith("error: reading 100 tokens with alibi needs about ")
    assert "give a shorter --prompt" in line


def test_generate_takes_the_newest_complete_run(here: Path) -> None:
    document("train", "--enc", "none", *NANO)
    document("train", "--enc", "none", *NANO, "--seed", 1)
    old, new = list_runs(here / "results" / "runs")
    assert document("generate", "--tokens", 1)["run_id"] == new.id
    assert document("generate", "--tokens", 1, "--run", old.id)["run_id"] == old.id
