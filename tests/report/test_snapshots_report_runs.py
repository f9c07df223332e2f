"""What reports take from the folders of runs, and the small functions that write their words and files."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_runner import cli
from fake_pages import summarized
from fake_results import BEHAVIOUR, results, units_of
from lines import bare_table, outcome, sections
from oracles.table import MARKS, with_table
from torture.reports import undrawn

from poscli import api, workflows
from poscli.config.run import PRESETS, SCHEMA, CheckpointConfig, ModelConfig, Recalibration, Recipe, RunConfig
from poscli.report import catalogue
from poscli.report.caveats import budget_note, passed, tokens_until
from poscli.report.collect import (
    Trained,
    collect,
    configurations,
    refuse_damaged,
    reproduce,
    timed_together,
    timing_note,
    trained_runs,
    training_seconds,
)
from poscli.report.documents import explanations
from poscli.report.folder import UNFINISHED, write_folder
from poscli.runs.results import Tables, write_evaluation, write_training_log
from poscli.runs.run import Run, create, evaluated_as
from poscli.runs.schema import TRAIN_COLUMNS

Say = Callable[..., None]
PRINT = "3f2a9c41d0e7"


def curve(start: float, end: float, wobble: float = 0.0, rows: int = 40) -> tuple[tuple[int, float], ...]:
    """A training log whose loss falls from `start` to `end`, linearly in the logarithm of the tokens."""
    tokens = [1000 * (n + 1) for n in range(rows)]
    falls = [start + (end - start) * np.log(t / 1000) / np.log(rows) for t in tokens]
    return tuple((t, float(loss + wobble * (-1) ** n)) for n, (t, loss) in enumerate(zip(tokens, falls, strict=True)))


CURVES = {
    "falls": curve(5.0, 3.6),
    "falls, with noise": curve(5.0, 3.6, 0.05),
    "nearly there": curve(5.0, 3.31),
    "too slow": curve(5.0, 4.8),
    "does not fall": curve(4.0, 4.0, 0.05),
    "rises": curve(4.0, 4.5),
    "is there": curve(5.0, 2.0),
    "eight rows": curve(5.0, 3.5, rows=8),
    "six rows": curve(5.0, 3.5, rows=6),
    "one row": ((1000, 3.0),),
    "none": (),
}


def test_how_much_longer_a_training_would_have_to_be(snapshot: Say) -> None:
    """Of encodings that only guess (alibi, rope and t5), beside others whose training loss did fall."""
    rows, _ = results(lengths=(256, 512))
    guessing = rows["encoding"].isin(["alibi", "rope", "t5(buckets=32)"])
    rows = rows.assign(guess_gain_low=rows["guess_gain_low"].mask(guessing, -0.1))
    runs = rows.drop_duplicates("encoding").set_index("encoding")["run_id"]

    def note(rows: pd.DataFrame = rows, /, **curves: str) -> str:
        known = {runs[name]: Trained(RunConfig(encoding=name), {}, curve=CURVES[each]) for name, each in curves.items()}
        return " ".join(budget_note(rows, summarized(rows), known)) or "nothing"

    said = {
        "each curve": bare_table(
            [name, passed(each, 3.3) if each else "-", tokens_until(each, 3.3) if each else "-"]
            for name, each in CURVES.items()
        ),
        "notes": "\n".join(
            [
                note(),
                note(alibi="none", rope="none"),
                note(alibi="falls"),
                note(alibi="falls", rope="nearly there", learned="is there", none="is there"),
                note(alibi="falls", rope="too slow", sinusoidal="falls"),
                note(alibi="does not fall", rope="rises", **{"t5(buckets=32)": "six rows"}, learned="is there"),
                note(alibi="is there"),
                note(learned="is there"),
                note(rows.assign(trained_on="text:another"), alibi="falls"),
            ]
        ),
        "by another guess": bare_table([guess, passed(CURVES["is there"], guess)] for guess in (5.0, 4.0, 2.5, 2.0)),
    }
    snapshot(sections(said), rounded=True)


SETTINGS = {
    "max_len": 4096, "tokens": 2048, "stride": 64, "ngram": 5, "ratios": [1.0, 2.5], "baselines": ["window", "sink(4)"],
    "protocols": ["fixed"],
}  # fmt: skip
OTHER = RunConfig(
    encoding="rope|none", task="copy", corpus="text:my books", tokenizer="bpe:300", seed=4, length=128, batch=3,
    accumulate=3, tokens=7000, precision="bfloat16", model=PRESETS["small"].model_copy(update={"memory": 32}),
    recipe=Recipe(matrix_lr=0.02, clip=0.5),
)  # fmt: skip
ODD = RunConfig(encoding="none", model=ModelConfig(layers=1, width=96, heads=1, mlp=100, memory=8))
CHECKPOINT = CheckpointConfig(name="llama", source="hf:org/llama@main", digest="d", parameters=7)


def test_what_training_took_and_the_commands_that_repeat_it(snapshot: Say) -> None:
    """Configurations, commands, times side by side, and logs; all of invented runs."""
    as_yarn = RunConfig(encoding="yarn(factor=4.0)", seed=2)
    several = [Trained(RunConfig(encoding="rope", seed=seed), {"max_len": 1024}) for seed in (7, 0, 3)]
    commands = {
        "several seeds": reproduce(several),
        "one seed": reproduce([Trained(OTHER, SETTINGS)]),
        "an odd shape": reproduce([Trained(ODD, {})]),
        "under another encoding": reproduce([Trained(as_yarn, {"max_len": 1024}, trained_as="rope")]),
        "recalibrated": reproduce([Trained(as_yarn, {}, "rope", Recalibration(tokens=9000, length=2048))]),
        "a checkpoint": reproduce([Trained(RunConfig(encoding="rope", checkpoint=CHECKPOINT), SETTINGS)]),
        "nothing": reproduce([]),
    }
    spans: dict[str, tuple[str, tuple[float, float] | None]] = {
        "a": ("one", (0.0, 10.0)), "b": ("one", (9.0, 20.0)), "c": ("one", (15.0, 30.0)), "d": ("other", (0.0, 30.0)),
        "e": ("one", None), "f": ("one", (28.0, 40.0)), "g": ("one", (40.0, 41.0)),
    }  # fmt: skip
    known = {name: Trained(ODD, {}, training=name, machine=m, span=span) for name, (m, span) in spans.items()}
    known["c.as.none"] = known["c"]  # another evaluation of the same training
    times = [["run", "beside another, of"], *([name, timed_together([name], known)] for name in [*known, "unknown"])]
    logs = {
        "one row": [(10, 4.0)], "two rows": [(10, 9.0), (30, 11.0)], "a clock that stood still": [(1, 2.0), (9, 2.0)],
        "steps that stood still": [(5, 1.0), (5, 3.0)], "many": [(1, 5.0), (2, 6.0), (101, 15.0)],
    }  # fmt: skip
    said = {
        "configurations": bare_table(configurations([Trained(each, {}) for each in (OTHER, ODD, several[0].config)])),
        "of checkpoints": str(configurations([Trained(RunConfig(encoding="rope", checkpoint=CHECKPOINT), {})])),
        "commands": bare_table(commands.items()),
        "times": bare_table(times),
        "notes": "\n".join([timing_note(known, known), timing_note(["a", "d"], known), timing_note(["b", "g"], known)]),
        "seconds": bare_table(
            [k, training_seconds(pd.DataFrame(v, columns=["step", "seconds"]))] for k, v in logs.items()
        ),
    }
    snapshot(sections(said))


def written_run(runs: Path, encoding: str, seed: int = 0, *, tokens: int = 9000, state: str = "complete") -> Run:
    """A run on disk with a training log, not evaluated yet."""
    config = RunConfig(encoding=encoding, seed=seed, length=256)
    env = {"corpus": {"fingerprint": PRINT}, "schema": SCHEMA, "machine": "bench"}
    run = create(runs / config.run_id(PRINT), config, env)
    with run.locked():
        logs = [dict.fromkeys(TRAIN_COLUMNS, 1) | {"tokens": tokens // 2, "nll": 3.0, "step": 5, "seconds": 2}]
        logs += [dict.fromkeys(TRAIN_COLUMNS, 1) | {"tokens": tokens, "nll": 2.0, "step": 10, "seconds": 4}]
        write_training_log(run, logs)
        run.set_status(state, 10)
    return run


def evaluate(run: Run, label: str = "", documents: int = 0, **columns: object) -> None:
    """Write an invented evaluation to a run, or to the evaluation of it under another encoding, with some documents."""
    rows, positions = results({label or run.config.encoding: BEHAVIOUR["rope"]}, train_length=256, lengths=(256, 512))
    rows, positions = (
        each.assign(run_id=run.id, seed=run.config.seed, fingerprint=PRINT) for each in (rows, positions)
    )
    details = {"units": units_of(rows, documents)} if documents else {}
    with run.locked():
        write_evaluation(run, Tables(rows.assign(**columns), positions, details), {"max_len": 512})


def test_what_is_read_from_a_folder_of_runs(here: Path, snapshot: Say, capsys: pytest.CaptureFixture[str]) -> None:
    """Sound runs beside runs that are waiting, damaged, stopped, and evaluated under other encodings."""
    runs = Path("runs")
    said = {"no folder": outcome(lambda: collect(runs))}
    alibi, rope = written_run(runs, "alibi"), written_run(runs, "rope", 1, tokens=5000)
    said["no evaluation"] = outcome(lambda: collect(runs))
    broken = written_run(runs, "sinusoidal")
    evaluate(broken)
    (broken.folder / "eval.csv").write_text("nothing")
    said["a damaged one only"] = outcome(lambda: collect(runs))
    evaluate(alibi)
    evaluate(written_run(runs, "none", state="interrupted"))
    part = evaluated_as(rope, "yarn(factor=4.0)")
    part.folder.mkdir(parents=True)
    evaluate(part, "rope as yarn(factor=4.0)")
    spoiled = evaluated_as(alibi, "none")
    spoiled.folder.mkdir(parents=True)
    evaluate(spoiled, "alibi as none")
    (spoiled.folder / "eval.json").write_text("{")
    lost = written_run(runs, "learned")
    evaluate(lost)
    (lost.folder / "train.csv").unlink()
    capsys.readouterr()
    found = collect(runs, {"accuracy": ("float64", "share of right answers")})
    said["notes"] = capsys.readouterr().err
    kept = found.rows.drop_duplicates("run_id")
    said["runs"] = bare_table(kept[["run_id", "encoding", "seed"]].itertuples(index=False))
    said["tables"] = bare_table([name, len(each)] for name, each in {"": found.positions, **found.details}.items())
    said["left out"] = bare_table(found.left_out.items())
    said["trained"] = bare_table(
        [
            name,
            each.training,
            each.trained_as,
            each.machine,
            each.tokens,
            each.seconds,
            each.span and f"{each.span[1] - each.span[0]:g} s",
            each.curve,
        ]
        for name, each in sorted(trained_runs(runs).items())
    )
    names = ["alibi", "sinusoidal", broken.id, broken.id[:13], lost.id, "nobody", alibi.id]
    said["refused"] = bare_table([name, outcome(lambda name=name: refuse_damaged(found, name))] for name in names)
    snapshot(sections(said))


def test_a_diverged_seed_is_one_of_its_encoding_and_the_api_says_what_the_report_says(here: Path) -> None:
    """The log of rope's second seed ends early; alibi is beyond the gate, but not surely so."""
    shapes = {"none": BEHAVIOUR["alibi"], "alibi": (1.385 + math.log(1.26), BEHAVIOUR["alibi"][1])}
    for encoding, seed in itertools.product(("rope", "none", "alibi"), range(3)):
        failed = (encoding, seed) == ("rope", 1)
        run = written_run(Path("runs"), encoding, seed, tokens=500 if failed else 4000)
        rows, positions = results({encoding: shapes.get(encoding, BEHAVIOUR["rope"])}, lengths=(256, 512))
        rows, positions = (each.assign(run_id=run.id, seed=seed, fingerprint=PRINT) for each in (rows, positions))
        if failed:
            rows = rows.assign(status="diverged", reason="NaN", nll=math.nan, ppl=math.nan, bpb=math.nan, gain=math.nan)
            positions = positions[:0]
        units = units_of(rows, documents=16)
        units["nll"] += np.where(units["unit"].astype(int) % 2, 0.2, -0.2) * (encoding == "alibi")
        with run.locked():
            write_evaluation(run, Tables(rows, positions, {"units": units}), {"max_len": 512})
    with undrawn():
        (section,) = workflows.report(collect(Path("runs")), Path("runs"), Path("report")).sections
    said = {each.name: (each.seeds, each.verdict) for each in section.encodings}
    assert said == {"none": (3, "uses context"), "alibi": (3, "uses context"), "rope": (3, "diverged")}
    told = api.summary(".")
    assert {row["encoding"]: (row["seeds"], row["verdict"]) for row in told.to_dict("records")} == said


