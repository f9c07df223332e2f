"""report.html in a real browser: it loads alone, re-bases its numbers, and can be read by all.

`make browser` installs what these tests need. Pictures of the page land in results/screenshots, to be looked at.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from browser_session import Browser
from cli_runner import ROOT
from fake_pages import against, fake_runs, fake_tables, tables_with_holes, task_tables
from fake_results import BEHAVIOUR, many, results, units_of
from scipy import stats

from poscli.encodings import names
from poscli.report import About, build_report
from poscli.report.groups import Group, split
from poscli.report.page import page_section
from poscli.report.pooling import pool

pytestmark = pytest.mark.browser
PICTURES = ROOT / "results" / "screenshots"
PLAIN = "nothing (plain numbers)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows, positions, details = fake_tables()
    folder = tmp_path_factory.mktemp("six")
    about = About(title="Six encodings, three seeds")
    build_report(rows, positions, folder, details=details, runs=fake_runs(rows), about=about)
    return folder / "report.html"


@pytest.fixture(scope="module")
def group() -> Group:
    """The rows of the report, with intervals over seeds."""
    return split(*fake_tables())[0]


def number(text: str) -> float:
    """The number in the first line of a cell; NaN if it has none."""
    try:
        return float(text.split("\n")[0].replace("\u2212", "-").replace(",", "").split("x")[0].split(" ")[0])
    except ValueError:
        return math.nan


def close(cell: str, expected: list[float], digits: float = 1.0) -> None:
    """A cell must show these numbers, as far as it is precise: three decimals below 1, two from 1 on."""
    ends = [number(part) for part in cell.split("\n")[1].strip("[]").split(", ")] if "[" in cell else [math.nan] * 2
    wide = 5.1e-4 if np.nanmax(np.abs(expected)) < 1 else 5.1e-3
    assert [number(cell), *ends] == pytest.approx(expected, abs=digits * wide + 1e-5, nan_ok=True), cell


def last(rows: pd.DataFrame) -> pd.Series:
    """Bits per byte at the longest length by encoding, best first."""
    points = pool(rows, "sliding")
    return points[points["length"] == 4096].set_index("encoding")["bpb"].dropna().sort_values()


def test_it_loads_without_a_message_or_a_request(opened: Browser, page: Path) -> None:
    opened.choose("base", "rope")
    opened.choose("protocol", "fixed")
    messages, asked = opened.logs()
    assert messages == []
    assert asked == [page.as_uri()]


def test_it_re_bases_losses_to_what_the_report_computes(opened: Browser, group: Group) -> None:
    opened.choose("base", "rope")
    shown = {row["Encoding"]: row for row in opened.table("loss")}
    table = against(group.rows, group.units, "rope").dropna(subset=["difference"])
    assert len(table) == 21
    for row in table.to_dict("records"):
        cell = shown[row["encoding"]][f"{row['ratio']:g}x"]
        close(cell, [row["difference"], row["low"], row["high"]])
        assert cell.split("\n")[2] == row["word"]
    assert shown["rope"]["1x"] == "0.000\nthe base"
    opened.choose("base", PLAIN)
    plain = {row["Encoding"]: number(row["16x"]) for row in opened.table("loss")}
    expected = last(group.rows).to_dict()
    assert {name: plain[name] for name in expected} == pytest.approx(expected, abs=5.1e-4)


@pytest.mark.parametrize(("width", "height", "scheme"), [(400, 800, "dark"), (1400, 900, "light")])
def test_it_can_be_read_at_any_size_and_passes_axe(
    browser: Browser, page: Path, width: int, height: int, scheme: str
) -> None:
    browser.look(width, scheme, height)
    browser.open(page)
    assert browser.run("return document.documentElement.scrollWidth") == width
    bottom = browser.run("return document.getElementById('answer-facts').getBoundingClientRect().bottom")
    assert bottom <= height  # the first screen answers
    browser.picture(PICTURES / f"{width}-{scheme}.png")
    browser.choose("base", "rope")
    assert browser.violations() == []
    browser.picture(PICTURES / f"{width}-{scheme}-compared.png")
    focusable = "a[href], button, select, [tabindex]"
    skipped = f"return [...document.querySelectorAll('{focusable}')].filter((e) => e.tabIndex < 0).length"
    assert browser.run(skipped) == 0


def test_a_dark_page_is_printed_on_white(opened: Browser) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    opened.run("document.getElementById('theme').click()")
    assert opened.run(paper) == "rgb(21, 24, 28)"
    opened.look(1400, "dark", media="print")
    assert opened.run(paper) == "rgb(255, 255, 255)"
    assert opened.run("return getComputedStyle(document.getElementById('controls')).display") == "none"


@pytest.mark.parametrize("kind", ["one encoding at one length", "everything failed", "a task without its answers"])
def test_odd_results_open_without_a_message(browser: Browser, tmp_path: Path, kind: str) -> None:
    """Results that leave parts of the page without anything to draw."""
    rows, positions, details = fake_tables({name: BEHAVIOUR[name] for name in ("alibi", "rope")}, (256, 1024))
    if kind == "one encoding at one length":
        rows, details = rows[(rows["encoding"] == "alibi") & (rows["ratio"] == 1)], {}
    elif kind == "everything failed":
        numbers = ("nll", "bpb", "ppl", "nll_low", "nll_high", "gain", "gain_low", "gain_high")
        rows = rows.assign(status="oom", reason="too little memory", **dict.fromkeys(numbers, math.nan))
    else:
        rows, positions, _ = task_tables()
        details = {}
    (section,) = build_report(rows, positions, tmp_path, details=details, about=About(title=kind)).sections
    browser.look(1400, "light")
    browser.open(tmp_path / "report.html")
    assert section.title in browser.run("return document.getElementById('where').textContent")
    browser.choose("base", str(section.summary["encoding"].iloc[0]))
    assert len(browser.table("all")) == len(section.summary)
    messages, asked = browser.logs()
    assert (messages, len(asked)) == ([], 1)
    browser.picture(PICTURES / f"{kind.replace(' ', '-')}.png")


# ---- every comparison, and where it is drawn


def student(values: list[float]) -> list[float]:
    """Mean and Student's 95 % interval of values, NaN for the ends of fewer than three."""
    mean = float(np.mean(values))
    if len(values) < 3:
        return [mean, math.nan, math.nan]
    reach = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return [mean, mean - reach, mean + reach]


