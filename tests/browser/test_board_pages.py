"""The board's pages in a real browser: they load alone, can be read by all, and sort, filter and compare.

`make browser` installs what these tests need. Pictures of the pages land in results/screenshots, to be looked at.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from browser_session import Browser
from cli_runner import ROOT
from planted_board import plant

from poscli.board.build import write_board
from poscli.board.cells import TextProfile
from poscli.board.page.encoding import encoding_files
from poscli.board.season import current_season
from poscli.board.standings import Standings, standings_of

pytestmark = pytest.mark.browser
PICTURES = ROOT / "results" / "screenshots"
# Bits per byte at L and at 16 L; the last one is undertrained.
LOSSES = {
    "alibi": (2.0, 1.72),
    "kerple-log": (2.02, 1.74),
    "rope+window|none": (1.98, 1.8),
    "rope as yarn": (2.01, 1.92),
    "cope": (2.03, 2.03),
    "t5(far=0.25L)": (2.0, 2.1),
    "rope": (2.0, 2.5),
    "none": (2.7, 1.6),
}
COUNTED = {"alibi": 0, "rope": 0, "none": 0, "rope as yarn": 0, "rope+window|none": 0}  # parameters beyond the model's


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Standings:
    folder = tmp_path_factory.mktemp("cells")
    (table,) = standings_of(folder, plant(folder, LOSSES, documents=40))
    costs = {"training": (1.3, 1.2, 1.4), "reading": (1.1, 1.0, 1.2)}
    rows = [replace(row, parameters=1000 + COUNTED.get(row.encoding, 8), **costs) for row in table.rows]
    octaves, density = ((64, 127), (128, 255), (256, 511)), (0.01, 0.004, 0.001)
    known = {"season": table.season, "ngram": 3, "octaves": octaves, "density": density, "exponent": (1.2, 1.1, 1.3)}
    profiles = {text: TextProfile(text=text, won=(0.2, 0.1, 0.3), **known) for text in table.texts[1:]}
    return replace(table, rows=tuple(rows), profiles=profiles)


@pytest.fixture(scope="module")
def page(table: Standings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("board")
    fewer = replace(table, table="four layers", title="Fewer models", rows=table.rows[-1:], better={}, pairs={})
    write_board([table, replace(fewer, without={})], folder, current_season())
    return folder / "board.html"


def names(browser: Browser, table: str = "ranking") -> list[str]:
    """The encodings of a table as it is sorted and filtered."""
    return [row["Encoding"] for row in browser.table(table)]


def choose(browser: Browser, picker: str, value: str) -> None:
    """Choose an option by its value, or write into a field, as a reader does."""
    browser.run(
        "const box = document.getElementById(arguments[0]); box.value = arguments[1];"
        "for (const kind of ['input', 'change']) box.dispatchEvent(new Event(kind, {bubbles: true}));",
        picker,
        value,
    )


def test_it_loads_without_a_message_or_a_request(opened: Browser, page: Path) -> None:
    choose(opened, "family", "bias")
    choose(opened, "head-0", "3")
    messages, asked = opened.logs()
    assert (messages, asked) == ([], [page.as_uri()])


@pytest.mark.parametrize(("width", "height", "scheme"), [(400, 800, "dark"), (400, 800, "light"), (1400, 900, "dark")])
def test_it_can_be_read_at_any_size_and_passes_axe(
    browser: Browser, page: Path, table: Standings, width: int, height: int, scheme: str
) -> None:
    browser.look(width, scheme, height)
    browser.open(page)
    assert browser.run("return document.documentElement.scrollWidth") == width
    bottom = browser.run("return document.querySelector('.sentence').getBoundingClientRect().bottom")
    assert bottom <= height  # the first screen answers
    browser.run("document.querySelector('details').open = true")
    assert browser.violations() == []
    browser.picture(PICTURES / f"board-{width}-{scheme}.png")
    browser.driver.get((page.parent / encoding_files([table])["alibi"]).as_uri())
    assert browser.run("return document.documentElement.scrollWidth") == width
    assert browser.violations() == []
    browser.picture(PICTURES / f"board-encoding-{width}-{scheme}.png")


def test_axe_finds_nothing_on_light_paper(opened: Browser) -> None:
    assert opened.violations() == []
    opened.run("document.getElementById('theme').click()")
    assert opened.run("return getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"


def test_the_answer_and_the_ranking_are_those_of_the_standings(opened: Browser, table: Standings) -> None:
    assert "alibi" in opened.run("return document.querySelector('.sentence').textContent")
    shown = opened.table("ranking")
    assert [row["Encoding"] for row in shown] == [row.encoding for row in table.ranked]
    for line, row in zip(shown, table.ranked, strict=True):
        assert line["Rank"] == row.ranks
        value, low, high = row.regret
        assert line["Regret 16x"] == f"{value:.2f}\n[{low:.2f}, {high:.2f}]"
        assert line["Bits at L"].split("\n")[0] == f"{row.loss[0]:.3f}"
        assert line["Training"] == "1.30x"
    bars = opened.run(
        "return [...document.querySelectorAll('.ranks rect')].map((r) => [r.x.baseVal.value, r.width.baseVal.value]);"
    )
    step = 130 / len(table.ranked)
    for (x, width), row in zip(bars, table.ranked, strict=True):
        assert (x, width) == pytest.approx(((row.first - 1) * step, (row.last - row.first + 1) * step), abs=1e-3)
    (other,) = opened.table("others")
    assert other["Encoding"] == "none"
    assert other["Why"].startswith("undertrained\nperplexity at 64 tokens")
    assert (other["Safe"], other["Harmful"]) == ("16x", "not shown")


def test_columns_sort_both_ways(opened: Browser, table: Standings) -> None:
    click = "[...document.querySelectorAll('table[data-table=ranking] thead button')].find((b) => b.textContent === arguments[0]).click()"  # noqa: E501
    opened.run(click, "Bits at L")
    by_loss = [row.encoding for row in sorted(table.ranked, key=lambda row: row.loss[0])]
    assert names(opened) == by_loss
    opened.run(click, "Bits at L")
    assert names(opened) == by_loss[::-1]
    choose(opened, "search", "r")  # a filter keeps the order
    assert names(opened) == [name for name in by_loss[::-1] if "r" in name]


@pytest.mark.parametrize(
    ("picker", "value", "left"),
    [
        ("family", "bias", {"alibi", "kerple-log", "t5(far=0.25L)"}),
        ("tier", "row", {"cope"}),
        ("kernel", "FlashAttention", {"rope+window|none", "rope as yarn", "rope"}),
        ("kernel", "FlexAttention", set(LOSSES) - {"cope", "none"}),
        ("kind", "read", {"rope as yarn"}),
        ("search", " ROPE ", {"rope", "rope as yarn", "rope+window|none"}),
    ],
)
def test_filters_leave_what_passes_them(opened: Browser, picker: str, value: str, left: set[str]) -> None:
    choose(opened, picker, value)
    assert set(names(opened)) == left
    assert opened.run("return document.getElementById('count').textContent") == f"{len(left)} of 7 with a rank"
    faint = opened.run("return [...document.querySelectorAll('.mark.out')].map((m) => m.getAttribute('aria-label'))")
    assert len(faint) == opened.run("return document.querySelectorAll('.mark').length") - len(left)
    assert not any(label.split(":")[0] in left for label in faint)


def test_filters_join_and_are_taken_back(opened: Browser) -> None:
    opened.run("document.getElementById('free').click()")
    assert set(names(opened)) == set(COUNTED) - {"none"}
    choose(opened, "kind", "trained")
    assert set(names(opened)) == {"alibi", "rope", "rope+window|none"}
    choose(opened, "search", "nobody is called so")
    assert "No encoding with a rank passes" in opened.run("return document.getElementById('ranking').textContent")
    opened.driver.execute_async_script("document.getElementById('all').click(); setTimeout(arguments[0], 50)")
    assert len(names(opened)) == 7


def test_two_encodings_are_compared(opened: Browser, table: Standings) -> None:
    labels = [row.label for row in table.rows]
    verdict = "return document.querySelector('#pair .verdict').textContent"
    for one, other in (("alibi", "rope"), ("rope", "alibi"), ("kerple-log", "alibi")):
        choose(opened, "head-0", str(labels.index(one)))
        choose(opened, "head-1", str(labels.index(other)))
        value, low, high = table.pairs.get((one, other)) or [-x for x in table.pairs[other, one]]
        said = opened.run(verdict)
        shown = next((pair for pair in ((one, other), (other, one)) if pair in table.better), None)
        assert said.startswith(
            f"It is shown that {shown[0]} is better than {shown[1]}." if shown else "It is not shown that"
        )
        assert f"The regret of {one} at 16x minus that of {other} is {'+' if value > 0 else chr(0x2212)}" in said
        told = re.search(r"is (\S+), with .* alone of (\S+) to (\S+)\.$", said)
        assert told, said
        numbers = [float(number.replace("\u2212", "-")) for number in told.groups()]
        assert numbers == pytest.approx([value, *sorted((low, high))], abs=5.1e-4 if abs(value) < 0.5 else 5.1e-3)
    cells = opened.run(
        "return [...document.querySelectorAll('table[data-table=pair] tbody')].map((body) =>"
        " [...body.rows].map((row) => [...row.querySelectorAll('.v')].map((v) => v.textContent)));"
    )
    rows = [next(row for row in table.rows if row.label == label) for label in ("kerple-log", "alibi")]
    for text, body in zip(table.texts, cells, strict=True):
        for line, row in zip(body, rows, strict=True):
            result = row.texts[text]
            assert line == [*(f"{loss[0]:.3f}" for loss in result.losses), f"{result.regret[0]:.2f}"]
    choose(opened, "head-0", str(labels.index("none")))
    assert opened.run(verdict) == '"none" has no rank, so that the two are not compared.'


def test_marks_are_reached_with_the_keyboard(opened: Browser, table: Standings) -> None:
    stops = "return [...document.querySelectorAll('.mark')].filter((mark) => mark.tabIndex === 0).length"
    assert opened.run(stops) == 1
    visited = []
    opened.run("document.querySelector('.mark[tabindex=\"0\"]').focus()")
    for _ in table.ranked:
        visited.append(opened.run("return document.activeElement.getAttribute('aria-label').split(':')[0]"))
        assert opened.run("return document.querySelector('#card h2').textContent") == visited[-1]
        opened.run(
            "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}))"
        )
    assert visited == [row.encoding for row in sorted(table.ranked, key=lambda row: row.loss[0])]
    assert opened.run(stops) == 1


def test_the_other_table_can_be_chosen(opened: Browser) -> None:
    opened.choose("section", "Fewer models")
    assert opened.run("return document.querySelectorAll('table[data-table=ranking]').length") == 0
    assert names(opened, "others") == ["none"]
    assert "Nobody is ranked yet" in opened.run("return document.querySelector('.answers:not([hidden])').textContent")
    assert opened.logs()[0] == []
    opened.choose("section", "Models of two layers")
    assert len(names(opened)) == 7


def test_texts_of_which_that_is_known_say_how_far_back_they_repeat_themselves(
    opened: Browser, table: Standings
) -> None:
    said = opened.run("return [...document.querySelectorAll('#texts figcaption')].map((each) => each.textContent)")
    assert [text.removeprefix("How far back ").split()[0] for text in said] == list(table.texts[1:])
    assert all(text.endswith("falls as d^\u2212a with a = 1.20 [1.10, 1.30].") for text in said)
    won = [row["Won by an n-gram"] for row in opened.table("ceilings")]
    assert won == ["not known", *["+0.200\n[+0.100, +0.300]"] * 3]


def test_links_lead_to_the_pages_of_encodings(opened: Browser, page: Path) -> None:
    links = opened.run(
        "return [...document.querySelectorAll('#body a, #scatter a')].map((a) => a.getAttribute('href'))"
    )
    assert links
    assert all((page.parent / link).is_file() for link in links)


@pytest.mark.parametrize("kind", ["one ranked", "none ranked", "numbers unknown"])
def test_odd_boards_open_without_a_message(browser: Browser, table: Standings, tmp_path: Path, kind: str) -> None:
    nothing = {"better": {}, "pairs": {}}
    waiting = [replace(row, status="incomplete", why="2 of 3 seeds", first=0, last=0) for row in table.rows]
    failed = [
        replace(row, status="failed", regret=(float("nan"),) * 3, loss=(float("nan"),) * 3, gains=(), texts={})
        for row in waiting
    ]
    first = replace(table.rows[0], first=1, last=1)
    rows = {"one ranked": [first, *waiting[1:]], "none ranked": waiting, "numbers unknown": [first, *failed[1:]]}[kind]
    without = dict.fromkeys(table.texts, ())
    write_board([replace(table, rows=tuple(rows), without=without, **nothing)], tmp_path, current_season())
    browser.look(1400, "light")
    browser.open(tmp_path / "board.html")
    assert len(names(browser, "others")) == len([row for row in rows if row.status != "ranked"])
    assert browser.violations() == []
    messages, asked = browser.logs()
    assert (messages, len(asked)) == ([], 1)
    browser.picture(PICTURES / f"board-{kind.replace(' ', '-')}.png")
