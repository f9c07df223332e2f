"""What a real browser shows of report.html, line by line: at first, and after everything that a reader can do there.

The first outline of a page is whole. After that, each step tells which lines are new and how many are gone.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from browser_session import Browser
from cli_runner import ROOT
from fake_pages import fake_runs, fake_tables, tables_with_holes, task_tables
from fake_results import BEHAVIOUR, LN2, units_of

from poscli.report import About, build_report

pytestmark = pytest.mark.browser
Say = Callable[..., None]
SCRIPT = Path(__file__).parent / "page_outline.js"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    session = Browser()
    script = SCRIPT.read_text(encoding="utf-8")
    session.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": f"(() => {{{script}}})();"})
    yield session
    session.driver.quit()


class Reader:
    """Somebody who reads one page, and what they saw after each step."""

    def __init__(self, browser: Browser, page: Path, *, width: int = 1400, first: str = "") -> None:
        """Open the page; `first` are the charts of the first outline that is kept: all, wide or none."""
        self.browser, self._seen = browser, Counter[str]()
        self.told: list[str] = []
        browser.look(width, "light")
        browser.open(page)
        self.charts = first or "wide"
        self.after("opened")
        self.told = self.told if first else []

    def after(self, step: str, script: str = "", *arguments: object) -> None:
        """Do something to the page, and note what the script returns, which lines are new, and how many are gone."""
        found = self.browser.run(script, *arguments) if script else None
        lines = self.browser.run("return outline(arguments[0])", self.charts)
        gone = sum((self._seen - Counter(lines)).values())
        new, left = [], Counter(lines) - self._seen
        for line in lines:
            if left[line]:
                left[line] -= 1
                new.append(line)
        self._seen = Counter(lines)
        self.told += [f"===== {step}" + (f" -> {found}" if found is not None else "") + f" ({gone} gone)", *new]

    def looks_at(self, charts: str) -> None:
        """From now on, look at the wide charts too, or only at what is written."""
        self.charts, told = charts, self.told
        self.told = []
        self.after("")
        self.told = told

    def choose(self, picker: str, text: str) -> None:
        """Choose the option with this text."""
        self.browser.choose(picker, text)
        self.after(f"{picker}: {text}")

    def click(self, selector: str, number: int = 0) -> None:
        """Click one of the elements that a selector finds."""
        script = (
            "document.querySelectorAll(arguments[0])[arguments[1]].click();"
            "const { activeElement } = document;"
            "return activeElement === document.body ? 'nothing has the focus' : activeElement.textContent;"
        )
        self.after(f"click {selector} {number}", script, selector, number)

    def look(self, width: int, scheme: str = "light", height: int = 900) -> None:
        """Change the window or the colours of the system, and wait until the page has been told."""
        self.browser.look(width, scheme, height)
        self.browser.driver.execute_async_script(
            "const [done] = arguments; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
        )

    @property
    def text(self) -> str:
        """All that was seen. The browser must not have had anything to say."""
        assert self.browser.logs()[0] == []
        return "\n".join(self.told) + "\n"


Tables = tuple[pd.DataFrame, pd.DataFrame, dict[str, pd.DataFrame]]


def language() -> Tables:
    """Four encodings, two protocols that rank them differently, and a length that is no power of two times L."""
    rows, positions, details = fake_tables(
        {name: BEHAVIOUR[name] for name in ("alibi", "learned", "none", "rope")}, (256, 512, 2304)
    )
    rows = rows[rows["protocol"] != "nonoverlapping"]
    harder = 0.9 * ((rows["protocol"] == "fixed") & (rows["encoding"] == "alibi"))
    nll = rows["nll"] + harder
    rows = rows.assign(nll=nll, bpb=nll / LN2, ppl=np.exp(nll))
    bins = positions["to"].isin([23, 64, 256, 362])
    recall, why = details["recall"], details["why/attribution"]
    wrong = (why["encoding"] == "rope") & (why["change"] == "crowd")
    why = why.assign(status=why["status"].mask(wrong, "fault"), reason=why["reason"].mask(wrong, "it changes"))
    recall = recall[recall["from"].isin([128, 512])]
    details |= {"units": units_of(rows), "recall": recall, "why/attribution": why}
    return rows, positions[bins], details


def few_seeds() -> Tables:
    """Three sections: a task, images of one seed without documents, and a text with a measure of its own."""
    task, _, of_task = task_tables()
    task = task[task["length"].isin([256, 1024])]
    one, positions, _ = fake_tables({name: BEHAVIOUR[name] for name in ("alibi", "none", "rope")}, (256, 1024))
    one = one[one["seed"] == 1]
    images = one[one["protocol"] == "nonoverlapping"]  # which measures no gain
    images = images.assign(corpus="images", fingerprint="5566", run_id="i" + images["run_id"])
    one = one[one["protocol"] == "sliding"]
    hits = np.where(one["encoding"] == "rope", np.nan, 1 / one["ratio"] + 0.1 * (one["encoding"] == "none"))
    text = one.assign(corpus="text:x", fingerprint="7788", run_id="x" + one["run_id"], hits=hits)
    task = task.assign(run_id="t" + task["run_id"], fingerprint="77aa", corpus="task:copy")
    answers = of_task["answers"]
    answers = answers[answers["length"].isin([256, 1024])]
    details = {"answers": answers.assign(run_id="t" + answers["run_id"], fingerprint="77aa")}
    units = of_task["units"]
    details["units"] = units.assign(run_id="t" + units["run_id"], fingerprint="77aa")
    return pd.concat([task, images, text], ignore_index=True), positions.iloc[:0], details


def task() -> Tables:
    """A task whose answers lie at depths, which one encoding cannot read beyond L."""
    rows, positions, details = task_tables()
    answers = details["answers"]
    lengths = [256, 512, 4096]
    answers = answers[answers["length"].isin(lengths)]
    return rows[rows["length"].isin(lengths)], positions, details | {"answers": answers}


KINDS: dict[str, Callable[[], Tables]] = {
    "language": language, "task": task, "holes": tables_with_holes, "sections": few_seeds,
}  # fmt: skip


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page of some results by their name, each written once."""

    @functools.cache
    def made(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        rows, positions, details = KINDS[kind]()
        about = About(title=f"A page of {kind}", description="what it is", left_out=["rope-1: damaged"])
        runs = fake_runs(rows)
        if kind == "task":  # all were trained at the same time, on one machine
            runs = {run: replace(each, training=run, machine="bench", span=(0.0, 60.0)) for run, each in runs.items()}
        build_report(rows, positions, folder, details=details, runs=runs, about=about)
        return folder / "report.html"

    return made


@pytest.mark.parametrize("kind", KINDS)
def test_first_sight(kind: str, browser: Browser, page_of: Callable[[str], Path], snapshot: Say) -> None:
    """Everything of one report, and of the others less of the charts."""
    first = {"language": "all", "task": "wide"}.get(kind, "none")
    snapshot(Reader(browser, page_of(kind), first=first).text, f"first-{kind}", rounded=True)


def lighter(text: str) -> str:
    """An outline without the lines and marks of all charts but the first two."""
    return re.sub(r"^(gain|position|recall|place)\d+ g\..*\n", "", text, flags=re.MULTILINE)


def test_comparing_losses(browser: Browser, page_of: Callable[[str], Path], snapshot: Say) -> None:
    reader = Reader(browser, page_of("language"))
    reader.choose("base", "rope")
    reader.looks_at("none")
    reader.choose("protocol", "fixed")
    reader.choose("base", "learned")
    snapshot(lighter(reader.text), rounded=True)


def test_comparing_answers(browser: Browser, page_of: Callable[[str], Path], snapshot: Say) -> None:
    reader = Reader(browser, page_of("task"))
    reader.choose("base", "rope")
    reader.looks_at("none")
    reader.choose("base", "none")
    snapshot(lighter(reader.text), rounded=True)


def test_changing_the_section(browser: Browser, page_of: Callable[[str], Path], snapshot: Say) -> None:
    """What was chosen in one section is not kept in another: base, order of a table, pinned encoding, cost."""
    reader = Reader(browser, page_of("sections"))
    reader.looks_at("none")
    titles = browser.run("return [...document.getElementById('section').options].map((each) => each.text)")
    reader.click("table[data-table=all] thead button", 1)
    reader.click("button.name", 1)
    reader.click("#pareto-choice button", 1)
    reader.choose("section", titles[1])
    reader.choose("section", titles[2])
    reader.choose("base", "rope")
    reader.choose("section", titles[0])
    snapshot(reader.text, rounded=True)


@pytest.mark.parametrize(("kind", "base"), [("holes", "none"), ("task", "rope")])
def test_sorting(kind: str, base: str, browser: Browser, page_of: Callable[[str], Path], snapshot: Say) -> None:
    """Every column of every table, twice."""
    Reader(browser, page_of(kind)).choose("base", base)
    lines = []
    for name in browser.run("return [...document.querySelectorAll('table')].map((each) => each.dataset.table)"):
        number = 0
        while (first := browser.run("return sortBy(...arguments)", name, number)) is not None:
            second = browser.run("return sortBy(...arguments)", name, number)
            lines += [f"{name} {number}: {first}", f"{name} {number}: {second}"]
            number += 1
    snapshot("\n".join(lines))


SEND = """
const [kind, selector, number] = arguments;
const make = kind.startsWith("pointer") ? PointerEvent : Event;
document.querySelectorAll(selector)[number].dispatchEvent(new make(kind, {bubbles: !/enter|leave/.test(kind)}));
"""


def test_the_pointer_and_the_keys(browser: Browser, page_of: Callable[[str], Path], snapshot: Say) -> None:
    """An encoding under the pointer or with the focus is shown everywhere; a click keeps it until the next."""
    Reader(browser, page_of("language"))
    lines: list[str] = []
    loss, name, rank = "table[data-table=loss] tbody tr", "table[data-table=gain] button.name", "#protocols g.rank"
    steps: list[tuple[str, str, int]] = [
        ("pointerenter", loss, 2), ("pointerleave", loss, 2), ("focusin", name, 3), ("focusout", name, 3),
        ("pointerenter", rank, 1), ("pointerleave", rank, 1), ("click", name, 0), ("pointerenter", loss, 1),
        ("pointerleave", loss, 1), ("Enter", "", 0), ("base", "none", 0), ("Escape", "", 0), ("Escape", "", 0),
        ("click", name, 1), ("click", name, 2), ("click", name, 2),
    ]  # fmt: skip
    before: list[str] = browser.run("return lit()")
    for act, selector, number in steps:
        if act == "base":
            browser.choose("base", selector)
        elif selector:
            browser.run(SEND, act, selector, number)
        else:
            browser.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0]}))", act)
        after = browser.run("return lit()")
        lines += [f"===== {act} {selector} {number}", *(line for line in after if line not in before)]
        before = after
    snapshot("\n".join(lines), rounded=True)


