"""`poscli design`: designs follow from how far back a text repeats itself, and orders from other texts are tested."""

import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_runner import ROOT, cli
from planted_board import plant

from poscli.board.cells import TextProfile, profile_file, write_kept
from poscli.board.season import current_season
from poscli.config.suite import load_suite
from poscli.encodings import Shape
from poscli.specs import build, parse
from poscli.sweep.job import jobs_of

EXPONENTS = {"code": 0.5, "prose": 1.0, "records": 1.5, "echo": 2.0}
LOSSES = {"alibi": (2.0, 1.9), "kerple-log": (2.0, 1.8), "fox": (2.0, 2.0), "rope": (2.0, 2.8), "none": (3.0, 1.0)}
FAR, NEAR = 96, 8  # tokens after which texts repeat themselves
SHAPE = ("--length", 32)


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> Path:
    return planted(tmp_path_factory.mktemp("cells"), dict.fromkeys(EXPONENTS, LOSSES))


def planted(folder: Path, by_text) -> Path:
    """A board with these losses on each text, and profiles with EXPONENTS."""
    season = current_season()
    for text, exponent in EXPONENTS.items():
        plant(folder, by_text[text], texts=[text], documents=4, seed_sd=0, document_sd=0)
        falls = (exponent, exponent, exponent)
        profile = TextProfile(season=season.name, text=text, ngram=3, octaves=(), density=(), exponent=falls, won=None)
        write_kept(folder / profile_file(season.name, text), profile)
    return folder


