"""report.html without a browser: its numbers against pandas and poscli compare, texts that are never markup, sizes."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cli_runner import ALIBI, SHORT, assert_refused, cli
from fake_pages import STEP, against, fake_report, fake_runs, fake_tables, pairs_of, tables_with_holes, task_tables
from fake_results import BEHAVIOUR, LN2, many, results
from torture.reports import HOSTILE, undrawn
from toys import first

from poscli import api
from poscli.report import Report, build_report, trained_runs, write_site
from poscli.report.catalogue import looks
from poscli.report.collect import reproduce
from poscli.report.comparison import wrong_answers
from poscli.report.groups import Group, split
from poscli.report.page import READABLE, contrast, page_section, readable_color, rgb
from poscli.runs.run import list_runs
from poscli.runs.schema import DETAILS, frame
from poscli.system.errors import UsageError

LETTERS = {"b": "better", "w": "worse", "n": "within noise", "t": "too few documents", "-": "not compared"}
TAGS = {
    "html", "head", "meta", "title", "style", "body", "a", "header", "div", "h1", "h2", "h3", "form", "label", "select",
    "option", "button", "main", "section", "p", "strong", "dl", "dt", "dd", "figure", "figcaption", "noscript", "nav",
    "ul", "li", "aside", "script",
}  # fmt: skip


class Reader(HTMLParser):
    """The tags and attributes of a page, and the text of its block of JSON."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags:
            self.texts.append(data)

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(next(text for text in self.texts if text.startswith('{"sections"')))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return fake_report(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def section(report: Report) -> dict[str, Any]:
    return json.loads(json.dumps(page_section(report.sections[0])))


def text_of(report: Report) -> str:
    return (report.files[0].parent / "report.html").read_text(encoding="utf-8")


def test_runs_of_several_tokenizers_have_no_perplexity_and_no_differences(tmp_path: Path) -> None:
    """Their documents have equal names, and other windows of text."""
    rows, positions, details = fake_tables({name: BEHAVIOUR[name] for name in ("alibi", "none", "rope")})
    other = rows["encoding"] == "rope"
    of_pieces = rows.assign(tokenizer="bpe:512", fingerprint="f" * 12, bytes=2 * rows["bytes"], bpb=rows["bpb"] / 2)
    rows = pd.concat([rows[~other], of_pieces[other]])
    report = build_report(rows, positions, tmp_path, details=details, mix=True)
    found = page_section(report.sections[0])
    names = [each["name"] for each in found["encodings"]]
    assert found["perplexities"] is False
    for (one, base, _), (numbers, _) in pairs_of(found, found["pairs"][found["main"]]["loss"]).items():
        assert np.isnan(numbers[0]) == ((one == "rope [bpe:512]") != (base == "rope [bpe:512]"))
    assert names == ["rope [bpe:512]", "alibi [bytes]", "none [bytes]"]
    by_name = build_report(rows, positions, tmp_path, details=details, mix=True, baseline="alibi [bytes]")
    assert any("alibi [bytes]" in analysis.title for analysis in by_name.sections[0].analyses)
    with pytest.raises(UsageError, match=r"--baseline alibi: no run has this encoding: .*alibi \[bytes\]"):
        build_report(rows, positions, tmp_path, details=details, mix=True, baseline="alibi")


def test_intervals_without_the_losses_of_documents_are_in_bits_per_byte(tmp_path: Path) -> None:
    """Of tokens of 4 bytes: a loss of 4 bits per token, from 3.9 to 4.1, is one of 1 bit per byte, 0.975 to 1.025."""
    rows, positions = results({name: BEHAVIOUR[name] for name in ("alibi", "none")}, lengths=(256, 512))
    losses = {"nll": 4 * LN2, "nll_low": 3.9 * LN2, "nll_high": 4.1 * LN2, "ppl": 16.0, "bpb": 1.0}
    rows = rows.assign(tokenizer="bpe:512", bytes=4 * rows["tokens"], **losses)
    with undrawn():
        (section,) = build_report(rows, positions, tmp_path).sections
    found = page_section(section)
    for point in (point for line in found["points"][found["main"]] for point in line):
        assert point[3:6] == pytest.approx([1.0, 0.975, 1.025])


WORST = ("</script><script>alert(1)</script>", "<!--<script>", "]]>", "${x}")
TEXTS = [*WORST, *("".join(HOSTILE[n :: len(HOSTILE) // 8]) for n in range(len(HOSTILE) // 8))]


@pytest.mark.parametrize("text", first(2, TEXTS))
def test_hostile_texts_are_never_markup(tmp_path: Path, text: str) -> None:
    with undrawn():
        report = fake_report(tmp_path, dict(many(2)), title=text, name=f"x{text}")
    page = Reader(text_of(report))
    assert {tag for tag, _ in page.tags} <= TAGS
    assert [tag for tag, _ in page.tags].count("script") == 2
    known = {name for _, attributes in page.tags for name in attributes}
    assert not [name for name in known if name.startswith("on") or name in ("src", "style")]
    assert [each["name"] for each in page.data["sections"][0]["encodings"]].count(
        report.summary["encoding"].iloc[-1]
    ) == 1
    for path in write_site(report, tmp_path / "site"):
        tags = [tag for tag, _ in Reader(path.read_text(encoding="utf-8")).tags]
        assert set(tags) <= TAGS | {"table", "thead", "tbody", "tr", "th", "td", "span", "caption"}


def test_the_page_asks_for_nothing_from_outside(report: Report) -> None:
    page = Reader(text_of(report))
    (policy,) = [a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    links = [a["href"] for tag, a in page.tags if tag == "a"]
    assert all(link.startswith("#") for link in links)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text_of(report).split('type="application/json"')[0])


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Report:
    rows, positions, details = task_tables()
    with undrawn():
        return build_report(rows, positions, tmp_path_factory.mktemp("task"), details=details, runs=fake_runs(rows))


def test_the_site_of_a_task_has_the_accuracy_of_each_encoding(task: Report, tmp_path: Path) -> None:
    write_site(task, tmp_path)
    (alibi,), (learned,) = (tuple(tmp_path.glob(f"encoding-{name}-*.html")) for name in ("alibi", "learned"))
    assert "1.000 [0.955, 1.000]" in alibi.read_text(encoding="utf-8")
    assert "no row for position" in learned.read_text(encoding="utf-8")
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "alibi has the most answers right" in "".join(Reader(text).texts)


def test_a_page_of_somebody_else_is_not_replaced(report: Report, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(
        UsageError, match=r"index\.html was not written by poscli, .*: choose another folder, or move it"
    ):
        write_site(report, tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("index.html", "mine")]


@pytest.mark.wide  # tests/browser/test_browser.py opens such a page
def test_fifty_three_encodings_weigh_less_than_two_megabytes(tmp_path: Path) -> None:
    with undrawn():
        report = fake_report(tmp_path, many(53))
    assert len(text_of(report).encode()) < 2e6
    assert len(report.summary) == 53


def test_colors_can_be_read_and_members_of_a_family_differ(section: dict[str, Any]) -> None:
    for paper in ("#ffffff", "#15181c"):
        for color in ("#000000", "#3592C4", "#B07800"):
            assert contrast(rgb(readable_color(color, paper)), rgb(paper)) >= READABLE - 0.1  # rounded to 256 steps
    looked = {(each["family"], each["color"], each["dash"]) for each in section["encodings"]}
    assert len(looked) == len(section["encodings"])
    assert looks({}, {}) == {}


def test_the_command_of_a_row_makes_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    more = ("--set", "matrix_lr=0.02", "--batch", 2)
    for command in ((*ALIBI, *more, "--seed", 3), ("extrapolate", *SHORT, "--as", "none")):
        assert cli(*command, "--out", "one").code == 0
    known = trained_runs(tmp_path / "one" / "runs")
    assert len(known) == 2
    for run in known.values():
        for line in reproduce([run]).split(" && "):
            assert cli(*line.split()[1:], "--out", "two").code == 0
    (again,) = list_runs(tmp_path / "two" / "runs")
    assert again.id in known
    assert set(trained_runs(tmp_path / "two" / "runs")) == set(known)
    columns = ["run_id", "length", "protocol", "variant", "nll"]
    first, second = (api.results(tmp_path / name)[columns].sort_values(columns[:4]) for name in ("one", "two"))
    assert first.reset_index(drop=True).equals(second.reset_index(drop=True))


def test_pictures_in_other_formats_and_a_refused_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, positions, _ = fake_tables()
    report = build_report(rows, positions, tmp_path / "report", formats=("svg", "pdf"))
    names = {path.name for path in report.files}
    for name in ("perplexity", "gain", "position"):
        assert {f"{name}.png", f"{name}.svg", f"{name}.pdf"} <= names
    assert (tmp_path / "report" / "gain.svg").read_bytes().startswith(b"<?xml")
    assert (tmp_path / "report" / "gain.pdf").read_bytes().startswith(b"%PDF")
    again = build_report(rows, positions, tmp_path / "report")
    assert not (tmp_path / "report" / "gain.svg").exists()  # an earlier report's files are removed
    assert "gain.svg" not in {path.name for path in again.files}
    monkeypatch.chdir(tmp_path)
    assert_refused(("report", "--formats", "svg,gif"), 2, ("gif", "png, svg, pdf"))


def test_a_site_has_a_page_for_each_corpus_and_encoding(tmp_path: Path, report: Report) -> None:
    paths = write_site(report, tmp_path)
    assert len(paths) == 1 + 1 + len(report.summary)
    for path in paths:
        for tag, attributes in Reader(path.read_text(encoding="utf-8")).tags:
            if tag == "a" and not (attributes["href"] or "").startswith("#"):
                assert (tmp_path / str(attributes["href"])).exists()
    (alibi,) = tmp_path.glob("encoding-alibi-*.html")
    text = "".join(Reader(alibi.read_text(encoding="utf-8")).texts)
    assert "poscli train --enc alibi" in text
    assert re.search(r"Runs\s*3, models", text)  # of the 18 runs of the section
    (tmp_path / "notes.txt").write_text("mine")
    rows, _, _ = fake_tables()
    fewer = build_report(
        rows[rows["encoding"] != "alibi"], pd.DataFrame(columns=["encoding", "run_id"]), tmp_path / "r"
    )
    write_site(fewer, tmp_path)
    assert not alibi.exists()
    assert (tmp_path / "notes.txt").exists()


# ---- every comparison: all bases, all others, all lengths and protocols, with unequal seeds

NEAR = 0.51 * STEP  # numbers are rounded on their way to the page


Made = tuple[Group, dict[str, Any]]  # the rows of a section, and what the page shows of them


def made(tables: tuple[pd.DataFrame, pd.DataFrame, dict[str, pd.DataFrame]], folder: Path) -> Made:
    rows, positions, details = tables
    with undrawn():
        report = build_report(rows, positions, folder, details=details, runs=fake_runs(rows))
    return split(rows, positions, details)[0], json.loads(json.dumps(page_section(report.sections[0])))


@pytest.fixture(scope="module")
def holes(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made(tables_with_holes(), tmp_path_factory.mktemp("holes"))


@pytest.fixture(scope="module")
def part_of_task(tmp_path_factory: pytest.TempPathFactory) -> Made:
    rows, positions, details = task_tables()
    rows = rows[rows["length"].isin([256, 4096])]
    details = {name: table[table["length"].isin([256, 4096])] for name, table in details.items()}
    gone = (rows["encoding"] == "rope") & (rows["seed"] == 1)
    lost = set(rows.loc[gone, "run_id"])
    details = {name: table[~table["run_id"].isin(lost)] for name, table in details.items()}
    return made((rows[~gone], positions, details), tmp_path_factory.mktemp("task"))


def by_hand(losses: pd.DataFrame, one: str, base: str) -> float:
    """The mean difference in bits per byte between runs of equal seeds, each loss a sum of nats of one run."""
    ours, theirs = (losses[losses["encoding"] == name].set_index("seed")["bits"] for name in (one, base))
    return float((ours - theirs).mean())  # pandas pairs equal seeds


def bits(group: Group) -> dict[Any, pd.DataFrame]:
    """Bits per byte of every run, from the table of documents, by protocol, variant and length."""
    units = tables_with_holes()[2]["units"].drop(columns=["encoding", "seed"], errors="ignore")
    units = units.merge(group.rows.drop_duplicates("run_id")[["run_id", "encoding", "seed"]])
    units = units.assign(nats=units["nll"] * units["tokens"])
    sums = units.groupby(["protocol", "variant", "length", "encoding", "seed"])[["nats", "bytes"]].sum()
    losses = (sums["nats"] / sums["bytes"] / math.log(2)).rename("bits").reset_index()
    return dict(list(losses.groupby(["protocol", "variant", "length"])))


def test_differences_of_losses_are_means_over_runs_of_equal_seeds(holes: Made) -> None:
    group, section = holes
    losses = bits(group)
    compared = 0
    for number, protocol in enumerate(section["protocols"]):
        found = pairs_of(section, section["pairs"][number]["loss"])
        for one, base, length in found:
            expected = by_hand(losses[protocol["name"], "full", length], one, base)
            numbers, word = found[one, base, length]
            assert numbers[0] == pytest.approx(expected, abs=NEAR, nan_ok=True), (one, base, length)
            if not math.isnan(expected):
                assert numbers[1] <= numbers[0] <= numbers[2]
                assert word not in ("better", "worse") or (word == "better") == (expected < 0)
                compared += 1
    assert compared == 3 * 2 * (6 + 3)  # of 4 encodings 6 pairs at 256; learned ends there, and the others are 3 pairs


def test_gains_compare_the_other_way_round(holes: Made) -> None:
    group, section = holes
    losses = bits(group)
    (number,) = {number for number in section["gainFrom"] if number is not None}
    name, found = section["protocols"][number]["name"], pairs_of(section, section["pairs"][number]["gain"])
    words = set()
    for one, base, length in found:
        full, cut = (losses[name, variant, length] for variant in ("full", "crop"))
        gains = full.merge(cut, on=["encoding", "seed"], suffixes=("", "_cut"))
        gains = gains.assign(bits=gains["bits_cut"] - gains["bits"])
        numbers, word = found[one, base, length]
        expected = by_hand(gains, one, base)
        assert numbers[0] == pytest.approx(expected, abs=NEAR, nan_ok=True), (one, base, length)
        if word in ("better", "worse"):
            assert (word == "better") == (expected > 0)
        words.add(word)
    assert {"better", "worse"} <= words


def test_accuracies_of_all_pairs_are_those_of_the_report(part_of_task: Made) -> None:
    group, section = part_of_task
    units = wrong_answers(group.details["answers"], "answer")
    found, seen = pairs_of(section, section["answered"]["pairs"]), set()
    shares = group.details["answers"].groupby(["encoding", "seed", "length"])[["right", "tokens"]].sum()
    shares = (shares["right"] / shares["tokens"]).rename("bits").reset_index()
    for base in (each["name"] for each in section["encodings"]):
        for row in against(group.rows, units, base).to_dict("records"):
            numbers, word = found[row["encoding"], base, row["length"]]
            assert numbers == pytest.approx([row["difference"], row["low"], row["high"]], abs=NEAR, nan_ok=True)
            own = by_hand(shares[shares["length"] == row["length"]], row["encoding"], base)
            assert math.isnan(numbers[0]) or numbers[0] == pytest.approx(own, abs=NEAR)
            assert word == row["word"]
            seen.add(word)
            if word in ("better", "worse"):
                assert (word == "better") == (own > 0)
    assert {"better", "worse"} <= seen


def test_a_page_lacks_seeds_only_where_no_encoding_has_three(holes: Made, tmp_path: Path) -> None:
    _, section = holes
    seeds = {each["name"]: each["seeds"] for each in section["encodings"]}
    assert seeds == {"alibi": 2, "learned": 3, "none": 1, "rope": 3}
    assert not section["fewSeeds"]
    rows, positions, details = tables_with_holes()
    rows, positions = (table[table["encoding"].isin(["alibi", "none"])] for table in (rows, positions))
    details = {name: table[table["encoding"].isin(["alibi", "none"])] for name, table in details.items()}
    _, section = made((rows, positions, details), tmp_path)
    assert section["fewSeeds"]


def test_a_task_without_any_seed_in_common_is_not_compared(tmp_path: Path) -> None:
    rows, positions, details = tables_with_holes()
    kept = rows[(rows["encoding"] == "alibi") | (rows["encoding"] == "learned") & (rows["seed"] == 1)]
    none = frame([], DETAILS["recall"])
    _, section = made((kept, positions, {"units": details["units"], "recall": none}), tmp_path)
    found = pairs_of(section, section["pairs"][section["main"]]["loss"])
    assert {word for _, word in found.values()} == {"not compared"}
    assert np.isnan([numbers for numbers, _ in found.values()]).all()