def test_a_comparison_over_spans_says_so(here: Path) -> None:
    for name in ("alibi", "rope"):
        evaluate(written_run(Path("runs"), name), documents=16, resampled="spans")
    told = cli("compare", "alibi", "rope", "--out", ".")
    assert "16 spans" in told.out
    assert "over spans only" in told.err
    assert "intervals come from spans of text and are too narrow; score more --tokens" in told.err


def test_what_corpora_protocols_and_baselines_are(snapshot: Say) -> None:
    """Explained at the end of a report; an unknown name is said to be unknown."""
    rows, _ = results({"rope": BEHAVIOUR["rope"]}, lengths=(512,))
    more = rows.assign(corpus="images").replace(
        {"protocol": {"fixed": "new*"}, "variant": {"window": "sink(4)+window"}}
    )
    unknown = rows.replace({"variant": {"window": "dream(3)"}, "protocol": {"fixed": "answer"}})
    snapshot("\n".join(explanations(pd.concat([rows, more, unknown]))))


def test_the_table_of_encodings(snapshot: Say) -> None:
    """Every registered encoding with what its class says, but for the engine; and the table of README.md."""
    columns = ("name", "family", "tier", "acts_on", "shared", "relative", "rescales", "parameters")
    rows = [[*(row[name] for name in columns), catalogue.options_text(row)] for row in catalogue.describe_encodings()]
    begin, end = MARKS
    readme = with_table(f"before\n{begin}\nold\n{end}\nafter")
    snapshot(sections({"encodings": bare_table(rows), "README": readme}))