def repeating(folder: Path, distance: int) -> str:
    """A text of random letters whose documents repeat themselves after so many bytes."""
    random = np.random.default_rng(0)
    for number in range(80):
        once = random.integers(ord("a"), ord("z") + 1, distance, np.uint8).tobytes().decode()
        (folder / f"{number}.txt").write_text(once * (2048 // distance))
    return f"text:{folder}"


def design(cells, text, *options):
    return cli("design", text, "--cells", cells, *SHAPE, *options)


def designed(cells, folder: Path, distance: int) -> dict[str, str]:
    """The designs for a text that repeats itself after so many bytes, by what they are variants of."""
    (of_text,) = design(cells, repeating(folder, distance), "--json").json["texts"]
    return {row["default"]: row["spec"] for row in of_text["designed"]}


def test_far_copies_get_layers_that_see_far(cells, tmp_path):
    found = designed(cells, tmp_path, FAR)
    assert found["rope+window|none+logn"] == "rope+window|none+logn"
    assert found["t5"] == "t5(far=16)"  # half of L has to teach the last bucket
    assert found["rope"].startswith("p-rope(p=0.10")  # most pairs see content only


def test_near_copies_need_no_more_than_a_window(cells, tmp_path):
    found = designed(cells, tmp_path, NEAR)
    assert found["rope+window|none+logn"] == "rope+window(15)"  # nine tenths of the octave from 8 on
    assert found["t5"] == "t5(far=12)"
    assert found["rope"].startswith("p-rope(p=0.88")


def test_the_widest_head_of_alibi_sees_as_far_as_the_copies_lie(cells, tmp_path):
    (tmp_path / "near").mkdir()
    (tmp_path / "far").mkdir()
    near, far = (
        designed(cells, tmp_path / name, distance)["alibi"] for name, distance in (("near", NEAR), ("far", FAR))
    )
    assert 8 <= int(near.removeprefix("alibi(far=").split(",")[0]) <= 16
    assert 64 <= int(far.removeprefix("alibi(far=").split(",")[0]) <= 128


def test_where_a_text_asks_for_less_than_an_encoding_can_the_least_is_not_told_as_measured(cells, tmp_path):
    said = design(cells, repeating(tmp_path, 300), "--json").out
    assert "0 % of the copies lie within 32 tokens: 10 % of the pairs, the least, turn" in said
    assert "copies do not get rarer as fast as d^-0.05, and that is the least for r1" in said


def test_the_suite_tries_every_design_on_its_text_beside_its_default(cells, tmp_path):
    texts = {}
    for name, distance in (("near", NEAR), ("far", FAR)):
        (tmp_path / name).mkdir()
        texts[name] = repeating(tmp_path / name, distance)
    done = cli("design", *texts.values(), "--cells", cells, *SHAPE, "--to", tmp_path / "tried")
    assert done.code == 0, done.err
    suite = load_suite(tmp_path / "tried" / "suite.toml")
    jobs = jobs_of(suite, "cpu", tmp_path / "runs")  # every spec can be trained
    assert len(jobs) == (10 + 9) * 3  # the layout for the far text is the default
    assert len(suite.claim) == 5 + 4
    trained = {name: {job.config.encoding for job in jobs if job.config.corpus == texts[name]} for name in texts}
    assert {"alibi", "kerple-log", "t5", "rope", "rope+window|none+logn"} <= trained["near"] & trained["far"]
    assert "t5(far=12)" in trained["near"] - trained["far"]
    assert "t5(far=16)" in trained["far"] - trained["near"]


def test_the_written_encoding_is_right(cells, tmp_path):
    design(cells, repeating(tmp_path, FAR), "--to", tmp_path)
    done = cli("verify", f"{tmp_path / 'designed.py'}:DesignedKerple(falls=0.5,near=20)")
    assert done.code == 0, done.out


@pytest.mark.parametrize("options", ["falls=0", "near=-1"])
def test_the_written_encoding_names_an_option_that_cannot_be(options):
    done = cli("train", "--enc", f"{ROOT / 'suites' / 'designed.py'}:DesignedKerple({options})", "--tokens", 4096)
    assert (done.code, len(done.err.strip().splitlines())) == (2, 1)
    assert f"{options.split('=')[0]} must be above 0" in done.err


def test_the_suite_of_the_house_has_the_encoding_that_is_written(cells, tmp_path):
    design(cells, repeating(tmp_path, FAR), "--to", tmp_path)
    assert (tmp_path / "designed.py").read_text() == (ROOT / "suites" / "designed.py").read_text()


def test_the_written_encoding_begins_at_the_exponent(tmp_path, cells):
    design(cells, repeating(tmp_path, FAR), "--to", tmp_path)
    spec = f"{tmp_path / 'designed.py'}:DesignedKerple(falls=0.5,near=20)"
    encoding = build(parse(spec), Shape(width=16, heads=2, layers=1, length=32), seed=0)[0]
    bias = encoding.distance_bias(torch.tensor([0.0, 20.0, 380.0]))
    expected = torch.tensor([0.0, -0.5 * math.log(2), -0.5 * math.log(20)])
    torch.testing.assert_close(bias, expected.expand(2, 3))


def test_encodings_come_in_the_order_of_the_board_without_those_that_learned_nothing(cells, tmp_path):
    found = design(cells, repeating(tmp_path, FAR), "--json").json
    assert found["order"] == ["kerple-log", "alibi", "fox", "rope"]
    assert [(each["right"], each["count"]) for each in found["left_out"]] == [(6, 6)] * 4
    assert "24 of 24 pairs (100 %)" in " ".join(design(cells, repeating(tmp_path, FAR)).out.split())


def test_encodings_with_more_seeds_than_others_are_ordered_by_those_that_all_have(tmp_path):
    board = planted(tmp_path / "cells", dict.fromkeys(EXPONENTS, LOSSES))
    for text in EXPONENTS:
        plant(board, {"alibi": LOSSES["alibi"]}, texts=[text], seeds=5, documents=4, seed_sd=0, document_sd=0)
    (tmp_path / "text").mkdir()
    found = design(board, repeating(tmp_path / "text", FAR), "--json").json
    assert found["order"] == ["kerple-log", "alibi", "fox", "rope"]
    assert [(each["right"], each["count"]) for each in found["left_out"]] == [(6, 6)] * 4


def test_an_order_of_equals_is_said_to_say_nothing(tmp_path):
    board = planted(tmp_path / "cells", dict.fromkeys(EXPONENTS, dict.fromkeys(LOSSES, (2.0, 1.9))))
    (tmp_path / "text").mkdir()
    done = design(board, repeating(tmp_path / "text", FAR))
    assert done.code == 0, done.err
    assert "no two of these are told apart" in done.out


def test_a_folder_that_specs_cannot_name_is_refused(cells, tmp_path):
    done = design(cells, repeating(tmp_path, FAR), "--to", tmp_path / "a+b (c)")
    assert (done.code, len(done.err.strip().splitlines())) == (2, 1)
    assert "which specs cannot have" in done.err
    assert not (tmp_path / "a+b (c)").exists()


def test_a_profile_that_says_more_of_the_order_is_said_to(tmp_path):
    # alibi gets worse where copies get rarer fast, fox gets better: where they pass each other, the mean is wrong.
    by_text = {
        text: {"alibi": (2.0, 1.5 + 0.3 * falls), "fox": (2.0, 2.3 - 0.3 * falls), "rope": (2.0, 3.0), "t5": (2.0, 2.9)}
        for text, falls in EXPONENTS.items()
    }
    board = planted(tmp_path / "cells", by_text)
    (tmp_path / "text").mkdir()
    text = repeating(tmp_path / "text", FAR)
    found = design(board, text, "--json").json["left_out"]
    assert sum(each["right_by_profile"] for each in found) > sum(each["right"] for each in found)
    assert "the profile of a text says more of the order there" in " ".join(design(board, text).out.split())


def test_a_text_without_copies_is_refused(cells, tmp_path):
    random = np.random.default_rng(0)
    for number in range(40):
        letters = random.integers(ord("a"), ord("z") + 1, 2048, np.uint8).tobytes()
        (tmp_path / f"{number}.txt").write_bytes(letters)
    done = design(cells, f"text:{tmp_path}")
    assert done.code != 0
    assert f"text:{tmp_path}: only " in done.err
    assert "a design needs 100: give a longer text, or another --length" in done.err


def test_short_documents_are_refused(cells, tmp_path):
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"{number} " * 20)
    done = design(cells, f"text:{tmp_path}")
    assert "no held-out document is longer than 16 times L, 512 tokens" in done.err


def test_a_board_without_models_is_refused(cells, tmp_path):
    board = shutil.copytree(cells, tmp_path / "cells", ignore=shutil.ignore_patterns("two_layers-*"))
    (tmp_path / "text").mkdir()
    done = design(board, repeating(tmp_path / "text", FAR))
    assert done.code != 0
    assert "error: the board has no models with losses on code, " in done.err


def test_a_board_without_profiles_is_refused(tmp_path):
    plant(tmp_path / "cells", LOSSES, documents=4)
    (tmp_path / "text").mkdir()
    done = design(tmp_path / "cells", repeating(tmp_path / "text", FAR))
    assert done.code != 0
    assert "the board has no profile of code" in done.err


def test_what_is_said_of_designs_that_were_tried_is_what_the_published_report_found(cells, tmp_path):
    """Those beside the same encoding with tuned learning rates are claims of their own."""
    report = (ROOT / "results/published/designed/report.md").read_text()
    claim = re.compile(
        r"^- (replicated|not replicated|cannot be seen [^:]+): \S+ loses less at 16 L than (\S+) \(poscli", re.M
    )
    counts = {}
    for verdict, default in claim.findall(report):
        better, worse, texts = counts.get(default.replace("\\", ""), (0, 0, 0))
        of_default = (better + (verdict == "replicated"), worse + (verdict == "not replicated"), texts + 1)
        counts[default.replace("\\", "")] = of_default
    assert counts == {
        "alibi": (0, 5, 6), "kerple-log": (0, 0, 6), "t5": (6, 0, 6), "rope": (5, 0, 6),
        "rope+window|none+logn": (1, 0, 1),
    }  # fmt: skip
    (of_text,) = design(cells, repeating(tmp_path, FAR), "--json").json["texts"]
    for row in of_text["designed"]:
        better, worse, texts = counts[row["default"]]
        said = row["tried"]
        assert (f"better on {better} of {texts}" in said) == (better > 0 and texts == 6)
        assert (f"worse on {worse} of {texts}" in said) == (worse > 0)