def test_numbers_by_seed_are_compared_between_equal_seeds(browser: Browser, tmp_path: Path) -> None:
    """Costs as ratios of geometric means, harms as differences; of less, both are better. Seeds are unequal."""
    rows, positions, details = tables_with_holes()
    report = build_report(rows, positions, tmp_path, details=details, runs=fake_runs(rows))
    section = page_section(report.sections[0])
    browser.look(1400, "light")
    browser.open(tmp_path / "report.html")
    names = [each["name"] for each in section["encodings"]]
    costs = {each["title"][0].upper() + each["title"][1:]: each["values"] for each in section["costs"]}
    harms = {each["title"]: each["values"] for each in section["attribution"]}
    void = {each["title"]: each["why"] for each in section["attribution"]}
    for base in [None, *range(len(names))]:
        browser.choose("base", PLAIN if base is None else names[base])
        for table, measures, ratios in (("all", costs, True), ("why", harms, False)):
            for row in browser.table(table):
                n = names.index(row["Encoding"])
                for title, lists in measures.items():
                    values, cell = [value for value in lists[n] if value is not None], row[title]
                    if not ratios and void[title][n]:
                        assert cell == "void"
                        continue
                    if base is not None:
                        both = [pair for pair in zip(lists[n], lists[base], strict=True) if None not in pair]
                        values = [a / b if ratios else a - b for a, b in both]
                    if n == base or not values:
                        assert cell.endswith("the base") or math.isnan(number(cell))
                        continue
                    numbers = student([math.log(value) for value in values] if ratios else values)
                    if base is not None and not math.isnan(numbers[1]):
                        word = "better" if numbers[2] < 0 else "worse" if numbers[1] > 0 else "within noise"
                        assert cell.endswith(word), cell
                    numbers = [math.exp(value) for value in numbers] if ratios else numbers
                    if ratios and base is None:  # in words, of three digits or so
                        assert number(cell) == pytest.approx(numbers[0], rel=0.05)
                    else:
                        close(cell, numbers, 10 if ratios else 1)


def test_it_shows_what_a_longer_context_is_worth_and_who_uses_it(browser: Browser, tmp_path: Path) -> None:
    """Models trained at 64 beside models trained at 1024, which say what there is to win."""
    short, positions = results(
        {"alibi": (1.4, lambda octaves: 0.05 * octaves), "rope": (1.38, lambda octaves: -0.1 * octaves)},
        seeds=(0, 1, 2), train_length=64, lengths=(64, 256, 1024),
    )  # fmt: skip
    long, _ = results({"alibi": (1.1, lambda octaves: 0.0)}, seeds=(0, 1, 2), train_length=1024, lengths=(1024,))
    rows = pd.concat([short, long], ignore_index=True)
    report = build_report(rows, positions, tmp_path, details={"units": units_of(rows)})
    section = next(each for each in report.sections if each.train_length == 64)
    (ceiling,) = section.ceilings
    browser.look(1400, "light")
    browser.open(tmp_path / "report.html")
    browser.choose("section", section.title)
    assert section.use is not None
    assert browser.run("return document.querySelector('#use p').textContent") == section.use.answer
    shown = {row["Encoding"]: row for row in browser.table("use")}
    for n, each in enumerate(section.encodings):
        row = shown[each.name]
        close(row["gain 16x"], list(ceiling.gains[n]))
        assert number(row["used 16x"]) == pytest.approx(100 * ceiling.used[n][0], abs=0.51)
    alibi = [each.name for each in section.encodings].index("alibi")
    close(shown["alibi"]["price 16x"], list(ceiling.prices[alibi]))
    assert shown["rope"]["price 16x"] == "-"
    assert browser.violations() == []


