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
from cli_runner import ALIBI, BRIEF, cli
from fake_pages import STEP, against, fake_report, fake_tables, pairs_of, tables_with_holes, task_tables
from fake_results import BEHAVIOUR, LN2, many, results
from torture.reports import HOSTILE
from toys import first

from poscli import api
from poscli.report import Report, build_report, trained_runs, write_site
from poscli.report.collect import reproduce
from poscli.report.comparison import wrong_answers
from poscli.report.page import page_section
from poscli.runs.run import list_runs
from poscli.runs.schema import POSITION_COLUMNS, frame
from poscli.system.errors import UsageError

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


def text_of(report: Report) -> str:
    return (report.files[0].parent / "report.html").read_text(encoding="utf-8")


def test_runs_of_several_tokenizers_have_no_perplexity_and_no_differences(tmp_path: Path) -> None:
    """Their documents have equal names, and other windows of text."""
    rows, positions, details = fake_tables({name: BEHAVIOUR[name] for name in ("alibi", "none", "rope")}, (256, 512))
    other = rows["encoding"] == "rope"
    of_pieces = rows.assign(tokenizer="bpe:512", fingerprint="f" * 12, bytes=2 * rows["bytes"], bpb=rows["bpb"] / 2)
    rows = pd.concat([rows[~other], of_pieces[other]])
    report = build_report(rows, positions, tmp_path, details=details, mix=True)
    shown = page_section(report.sections[0])
    names = [each["name"] for each in shown["encodings"]]
    assert shown["perplexities"] is False
    for (one, base, _), (numbers, _) in pairs_of(shown, shown["pairs"][shown["main"]]["loss"]).items():
        assert np.isnan(numbers[0]) == ((one == "rope [bpe:512]") != (base == "rope [bpe:512]"))
    assert names == ["rope [bpe:512]", "alibi [bytes]", "none [bytes]"]


def test_intervals_without_the_losses_of_documents_are_in_bits_per_byte(tmp_path: Path) -> None:
    """Of tokens of 4 bytes: a loss of 4 bits per token, from 3.9 to 4.1, is one of 1 bit per byte, 0.975 to 1.025."""
    rows, positions = results({name: BEHAVIOUR[name] for name in ("alibi", "none")}, lengths=(256, 512))
    losses = {"nll": 4 * LN2, "nll_low": 3.9 * LN2, "nll_high": 4.1 * LN2, "ppl": 16.0, "bpb": 1.0}
    rows = rows.assign(tokenizer="bpe:512", bytes=4 * rows["tokens"], **losses)
    (section,) = build_report(rows, positions, tmp_path).sections
    shown = page_section(section)
    for point in (point for line in shown["points"][shown["main"]] for point in line):
        assert point[3:6] == pytest.approx([1.0, 0.975, 1.025])


def test_a_perplexity_has_one_interval_which_is_that_of_losses_per_token(tmp_path: Path) -> None:
    """Where documents differ in how many bytes a token has, losses per byte have another one."""
    rows, positions, details = fake_tables({name: BEHAVIOUR[name] for name in ("alibi", "rope")}, (256, 512))
    units = details["units"]
    units = units.assign(bytes=units["tokens"] * (1 + units["unit"].astype(int) % 3))
    rows = rows.assign(tokenizer="bpe:512", bytes=2 * rows["tokens"], bpb=rows["bpb"] / 2)
    (section,) = build_report(rows, positions, tmp_path, details={"units": units}).sections
    shown, (figure, *_) = page_section(section), section.figures
    assert figure.name == "perplexity"
    for each, line in zip(shown["encodings"], shown["points"][shown["main"]], strict=True):
        drawn = next(one for one in figure.lines if one.name == each["name"])
        for point, *numbers in zip(line, drawn.y, drawn.low, drawn.high, strict=True):
            assert point[9:12] == pytest.approx(numbers, abs=1e-5)
            assert point[4] != pytest.approx(math.log2(point[10]) / 2, abs=0.01)


