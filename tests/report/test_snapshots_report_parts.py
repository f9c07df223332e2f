"""Parts of reports on results that differ in more than the seed: names, doubts, comparisons, terminals, sites."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawn import drawn
from fake_pages import fake_runs, fake_tables, summarized, tables_with_holes, task_tables
from fake_results import BEHAVIOUR, of_two_tokenizers, results, units_of
from lines import bare_table, outcome, outline, printed, sections
from torture.reports import undrawn

from poscli.config.run import RunConfig
from poscli.report import About, build_report, terminal
from poscli.report.build import for_spreadsheets
from poscli.report.caveats import caveats
from poscli.report.collect import Trained
from poscli.report.comparison import compare_named
from poscli.report.groups import split
from poscli.report.page.site import site_pages
from poscli.report.pooling import headline, points_of
from poscli.report.summary import records
from poscli.runs.results import Tables
from poscli.runs.schema import DETAILS, POSITION_COLUMNS, frame

LOOKS_AT_PICTURES = True
Say = Callable[..., None]
NOTHING = frame([], POSITION_COLUMNS)


def few(*names: str, seeds: tuple[int, ...] = (0,), lengths: tuple[int, ...] = (256, 1024)) -> pd.DataFrame:
    """Rows of these encodings."""
    return results({name: BEHAVIOUR[name] for name in names}, seeds=seeds, lengths=lengths)[0]


def test_names_and_titles_of_sections(snapshot: Say) -> None:
    """Runs of one encoding that differ in parameters, tokens of training or nothing that is known; and other texts."""
    plain = few("alibi", "rope", seeds=(0, 1))
    larger = plain.assign(run_id="L" + plain["run_id"], parameters=1_234_567)
    again = plain[plain["encoding"] == "rope"].assign(run_id=lambda own: own["run_id"] + ".as.x-9f")
    longer = plain[plain["seed"] == 0].assign(run_id=lambda own: "longer-" + own["run_id"], seed=7)
    books = plain.assign(run_id="b" + plain["run_id"], corpus=f"text:{'my books/' * 6}1", fingerprint="77aa88bb")
    twin = books.assign(run_id="t" + plain["run_id"], fingerprint="77aa88cc")
    signs = books.assign(run_id="s" + plain["run_id"], corpus="\u00a7", fingerprint="99aa88cc")
    short = few("alibi").assign(run_id="short-1", train_length=128, ratio=lambda own: own["length"] / 128)
    hostile = plain.assign(encoding=plain["encoding"] + "\x1b[31m\n", corpus="a\tb", fingerprint="<b>")
    known = pd.concat([plain, larger, again, books, twin, signs, short, hostile])["run_id"]
    budgets = dict.fromkeys(longer["run_id"], 4000) | dict.fromkeys(known, 9000)
    runs = {run: Trained(RunConfig(encoding="rope"), {}, tokens=budget) for run, budget in budgets.items()}
    cases: dict[str, tuple[list[pd.DataFrame], bool]] = {
        "plain": ([plain], False),
        "sizes": ([plain, larger], False),
        "the same seed twice": ([plain, again], False),
        "tokens of training": ([plain, longer], False),
        "texts": ([plain, books, twin, signs, short], False),
        "texts, mixed": ([plain, books, twin, signs, short], True),
        "hostile": ([hostile], False),
        "two tokenizers, mixed": ([of_two_tokenizers()[0].query("encoding == 'rope'")], True),
    }
    said = {}
    for name, (tables, mix) in cases.items():
        lines = []
        for group in split(pd.concat(tables, ignore_index=True), NOTHING, mix=mix, runs=runs):
            labels = group.rows.drop_duplicates("run_id")[["run_id", "encoding"]]
            lines += [f"{group.title!r} {group.slug!r}", *group.notes, bare_table(labels.itertuples(index=False))]
        said[name] = "\n".join(lines)
    formulas = pd.DataFrame({"a": ["=1", "+1", "-1", "@1", "1", "\uff1d1", "a=1"], "n": [-1, 2, 3, 4, 5, 6, 7]})
    said["for spreadsheets"] = for_spreadsheets(formulas).to_csv(index=False)
    snapshot(sections(said))


def test_doubts_about_numbers(snapshot: Say) -> None:
    """Every caveat alone, and none."""
    rows = few("alibi", "learned", "rope", "sinusoidal", seeds=(0, 1, 2), lengths=(256, 512, 1024))
    rope, fixed = rows["encoding"] == "rope", rows["protocol"] == "fixed"
    hole = (rows["encoding"] == "alibi") & (rows["length"] == 512) & (rows["seed"] > 0)
    odd = rope & (rows["length"] == 512)
    cases = {
        "nothing": rows,
        "a hole": rows.assign(status=rows["status"].mask(hole, "oom"), reason=rows["reason"].mask(hole, "no memory")),
        "a loss without end": rows.assign(nll=rows["nll"].mask(hole, np.inf)),
        "one seed": rows[rows["seed"] == 0],
        "two seeds": rows[rows["seed"] < 2],
        "two seeds of some": rows[(rows["seed"] < 2) | rope],
        "spans": rows.assign(resampled=rows["resampled"].mask(fixed & odd, "spans")),
        "spans elsewhere": rows.assign(resampled=rows["resampled"].mask(rows["protocol"] == "nonoverlapping", "spans")),
        "sizes": rows.assign(parameters=rows["parameters"].mask(rope, 842_000 * 1.16).astype(int)),
        "nearly equal sizes": rows.assign(parameters=rows["parameters"].mask(rope, 842_000 * 1.14).astype(int)),
        "strides": rows.assign(stride=rows["stride"].mask(odd, 64)),
        "windows": rows.assign(bytes=rows["bytes"].mask(odd, 99_000)),
        "windows of a baseline": rows.assign(bytes=rows["bytes"].mask(odd & (rows["variant"] == "crop"), 99_000)),
        "dtypes": rows.assign(dtype=rows["dtype"].mask(rope, "bfloat16")),
        "machines": rows.assign(machine=rows["machine"].mask(rope, "").mask(odd, "other")),
        "episodes": rows.query("protocol == 'sliding' and seed == 0").assign(protocol="answer", gain=np.nan),
    }
    snapshot(bare_table([name, *doubts(each)] for name, each in cases.items()))


def doubts(rows: pd.DataFrame) -> list[str]:
    return caveats(rows, summarized(rows), points_of(rows, headline(rows).perplexity)) or ["-"]


def by_run(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each run."""
    return [part for _, part in rows.groupby("run_id")]


