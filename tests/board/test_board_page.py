"""The pages and the picture of the board: that they say what the standings say, whatever encodings are called."""

import csv
import io
import json
import math
import re
import shutil
from dataclasses import replace

import pytest
from cli_runner import assert_refused, cli

from poscli.board.agree import agreements_of
from poscli.board.agree_words import said_of
from poscli.board.arrays import tables_of_cells
from poscli.board.build import write_board
from poscli.board.cells import TextProfile
from poscli.board.literature import read_literature
from poscli.board.ours import losses_of_board
from poscli.board.page import board_html, families_of, places_of
from poscli.board.page.about import FLASH, FLEX, about, commands_of
from poscli.board.page.encoding import encoding_files, encoding_pages
from poscli.board.picture import ranks_png
from poscli.board.season import current_season
from poscli.board.standings import UNKNOWN, Row, TaskResult, standings_of
from poscli.board.tables import PLACES, board_columns, csv_of
from poscli.report.summary import as_json

LOOKS_AT_PICTURES = True
HOSTILE = "</script><img src=x>"
# Bits per byte at L and at 16 L; the last one is undertrained.
LOSSES = {
    "alibi": (2.0, 1.75),
    "kerple-log": (2.01, 1.77),
    "rope as yarn": (2.0, 1.95),
    HOSTILE: (2.0, 2.0),
    "rope": (2.0, 2.5),
    "none": (2.6, 1.6),
}
DOCUMENTS = 30


def data_of(page):
    """The data of a page."""
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(block)["sections"]


def page_of(*tables):
    return board_html(tables, encoding_files(tables))


def test_the_page_says_what_papers_find_of_the_same_encodings(made, table):
    losses = losses_of_board(tables_of_cells(*made)[0], table)
    assert {"alibi", "kerple-log", "rope"} <= set(losses.encodings)
    assert losses.undertrained == {"none"}
    literature = read_literature()
    others = said_of(agreements_of(losses, literature, {}), literature)
    page = board_html([table], {}, others)
    assert "<h2>What others measured</h2>" in page
    assert all(sentence.replace("'", "&#39;").replace('"', "&#34;") in page for sentence in others.sentences)
    assert "arXiv" in page  # every source is cited
    assert "<h2>What others measured</h2>" not in page_of(table)


def test_the_page_has_the_numbers_of_the_standings(table):
    (section,) = data_of(page_of(table))
    assert [each["label"] for each in section["encodings"]] == [row.label for row in table.rows]
    for shown, row in zip(section["encodings"], table.rows, strict=True):
        for name in ("regret", "loss", "gains", "used", "control", "first", "last", "seeds", "safe", "status"):
            assert shown[name] == as_json(getattr(row, name), PLACES), name
        texts = {text: [list(result.losses), list(result.regret)] for text, result in row.texts.items()}
        assert {text: [each["losses"], each["regret"]] for text, each in shown["texts"].items()} == as_json(
            texts, PLACES
        )
    labels = [row.label for row in table.rows]
    better = {(labels[a], labels[b]) for a, beaten in enumerate(section["better"]) for b in beaten}
    assert better == set(table.better)
    assert ("alibi", "rope") in better
    ranked = [row.regret[0] for row in table.ranked]
    at = 0
    for i in range(len(ranked)):
        for j in range(i):
            value, low, high = section["pairs"][at]
            assert value / 1e5 == pytest.approx(ranked[i] - ranked[j], abs=1e-3)
            assert low < value < high
            at += 1
    assert len(section["pairs"]) == at
    assert section["answers"][0].startswith("Train with alibi")
    assert page_of(table).count("Train with alibi") == 2  # once to be read without scripts


def test_places_are_those_of_the_regret_on_each_text(table):
    places = places_of(table)
    for text in table.texts:
        order = sorted(table.ranked, key=lambda row: row.texts[text].regret[0])
        assert [places[row.label][text] for row in order] == list(range(1, len(order) + 1))


