"""What is refused: one line that says why, the right exit code, the same in JSON, and nothing written.

Refusals that need neither a file nor a long text stand in test_snapshots_commands.py, with their whole sentences.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from cli_runner import ALIBI, NANO, SHORT, SUITE, ask_before_any_work, assert_refused, cli, run_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torture.commands import torture
from torture.names import CHECKS, check, hostile_spec

from poscli.config.run import RunConfig, slug
from poscli.system import plugins
from poscli.system.errors import UsageError, one_line
from poscli.system.registry import Registry

TRAIN = ("train", *NANO)
TOO_LARGE = "less than or equal to 9223372036854775807"


@pytest.fixture(autouse=True)
def folder(here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The current folder, with files that cannot be used as a corpus or a suite, and without results."""
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path_factory.mktemp("cache")))  # outside the folder that is watched
    for name in ("nothing", "suites"):
        (here / name).mkdir()
    for name, content in {
        "file": b"not a folder",
        "empty.txt": b"",
        "short.txt": b"ten bytes " * 20,
        "binary.txt": b"ELF\0\1\2" * 100,
        "latin.txt": "déjà vu ".encode("latin-1") * 100,
        "lines.jsonl": b'{"text": "one"}\n{"text": \n',
        "rows.jsonl": b'{"txt": "one"}\n' * 3,
        "fake.parquet": b"no parquet at all",
        "suites/quick.toml": b"",
    }.items():
        (here / name).write_bytes(content)
    return here


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("extrapolate",), 2, ("no runs", "poscli train --enc alibi")),
        (("extrapolate", "--out", "a" * 256), 1, ("aaa", "File name too long", "give another path")),
        ((*ALIBI, "--out", "file"), 1, ("cannot write file/runs/alibi-", "Not a directory", "choose another folder")),
        ((*TRAIN, "--enc", "rope", "--enc", "rope(base=10000)"), 2, ("rope is given twice", "rope(base=10000)")),
        (
            (*TRAIN, "--enc", "rope", "--task", "passkey", "--memory", 8),
            2,
            ("--memory 8", "nothing would be remembered"),
        ),
        ((*ALIBI, "--device", "cuda:99"), 2, ("cuda:99", "CUDA devices")),
        (("run", "suites/quikc.toml"), 2, ("'suites/quikc.toml'", "did you mean quick.toml?", "suites")),
        ((*ALIBI, "--corpus", "text:no*.md"), 4, ("text:no*.md", "no pattern that matches")),
        ((*ALIBI, "--corpus", "text:nothing"), 4, ("text:nothing", "holds no file")),
        ((*ALIBI, "--corpus", "jsonl:nothing"), 4, ("jsonl:nothing", "*.jsonl")),
        ((*ALIBI, "--corpus", "text:empty.txt"), 4, ("empty.txt is empty", "delete it")),
        ((*ALIBI, "--corpus", "text:binary.txt"), 4, ("binary.txt is binary", "offset 3")),
        ((*ALIBI, "--corpus", "text:latin.txt"), 4, ("latin.txt is not UTF-8", "0xe9 at offset 1", "iconv")),
        (
            (*ALIBI, "--length", 512, "--corpus", "text:short.txt"),
            4,
            ("133 bytes for training", "a window of 512 needs 513", "--length that fits is 50"),
        ),
        ((*ALIBI, "--corpus", "jsonl:lines.jsonl"), 4, ("lines.jsonl line 2 is not JSON", "one JSON object per line")),
        ((*ALIBI, "--corpus", "jsonl:rows.jsonl"), 4, ("line 1 has no field 'text'", "txt")),
        ((*ALIBI, "--corpus", "jsonl:rows.jsonl#text2"), 4, ("no field 'text2'", "#FIELD")),
        ((*ALIBI, "--corpus", "parquet:fake.parquet"), 4, "not a parquet file"),
        # texts that nobody sane would write
        ((*TRAIN, "--enc", "a" * 10_000), 2, ("at most 4000 characters", "has 10000")),
        ((*TRAIN, "--enc", "a" * 300), 2, "there is no encoding"),
        ((*TRAIN, "--enc", "(" * 500), 2, "expected the name of an encoding"),
        ((*TRAIN, "--enc", "rope\x1b[2J"), 2, "cannot read"),
        ((*TRAIN, "--enc", "shaw(clip=10**400)"), 2, "cannot read '**400)'"),
        ((*TRAIN, "--enc", f"shaw(clip={2**63})"), 2, "clip must be below 2^63"),
        ((*TRAIN, "--enc", "rope(base=1e999)"), 2, ("base must be finite", "'1e999'")),
        ((*TRAIN, "--enc", f"shaw(clip={2**62})"), 2, ("=4611686018427387904) cannot be built", "smaller")),
        ((*TRAIN, "--enc", "../../x.py:Class"), 2, "there is no file"),
        ((*ALIBI, "--seed", 2**63), 2, ("--seed", TOO_LARGE)),
        (("generate", "--seed", 2**63), 2, ("--seed", TOO_LARGE)),
        (("verify", "none", "--seed", 2**63), 2, ("--seed", TOO_LARGE)),
        ((*ALIBI, "--tokens", "9" * 400), 2, ("--tokens", "too long for a number of tokens")),
        ((*ALIBI, "--tokens", f"{'9' * 18}g"), 2, ("--tokens", TOO_LARGE)),
        ((*ALIBI, "--task", "../" * 3000), 2, "there is no task"),
        ((*ALIBI, "--corpus", "x" * 10_000), 2, "4096 are allowed"),
        (("extrapolate", "--max-len", 2**63), 2, ("--max-len '9223372036854775808'", "less than or equal to")),
    ],
    ids=lambda value: " ".join(map(str, value))[-40:] if isinstance(value, tuple) else "",
)
def test_a_refusal_is_one_line_and_writes_nothing(
    arguments: tuple[object, ...], code: int, words: str | tuple[str, ...]
) -> None:
    assert_refused(arguments, code, words, notes=2)


