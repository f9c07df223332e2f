"""Every command in the README's code blocks works, in the README's order, on models that train in seconds."""

import re
import shlex
import tomllib

import pytest
from checkpoints import make, write_corpus
from cli_runner import BRIEF, NANO, ROOT, cli
from planted_board import plant, plant_star
from small_bench import SMALL

from poscli.bench.timing import SIZES
from poscli.data import CORPORA

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.MULTILINE))
SHELLS = {"sh", "bash", "shell", "console", "zsh"}
KNOWN = {"poscli", "make", "git", "cd", "pip", "python", "python3", "source", "."}  # what a shell block may begin with
ONCE = ("--train-length", 32, "--batch", 2, "--lengths", 32, "--past", 32, "--repeats", 1, "--seconds", 0.1)
SHRINK = {
    "train": (*NANO, "--tokens", "1k", "--device", "cpu"),
    "extrapolate": (*BRIEF, "--device", "cpu"),
    "generate": ("--tokens", 8),
    "corpus": ("--length", 8),
    "run": ("--workers", 1),  # in this process; tests/processes starts others
    "inspect": ("--preset", "nano", "--length", 64, "--no-properties"),  # test_inspect_properties.py measures
    "bench": ("--preset", "nano", "--device", "cpu", "--threads", 1, *ONCE),
    "design": ("--cells", ROOT / "results/board/cells"),  # planted cells have no profile of a text
}
ELSEWHERE = {"rank"}  # trains for minutes; tests/board/test_rank.py ranks an encoding in a small season
ANSWERS = {"--help", "--version"}


def blocks():
    """Language and lines of each fenced block; a line that ends with a backslash is joined with the next."""
    for language, text in re.findall(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", README, re.MULTILINE | re.DOTALL):
        yield language, [line.strip().removeprefix("$ ") for line in text.replace("\\\n", " ").splitlines()]


def commands():
    """Every line of a shell block, and lines of other blocks that begin with poscli or make."""
    for language, lines in blocks():
        for line in lines:
            is_command = language in SHELLS or line.startswith(("poscli ", "make "))
            if is_command and (words := shlex.split(line, comments=True)):
                yield words


COMMANDS = list(commands())
POSCLI = [words[1:] for words in COMMANDS if words[0] == "poscli" and words[1] not in ELSEWHERE]


def test_shell_blocks_hold_commands_that_can_be_copied():
    assert {"train", "extrapolate", "report"} <= {words[0] for words in POSCLI}
    for words in COMMANDS:
        line = " ".join(words)
        assert words[0] in KNOWN, f"{line!r}: say how to test it"
        assert not re.search(r"\.\.\.|<\w[^>]*>", line), line
        assert not {"|", "||", "&", "&&", ";", ">"} & set(words), f"{line!r}: one command a line"


def test_targets_suites_and_linked_files_exist():
    named = {word for words in COMMANDS if words[0] == "make" for word in words[1:] if "=" not in word}
    named |= set(re.findall(r"`make ([\w-]+)`", README))
    assert named
    assert named <= TARGETS
    linked = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)\)", README)
    suites = re.findall(r"poscli run (\S+)", MAKEFILE)
    assert suites
    assert [path for path in (*linked, *suites) if not (ROOT / path).exists()] == []


def shrunk(words):
    """A command with options appended that make it fast; later options override earlier ones."""
    if "--corpus" in words and words[words.index("--corpus") + 1].partition(":")[0] != "stdlib":
        kind = words[words.index("--corpus") + 1].partition(":")[0]
        assert kind in CORPORA.names(), kind
        words = [*words, "--corpus", "stdlib"]  # tests have neither a network nor the files of the README's reader
    if words[0] == "corpus":
        words = ["corpus", "jsonl:text.jsonl", *words[2:]]
    if "--on" in words:
        words = [*words[: (place := words.index("--on"))], "--on", "jsonl:text.jsonl", *words[place + 2 :]]
    if "--model" in words:
        place = words.index("--model") + 1
        words = [*words[:place], "checkpoint", *words[place + 1 :], "--corpus", "jsonl:text.jsonl"]
    return words if ANSWERS & set(words) else [*words, *SHRINK.get(words[0], ())]


def write_suites(folder):
    """Write a small suite in the place of every suite."""
    for path in (ROOT / "suites").glob("*.toml"):
        suite = tomllib.loads(path.read_text())
        (folder / "suites").mkdir(exist_ok=True)
        (folder / "suites" / path.name).write_text(
            f"title = {suite['title']!r}\nencodings = {suite['encodings'][:2]!r}\n"
            "[train]\npreset = 'nano'\nlength = 32\nbatch = 4\ntokens = 1280\n"
            "[extrapolate]\nmax_len = 64\ntokens = 64\nstride = 16\n"
        )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder in which all commands were run one after the other, and the result of each."""
    folder = tmp_path_factory.mktemp("readme")
    write_suites(folder)
    make("llama", folder / "checkpoint")
    write_corpus(folder / "text.jsonl")
    cells, losses = (
        folder / "results" / "board" / "cells",
        {"rope": (2.0, 2.9), "alibi": (2.05, 2.03), "fox": (2.0, 1.9)},
    )
    plant(cells, losses)
    plant_star(cells, lambda size: losses)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("POSCLI_QUIET", "")
        patch.setitem(SIZES, "cpu", SMALL)
        patch.setattr("poscli.encodings.names", lambda: ["alibi", "rope"])  # tests/verify/test_verify.py verifies all
        patch.setattr("poscli.evaluation.posthoc.names", lambda: ["alibi", "yarn"])  # test_posthoc.py takes all
        results = {" ".join(words): cli(*shrunk(words)) for words in POSCLI}
    return folder, results


@pytest.mark.parametrize("line", [" ".join(words) for words in POSCLI])
def test_every_command_works(done, line):
    _, results = done
    assert results[line].code == 0, results[line].err
    assert results[line].out


def test_the_commands_leave_the_files_that_the_readme_promises(done):
    folder, _ = done
    assert list((folder / "results" / "runs").glob("*/eval.csv"))
    assert (folder / "results" / "report" / "report.md").exists()