def test_the_folder_of_a_report(tmp_path: Path, snapshot: Say, capsys: pytest.CaptureFixture[str]) -> None:
    """What is written, kept and removed when reports follow each other in one folder."""
    said: dict[str, str] = {}

    def write(
        step: str, *names: str, before: Callable[[Path], object] = lambda _: None, folder: str = "report"
    ) -> None:
        target = tmp_path / folder
        before(target)
        capsys.readouterr()
        failed = outcome(lambda: write_folder(target, {name: f"{step} {name}".encode() for name in names}))
        listed = sorted(target.iterdir()) if target.exists() else []
        files = [f"{path.name}: {path.read_text()}" for path in listed if path.name != "files.json"]
        marks = json.loads((target / "files.json").read_text()) if (target / "files.json").exists() else "no list"
        known = {name: len(each) for name, each in marks.items()} if isinstance(marks, dict) else marks
        text = "\n".join([failed, *files, str(known), capsys.readouterr().err])
        said[step] = text.replace(str(tmp_path), "FOLDER")

    write("first", "report.md", "summary.csv", "gain.png", "place-x-L256.svg")
    write("second", "report.md", "summary.csv")
    write("third", "report.md", "gain.png", "recall.pdf")
    write("changed", "report.md", before=lambda folder: (folder / "gain.png").write_text("mine"))
    write("damaged", "report.md", before=lambda folder: (folder / "files.json").write_text("[]"))
    write(
        "strange",
        "report.md",
        before=lambda folder: (folder / "files.json").write_text('{"../a": ["x"], "report.md": [], "gain.png": []}'),
    )
    (tmp_path / "other").mkdir()
    write("of the user", "report.md", before=lambda folder: (folder / "report.md").write_text("mine"), folder="other")
    (tmp_path / "own").mkdir()
    write("no page", "report.md", "gain.png", before=lambda own: (own / "gain.png").write_text("mine"), folder="own")
    said["unfinished"] = UNFINISHED
    snapshot(re.sub(r"[0-9a-f]{64}", "SHA", sections(said)))
