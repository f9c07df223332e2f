"""`poscli rank` of an encoding in a file: its row and rank, its bundle, and what a check of the bundle finds."""

import json
import re
import shutil
import zipfile

import pytest
from cli_runner import cli, forget
from small_season import write_season

from poscli.board.bundle import read_bundle
from poscli.board.cells import read_cells
from poscli.board.enter import Contender, write_submission
from poscli.board.season import season_of

MINE = '''
import torch
from poscli.encodings import Encoding


class MyPenalty(Encoding):
    """s_ij -= (i - j) / 8."""

    def distance_bias(self, d):
        return -d[None] / 8.0
'''
SLOPE = MINE.replace(
    "    def distance_bias(self, d):\n        return -d[None] / 8.0",
    "    def __init__(self, shape, *, k: float = 0.1):\n        super().__init__(shape)\n        self.k = k\n\n"
    "    def distance_bias(self, d):\n        return -self.k * d[None]",
)
BROKEN = MINE.replace("-d[None] / 8.0", "-d[None] / 8.0 * torch.rand(())")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a board of two seeds and an encoding in `mine.py`, which is the current folder.

    The season has no task, which no entry is asked. It is ranked although a longer context wins nothing, because its
    models learn next to nothing.
    """
    folder = tmp_path_factory.mktemp("rank")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("poscli.board.arrays.LEAST_HEADROOM", -9.0)
        season = write_season(folder)
        season.write_text(season.read_text().partition("[[task]]")[0])
        (folder / "mine.py").write_text(MINE)
        (folder / "broken.py").write_text(BROKEN)
        where = ("--season", season, "--cells", "cells", "--workers", 1)
        made = cli("board", "run", *where, "--stage", 1, "--yes", "--no-costs")
        assert made.code == 0, made.err
        yield folder
    forget(folder)


def rank(*arguments):
    return cli("rank", *arguments, "--season", "season.toml", "--cells", "cells", "--workers", 1, "--yes")


def check(entry, *arguments):
    return cli("board", "check", entry, "--season", "season.toml", "--cells", "cells", "--yes", *arguments)


@pytest.fixture(scope="module")
def ranked(place):
    done = rank("mine.py", "--json")
    assert done.code == 0, done.err
    return done


def test_it_has_a_row_as_published_and_one_with_tuned_rates(ranked, place):
    published, tuned = ranked.json["rows"]
    assert (published["label"], tuned["label"]) == ("my-penalty", "my-penalty (tuned)")
    assert published["status"] in ("ranked", "undertrained")
    assert published["seeds"] == 3
    assert published["regret"][1] <= published["regret"][0] <= published["regret"][2]
    assert set(tuned["rates"]) == {"matrix_lr", "encoding_lr", "embedding_lr"}
    assert len(list((place / "results" / "tune").glob("*.json"))) == 1
    assert "bundle.zip with this text, which lies beside it:\n" in ranked.err
    assert "sources ranked under this name: 1" in ranked.err


def test_its_bundle_is_small_and_has_its_source_and_cells(ranked, place):
    with zipfile.ZipFile(place / ranked.json["bundle"]) as bundle:
        names = bundle.namelist()
        assert bundle.read("source/mine.py").decode() == MINE
        assert json.loads(bundle.read("entry.json"))["name"] == "my-penalty"
    assert sum("my-penalty" in name for name in names) == 2 * 3 * 3  # recipes, seeds, texts
    assert (place / ranked.json["bundle"]).stat().st_size < 100_000


def test_ranked_again_nothing_is_trained(ranked, place):
    again = rank("mine.py", "--json")
    assert again.json["rows"] == ranked.json["rows"]
    assert "[1/" not in again.err


def test_a_bundle_holds_and_can_be_added(ranked, place, tmp_path):
    cells = shutil.copytree(place / "cells", tmp_path / "cells")
    done = cli("board", "check", ranked.json["bundle"], "--season", "season.toml", "--cells", cells, "--yes", "--add")
    assert done.code == 0, done.err
    assert done.err.count("the same digits: holds") == 2
    built = cli("board", "build", "--season", "season.toml", "--cells", cells, "--to", tmp_path / "board", "--json")
    assert "my-penalty" in {row["encoding"] for row in built.json[0]["rows"]}
    other = (place / "mine.py").read_text().replace("8.0", "4.0")
    (place / "other.py").write_text(other)
    taken = cli("rank", "other.py", "--season", "season.toml", "--cells", cells, "--yes")
    assert "the name 'my-penalty' is taken" in taken.err
    assert taken.code == 2


def test_the_source_in_a_bundle_is_run_only_by_whoever_says_so(ranked, place):
    done = cli("board", "check", ranked.json["bundle"], "--season", "season.toml", "--cells", "cells")
    assert done.code == 1
    assert "read it, then give --yes" in done.err


def test_a_changed_digit_in_a_bundle_is_named(ranked, place, tmp_path):
    path = changed_bundle(place / ranked.json["bundle"], tmp_path, seal=False)
    done = check(path)
    assert done.code == 5
    assert "was edited or damaged" in done.err


def test_losses_that_the_source_does_not_give_are_found(ranked, place, tmp_path):
    path = changed_bundle(place / ranked.json["bundle"], tmp_path, seal=True)
    done = check(path)
    assert done.code == 1
    assert "does not hold" in done.err
    done = check(path, "--json")
    assert (done.code, done.json["holds"]) == (1, False)


def test_the_cells_of_the_board_can_be_made_again_by_anybody(place):
    done = check("rope")
    assert done.code == 0, done.err
    assert done.err.count("the same digits: holds") == 2
    again = (place / "results" / "rank").glob("check-*/cells")
    assert "rope as rope+window" not in {cell.encoding for folder in again for cell in read_cells(folder, "tests")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rope as rope+window",), "is read off the models of rope; check rope"),
        (("alibi",), "does not train it"),
        (("rope", "--add"), "the cells of rope are on the board already"),
        (("rope", "--cells", "empty"), "no cells"),
    ],
)
def test_what_is_not_on_the_board_cannot_be_checked(place, arguments, message):
    done = check(*arguments)
    assert (done.code, len(done.err.strip().splitlines())) == (2, 1), done.err
    assert message in done.err


def changed_bundle(bundle, folder, *, seal):
    """A bundle in which every loss is smaller by a nat; with `seal` the checksums are made to fit."""
    from poscli.board.bundle import write_bundle
    from poscli.board.cells import write_kept

    known = read_bundle(bundle, folder / "unpacked")
    for cell in known.cells:
        path = folder / "unpacked" / "cells" / cell.file
        if seal:
            path.unlink()
            losses = tuple(tuple(n - 100 for n in line) for line in cell.hundredths)
            write_kept(path, cell.model_copy(update={"hundredths": losses}))
    if seal:
        season = season_of(bundle.parents[3] / "season.toml")
        fields = {"name": known.name, "spec": known.spec, "season": season, "table": known.table, "tried": known.tried}
        source = (known.source_file.name, known.source)
        return write_bundle(folder / "changed.zip", folder=folder / "unpacked" / "cells", source=source, **fields)
    with zipfile.ZipFile(bundle) as old, zipfile.ZipFile(folder / "changed.zip", "w") as new:
        for name in old.namelist():
            text = old.read(name).decode()
            new.writestr(
                name,
                text.replace('"hundredths":[[', '"hundredths":[[1').replace('"hundredths": [[', '"hundredths": [[1'),
            )
    return folder / "changed.zip"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"ranks": "2 to 3", "of": 9, "regret": [0.5, 0.4, 0.6]}, "rank 2 to 3 of 9 on table small, regret 0.50"),
        ({"ranks": "1", "of": 1, "regret": [0.5, 0.4, 0.6]}, "no rank, as the only one on table small, regret 0.50"),
        ({"ranks": "", "of": 1, "status": "failed", "regret": [None] * 3}, "failed on table small, regret -"),
        ({"ranks": "", "of": 9, "status": "incomplete", "regret": [None] * 3}, "incomplete on table small, regret -"),
    ],
)
def test_what_is_submitted_says_among_how_many_it_is_ranked_or_why_not_and_not_where_its_file_lies(
    place, row, said, tmp_path
):
    season = season_of(place / "season.toml")
    entry = Contender(
        f"{place}/mine.py:Mine|rope",
        "mine",
        place / "mine.py",
        "",
        "c0de",
        season,
        season.table[0],
        place,
        place / "none",
    )
    shown = write_submission(entry, [{"label": "mine", "status": "ranked"} | row], tmp_path / "bundle.zip")
    text = (tmp_path / "submission.txt").read_text()
    assert shown.endswith(text.rstrip())
    assert f"  mine: {said}\n" in text
    assert "spec mine.py:Mine|rope;" in text


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("broken.py",), 1, "broken.py does not hold what every encoding must:"),
        (("rope",), 2, "rope is on the board already"),
        (("mine.py", "--table", "none"), 2, "has no such table"),
        (("mine.py", "--name", "a/b"), 2, "has other characters than"),
        (("mine.py", "--name", "none"), 2, "the name 'none' is taken"),
        (("nowhere.py",), 2, "nowhere.py"),
        (("mine.py+broken.py",), 2, "is of broken.py and mine.py, and a bundle holds one file"),
    ],
)
def test_what_cannot_be_ranked_is_refused_in_one_line(place, arguments, code, message):
    done = rank(*arguments)
    assert (done.code, len(done.err.strip().splitlines())) == (code, 1), done.err
    assert message in done.err


def test_a_source_that_is_ranked_again_has_its_own_row_and_bundle(ranked, place):
    """Although another one was ranked under this name since."""
    (place / "later.py").write_text(MINE.replace("8.0", "2.0"))
    first, later, again = (
        rank(file, "--name", "slope", "--published", "--json") for file in ("mine.py", "later.py", "mine.py")
    )
    assert first.json["rows"][0]["source"] == again.json["rows"][0]["source"] != later.json["rows"][0]["source"]
    assert first.json["rows"][0]["regret"] == again.json["rows"][0]["regret"]
    bundle = read_bundle(place / again.json["bundle"], place / "unpacked")
    assert (bundle.source, len(bundle.tried)) == (MINE, 2)
    assert {cell.source for cell in bundle.cells} == {again.json["rows"][0]["source"]}


def test_a_class_with_options_has_its_source_in_the_bundle(place, tmp_path):
    (place / "slope.py").write_text(SLOPE)
    done = rank("slope.py:MyPenalty(k=0.5)+smear", "--published", "--json")
    assert done.code == 0, done.err
    assert done.json["rows"][0]["label"] == "my-penalty(k=0.5)+smear"
    (place / "slope.py").rename(tmp_path / "slope.py")
    again = check(done.json["bundle"])
    assert again.code == 0, again.err
    assert read_bundle(place / done.json["bundle"], tmp_path / "unpacked").source == SLOPE


def test_code_of_this_machine_is_run_only_by_whoever_says_so(ranked, place, tmp_path):
    with zipfile.ZipFile(place / ranked.json["bundle"]) as old, zipfile.ZipFile(tmp_path / "b.zip", "w") as new:
        for name in old.namelist():
            if not name.startswith("source/"):
                new.writestr(name, old.read(name), zipfile.ZIP_DEFLATED)
    done = cli("board", "check", tmp_path / "b.zip", "--season", "season.toml", "--cells", "cells")
    assert done.code == 1
    assert "that runs mine.py:MyPenalty of this machine; read it, then give --yes" in done.err


@pytest.mark.parametrize(("options", "count"), [((), 3 + 9 + 3), (("--published",), 3)])
def test_a_dry_run_has_the_trials_and_what_is_trained_with_their_rates(place, tmp_path, options, count):
    (tmp_path / "new.py").write_text(MINE)
    done = rank(tmp_path / "new.py", "--dry-run", "--json", "--out", tmp_path, *options)
    assert len(done.json["jobs"]) == count, done.err


def test_a_bundle_that_was_packed_again_with_its_folders_is_the_same(ranked, place, tmp_path):
    with zipfile.ZipFile(place / ranked.json["bundle"]) as old, zipfile.ZipFile(tmp_path / "b.zip", "w") as new:
        for folder in ("source/", "cells/"):
            new.writestr(folder, "")
        for name in old.namelist():
            new.writestr(name, old.read(name), zipfile.ZIP_DEFLATED)
    packed, known = (
        read_bundle(path, tmp_path / path.stem) for path in (tmp_path / "b.zip", place / ranked.json["bundle"])
    )
    assert (packed.source, packed.cells) == (known.source, known.cells)


def test_a_bundle_without_the_sizes_of_documents_is_refused_before_anything_is_trained(ranked, place, tmp_path):
    with zipfile.ZipFile(place / ranked.json["bundle"]) as old, zipfile.ZipFile(tmp_path / "b.zip", "w") as new:
        for name in old.namelist():
            if "/documents/" not in name:
                new.writestr(name, old.read(name), zipfile.ZIP_DEFLATED)
    done = check(tmp_path / "b.zip")
    assert (done.code, len(done.err.strip().splitlines())) == (4, 1), done.err
    assert "are missing among the cells of the bundle of my-penalty; ask whoever made it for another one" in done.err


@pytest.mark.parametrize(("at", "value"), [((6, 8), 1), ((8, 10), 99), ((8, 10), zipfile.ZIP_BZIP2)])
def test_a_bundle_that_cannot_be_unpacked_is_refused_in_one_line(ranked, place, tmp_path, at, value):
    """One bit of each file says that it is encrypted; two bytes say how it was packed."""
    content = bytearray((place / ranked.json["bundle"]).read_bytes())
    for mark, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        for found in re.finditer(mark, bytes(content)):
            first = found.start() + at[0] + shift
            content[first : first + 2] = value.to_bytes(2, "little")
    (tmp_path / "b.zip").write_bytes(content)
    done = check(tmp_path / "b.zip")
    assert (done.code, len(done.err.strip().splitlines())) == (5, 1), done.err
    assert "is not a bundle" in done.err


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "there is no bundle"), (b"no zip", "is not a bundle"), (b"0" * 100_001, "at most 100 kB")],
)
def test_what_is_no_bundle_is_refused(place, tmp_path, content, message):
    if content is not None:
        (tmp_path / "b.zip").write_bytes(content)
    done = check(tmp_path / "b.zip")
    assert done.code != 0
    assert message in done.err


def test_a_bundle_of_a_name_that_looks_like_another_one_is_refused(ranked, place, tmp_path):
    with zipfile.ZipFile(place / ranked.json["bundle"]) as old, zipfile.ZipFile(tmp_path / "b.zip", "w") as new:
        for name in old.namelist():
            text = old.read(name)
            new.writestr(name, text.replace(b'"my-penalty"', b'"rope\\u200b"') if name == "entry.json" else text)
    done = check(tmp_path / "b.zip")
    assert (done.code, len(done.err.strip().splitlines())) == (5, 1), done.err
    assert "is not a bundle: its name is" in done.err


@pytest.mark.parametrize("name", [".", "cells/../../up", "/tmp/x", "elsewhere/x"])
def test_a_bundle_that_holds_what_no_bundle_has_is_refused(ranked, place, tmp_path, name):
    shutil.copy(place / ranked.json["bundle"], tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip", "a") as bundle:
        bundle.writestr(name, "x")
    done = cli("board", "check", tmp_path / "b.zip", "--season", "season.toml", "--cells", "cells", "--yes")
    assert (done.code, "is not a bundle: it holds" in done.err) == (5, True), done.err