def test_tables_in_the_terminal(snapshot: Say) -> None:
    """New rows, run by run and summed; summaries that a narrow terminal shortens; reports that leave runs out."""
    rows = few("alibi", "learned", "rope", lengths=(256, 512))
    second = few("rope", seeds=(3,), lengths=(256, 512))
    second = second.assign(
        machine="other", tokens_per_s=np.nan, protocol=second["protocol"].replace("sliding", "nine-char")
    )
    elsewhere = second.assign(corpus="text:x", machine="bench").replace({"protocol": {"nine-char": "ten-letter"}})
    guessing = rows.assign(guess_gain_low=-0.1)
    unfinished = rows.assign(reason="", status=rows["status"].mask(rows["encoding"] == "alibi", "diverged"))
    bpe, _ = of_two_tokenizers()
    bpe = bpe[(bpe["encoding"] == "rope") & (bpe["length"] == 512)]
    task = task_tables()[0].query("seed == 0 and length < 1000")
    fresh = {
        "one run": [rows[rows["encoding"] == "rope"]],
        "failures": [rows[rows["encoding"] == name] for name in ("alibi", "learned")],
        "without a reason": by_run(unfinished),
        "machines, seeds and protocols": [rows[rows["encoding"] == "rope"], second],
        "two tokenizers": by_run(bpe),
        "two texts": [rows[rows["encoding"] == "rope"], elsewhere],
        "of images": [rows.assign(corpus="images").query("encoding == 'rope'")],
        "of a task": by_run(task),
        "only guesses": by_run(guessing),
    }
    said = {
        name: printed(lambda console, each=each: terminal.show_fresh(each, console), 100)
        for name, each in fresh.items()
    }
    said["summed"] = printed(
        lambda console: terminal.show_verdicts(Tables(pd.concat([rows, second]), NOTHING), console), 130
    )
    group = split(
        rows.assign(encoding=rows["encoding"].replace("rope", "rope(base=500000.0)+window(width=128)")), NOTHING
    )[0]
    for width in (120, 100, 80, 60, 40):
        shown = printed(lambda console: terminal.show_verdicts(Tables(group.rows, NOTHING), console), width)
        said[f"{width} columns"] = shown
    snapshot(sections(said), rounded=True)


def test_a_report_in_a_narrow_terminal(tmp_path: Path, snapshot: Say) -> None:
    """Failures, encodings that only guess, runs that are left out, and a title that a terminal must not obey."""
    rows, positions, details = tables_with_holes()
    rows = rows.assign(guess_gain_low=rows["guess_gain_low"].mask(rows["encoding"] == "none", -0.1))
    about = About(title="Holes\x1b[31m", description="What is\nmissing", left_out=[f"{Path.cwd()}/runs/a-1: damaged"])
    report = build_report(
        rows, positions, tmp_path, details=details, runs=fake_runs(rows), about=about, baseline="rope"
    )
    page = report._repr_html_().replace(str(tmp_path), "FOLDER")
    said = {
        "shown": printed(lambda console: terminal.print_report(report, console), 80),
        "in a notebook": re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL),
        "repr": repr(report).replace(str(tmp_path), "FOLDER"),
        "notes": "\n".join(report.notes),
        "records": "\n".join(outline(records(report.summary)[0])),
    }
    snapshot(sections(said), rounded=True)


