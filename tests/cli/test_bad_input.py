"""Wrong commands and unusable corpora: an error of one line, the right exit code, and nothing written."""

import random
import sys

import pytest
from cli_runner import ALIBI, LENGTH, NANO, assert_refused, cli, errors, shell, snapshot

from poscli.system import plugins

TRAIN = ("train", *NANO)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with files that cannot be used as a corpus or a suite, and without results."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_text("ten bytes " * 20)
    (tmp_path / "binary.txt").write_bytes(b"ELF\0\1\2" * 100)
    (tmp_path / "latin.txt").write_bytes("déjà vu ".encode("latin-1") * 100)
    (tmp_path / "lines.jsonl").write_text('{"text": "one"}\n{"text": \n')
    (tmp_path / "rows.jsonl").write_text('{"txt": "one"}\n' * 3)
    (tmp_path / "fake.parquet").write_text("no parquet at all")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "quick.toml").touch()
    return tmp_path


# One of each kind of mistake; tests/cli/test_snapshots_commands.py has many more with their sentences.
USAGE = [
    (("bench", "--enc", "none", "--lengths", "9" * 5000), ("--lengths", "too long for a number of tokens")),
    (("compare", "alibi"), "Missing argument"),
    ((*ALIBI, "--tokens", "5"), ("--tokens 5 is less than one step", "give at least")),
    ((*TRAIN, "--enc", "rope(bsae=500)"), ("'bsae'", "did you mean base?")),
    ((*TRAIN, "--enc", "rope", "--enc", "rope(base=10000)"), ("rope is given twice", "rope(base=10000)")),
    (
        (*ALIBI, "--enc", "rpoe"),
        ("'rpoe'", "did you mean urpe or rope"),
    ),  # nor is alibi trained
    (("trian",), ("'trian'", "train")),
    (("frobnicate",), ("'frobnicate'", "poscli --help")),
    (("train", "--enc", "alibi", "--epochs", 3), ("--epochs", "poscli train --help")),
    (("ls", "encodngs"), ("'encodngs'", "encodings")),
    ((*ALIBI, "--heads", 3), "width 64 is not divisible by 3 heads"),
    ((*ALIBI, "--set", "matrix_lr=nan"), ("matrix_lr = nan", "finite")),
    ((*ALIBI, "--device", "cuda:99"), ("cuda:99", "CUDA devices")),
    ((*ALIBI, "--corpus", "short.txt"), ("'short.txt'", "text:short.txt")),
    (("extrapolate",), ("no runs", "poscli train --enc alibi")),
    (("extrapolate", "--max-len", "0.5x"), ("--max-len '0.5x'", "greater than or equal to 1")),
    (("run", "suites/quikc.toml"), ("'suites/quikc.toml'", "did you mean quick.toml?", "suites")),
    (("run", "binary.txt"), ("binary.txt is not TOML",)),
]
OTHERS = [
    (("extrapolate", "--out", "a" * 256), 1, ("aaa", "File name too long", "give another path")),
    (("report",), 1, ("no evaluated runs", "poscli extrapolate")),
    ((*ALIBI, "--out", "file"), 1, ("cannot write file/runs/alibi-", "Not a directory", "choose another folder")),
    ((*ALIBI, "--corpus", "text:nowhere"), 4, ("text:nowhere", "no file, no folder")),
    ((*ALIBI, "--corpus", "text:no*.md"), 4, ("text:no*.md", "no pattern that matches")),
    ((*ALIBI, "--corpus", "text:nothing"), 4, ("text:nothing", "holds no file")),
    ((*ALIBI, "--corpus", "jsonl:nothing"), 4, ("jsonl:nothing", "*.jsonl")),
]


def _ids(rows):
    return [" ".join(map(str, row[0])).replace(" ".join(map(str, NANO)), "NANO") for row in rows]


@pytest.mark.parametrize(("arguments", "words"), USAGE, ids=_ids(USAGE))
def test_usage(arguments, words):
    assert_refused(arguments, 2, words)


