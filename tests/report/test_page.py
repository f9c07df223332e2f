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
from fake_pages import SEEDS, against, fake_report, fake_runs, fake_tables, task_tables
from fake_results import BEHAVIOUR, LN2, many, results
from scipy import stats
from torture.reports import HOSTILE, undrawn
from toys import first

from poscli import api
from poscli.config.run import PRESETS, RunConfig
from poscli.report import Report, build_report, trained_runs, write_site
from poscli.report.accuracy import by_length, wrong_answers
from poscli.report.latex import latex
from poscli.report.page.data import section_data
from poscli.report.page.described import looks
from poscli.report.page.measured import UNITS
from poscli.report.page.render import READABLE, contrast, readable, rgb
from poscli.report.pooling import headline, pool
from poscli.report.trained import Trained, configurations, reproduce
from poscli.runs.run import list_runs
from poscli.system.errors import UsageError

HALF = 0.6 / UNITS  # numbers of the page are rounded to 1e-5
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
    return section_data(report.sections[0], fake_runs(report.sections[0].group.rows))


def text_of(report: Report) -> str:
    return (report.files[0].parent / "report.html").read_text(encoding="utf-8")


def of_pair(section: dict[str, Any], protocol: int, kind: str, i: int, j: int, k: int) -> list[float]:
    """The difference of encodings i and j at a length, with its interval: as page.js reads it."""
    high, low = max(i, j), min(i, j)
    at = ((high * (high - 1) // 2 + low) * len(section["lengths"]) + k) * 3
    found = section["pairs"][protocol][kind]["numbers"][at : at + 3]
    values = [np.nan if value is None else value / UNITS for value in found]
    return values if i > j else [-values[0], -values[2], -values[1]]


def test_every_pair_is_that_of_the_comparison_in_the_report(report: Report, section: dict[str, Any]) -> None:
    group, names = report.sections[0].group, [each["name"] for each in section["encodings"]]
    main, seen = section["main"], set()
    for base in range(len(names)):
        table = against(group.rows, group.units, names[base]).set_index(["encoding", "length"])
        for (name, length), row in table.iterrows():
            k, n = section["lengths"].index(length), names.index(name)
            found = of_pair(section, main, "loss", n, base, k)
            assert found == pytest.approx(list(row[["difference", "low", "high"]]), abs=HALF, nan_ok=True)
            letter = section["pairs"][main]["loss"]["words"][base][n * len(section["lengths"]) + k]
            assert LETTERS[letter] == row["word"]
            seen.add(letter)
    assert seen == set(LETTERS) - {"t"}


def test_points_are_those_that_the_report_pools(report: Report, section: dict[str, Any]) -> None:
    rows = report.sections[0].group.rows
    names = [each["name"] for each in section["encodings"]]
    for number, protocol in enumerate(section["protocols"]):
        for row in pool(rows, protocol["name"]).to_dict("records"):
            found = section["points"][number][names.index(row["encoding"])][section["lengths"].index(row["length"])]
            assert (found[0], found[1]) == (row["status"], row["failed"])
            numbers = [np.nan if value is None else value for value in found[3:9]]
            assert numbers[0] == pytest.approx(row["bpb"], abs=HALF, nan_ok=True)
            assert numbers[3:] == pytest.approx([row["gain"], row["gain_low"], row["gain_high"]], abs=HALF, nan_ok=True)
            if protocol["name"] == headline(rows).perplexity and row["status"] == "ok":
                ends = np.log2([row["ppl_low"], row["ppl_high"]])  # one token is one byte
                assert numbers[1:3] == pytest.approx(list(ends), abs=1e-3)


def test_differences_of_gains_are_those_of_the_gains(section: dict[str, Any]) -> None:
    names, fixed = [each["name"] for each in section["encodings"]], section["gainFrom"][section["main"]]
    gains = {name: section["points"][fixed][n][-1][6] for n, name in enumerate(names)}
    for one, other in (("alibi", "rope"), ("none", "alibi"), ("rope", "none")):
        value, low, high = of_pair(
            section, fixed, "gain", names.index(one), names.index(other), len(section["lengths"]) - 1
        )
        assert value == pytest.approx(gains[one] - gains[other], abs=1e-3)
        assert low < value < high


def test_runs_of_several_tokenizers_have_no_perplexity_and_no_differences(tmp_path: Path) -> None:
    """Their documents have equal names, and other windows of text."""
    rows, positions, details = fake_tables({name: BEHAVIOUR[name] for name in ("alibi", "none", "rope")})
    other = rows["encoding"] == "rope"
    of_pieces = rows.assign(tokenizer="bpe:512", fingerprint="f" * 12, bytes=2 * rows["bytes"], bpb=rows["bpb"] / 2)
    rows = pd.concat([rows[~other], of_pieces[other]])
    report = build_report(rows, positions, tmp_path, details=details, mix=True)
    found = section_data(report.sections[0], {})
    names = [each["name"] for each in found["encodings"]]
    assert found["perplexities"] is False
    for n, name in enumerate(names):
        for base in range(n):
            mixed = (name == "rope [bpe:512]") != (names[base] == "rope [bpe:512]")
            assert np.isnan(of_pair(found, found["main"], "loss", n, base, 0)[0]) == mixed
    assert names == ["rope [bpe:512]", "alibi [bytes]", "none [bytes]"]
    by_name = build_report(rows, positions, tmp_path, details=details, mix=True, baseline="alibi [bytes]")
    assert any("alibi [bytes]" in analysis.title for analysis in by_name.sections[0].analyses)
    with pytest.raises(UsageError, match=r"--baseline alibi: no run has this encoding: .*alibi \[bytes\]"):
        build_report(rows, positions, tmp_path, details=details, mix=True, baseline="alibi")


def test_the_gain_of_another_protocol_is_its_own(section: dict[str, Any]) -> None:
    names = [each["name"] for each in section["protocols"]]
    assert {names[n]: names[gain] for n, gain in enumerate(section["gainFrom"])} == {
        "nonoverlapping": "fixed",
        "sliding": "fixed",
        "fixed": "fixed",
    }
    assert [bool(each["gain"]) for each in section["pairs"]] == [name == "fixed" for name in names]


def test_the_answer_names_the_best_its_rivals_and_its_cost(section: dict[str, Any]) -> None:
    for number, answer in enumerate(section["answers"]):
        ends = {n: line[-1][3] for n, line in enumerate(section["points"][number]) if line[-1][3] is not None}
        best = min(ends, key=lambda n: ends[n])
        text = "".join(part for part, _ in answer["sentence"])
        letters = section["pairs"][number]["loss"]["words"][best][
            len(section["lengths"]) - 1 :: len(section["lengths"])
        ]
        others = letters.count("w") + letters.count("n")
        told = f"better than {letters.count('w')} of {others} others" if "n" in letters else "better than all 4 others"
        assert told in text
        verb = "has the lowest loss" if "n" in letters else "predicts best"
        name = section["encodings"][best]["name"]
        assert answer["best"] == [
            name,
            *(each["name"] for n, each in enumerate(section["encodings"]) if letters[n] == "n"),
        ]
        assert f"{name} {verb}: {ends[best]:.3f} bits per byte [" in text
        assert "4,096 tokens (16x the training length)" in text
        logs = np.log(section["costs"][0]["values"][best])
        reach = stats.t.ppf(0.975, 2) * logs.std(ddof=1) / math.sqrt(3)
        took, low, high = (f"{math.exp(logs.mean() + k * reach):.0f} s" for k in (0, -1, 1))
        assert f"for {took} of training [{low}, {high}]" in text


def test_costs_are_lists_by_seed(report: Report, section: dict[str, Any]) -> None:
    rows, names = report.sections[0].group.rows, [each["name"] for each in section["encodings"]]
    runs = fake_runs(rows)
    seconds, reading = section["costs"]
    assert section["seeds"] == list(SEEDS)
    for n, name in enumerate(names):
        own = rows[rows["encoding"] == name].drop_duplicates("run_id").sort_values("seed")
        assert seconds["values"][n] == [runs[run].seconds for run in own["run_id"]]
        last = rows[(rows["encoding"] == name) & (rows["length"] == 4096) & (rows["protocol"] == "sliding")]
        last = last[(last["variant"] == "full") & (last["status"] == "ok")].sort_values("seed")
        expected = list(1e6 / last["tokens_per_s"]) or [None] * len(SEEDS)
        assert reading["values"][n] == pytest.approx(expected, abs=HALF)


def test_without_the_losses_of_documents_nothing_is_compared(tmp_path: Path) -> None:
    rows, positions, _ = fake_tables()
    (section,) = build_report(rows, positions, tmp_path).sections
    found = section_data(section, {})
    assert {each["loss"] for each in found["pairs"]} == {None}
    assert found["points"][found["main"]][0][-1][4] is not None  # the interval of eval.csv
    assert "not compared: the results of single documents are missing" in json.dumps(found["answers"])
    assert {each["command"] for each in found["encodings"]} == {""}


def test_intervals_without_the_losses_of_documents_are_in_bits_per_byte(tmp_path: Path) -> None:
    """Of tokens of 4 bytes: a loss of 4 bits per token, from 3.9 to 4.1, is one of 1 bit per byte, 0.975 to 1.025."""
    rows, positions = results({name: BEHAVIOUR[name] for name in ("alibi", "none")}, lengths=(256, 512))
    losses = {"nll": 4 * LN2, "nll_low": 3.9 * LN2, "nll_high": 4.1 * LN2, "ppl": 16.0, "bpb": 1.0}
    rows = rows.assign(tokenizer="bpe:512", bytes=4 * rows["tokens"], **losses)
    with undrawn():
        (section,) = build_report(rows, positions, tmp_path).sections
    found = section_data(section, {})
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
    for path in write_site(report, tmp_path / "site", {}):
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


def test_a_task_with_right_answers_is_judged_by_its_accuracy(task: Report) -> None:
    summary = task.summary.set_index("encoding")
    assert list(summary.index) == ["alibi", "rope", "none", "learned"]  # by accuracy, failures last
    assert summary["verdict"].to_dict() == {
        "alibi": "solved", "rope": "fades", "none": "unsolved", "learned": "unsupported",
    }  # fmt: skip
    found = section_data(task.sections[0], {})
    names = [each["name"] for each in found["encodings"]]
    (answer,) = found["answers"]
    text = "".join(part for part, _ in answer["sentence"])
    assert text.startswith(
        "Asked in windows of 4,096 tokens (16x the training length), alibi has the most answers right"
    )
    assert "1.000 of them [0.955, 1.000], better than all 2 others, beyond noise" in text
    assert dict(answer["facts"])["What does a guess get right?"].startswith("0.100")
    points = by_length(task.sections[0].group.details["answers"])
    for row in points.to_dict("records"):
        at = found["answered"]["points"][names.index(row["encoding"])][found["lengths"].index(row["length"])]
        assert at == pytest.approx([row["accuracy"], row["low"], row["high"]], abs=HALF)
    assert found["answered"]["points"][names.index("learned")][-1] is None


def test_differences_of_accuracy_are_those_of_the_report(task: Report) -> None:
    group = task.sections[0].group
    found = section_data(task.sections[0], {})
    names, units = [each["name"] for each in found["encodings"]], wrong_answers(group.details["answers"], "answer")
    shown = found | {"pairs": [{"accuracy": found["answered"]["pairs"]}]}
    for base in range(len(names)):
        for row in against(group.rows, units, names[base]).to_dict("records"):
            k, n = found["lengths"].index(row["length"]), names.index(row["encoding"])
            pair = of_pair(shown, 0, "accuracy", n, base, k)
            assert pair == pytest.approx([row["difference"], row["low"], row["high"]], abs=HALF, nan_ok=True)
            letter = found["answered"]["pairs"]["words"][base][n * len(found["lengths"]) + k]
            assert LETTERS[letter] == row["word"]
    right = group.details["answers"].pivot_table(values="right", index=["encoding", "seed"], columns=["length", "unit"])
    alibi, rope = right.loc["alibi"][4096] / 4, right.loc["rope"][4096] / 4
    pair = of_pair(shown, 0, "accuracy", names.index("alibi"), names.index("rope"), 4)
    assert pair[0] == pytest.approx((alibi - rope).to_numpy().mean(), abs=HALF)


def test_the_site_of_a_task_has_the_accuracy_of_each_encoding(task: Report, tmp_path: Path) -> None:
    write_site(task, tmp_path, fake_runs(task.sections[0].group.rows))
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
        write_site(report, tmp_path, {})
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("index.html", "mine")]


def test_the_configuration_of_the_models_is_among_the_facts() -> None:
    small, large = (RunConfig(encoding="none", model=PRESETS[name], batch=8) for name in ("nano", "tiny"))
    both = dict(configurations([Trained(small, {}), Trained(large, {})]))
    model = large.model
    sizes = f"{model.layers} layers, width {model.width}, {model.heads} heads"
    assert both["Model"] == f"2 layers, width 64, 4 heads; {sizes}"
    assert both["Training batch"] == f"8 windows of {small.length} tokens"
    parts = [Trained(small.model_copy(update={"accumulate": count}), {}) for count in (1, 4)]
    assert dict(configurations(parts))["Training batch"] == both["Training batch"]  # accumulate divides the batch
    assert both["Precision"] == "float32"
    assert configurations([]) == []


@pytest.mark.wide  # tests/browser/test_browser.py opens such a page
def test_fifty_three_encodings_weigh_less_than_two_megabytes(tmp_path: Path) -> None:
    with undrawn():
        report = fake_report(tmp_path, many(53))
    assert len(text_of(report).encode()) < 2e6
    assert len(report.summary) == 53


def test_colors_can_be_read_and_members_of_a_family_differ(section: dict[str, Any]) -> None:
    for paper in ("#ffffff", "#15181c"):
        for color in ("#000000", "#3592C4", "#B07800"):
            assert contrast(rgb(readable(color, paper)), rgb(paper)) >= READABLE - 0.1  # rounded to 256 steps
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


def test_commands_repeat_seeds_and_quote_specs() -> None:
    runs = [Trained(RunConfig(encoding="rope|none", seed=seed), {"max_len": 4096}) for seed in (2, 0)]
    line = reproduce(runs)
    assert line.startswith("for seed in 0 2; do poscli train --enc 'rope|none' ")
    assert line.endswith(" --seed $seed; done && poscli extrapolate --enc 'rope|none' --max-len 4096")
    assert reproduce([]) == ""


def test_tables_in_latex_hold_every_encoding_and_no_open_sign(report: Report) -> None:
    text = (report.files[0].parent / "tables.tex").read_text(encoding="utf-8")
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    assert [line.split(" & ")[0] for line in body] == [latex(name) for name in report.summary["encoding"]]
    assert len({line.count(" & ") for line in body}) == 1
    assert re.sub(r"\\[&%$#_{}]", "", latex("50 % & $x_1^2$ {#}~")).count("%") == 0


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
    runs = fake_runs(report.sections[0].group.rows)
    paths = write_site(report, tmp_path, runs)
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
    rows = report.sections[0].group.rows
    fewer = build_report(
        rows[rows["encoding"] != "alibi"], pd.DataFrame(columns=["encoding", "run_id"]), tmp_path / "r"
    )
    write_site(fewer, tmp_path, runs)
    assert not alibi.exists()
    assert (tmp_path / "notes.txt").exists()
