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


USAGE = [
    (("bench", "--enc", "none", "--batch", 10**20), ("bench: batch = 1000000000000", "less than or equal to 1048576")),
    (("bench", "--enc", "none", "--lengths", "9" * 5000), ("--lengths", "too long for a number of tokens")),
    (("extrapolate", "--lengths", "abc"), ("--lengths 'abc'", "must be a number")),
    (("extrapolate", "--lengths", "1,,2"), ("--lengths ''", "must be a number")),
    (("extrapolate", "--lengths", "0.5"), ("--lengths '0.5'", "greater than or equal to 1")),
    (("extrapolate", "--lengths", "nan"), ("--lengths 'nan'", "finite")),
    (("extrapolate", "--ngram", 65), ("ngram = 65", "64")),
    (("extrapolate", "--judge", "alibi"), ("--judge alibi", "give --why too")),
    (("compare", "alibi"), "Missing argument"),
    # encodings
    (("train", *NANO), "--enc"),
    ((*TRAIN, "--enc", "rope|none|alibi"), ("alternates 3 encodings", "has 2 layers")),
    ((*ALIBI, "--tokens", "5"), ("--tokens 5 is less than one step", "give at least")),
    ((*TRAIN, "--enc", "alibbi"), ("'alibbi'", "did you mean alibi or alibi-2d?")),
    ((*TRAIN, "--enc", "ALIBI"), ("'ALIBI'", "did you mean alibi or alibi-2d?")),
    ((*TRAIN, "--enc", "rope(bsae=500)"), ("'bsae'", "did you mean base?")),
    ((*TRAIN, "--enc", "rope(theta=5)"), ("'theta'", "base", "fraction", "layout")),
    ((*TRAIN, "--enc", "none(base=5)"), ("'base'", "takes none")),
    ((*TRAIN, "--enc", "rope(base=big)"), ("base", "a number", "'big'")),
    ((*TRAIN, "--enc", "rope(base=inf)"), ("base", "finite", "'inf'")),
    ((*TRAIN, "--enc", "rope(base=0.5)"), ("base must be above 1", "0.5")),
    ((*TRAIN, "--enc", "rope(base=5, base=6)"), "base is given twice"),
    ((*TRAIN, "--enc", "rope(fraction=2)"), ("fraction", "at most 1", "got 2")),
    ((*TRAIN, "--enc", "rope(layout=halves)"), ("layout", "half, interleaved", "'halves'")),
    ((*TRAIN, "--enc", "alibi(trainable=maybe)"), ("trainable", "true or false", "'maybe'")),
    ((*TRAIN, "--enc", "window(0)"), ("width must be at least 1", "0")),
    ((*TRAIN, "--enc", "window(1.5)"), ("width", "a whole number", "'1.5'")),
    ((*TRAIN, "--enc", "window(1, 2)"), "takes 1 option"),
    ((*TRAIN, "--enc", ""), "--enc '' is empty"),
    (
        (*TRAIN, "--enc", "rope", "--enc", "rope(base=10000)"),
        ("rope is given twice", "rope(base=10000)"),
    ),
    ((*TRAIN, "--enc", "rope(base=500"), ("'rope(base=500'", "expected , or )")),
    ((*TRAIN, "--enc", "alibi,rope"), ("'alibi,rope'", "unexpected ','")),
    ((*TRAIN, "--enc", "alibi, rope; ls"), "cannot read '; ls'"),
    ((*TRAIN, "--enc", "alibi|"), "at its end"),
    ((*TRAIN, "--enc", "sinusoidal|rope"), ("sinusoidal", "cannot alternate", "+ instead of |")),
    ((*TRAIN, "--enc", "nowhere:Mine"), ("'nowhere:Mine'", "package.module:Class")),
    ((*TRAIN, "--enc", "json:JSONDecoder"), ("'json:JSONDecoder'", "subclass")),
    (
        (*ALIBI, "--enc", "rpoe"),
        ("'rpoe'", "did you mean urpe or rope"),
    ),  # alibi, which is valid, is not trained either
    # arguments where options belong, unknown options
    (("trian",), ("'trian'", "train")),
    (("frobnicate",), ("'frobnicate'", "poscli --help")),
    (("train", "alibi", *NANO), "--enc"),
    ((*ALIBI, "rope"), "rope"),
    (("train", "--enc"), "--enc"),
    (("train", "--enc", "alibi", "--lenght", 32), ("--lenght", "--length")),
    (("train", "--enc", "alibi", "--epochs", 3), ("--epochs", "poscli train --help")),
    (("--verison",), ("--verison", "--version")),
    (("ls", "encodngs"), ("'encodngs'", "encodings")),
    (("ls", "suites", "--fodler", "x"), ("--fodler", "--folder")),
    (("report", "runs"), "runs"),
    # numbers
    ((*ALIBI, "--length", "long"), "--length"),
    ((*ALIBI, "--length", 4), ("length = 4", "8")),
    ((*ALIBI, "--seed", -1), ("--seed", "0")),
    ((*ALIBI, "--seed", 1.5), "--seed"),
    ((*ALIBI, "--batch", 0), ("batch = 0", "1")),
    ((*ALIBI, "--tokens", 0), ("--tokens '0'", "at least 1")),
    ((*ALIBI, "--tokens", "lots"), ("--tokens 'lots'", "500k")),
    ((*ALIBI, "--tokens", "2MB"), ("--tokens '2MB'", "2M")),
    ((*ALIBI, "--tokens", "-5"), "--tokens '-5'"),
    ((*ALIBI, "--tokens", "0.5"), ("--tokens '0.5'", "whole number")),
    # the model
    ((*ALIBI, "--preset", "nanno"), ("'nanno'", "did you mean nano?")),
    ((*ALIBI, "--preset", "huge"), ("'huge'", "base, nano, small, tiny")),
    ((*ALIBI, "--heads", 3), "width 64 is not divisible by 3 heads"),
    ((*ALIBI, "--width", 100, "--heads", 8), "width 100 is not divisible by 8 heads"),
    ((*ALIBI, "--width", 0), ("width = 0", "2")),
    ((*ALIBI, "--layers", 0), ("layers = 0", "1")),
    ((*ALIBI, "--mlp", -1), ("mlp = -1", "1")),
    ((*TRAIN, "--enc", "rope", "--width", 12), "even number of channels per head, got 3"),
    # the recipe
    ((*ALIBI, "--set", "matrixlr=0.1"), ("'matrixlr'", "did you mean matrix_lr?")),
    ((*ALIBI, "--set", "dropout=0.1"), ("'dropout'", "clip", "momentum")),
    ((*ALIBI, "--set", "matrix_lr"), ("'matrix_lr'", "key=number")),
    ((*ALIBI, "--set", "matrix_lr=fast"), ("'matrix_lr=fast'", "key=number")),
    ((*ALIBI, "--set", "=0.1"), ("'=0.1'", "key=number")),
    ((*ALIBI, "--set", "matrix_lr=-1"), ("matrix_lr = -1.0", "greater than 0")),
    ((*ALIBI, "--set", "matrix_lr=nan"), ("matrix_lr = nan", "finite")),
    ((*ALIBI, "--set", "clip=inf"), ("clip = inf", "finite")),
    ((*ALIBI, "--set", "momentum=1"), ("momentum = 1.0", "less than 1")),
    # the machine
    ((*ALIBI, "--precision", "fp16"), ("'fp16'", "float16")),
    ((*ALIBI, "--device", "gpu"), ("'gpu'", "cuda:N")),
    ((*ALIBI, "--device", "mps"), ("mps", "cpu and cuda")),
    ((*ALIBI, "--device", "cuda:99"), ("cuda:99", "CUDA devices")),
    # corpora by name
    ((*ALIBI, "--corpus", "stdlb"), ("'stdlb'", "did you mean stdlib?")),
    ((*ALIBI, "--corpus", "wikitext"), ("'wikitext'", "hf:wikitext")),
    ((*ALIBI, "--corpus", "short.txt"), ("'short.txt'", "text:short.txt")),
    ((*ALIBI, "--corpus", "text:"), "text:PATH"),
    ((*ALIBI, "--corpus", "stdlib:3.11"), "'stdlib:3.11' is not of the form stdlib"),
    ((*ALIBI, "--corpus", "hf:a/b?bytes=many"), "'hf:a/b?bytes=many' is not of the form"),
    # no runs yet
    (("extrapolate",), ("no runs", "poscli train --enc alibi")),
    (("generate",), ("no runs", "poscli train --enc alibi")),
    # evaluation
    (("extrapolate", "--max-len", "8k"), ("--max-len '8k'", "8x for 8 times the training length")),
    (("extrapolate", "--max-len", "0.5x"), ("--max-len '0.5x'", "greater than or equal to 1")),
    (("extrapolate", "--max-len", 0), ("--max-len '0'", "greater than or equal to 1")),
    (("extrapolate", "--stride", 0), ("stride = 0", "1")),
    (("extrapolate", "--tokens", 0), ("--tokens '0'", "at least 1")),
    (("extrapolate", "--tokens", "few"), ("--tokens 'few'", "500k")),
    (("generate", "--temperature", "hot"), "--temperature"),
    (("generate", "--temperature", -1), "--temperature"),
    (("generate", "--tokens", 0), "--tokens"),
    # suites
    (("run",), "argument"),
    (("run", "suites/quikc.toml"), ("'suites/quikc.toml'", "did you mean quick.toml?", "suites")),
    (("run", "quick"), ("'quick'", "did you mean quick.toml?", "suites")),
    (("run", "elsewhere/demo.toml"), ("'elsewhere/demo.toml'", "there are none")),
    (("run", "suites"), "'suites'"),
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