def test_looks_and_sizes(browser: Browser, page_of: Callable[[str], Path], snapshot: Say) -> None:
    """Colours, widths of the window, which are waited for, and the form, which goes nowhere."""
    reader = Reader(browser, page_of("language"))
    theme = "return document.documentElement.dataset.theme"
    reader.click("#theme")
    reader.after("theme", theme)
    reader.click("#theme")
    reader.after("theme", theme)
    reader.look(1400, "dark")
    reader.after("a dark system after a choice", theme)
    browser.open(page_of("language"))
    reader.after("a dark system", theme)
    reader.look(1400)
    reader.after("a light system", theme)
    reader.look(1400, height=700)
    reader.after("another height", "return runTimers()")
    for width in (861, 860, 400):
        reader.look(width)
        reader.after(f"{width} pixels, at once")
        reader.after(f"{width} pixels", "return runTimers()")
    reader.after("submitted", "document.getElementById('controls').requestSubmit(); return location.search")
    kept = ("=", "loss0 ", "pareto0 text", "protocols0 g.rank 0", "protocols0 text", "theme")
    shown = [line for line in reader.text.splitlines() if line.startswith(kept) or " svg " in line]
    snapshot("\n".join(shown), rounded=True)


def test_copying_commands(browser: Browser, page_of: Callable[[str], Path], snapshot: Say) -> None:
    """The clipboard of the browser, the older way where that is refused or missing, and neither."""
    Reader(browser, page_of("language"))
    cases = [(True, False), (False, True), (None, True), (False, False)]
    snapshot(
        "\n".join(f"{case}: {browser.driver.execute_async_script('copyWith(...arguments)', *case)}" for case in cases)
    )


FUNCTIONS = (
    "listed, bits, signed, tickText, signedTick, tickNames, times, seconds, multiple, capital, counted, named, "
    "scale, niceStep, thinned, pathOf, bandOf, spread, clipped, student, wordOf, interval, spoken, withWhy, statusName"
)
NUMBERS = (
    0, 4e-4, -5e-4, 0.05, -0.0123, 0.0999, 0.5, 0.9996, 1, -1.005, 9.96, 10, 99.96, 100, 1234.5, 99999, 1e5, -2.5e7,
)  # fmt: skip


def test_numbers_and_scales(browser: Browser, page_of: Callable[[str], Path], snapshot: Say) -> None:
    """Functions that write numbers and place them on axes, on a grid of cases."""
    Reader(browser, page_of("language"))
    folder = ROOT / "poscli" / "report" / "page"
    scripts = "".join((folder / f"{name}.js").read_text(encoding="utf-8") for name in ("core", "values", "lines"))
    snapshot("\n".join(browser.run("return callAll(...arguments)", scripts, FUNCTIONS, NUMBERS)))