@pytest.mark.parametrize(
    ("spec", "family", "tier", "kernels"),
    [
        ("rope", "rotary", "token", (FLASH, FLEX)),
        ("none", "none", "token", (FLASH, FLEX)),
        ("alibi", "bias", "distance", (FLEX,)),
        ("rope+window|none", "several", "distance", (FLASH, FLEX)),
        ("rope|rope|rope|alibi", "several", "distance", (FLEX,)),
        ("shaw", "relative", "relative", ()),
        ("fox", "content", "pair", (FLEX,)),
        ("cope", "content", "row", ()),
        ("rope+sink-logit", "several", "row", ()),
        ("./mine.py:Mine", "other", "", ()),
        ("rope(nothing=1)", "rotary", "", ()),
    ],
)
def test_what_is_known_of_an_encoding(spec, family, tier, kernels):
    known = about(spec, 64)
    assert (known.described.family, known.tier, known.kernels) == (family, tier, kernels)


def test_options_that_differ_from_their_defaults_are_named():
    assert about("t5(far=0.25L)+window", 64).options == ("t5: far = 0.25L, by default 128",)


def test_the_commands_repeat_what_the_season_trains(table):
    season = current_season()
    two, four = season.table
    row = next(row for row in table.rows if row.encoding == "rope as yarn")
    seeds = " ".join(map(str, season.seeds(3)))
    train = (
        f"for seed in {seeds}; do poscli train --enc rope --corpus panel --tokenizer bpe:1024 --length 64 "
        "--tokens 1500k --batch 16 --preset copy{} --precision float32"
    )
    score = "--max-len 1024 --tokens 4096 --stride 16 --ngram 3"
    on = "--on code --on prose --on records --on echo --on spliced"
    assert commands_of(row, season, two) == (
        f"{train.format('')} --seed $seed; done && poscli extrapolate --enc rope {score} --as yarn {on}"
    )
    train_other = train.replace("--enc rope", "--enc 'a|b'").format(" --layers 4")
    tuned = replace(row, encoding="a|b", rates={"matrix_lr": 0.02})
    assert commands_of(tuned, season, four) == (
        f"{train_other} --set matrix_lr=0.02 --seed $seed; done && poscli extrapolate --enc 'a|b' {score} {on}"
    )


def test_the_page_of_an_encoding_says_what_it_is_and_whom_it_beats(table):
    pages, files = encoding_pages([table], current_season()), encoding_files([table])
    alibi = pages[files["alibi"]]
    assert "Nobody is shown to be better." in alibi
    assert "arXiv:2108.12409" in alibi
    assert f'<a href="{files["rope"]}">rope</a>' in alibi
    assert "poscli train --enc alibi --corpus panel" in alibi
    row = next(row for row in table.rows if row.encoding == "alibi")
    for result in row.texts.values():
        for value, low, high in (*result.losses,):
            assert f'<span class="v">{value:.3f}</span><span class="i">[{low:.3f}, {high:.3f}]</span>' in alibi
    assert "It has no rank. Undertrained: perplexity at 64 tokens" in pages[files["none"]]
    assert "a model that was trained with rope, without further training" in pages[files["rope as yarn"]]


def test_no_name_ends_a_script_or_becomes_markup(table):
    pages = {"board": page_of(table), **encoding_pages([table], current_season())}
    assert len(pages) == 1 + len(LOSSES)
    for name, page in pages.items():
        assert "<img" not in page
        assert page.count("</script>") == (2 if name == "board" else 0)
        assert page.count("<script") == (2 if name == "board" else 0)
        assert "Content-Security-Policy" in page
        assert not re.search(r"(src|href)=\"(?!encoding-|board\.html|#)", page)
    assert "&lt;/script&gt;" in pages[encoding_files([table])[HOSTILE]]


def test_the_same_cells_make_the_same_files(made, tmp_path):
    cells, season = made
    shutil.copytree(cells, tmp_path / "copied")
    for folder, to in ((cells, "one"), (tmp_path / "copied", "other")):
        files = write_board(standings_of(folder, season), tmp_path / to, season)
    assert {"board.html", "board.md", "board.csv", "board.json", "ranks.png"} <= {file.name for file in files}
    names = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert names == sorted([*(file.name for file in files), "files.json"])
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes(), name
        assert str(tmp_path) not in (tmp_path / "one" / name).read_text(errors="replace")


def test_the_page_of_an_encoding_that_is_gone_is_removed(table, tmp_path):
    write_board([table], tmp_path, current_season())
    (tmp_path / "mine.html").write_text("kept")
    write_board([replace(table, rows=table.rows[:-1])], tmp_path, current_season())
    left = {file.name for file in tmp_path.iterdir()}
    assert encoding_files([table])[table.rows[-1].label] not in left
    assert {encoding_files([table])["alibi"], "mine.html"} <= left