@pytest.mark.parametrize(("arguments", "code", "words"), OTHERS, ids=_ids(OTHERS))
def test_other_failures(arguments, code, words):
    assert_refused(arguments, code, words)


@pytest.mark.parametrize(
    ("corpus", "length", "words"),
    [
        ("text:empty.txt", LENGTH, ("empty.txt is empty", "delete it")),
        ("text:binary.txt", LENGTH, ("binary.txt is binary", "offset 3")),
        ("text:latin.txt", LENGTH, ("latin.txt is not UTF-8", "0xe9 at offset 1", "iconv")),
        ("text:short.txt", 512, ("180 bytes for training", "a window of 512 needs 513", "--length that fits is 20")),
        ("jsonl:lines.jsonl", LENGTH, ("lines.jsonl line 2 is not JSON", "one JSON object per line")),
        ("jsonl:rows.jsonl", LENGTH, ("line 1 has no field 'text'", "txt")),
        ("jsonl:rows.jsonl#text2", LENGTH, ("no field 'text2'", "#FIELD")),
        ("parquet:fake.parquet", LENGTH, "not a parquet file"),
    ],
)
def test_corpora_that_cannot_be_used(corpus, length, words, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path_factory.mktemp("cache")))  # outside the folder that is watched
    assert_refused((*ALIBI, "--length", length, "--corpus", corpus), 4, words, notes=2)


def test_a_hub_out_of_reach(folder, tmp_path_factory):
    elsewhere = {"POSCLI_CACHE": str(tmp_path_factory.mktemp("cache")), "HF_HOME": str(tmp_path_factory.mktemp("hub"))}
    before = snapshot(folder)
    result = shell(
        *ALIBI, "--corpus", "hf:wikitext", "--json", **elsewhere, HF_ENDPOINT="http://127.0.0.1:9", POSCLI_NATIVE="0"
    )
    assert result.code == 4
    (line,) = errors(result)
    assert "cannot reach the hub for Salesforce/wikitext" in line
    assert "stdlib" in line
    assert "Traceback" not in result.err
    assert result.json["exit_code"] == 4
    assert snapshot(folder) == before


def test_no_runs_are_no_error_to_ls(folder):
    assert cli("ls", "runs").code == 0
    assert cli("ls", "runs", "--json").json == []
    assert not (folder / "results").exists()


def test_ls_alone_says_where_to_look():
    result = cli("ls")
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: Missing command")
    assert "poscli ls --help" in result.err


@pytest.mark.skipif(sys.platform == "win32", reason="no such names")
def test_names_of_files_that_toml_must_escape(folder, monkeypatch, tmp_path_factory):
    """A configuration that is written can be read again, with any characters in the corpus' name."""
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path_factory.mktemp("cache")))
    draw = random.Random(0)
    odd = folder / 'ümlaut "quoted" \\ 😀.txt'
    odd.write_text("".join(draw.choices("abc \n", k=4000)))
    first, second = (cli(*ALIBI, "--corpus", f"text:{odd}", "--json") for _ in range(2))
    assert (first.code, second.code) == (0, 0), second.err
    assert first.json[0]["run_id"] == second.json[0]["run_id"]
    assert cli("ls", "runs", "--json").json[0]["corpus"] == f"text:{odd}"


def test_debug_shows_the_traceback(folder):
    result = cli(*TRAIN, "--enc", "alibbi", "--debug")
    assert result.code == 2
    assert "Traceback" in result.err
    assert "error: there is no encoding 'alibbi': did you mean alibi or alibi-2d?" in result.err


def test_a_defect_of_poscli_is_one_line_too(monkeypatch):

    def broken(runs, names, specs):
        raise ZeroDivisionError("division by zero\nsecond line")

    monkeypatch.setattr("poscli.runs.select.select", broken)
    monkeypatch.setattr(plugins, "_run", {})  # of plugins of earlier tests
    result = cli("generate", "--json")
    assert result.code == 1
    assert result.err == "error: ZeroDivisionError: division by zero (a bug of poscli; --debug shows where)\n"
    assert result.json["exit_code"] == 1