def test_options_of_extrapolate_that_do_not_go_together_are_refused(results: Path) -> None:
    learned = run_of(results, "learned").id
    for options, words in (
        (("--run", learned, "--enc", "alibi"), (f"no run {learned} in", "has the encoding alibi", "leave out one")),
        (("--on", "whole:stdlib"), ("--on whole:stdlib: alibi was trained on text of it", "leave out `whole:`")),
        (("--smoke", "--tokens", "1M"), ("--smoke scores a few hundred tokens", "--tokens 1000000", "leave one out")),
    ):
        assert_refused(("extrapolate", *options, "--out", results), 2, words, notes=1)


@pytest.mark.parametrize("path", ["file", "file/below"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "--to"),
        ("report", "--site"),
        ("report", "--out"),
        ("run", "suites/quick.toml", "--dry-run", "--to"),
        ("run", "suites/quick.toml", "--out"),
        ("inspect", "rope", "--to"),
        ("inspect", "rope", "--out"),
        ("bench", "--enc", "none", "--out"),
        ("new", "my-encoding", "--to"),
    ],
    ids=" ".join,
)
def test_a_file_where_a_folder_is_meant_is_refused_before_anything_is_computed(
    arguments: tuple[str, ...], path: str, folder: Path
) -> None:
    (folder / "suites/quick.toml").write_text('title = "t"\nencodings = ["none"]')
    assert_refused((*arguments, path), 1, (f"cannot write {path}", "is not a folder", f"with {arguments[-1]}"))


def test_more_threads_than_the_machine_can_use_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert_refused(("bench", "--threads", 9), 2, "--threads 9: this machine has 2 cores; give 1 to 8")


def test_no_runs_are_no_error_to_ls(folder: Path) -> None:
    assert cli("ls", "runs").code == 0
    assert cli("ls", "runs", "--json").json == []
    assert not (folder / "results").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no such names")
def test_names_of_files_that_toml_must_escape(folder: Path) -> None:
    """A configuration that is written can be read again, with any characters in the corpus' name."""
    odd = folder / 'ümlaut "quoted" \\ 😀.txt'
    odd.write_text("".join(random.Random(0).choices("abc \n", k=4000)))
    first, second = (cli(*ALIBI, "--corpus", f"text:{odd}", "--json") for _ in range(2))
    assert (first.code, second.code) == (0, 0), second.err
    assert first.json[0]["run_id"] == second.json[0]["run_id"]
    assert cli("ls", "runs", "--json").json[0]["corpus"] == f"text:{odd}"


def test_debug_shows_the_traceback() -> None:
    result = cli(*TRAIN, "--enc", "alibbi", "--debug")
    assert result.code == 2
    assert "Traceback" in result.err
    assert "error: there is no encoding 'alibbi': did you mean alibi or alibi-2d?" in result.err


def test_a_defect_of_poscli_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("division by zero\nsecond line")

    monkeypatch.setattr("poscli.runs.select.select", broken)
    monkeypatch.setattr(plugins, "_run", {})  # of plugins of earlier tests
    result = cli("generate", "--json")
    assert result.code == 1
    assert result.err == "error: ZeroDivisionError: division by zero (a bug of poscli; --debug shows where)\n"
    assert result.json["exit_code"] == 1


# ---- random and hostile texts; `make torture` draws as many as one likes


@pytest.mark.parametrize("seed", range(4))
def test_no_command_line_ends_in_a_way_that_is_not_documented(seed: int) -> None:
    assert len({words[0] for words in torture(seed, 10)}) > 3


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_hostile_texts_are_taken_or_refused(seed: int) -> None:
    check(*hostile_spec(seed))


@pytest.mark.parametrize("kind", CHECKS)
def test_each_kind_refuses_the_worst(kind: str) -> None:
    for text in ("", "\0", "\ud800", "..", "/", "a" * 10_000, "9" * 5000, "rope\n+none", "~nobody/x"):
        check(kind, text)


def test_long_names_make_short_folders_that_differ() -> None:
    names = [RunConfig(encoding="a" * 300 + end).run_id("0") for end in ("b", "c")]
    assert len(set(names)) == 2
    assert all(len(name) < 140 for name in names)
    assert slug("a" * 300 + "b") != slug("a" * 300 + "c")
    assert RunConfig(encoding="文:文").run_id("0").startswith("encoding-")


def test_a_long_value_is_cut_in_its_middle() -> None:
    registry: Registry[type] = Registry("encoding", "poscli.encodings", lambda thing: False)
    with pytest.raises(UsageError) as caught:
        registry.get("x" * 10_000)
    line = one_line(str(caught.value))
    assert len(line) == 800
    assert line.startswith("there is no encoding 'xxx")
    assert line.endswith("`poscli ls encodings` shows all")
    assert " ... " in line


@pytest.mark.parametrize("words", [ALIBI, ("extrapolate", *SHORT), ("run", "tiny.toml")], ids=["train", "other", "run"])
def test_work_of_more_than_an_hour_is_asked_for(
    words: tuple[object, ...], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal there is nobody to ask. From Python it begins at once."""
    (here / "tiny.toml").write_text(SUITE)
    if words[0] == "extrapolate":
        assert cli(*ALIBI).code == 0
    ask_before_any_work(monkeypatch)
    assert_refused(words, 2, "give --yes to start all the same", notes=3)
    assert cli(*words, "--yes").code == 0