def one_ranked(table):
    others = [replace(row, status="incomplete", why="2 of 3 seeds", first=0, last=0) for row in table.rows[1:]]
    return replace(
        table, rows=(replace(table.rows[0], first=1, last=1), *others), better={}, pairs={},
        without=dict.fromkeys(table.texts, (table.rows[0].label,)),
    )  # fmt: skip


def none_ranked(table):
    rows = [replace(row, status="incomplete", why="2 of 3 seeds", first=0, last=0) for row in table.rows]
    return replace(table, rows=tuple(rows), better={}, pairs={}, without=dict.fromkeys(table.texts, ()))


def unknown(table):
    """Nothing is known of the last row, as of a model that failed, and no interval of the first."""
    last = table.rows[-1]
    empty = Row(
        encoding=last.encoding, tuned=True, status="failed", why="oom", seeds=0, parameters=1, rates={}, source="s",
        commits=(), date="",
    )  # fmt: skip
    ends = (1.0, math.nan, math.nan)
    return replace(table, rows=(replace(table.rows[0], regret=ends, control=UNKNOWN), *table.rows[1:-1], empty))


@pytest.mark.parametrize("change", [one_ranked, none_ranked, unknown], ids=lambda change: change.__name__)
def test_boards_of_which_little_is_known(table, tmp_path, change):
    odd = change(table)
    write_board([odd], tmp_path, current_season())
    (section,) = data_of((tmp_path / "board.html").read_text())
    assert len(section["encodings"]) == len(odd.rows)
    said = {1: "Only alibi has a rank yet", 0: "Nobody is ranked yet"}.get(len(odd.ranked), "Train with alibi")
    assert section["answers"][0].startswith(said)
    assert (tmp_path / "ranks.png").read_bytes().startswith(b"\x89PNG")
    for row in odd.rows:
        page = (tmp_path / encoding_files([odd])[row.label]).read_text()
        assert "nan" not in page.replace("nano", "")
        assert ("It has no rank" in page) == (row.first == 0)


def test_the_picture_grows_with_the_rows(table):
    def size(picture):
        return int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])

    families = families_of(table)
    small = ranks_png(table, families)
    assert small == ranks_png(table, families)
    copies = [replace(row, encoding=f"{row.encoding}{n}") for row in table.ranked for n in range(18)]
    many = replace(table, rows=tuple(copies))
    tall = ranks_png(many, families_of(many))
    assert size(tall)[0] == size(small)[0]
    assert size(tall)[1] > 2 * size(small)[1]


def test_profiles_of_texts_reach_the_page(table):
    profile = TextProfile(
        season=table.season, text="code", ngram=3, octaves=((64, 127), (128, 255)), density=(0.01, 0.004),
        exponent=(1.25, 1.2, 1.3), won=None,
    )  # fmt: skip
    (section,) = data_of(page_of(replace(table, profiles={"code": profile, table.control: profile})))
    assert section["profiles"] == {"code": profile.model_dump(mode="json")}


def test_report_writes_the_board_on_request(made, here):
    done = cli("report", "--board", "--cells", made[0], "--to", here / "there", "--json")
    assert done.code == 0, done.err
    (table,) = json.loads(done.out)
    assert table["rows"][0]["encoding"] == "alibi"
    assert (here / "there/board.html").is_file()
    assert_refused(("report", "--cells", made[0]), 2, ("--cells", "add --board"))
    assert_refused(("report", "--board", "--mix"), 2, ("--board", "has no --mix"))


def test_a_table_may_have_columns_that_the_one_before_has_not(table):
    (row, *others) = table.rows
    asked = replace(row, tasks={"find": TaskResult((64, 512), (0.9, 0.5), 0.06, 3, 2, 700.0, 1.0)})
    with_task = replace(table, table="other", rows=(asked, *others))
    text = csv_of([table, with_task])
    lines = list(csv.DictReader(io.StringIO(text)))
    assert (lines[0]["find_last"], lines[len(table.rows)]["find_last"]) == ("", "0.50000")
    assert "find 1x, 8x" in [column.name for column in board_columns(with_task)]