# ---- names, ticks and marks


@pytest.fixture(scope="module")
def everyone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of all registered encodings."""
    shapes = dict(zip(names(), many(len(names())).values(), strict=True))
    rows, positions, details = fake_tables(shapes, (256, 4096))
    rows, details = rows[rows["protocol"] != "nonoverlapping"], {"units": details["units"]}
    folder = tmp_path_factory.mktemp("everyone")
    build_report(rows, positions, folder, details=details, runs=fake_runs(rows))
    return folder / "report.html"


BOXES = (
    "const all = (root, what) => [...root.querySelectorAll(what)];"
    "return all(document, arguments[0]).map((svg) => all(svg, arguments[1]).map((t) => {"
    " const box = t.getBoundingClientRect(); return [t.textContent, box.left, box.right, box.top, box.bottom]; }));"
)


def overlaps(boxes: list[list], slack: float) -> list[tuple[str, str]]:
    """Pairs of texts, each with its box, that share more than `slack` pixels in both directions."""
    return [
        (one, other)
        for n, (one, left, right, top, bottom) in enumerate(boxes)
        for other, *box in boxes[:n]
        if min(right, box[1]) - max(left, box[0]) > slack and min(bottom, box[3]) - max(top, box[2]) > slack
    ]


def test_a_name_beside_its_mark_covers_no_other_mark_if_there_is_room(browser: Browser, tmp_path: Path) -> None:
    """Marks of nearly the same loss whose costs are five percent apart, and one far from both."""
    rows, positions, details = fake_tables(
        {"alibi": BEHAVIOUR["alibi"], "t5": BEHAVIOUR["alibi"], "rope": BEHAVIOUR["rope"]}
    )
    rows["tokens_per_s"] = rows["encoding"].map({"alibi": 1e5, "t5": 1e5 / 1.05, "rope": 2.5e4})
    build_report(rows, positions, tmp_path, details=details, runs=fake_runs(rows), about=About())
    browser.look(1400, "light")
    browser.open(tmp_path / "report.html")
    browser.run("document.querySelectorAll('#pareto-choice button')[1].click()")
    (boxes,) = browser.run(BOXES, "#pareto svg", ".mark > :not(line, title), text.end")
    assert sorted(text for text, *_ in boxes) == ["", "", "", "alibi", "rope", "t5"]
    assert [pair for pair in overlaps(boxes, 1) if "" in pair and any(pair)] == []  # a mark has no text


@pytest.mark.parametrize("width", [400, 1400])
def test_names_and_ticks_are_whole_and_do_not_cover_each_other(browser: Browser, everyone: Path, width: int) -> None:
    assert everyone.stat().st_size < 2e6
    browser.look(width, "light")
    browser.open(everyone)
    assert len(browser.table("all")) == len(names())
    assert browser.run("return document.documentElement.scrollWidth") == width
    for base in (PLAIN, "rope"):
        browser.choose("base", base)
        for button in range(3):
            browser.run("document.querySelectorAll('#pareto-choice button')[arguments[0]].click()", button)
            (texts,) = browser.run(BOXES, "#pareto svg", "text")
            assert overlaps(texts, 0.5) == []
            labels = [text for text, *_ in browser.run(BOXES, "#pareto svg", "text.end")[0]]
            marks = browser.run("return document.querySelectorAll('#pareto .mark').length")
            caption = browser.run("return document.getElementById('pareto-caption').textContent")
            assert f"for want of room: {marks - len(labels)} of {marks}" in caption
            assert len(labels) >= 5
        charts = browser.run(BOXES, ".multiples svg", "text.tick, text.axis")
        assert all(overlaps(texts, 0.5) == [] for texts in charts)
        ends = browser.run(BOXES, ".multiples svg, #pareto svg, #protocols svg", "text.end")
        shown = {text.removesuffix(" \u00d7") for texts in ends for text, *_ in texts}
        assert shown == set(names())  # no name is cut
        assert [overlaps(texts, 4) for texts in ends] == [[]] * len(ends)  # lines of text are 12 pixels apart
        assert all(right <= width for texts in ends for _, _, right, _, _ in texts)
    assert browser.logs()[0] == []