WORST = ("</script><script>alert(1)</script>", "<!--<script>", "]]>", "${x}")
TEXTS = ["".join(WORST), *("".join(HOSTILE[n :: len(HOSTILE) // 8]) for n in range(len(HOSTILE) // 8))]


@pytest.mark.parametrize("text", first(1, TEXTS))
def test_hostile_texts_are_never_markup(tmp_path: Path, text: str) -> None:
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


def test_the_command_of_a_row_makes_the_same_run(here: Path) -> None:
    more = ("--set", "matrix_lr=0.02", "--batch", 2)
    for command in ((*ALIBI, *more, "--seed", 3), ("extrapolate", *BRIEF, "--as", "none")):
        assert cli(*command, "--out", "one").code == 0
    known = trained_runs(here / "one" / "runs")
    assert len(known) == 2
    for run in known.values():
        for line in reproduce([run]).split(" && "):
            assert cli(*line.split()[1:], "--out", "two").code == 0
    (again,) = list_runs(here / "two" / "runs")
    assert again.id in known
    assert set(trained_runs(here / "two" / "runs")) == set(known)
    columns = ["run_id", "length", "protocol", "variant", "nll"]
    first, second = (api.results(here / name)[columns].sort_values(columns[:4]) for name in ("one", "two"))
    assert first.reset_index(drop=True).equals(second.reset_index(drop=True))


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
    fewer = build_report(rows[rows["encoding"] != "alibi"], frame([], POSITION_COLUMNS), tmp_path / "r")
    write_site(fewer, tmp_path)
    assert not alibi.exists()
    assert (tmp_path / "notes.txt").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.html").write_text("mine")
    with pytest.raises(
        UsageError, match=r"index\.html was not written by poscli, .*: choose another folder, or move it"
    ):
        write_site(report, tmp_path / "mine")
    assert [path.read_text() for path in (tmp_path / "mine").iterdir()] == ["mine"]


# ---- every comparison: all bases, all others, all lengths and protocols, with unequal seeds

NEAR = 0.51 * STEP  # numbers are rounded on their way to the page


def by_hand(losses: pd.DataFrame, one: str, base: str) -> float:
    """The mean difference between runs of equal seeds, which pandas pairs, from a table with `value` of each run."""
    ours, theirs = (losses[losses["encoding"] == name].set_index("seed")["value"] for name in (one, base))
    return float((ours - theirs).mean())


def check(shown: tuple[list[float], str], expected: float, *, more_is_better: bool) -> str:
    """What a page shows of a pair must be this difference, inside its interval; returns the word for it."""
    (difference, low, high), word = shown
    assert difference == pytest.approx(expected, abs=NEAR, nan_ok=True)
    assert math.isnan(expected) or low <= difference <= high
    assert word not in ("better", "worse") or (word == "better") == ((expected > 0) == more_is_better)
    return word


def test_differences_of_losses_and_gains_are_means_over_runs_of_equal_seeds(tmp_path: Path) -> None:
    """Bits per byte of every run, each a sum of nats over the table of documents; gains compare the other way round."""
    rows, positions, details = tables_with_holes()
    section = page_section(build_report(rows, positions, tmp_path, details=details).sections[0])
    units = details["units"].drop(columns=["encoding", "seed"], errors="ignore")
    units = units.merge(rows.drop_duplicates("run_id")[["run_id", "encoding", "seed"]])
    units = units.assign(nats=units["nll"] * units["tokens"])
    sums = units.groupby(["protocol", "variant", "length", "encoding", "seed"])[["nats", "bytes"]].sum()
    losses = (sums["nats"] / sums["bytes"] / math.log(2)).rename("value").reset_index()
    bits = dict(list(losses.groupby(["protocol", "variant", "length"])))
    words = []
    for number, protocol in enumerate(section["protocols"]):
        shown = pairs_of(section, section["pairs"][number]["loss"])
        for (one, base, length), each in shown.items():
            expected = by_hand(bits[protocol["name"], "full", length], one, base)
            words += [check(each, expected, more_is_better=False)] * (not math.isnan(expected))
    assert len(words) == 3 * 2 * (
        6 + 3
    )  # of 4 encodings 6 pairs at 256; learned ends there, and the others are 3 pairs
    (number,) = {number for number in section["gainFrom"] if number is not None}
    words = []
    for (one, base, length), each in pairs_of(section, section["pairs"][number]["gain"]).items():
        full, cut = (bits[section["protocols"][number]["name"], variant, length] for variant in ("full", "crop"))
        gains = full.merge(cut, on=["encoding", "seed"], suffixes=("", "_cut"))
        expected = by_hand(gains.assign(value=gains["value_cut"] - gains["value"]), one, base)
        words.append(check(each, expected, more_is_better=True))
    assert {"better", "worse"} <= set(words)


def test_accuracies_of_all_pairs_are_those_of_the_report(tmp_path: Path) -> None:
    """Of a task at two lengths, without the second seed of rope."""
    rows, positions, details = task_tables()
    rows = rows[rows["length"].isin([256, 4096]) & ~((rows["encoding"] == "rope") & (rows["seed"] == 1))]
    kept = {name: table[table["run_id"].isin(rows["run_id"])] for name, table in details.items()}
    kept = {name: table[table["length"].isin([256, 4096])] for name, table in kept.items()}
    section = page_section(build_report(rows, positions, tmp_path, details=kept).sections[0])
    answers = kept["answers"]
    shown, words = pairs_of(section, section["answered"]["pairs"]), set()
    shares = answers.groupby(["encoding", "seed", "length"])[["right", "tokens"]].sum()
    shares = (shares["right"] / shares["tokens"]).rename("value").reset_index()
    for base in (each["name"] for each in section["encodings"]):
        for row in against(rows, wrong_answers(answers, "answer"), base).to_dict("records"):
            each = shown[row["encoding"], base, row["length"]]
            assert each[0] == pytest.approx([row["difference"], row["low"], row["high"]], abs=NEAR, nan_ok=True)
            assert each[1] == row["word"]
            if not math.isnan(row["difference"]):
                expected = by_hand(shares[shares["length"] == row["length"]], row["encoding"], base)
                words.add(check(each, expected, more_is_better=True))
    assert {"better", "worse"} <= words