def test_two_selections_compared(snapshot: Say) -> None:
    """Encodings and single runs, of losses and of answers; and whatever cannot be compared."""
    rows, _, details = fake_tables({name: BEHAVIOUR[name] for name in ("alibi", "learned", "rope")}, (256, 512))
    details |= {"answers": frame([], DETAILS["answers"])}
    task, _, of_task = task_tables()
    books = rows.assign(run_id="b" + rows["run_id"], corpus="text:books", fingerprint="77aa77aa")
    news = books.assign(run_id="n" + rows["run_id"], corpus="text:news", fingerprint="77ab0000")
    bpe = rows.assign(run_id="e" + rows["run_id"], tokenizer="bpe:300", fingerprint="88aa77aa")
    short = rows.assign(run_id="s" + rows["run_id"], train_length=128)
    every = pd.concat([rows, books, news], ignore_index=True)
    lone, odd = rows.drop_duplicates("run_id")["run_id"].iloc[0], rows[rows["seed"] == 1]
    failed = rows.assign(status=rows["status"].mask(rows["seed"] == 2, "oom"))
    everywhere = details | {"units": units_of(every)}
    short_of = {**details, "units": details["units"][details["units"]["unit"].isin(list("0123"))]}
    rope = rows["encoding"] == "rope"
    again = pd.concat([rows, rows.assign(run_id="again" + rows["run_id"])])
    cases: dict[str, tuple[pd.DataFrame, dict[str, pd.DataFrame], str, str, dict[str, str]]] = {
        "two encodings": (rows, details, "rope", "alibi", {}),
        "the other way round": (rows, details, "alibi", "rope( )", {}),
        "single runs": (rows, details, "alibi-3f22560", "rope-3f22561", {}),
        "a run and an encoding": (rows, details, lone, "rope", {"protocol": "fixed"}),
        "one without all lengths": (rows, details, "learned", "rope", {}),
        "a seed that failed": (failed, details, "rope", "alibi", {"protocol": "nonoverlapping"}),
        "answers": (task, of_task, "rope", "alibi", {}),
        "few documents": (odd, short_of, "rope", "alibi", {}),
        "a part of the name of a corpus": (every, everywhere, "rope", "alibi", {"corpus": "text:b"}),
        "a fingerprint": (every, details, "rope", "alibi", {"corpus": "3f2a"}),
        "two corpora": (every, details, "rope", "alibi", {}),
        "corpora of one beginning": (every, details, "rope", "alibi", {"corpus": "text"}),
        "no such corpus": (every, details, "rope", "alibi", {"corpus": "book"}),
        "other texts": (every, details, "alibi-", "brope-3f22560", {}),
        "spans": (rows.assign(resampled="spans"), details, "rope", "alibi", {}),
        "texts apart": (every, details, "alibi-3f22560", "brope-3f22560", {}),
        "tokenizers apart": (pd.concat([rows, bpe]), details, "alibi-3f22560", "erope-3f22560", {}),
        "two tokenizers": (pd.concat([rows, bpe]), details, "alibi", "rope", {}),
        "one name for both": (rows, details, "rope", "rope-3f22561", {}),
        "training lengths": (pd.concat([rows, short]), details, "rope", "alibi", {}),
        "two runs of one seed": (again, details, "rope", "alibi", {}),
        "no such run": (rows, details, "ropes", "alibi", {}),
        "no such protocol": (rows, details, "rope", "alibi", {"protocol": "answer"}),
        "no common length": (rows[rope == (rows["length"] > 256)], details, "rope", "alibi", {}),
        "other windows": (rows.assign(tokens=rows["tokens"] + rope), details, "rope", "alibi", {}),
        "one not trained": (rows.assign(unigram=rows["unigram"] - 9.0 * rope), details, "rope", "alibi", {}),
        "no common seed": (rows[rope == (rows["seed"] == 1)], details, "rope", "alibi", {}),
    }

    def shown(
        rows: pd.DataFrame, details: dict[str, pd.DataFrame], first: str, second: str, options: dict[str, str]
    ) -> str:
        compared = compare_named(rows, details, first, second, **options)
        table, bits = compared.table, "bits per cell" if len(compared.table) == 1 else compared.bits
        drawn = terminal.comparison_table(table, of_answers=compared.of_answers, bits=bits)
        guessing = "".join(f"{name} is not trained: {why}\n" for name, why in compared.untrained.items())
        numbers = bare_table(table.itertuples(index=False)) + "\n"
        return numbers + printed(lambda console: console.print(drawn), 90) + guessing

    snapshot(sections({name: outcome(shown, *case) for name, case in cases.items()}), rounded=True)


