"""Suites as files: what is wrong is said with the key as it is written, and nothing is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import assert_refused, cli

from poscli.config.suite import load_suite, report_folder
from poscli.system.errors import UsageError

SUITE = """
title = "Bad"
encodings = ["alibi"]
[train]
preset = "nano"
length = 32
batch = 4
tokens = 4_000
[extrapolate]
max_len = 128
tokens = 256
stride = 16
"""
CLAIM = "[[claim]]\nsays = 'x'\nsource = 'y'\n"
pytestmark = pytest.mark.usefixtures("here")


def with_encodings(value: str) -> str:
    return SUITE.replace('["alibi"]', value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # what is not a suite
        (SUITE + "seeds = [0", "is not TOML"),
        (SUITE + "seeds = " + 20_000 * "[", "is not TOML"),
        (SUITE.replace("title", "# title"), "the key 'title' is missing"),
        (SUITE.replace("encodings", "# encodings"), "the key 'encodings' is missing"),
        # keys
        ("encoding = 'alibi'\n" + SUITE, ("'encoding'", "did you mean encodings?")),
        (SUITE.replace("[train]", "[training]"), ("'training'", "did you mean train?")),
        (SUITE.replace("max_len", "maxlen"), ("'extrapolate.maxlen'", "did you mean max_len?")),
        (SUITE + "as_ = []", "there is no key 'extrapolate.as_': did you mean as?"),
        (SUITE + "[train.model]\nwidht = 64", ("'widht'", "did you mean width?")),
        (SUITE + "[train.recipe]\nlr = 0.1", ("'lr'", "matrix_lr")),
        (SUITE + "[part]\ntrain.length = 64", "[[part]]"),
        (SUITE + "[[part]]\ntrain.lenght = 64", ("'part.1.train.lenght'", "did you mean length?")),
        (SUITE + "[[part]]\ntrian.length = 64", ("'part.1.trian'", "did you mean train?")),
        # values, named by their keys
        (with_encodings('"alibi"'), ("encodings = 'alibi'", "list")),
        (with_encodings("[]"), "encodings = []"),
        (with_encodings("[3]"), "encodings.1 = 3"),
        (with_encodings('["alibi", "rpoe"]'), ("'rpoe'", "did you mean urpe, rope or")),
        ("seeds = []\n" + SUITE, "seeds = []"),
        (SUITE + "[[part]]\nseeds = []\n", "part.1.seeds = []: the list is empty"),
        (SUITE + "[[part]]\nencodings = []\n", "part.1.encodings = []: the list is empty"),
        ("seeds = [0, 0]\n" + SUITE, "seeds = "),
        ("seeds = [-1]\n" + SUITE, "seeds.1 = -1: "),
        ("seeds = [9223372036854775808]\n" + SUITE, "seeds.1 = 9223372036854775808: "),
        (SUITE.replace("length = 32", 'length = "long"'), "train.length = 'long'"),
        (SUITE.replace("length = 32", "length = 4"), "train.length = 4: "),
        (SUITE + "[train.recipe]\nclip = inf", ("train.recipe.clip = inf", "finite")),
        (SUITE + 'as = "yarn"', "extrapolate.as = 'yarn': "),
        (SUITE + "as = [1]", "extrapolate.as.1 = 1: "),
        (SUITE + '[[part]]\ntrain.corpus = "\\u0000"', "part.1.train.corpus = "),
        (SUITE + "[[part]]\ntrain.length = 64\n[[part]]\ntrain.length = 64", "part = "),
        (SUITE.replace("nano", "nanno"), ("'nanno'", "did you mean nano?")),
        (SUITE.replace("[train]", "[train]\ncorpus = 'stdlb'"), ("'stdlb'", "did you mean stdlib?")),
        # claims
        (SUITE + "[claim]\nsays = 'x'", "a claim of a suite begins with [[claim]], in two pairs of brackets"),
        (SUITE + "[[claim]]\nsays = 'x'\nsource = 'y'", "the key 'claim.1.when' is missing"),
        (SUITE + "[[claim]]\nsays = 'x'\nsource = 'y'\nwhen = []", "claim.1.when = []: the list is empty"),
        (SUITE + CLAIM + "[claim.when]\nof = 'alibi'\nat = 4\nmore = 0", "[[claim.when]], in two pairs of brackets"),
        (SUITE + CLAIM + "when = [{ of = 'alibi', at = 4 }]", "of = 'alibi' has no bound; add more = NUMBER"),
        (SUITE + CLAIM + "when = [{ of = 'alibi', at = 0.5, more = 0 }]", "claim.1.when.1.at = 0.5: "),
        (
            SUITE + CLAIM + "when = [{ of = 'alibi', at = 4, more = 1, less = 1 }]",
            "above more = 1.0 and below less = 1.0",
        ),
        (SUITE + CLAIM + "when = [{ of = 'alibi', at = 4, mor = 1 }]", ("'claim.1.when.1.mor'", "did you mean more?")),
        (
            SUITE + CLAIM + "when = [{ of = 'alibi', over = 'alibi', at = 4, more = 1 }]",
            "'alibi' is compared with itself",
        ),
        (
            SUITE + CLAIM + "when = [{ of = 'alibi', over = 'rope', at = 4, more = 0 }]",
            "the claim 'x' names 'rope', which the suite does not measure: there is alibi",
        ),
        (SUITE + CLAIM + "when = [{ of = 'rpoe', at = 4, more = 0 }]", ("'rpoe'", "did you mean urpe, rope or")),
        (
            SUITE + CLAIM + "when = [{ of = 'alibi', at = 8, more = 0 }]",
            "the claim 'x' has at = 8 for 'alibi', which is measured at 1x, 2x, 4x",
        ),
        # what does not fit together
        (
            SUITE + "[[part]]\n[[part]]\nextrapolate.tokens = 512\n",
            ("the parts 1 and 2 of the suite train alibi, seed 0 alike and evaluate it differently", "write a suite"),
        ),
        (SUITE.replace("max_len = 128", "max_len = 16"), ("16", "training length 32")),
        (SUITE.replace("stride = 16", "stride = 33"), ("33", "training length 32")),
        (SUITE.replace("tokens = 256", "tokens = 8"), ("8", "stride of 16")),
        (
            SUITE.replace("[train]", '[train]\ncorpus = "stdlib"') + '[[part]]\ntrain.task = "passkey"',
            ("--corpus stdlib", "the task passkey does not read text"),
        ),
        (
            SUITE + '[[part]]\ntrain.tokenizer = "bytes"\n[[part]]\ntrain.tokenizer = "bpe:300"\n',
            ("the tokenizers bpe:300, bytes", "poscli report --mix"),
        ),
    ],
)
def test_suites_that_cannot_run_train_nothing(text: str, words: str | tuple[str, ...], here: Path) -> None:
    (here / "bad.toml").write_text(text)
    assert_refused(("run", "bad.toml"), 2, words)


def test_a_suite_whose_windows_no_document_fills_trains_nothing(here: Path) -> None:
    (here / "far.toml").write_text(SUITE.replace("max_len = 128", "max_len = 1_048_576"))
    assert_refused(("run", "far.toml"), 4, ("length 1048576", "held-out document", "shorter windows"))


def test_a_suite_whose_encodings_cannot_be_evaluated_as_others_trains_nothing(here: Path) -> None:
    (here / "as.toml").write_text(SUITE + 'as = ["yarn"]')
    assert_refused(("run", "as.toml"), 2, "none of the suite's encodings can be evaluated as yarn", notes=1)


@pytest.mark.parametrize(
    ("suite", "own", "key", "values"),
    [
        (
            with_encodings('["alibi", "none"]'),
            'encodings = ["rope", "t5"]\ntrain.length = 64',
            "encoding",
            ["alibi", "none", "rope", "t5"],
        ),
        (with_encodings('["t5"]\nlengths = "scaled"'), 'lengths = "published"', "encoding", ["t5(far=0.25L)", "t5"]),
        ("seeds = [0, 1]\n" + SUITE, "seeds = [2]\ntrain.length = 64", "seed", [0, 1, 2]),
    ],
    ids=["encodings", "lengths", "seeds"],
)
def test_a_part_has_its_own_or_those_of_the_suite(suite: str, own: str, key: str, values: list[object]) -> None:
    Path("parts.toml").write_text(f"{suite}[[part]]\n[[part]]\n{own}\n")
    jobs = cli("run", "parts.toml", "--dry-run", "--json").json["jobs"]
    assert [job[key] for job in jobs] == values


def test_a_part_changes_single_keys_of_the_tables_of_the_suite(here: Path) -> None:
    tables = "[train.model]\nlayers = 3\n[train.recipe]\nclip = 0.5\n"
    parts = "[[part]]\ntrain.model.heads = 1\ntrain.recipe.matrix_lr = 0.01\n[[part]]\ntrain.model.layers = 1\n"
    (here / "parts.toml").write_text(SUITE + tables + parts)
    first, second = (part.train for part in load_suite(here / "parts.toml").parts())
    assert (first.model, first.recipe) == ({"layers": 3, "heads": 1}, {"clip": 0.5, "matrix_lr": 0.01})
    assert (second.model, second.recipe) == ({"layers": 1}, {"clip": 0.5})


def test_a_wrong_suite_is_listed_with_its_error(here: Path) -> None:
    (here / "suites").mkdir()
    (here / "suites" / "quick.toml").write_text(SUITE)
    (here / "suites" / "bad.toml").write_text("title = ")
    rows = {row["suite"]: (row["title"], row["unavailable"]) for row in cli("ls", "suites", "--json").json}
    assert rows["suites/quick.toml"] == ("Bad", "")
    assert "is not TOML" in rows["suites/bad.toml"][1]


@pytest.mark.parametrize("name", ["quick", "after-training", "my_suite", "v1.2", "größer"])
def test_a_report_has_a_folder_named_like_its_suite(name: str) -> None:
    assert report_folder(Path("results"), Path("suites") / f"{name}.toml") == Path("results") / name


@pytest.mark.parametrize(
    "name", ["runs", "Runs", "advise", "bench", "report", "tune", "board", "rank", "..", ".hidden", "-x", "a b", "a\nb"]
)
def test_a_report_never_goes_where_other_files_are(name: str) -> None:
    with pytest.raises(UsageError, match="--to"):
        report_folder(Path("results"), Path("suites") / f"{name}.toml")