def test_a_site(tmp_path: Path, snapshot: Say) -> None:
    """The index, the page of a corpus without its data, and the pages of two encodings, one of which failed."""
    rows, positions, details = tables_with_holes()
    task, _, of_task = task_tables()
    task = task[task["length"].isin([256, 512, 4096])].assign(
        corpus="task:copy", fingerprint="77aa", run_id="t" + task["run_id"]
    )
    of_task = {name: each.assign(run_id="t" + each["run_id"], fingerprint="77aa") for name, each in of_task.items()}
    every = {
        name: pd.concat([details.get(name, NOTHING[:0]), of_task.get(name, NOTHING[:0])])
        for name in ("units", "answers")
    }
    both = pd.concat([rows, task], ignore_index=True)
    about = About(title="Both <b>")
    with undrawn():
        report = build_report(both, positions, tmp_path / "report", details=every, about=about, runs=fake_runs(both))
    pages = site_pages(report)
    chosen = [name for name in pages if name.startswith(("index", "encoding-learned", "encoding-rope"))]
    bodies = {
        name: re.sub(r"<(script|style).*?</\1>", "", pages[name].partition("<body")[2], flags=re.DOTALL)
        for name in chosen
    }
    snapshot(sections({"files": "\n".join(pages), **bodies}), rounded=True)


def test_what_figures_show_of_uneven_results(tmp_path: Path, snapshot: Say) -> None:
    """L is no power of two, one length is below it, lines end early or have holes, and there are four baselines."""
    shapes: dict[str, Any] = {name: (1.3 + n / 20, lambda octaves: -0.1 * octaves) for n, name in enumerate("abcde")}
    rows, positions = results(shapes | {"f": (1.4, None)}, seeds=(0, 1), train_length=96, lengths=(48, 96, 144, 384))
    name, length = rows["encoding"], rows["length"]
    rows = rows[(name != "e") | (length == 48)].fillna({"resampled": ""})
    lost, endless = (name == "c") & (length == 384) & (rows["seed"] == 1), (name == "d") & (length == 144)
    rows = rows.assign(status=rows["status"].mask(lost, "oom"), reason=rows["reason"].mask(lost, "no memory"))
    rows = rows.assign(**{each: rows[each].mask(endless, 1e6) for each in ("nll", "nll_low", "nll_high")})
    window = rows[(rows["variant"] == "window") & (rows["protocol"] == "fixed")]
    sinks = [window.assign(variant=f"sink({n})", gain=window["gain"] + n / 100) for n in range(3)]
    with undrawn():
        (section,) = build_report(pd.concat([rows, *sinks]), positions, tmp_path).sections
    said = {}
    for each in section.figures:
        lines = [(line.label or "-", bool(line.low), *line.y) for line in each.lines]
        lines += [(variant, *line.y) for variant, thin in each.baselines for line in thin]
        head = f"{each.alt}\n{each.heading}\n{each.y}\n{each.ticks}\n{each.note}"
        said[each.name] = f"{head}\n{bare_table([*lines, *((*m.names, m.cause, m.lengths) for m in each.missing)])}"
    seven = pd.concat([rows, rows[rows["encoding"] == "a"].assign(encoding="g", run_id="g" + rows["run_id"])])
    with undrawn():
        (more,) = build_report(seven, NOTHING, tmp_path).sections
    said["of seven"] = f"{more.figures[0].note} {[bool(line.low) for line in more.figures[0].lines]}"
    with undrawn():
        (short,) = build_report(rows[rows["length"] <= 96], NOTHING, tmp_path).sections
    said["up to L"] = "\n".join(each.alt for each in short.figures)
    snapshot(sections(said), rounded=True)


def test_one_model_under_many_encodings(tmp_path: Path, snapshot: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures name the model once; its training is told apart from its evaluations."""
    monkeypatch.setattr("poscli.drawing.page.written", lambda figure, _: drawn(figure).encode())
    rows, positions, details = fake_tables({name: BEHAVIOUR[name] for name in ("alibi", "none", "rope")}, (256, 1024))
    names = {"alibi": "rope as alibi", "none": "rope as none", "rope": "rope"}
    rows, positions = (each.replace({"encoding": names}) for each in (rows, positions))
    details = {name: each.replace({"encoding": names}) for name, each in details.items()}
    report = build_report(rows, positions, tmp_path, details=details)
    (section,) = report.sections
    drawings = zip(section.figures, section.pictures, strict=True)
    said = {name: f"{figure.alt}\n{(tmp_path / name).read_text()}" for figure, name in drawings}
    snapshot(sections({"answer": section.answer.text, **said}), rounded=True)
