"""Whole answers of `poscli inspect`: what it prints, its document, its pictures, property sheets, runs, the gallery."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from cli_runner import Result, cli
from grid_images import noise
from looks import NOISE, figures, pictures_as_text, short
from PIL import Image

from poscli.config.run import SCHEMA, ModelConfig, RunConfig
from poscli.inspect import absolute, gallery
from poscli.inspect.properties import measure_properties
from poscli.model.initialise import fresh_model, weights_of
from poscli.runs import checkpoint
from poscli.runs.checkpoint import Checkpoint
from poscli.runs.run import Run, create
from poscli.tasks import open_task
from poscli.verify.noise import perturbed

LOOKS_AT_PICTURES = True
FILE = """
import torch
from poscli.encodings import Encoding, Shape

class Root(Encoding):
    "s_ij -= r sqrt(i - j)"
    def __init__(self, shape: Shape, *, r: float = 1.0) -> None:
        super().__init__(shape)
        self.r = r

    def distance_bias(self, d):
        return -self.r * d.sqrt()[None]

class Nan(Encoding):
    def distance_bias(self, d):
        return torch.where(d > 40, torch.nan, -d.double())[None]

class Hidden(Encoding):
    def distance_bias(self, d):
        return torch.where(d > 40, -torch.inf, -d.double())[None]

class Zero(Encoding):
    def embed(self, x, pos, ids):
        return x * 0

    def query(self, q, pos):
        return q * 0

class Edge(Encoding):
    axes = 2

    def distance_bias(self, d):
        return torch.where((d == torch.tensor([0, 1])).all(-1), -torch.inf, -d.abs().sum(-1).double())[None]

class FailsOnLongWindows(Encoding):
    def distance_bias(self, d):
        if len(d) > 64:
            raise RuntimeError("no luck")
        return -d[None]
"""
SMALL = ("--preset", "nano", "--length", 16, "--max-len", 80, "--no-properties")
NARROW = ("--layers", 1, "--width", 16, "--heads", 2)  # heads of 8 channels
WIDE = ("--layers", 1, "--width", 24)
LENGTH = 24  # tokens of a training window of the runs
CONFIG = ModelConfig(layers=3, width=24, heads=3, mlp=32)
SHALLOW = CONFIG.model_copy(update={"layers": 1})
# What rounding decides: the last digits of float32, and a map fitted to columns that are nearly alike.
ROUNDING = re.compile(r"(?<=remainder: )\d\S+e-0[67]|(?<=from_rotation: )\d{3,}\.; off_blocks: [\d.]+")
HASH = re.compile(r"(?<=\w)-[0-9a-f]{8}\b|\b[0-9a-f]{16}\b")  # of runs and of texts

# What is inspected, and with which options: every view, alone and side by side, with and without numbers.
SHEETS: dict[str, tuple[object, ...]] = {
    "one": ("rope+alibi", *SMALL, "--heads", 3, *WIDE),
    "tables": ("sinusoidal", "learned", *SMALL, *NARROW),
    "turning": ("rope(base=40)", "rope-linear(factor=4, base=40)", "fope", *SMALL, *NARROW),
    "biases": ("t5(buckets=6, far=20)", "kerple-log+window(20)", *SMALL, *WIDE, "--heads", 3),
    "scores": ("cope(max_pos=6)", "none", "toys:Bilinear", *SMALL, "--heads", 2),
    "curves": ("alibi", "kerple-log", *SMALL, *NARROW),
    "order": ("interpolated+alibi", "toys:Sharper", *SMALL, *NARROW),
    "grids": ("alibi-2d", "sinusoidal-2d", *SMALL, *NARROW),
    "nonsense": ("mine.py:Hidden", "mine.py:Zero", *SMALL, *NARROW),
}  # fmt: skip
LAID_OUT = ("one", "grids")  # of these the whole layout is compared, too
LOOKED_AT = (*LAID_OUT, "tables", "turning", "biases", "order")  # of the others how lines and texts look, each once
# What is inspected without a look at the pictures.
DOCUMENTS: dict[str, tuple[object, ...]] = {
    "mixed": ("sinusoidal(combine=multiply)", "sinusoidal(combine=concat, base=50)", *SMALL, *NARROW),
    "layers": ("alibi|none|rope", "cope|fox", *SMALL, *NARROW, "--layers", 5),
    "many": ("|".join(["none", "logn"] * 4 + ["rope"]), *SMALL, *NARROW, "--layers", 9, "--max-len", 16),
    "others": ("xpos", "rope-dynamic", "dual-chunk", "clipped(clip=4)", "fox", *SMALL, *NARROW, "--seed", 3),
    "rest": (
        "hierarchical",
        "randomized",
        "rope-2d",
        "learned-2d",
        "mine.py:Edge",
        "mine.py:Nan",
        "mine.py:Root(r=2)",
        *SMALL,
        *NARROW,
    ),
    "long": ("logn(20)", "window(5)", "shaw(clip=4)", "--preset", "nano", "--no-properties", *NARROW),
}


@pytest.fixture(autouse=True)
def folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, where pictures are written as text."""
    pictures_as_text(monkeypatch)
    monkeypatch.setattr(absolute, "SECONDS_OF_SEARCH", 100.0)
    monkeypatch.setattr(absolute, "FARTHEST", 2**14)
    Path("mine.py").write_text(FILE)
    return here


@pytest.mark.parametrize("name", SHEETS)
def test_a_sheet(name: str, snapshot: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    pictures_as_text(monkeypatch, look=name in LOOKED_AT)
    words = cli("inspect", *SHEETS[name])
    text = in_words(words) + "".join(files(" ".join(words.out.split())))
    if name not in LAID_OUT:
        shown, _, looks = text.partition("figure: ")
        artists = (re.sub(r" at \(\S+, \S+\)|: '.*", "", line) for line in re.findall("^ .*\n", looks, re.MULTILINE))
        text = shown + "".join(dict.fromkeys(artists))
    snapshot(text, name, rounded=True)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document(name: str, snapshot: Callable[..., None]) -> None:
    with mock.patch("poscli.inspect.session.write_sheets", return_value=[]):
        snapshot(told("inspect", *DOCUMENTS[name]), name, rounded=True)


def test_maps_from_rows_to_rows(snapshot: Callable[..., None]) -> None:
    """Rotations of channels paired as neighbours, as halves and as neither, a scaling, fewer ranks, and no map."""
    t, random = np.arange(40)[:, None], np.random.default_rng(0).normal(size=(40, 6))
    cos, sin = np.cos(t * [1.0, 0.5, 0.2]), np.sin(t * [1.0, 0.5, 0.2])
    halves = np.concatenate([cos, sin], axis=1)
    tables = {
        "neighbours": np.stack([cos, sin], axis=2).reshape(40, 6), "halves": halves,
        "neither": halves[:, [1, 0, 2, 3, 4, 5]],
        "scaled": halves * 0.98**t, "two ranks": halves[:, [0, 3, 0, 3]], "none": random,
    }  # fmt: skip
    found = {name: absolute.fitted(rows[:-3], rows[3:], 3) for name, rows in tables.items()}
    lines = [f"{name}: {each.finding.partition(', to ')[0]}; {outline(each.record())}" for name, each in found.items()]
    snapshot("".join(lines), rounded=True)


# Runs that are inspected: the spec, and further fields of the configuration.
RUNS: dict[str, dict[str, dict[str, Any]]] = {
    "run-added": {"sinusoidal": {}},
    "run-of-layers": {"t5(buckets=6, far=20)|fox": {"model": CONFIG.model_copy(update={"layers": 4})}},
    "run-of-images": {"rope-2d": {"task": "grid", "corpus": "images:pictures?patch=2"}},
    "runs-with-reasons": {spec: {"model": SHALLOW} for spec in ("sinusoidal(combine=concat)", "learned+rope")},
}


@pytest.mark.parametrize("name", RUNS)
def test_trained_runs(name: str, snapshot: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run_on_disk(Path("results"), spec, **fields) for spec, fields in RUNS[name].items()]
    chosen = [word for run in runs for word in ("--run", run.id)]
    if name == "runs-with-reasons":  # whose pictures are like those of others
        monkeypatch.setattr("poscli.inspect.session.write_sheets", lambda *_: [])
    snapshot(told("inspect", *chosen, "--max-len", 5 * LENGTH, "--no-properties", "--to", "here"), name, rounded=True)


def test_which_run_is_meant(snapshot: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of runs whose ids begin alike the newest complete one, its spec allowed beside it; others are refused."""
    monkeypatch.setattr("poscli.inspect.session.write_sheets", lambda *_: [])
    out = Path("results")
    first, second = run_on_disk(out, "alibi"), run_on_disk(out, "alibi", seed=1)
    for state, seed in (("training", 2), ("diverged", 3), ("planned", 4)):
        run_on_disk(out, f"alibi+window({8 + seed})", seed=seed, state=state)
    tried = [
        ("--run", "alibi-"),
        ("--run", first.id[:8], "alibi"),
        ("--run", first.id, "--run", first.id, "--run", second.id, "--seed", 1),
        ("--run", first.id, "rope", "alibi"),
        ("--run", "alibi+window-10"),
        ("--run", "alibi+window-11"),
        ("--run", "alibi+window-12"),
        ("--run", first.id, "--max-len", LENGTH - 1),
        ("--run", first.id, "--max-len", LENGTH, "--length", LENGTH),
    ]
    results = [(words, cli("inspect", *words, "--no-properties", "--to", "here")) for words in tried]
    told = "".join(f"##### {' '.join(map(str, words))}\n{in_words(result)}" for words, result in results)
    snapshot(told.replace(first.id, "FIRST").replace(second.id, "SECOND").replace(first.id[:8], "FIR"), rounded=True)


def test_a_run_whose_text_has_changed_is_refused(snapshot: Callable[..., None]) -> None:
    run = run_on_disk(Path("results"), "none")
    Path("notes/0.txt").write_text("another text " * 20)
    result = cli("inspect", "--run", run.id, "--to", "here")
    snapshot(in_words(replace(result, err="".join(re.findall(r"^error: .*$", result.err, re.MULTILINE)))))


def run_on_disk(out: Path, spec: str, *, state: str = "complete", **fields: Any) -> Run:
    """A run whose weights are drawn, not trained: they do not depend on how a CPU rounds."""
    texts()
    config = RunConfig.model_validate(
        {"encoding": spec, "corpus": "text:notes", "length": LENGTH, "model": CONFIG, "tokens": 512} | fields
    )
    task = open_task(config.task, config.corpus, config.tokenizer)
    run = create(out / "runs" / config.run_id(task.fingerprint), config, {"corpus": task.describe(), "schema": SCHEMA})
    model = perturbed(fresh_model(config, task.describe()["vocab"], torch.device("cpu")))
    with run.locked():
        checkpoint.save(run.checkpoints, config.steps, Checkpoint(weights_of(model), {}, {}))
        run.set_status(state, config.steps)
    return run


def texts() -> None:
    """Documents too short for the longest windows, and images."""
    for folder in (Path("notes"), Path("pictures")):
        folder.mkdir(exist_ok=True)
    for n in range(12):
        words = (f"{(n + 3) * k * k % 97} keys" for k in range(5 + n % 3))
        Path(f"notes/{n}.txt").write_text(", ".join(words))
        Image.fromarray(noise(n, 24, 24)).save(f"pictures/{n}.png")


# ---- property sheets

# Specs whose properties are measured: the layers of the model, L, and whether all numbers are compared.
MEASURED = {
    "learned": (2, 40, True), "rope|none": (3, 16, True), "logn(4)+sink(2)+window(9)": (2, 64, False),
    "fox": (3, 48, False), "t5-2d": (1, 32, False), "rope-dynamic": (2, 16, False),
    "alibi+t5(buckets=6)|none": (4, 16, False), "toys:Carried": (2, 16, False),
}  # fmt: skip
TINY = re.compile(r"\b\d(?:\.\d+)?e-(?:0[4-9]|[1-9]\d)\b")  # what float32 rounds, and how that is allowed for


def test_property_sheets(snapshot: Callable[..., None]) -> None:
    lines = []
    for spec, (layers, length, numbers) in MEASURED.items():
        sheet = measure_properties(spec, CONFIG.model_copy(update={"layers": layers}), length, seed=1)
        lines.append(f"##### {sheet.spec}, {layers} layers, L = {sheet.length}, trained: {sheet.trained}\n")
        for row in sheet.rows:
            digits = {"drift": 2, "order seen by the causal model": 3}.get(row.name, 4)
            found = f"{row.name}: {row.value}\n  {row.detail}\n" + outline(row.numbers, digits=digits) * numbers
            lines.append(TINY.sub("tiny", found) if row.name.startswith(("order", "perm")) else NOISE.sub("0", found))
    snapshot("".join(lines), rounded=True)


def test_properties_beside_the_pictures(snapshot: Callable[..., None]) -> None:
    """Of encodings side by side the words and the texts of the sheet, of a trained run the words and the document."""
    small = ("--preset", "nano", "--length", 16, "--max-len", 16, "--to", "here", "--seed", 4)
    words = in_words(cli("inspect", "learned", "window(5)|none", *small))
    texts = re.findall(r"^text: .*\n(?:(?!text: |axes ).*\n)*", "".join(files("")), re.MULTILINE)
    run = run_on_disk(Path("results"), "kerple-log", model=SHALLOW)
    (alone,) = cli("inspect", "--run", run.id, "--max-len", 32, "--to", "there", "--json").json["inspected"]
    alone["properties"]["properties"] = [row | {"numbers": None} for row in alone["properties"]["properties"]]
    document = outline(alone["properties"])
    sheet = Path("there/sheet.png").read_text().partition("\naxes")[0]
    text = "".join([words, *texts, document, HASH.sub("-#", sheet)])
    snapshot(TINY.sub("tiny", text), rounded=True)


# ---- the gallery


def test_a_gallery(snapshot: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three families in rows of two, one encoding that fails, one that is not installed, one of random weights."""
    pictures_as_text(monkeypatch, look=True)
    known = ["absent", "t5", "alibi", "mine.py:FailsOnLongWindows", "mine.py:Root", "rope-2d", "sink", "shaw", "none"]
    monkeypatch.setattr(gallery, "names", lambda: known)
    monkeypatch.setattr(gallery, "missing", lambda name: "needs a package" if name == "absent" else "")
    monkeypatch.setattr(gallery, "PER_ROW", 2)
    monkeypatch.setattr(gallery, "write_sheet", lambda _, folder, *names: [folder / name for name in names])
    result = cli("inspect", "--all", *SMALL, *NARROW)
    document = cli("inspect", "--all", *SMALL, *NARROW, "--json", "--to", "there").json
    for each in document["encodings"]:
        each["inspected"] = each["inspected"] and each["inspected"]["spec"]
    content = re.sub(r"\n\n+", "\n", "".join(text for text in files("") if "results" in text))
    snapshot(f"{in_words(result)}\n##### document\n{outline(document)}\n{content}", rounded=True)


# ---- what is told


def told(*arguments: object) -> str:
    """All that a command prints and writes: its words, its document and its files; pictures are drawn once only."""
    document = cli(*arguments, "--json")
    with mock.patch("poscli.inspect.session.write_sheets", return_value=[]):
        words = replace(cli(*arguments), err=document.err)
    known = " ".join(words.out.split())
    found = HASH.sub("-#", f"{outline(document.json, known)}\n{''.join(files(known))}")
    found = ROUNDING.sub("(rounding)", NOISE.sub("0", found))
    return f"{in_words(words)}\n##### document\n{found}"


def in_words(result: Result) -> str:
    """The exit code and both streams."""
    lines = [f"exit code {result.code}", *result.out.splitlines(), "----- beside it", *result.err.splitlines()]
    return HASH.sub("-#", NOISE.sub("0", "".join(f"{line.rstrip()}\n" for line in lines)))


def written() -> list[Path]:
    """The files that were written, in every folder but that of the texts and images."""
    return sorted(path for path in Path().glob("[hr]*/**/*") if path.suffix in (".png", ".svg", ".html"))


def files(known: str) -> Iterator[str]:
    """Every file with its content, less the titles that are known; an SVG like the PNG beside it by one line."""
    for path in written():
        first, _, rest = path.read_text().partition("\n")
        png = path.with_suffix(".png")
        alike = path.suffix == ".svg" and png.exists() and png.read_text().partition("\n")[2] == rest
        titles = re.compile(r"^text: (.*(?:\n(?!text: |axes ).*)*)\n", re.MULTILINE)
        new = titles.sub(lambda title: "" if " ".join(title[1].split()) in known else title[0], rest)
        yield f"##### {path}: {first}\n{'' if alike else new}"


def outline(value: Any, known: str = "", indent: str = "", digits: int = 4) -> str:
    """A document with a line for every object that holds plain values alone; of known texts the first word."""
    if isinstance(value, list):
        return "".join(outline(each, known, indent, digits) for each in value)
    inner = {name: each for name, each in value.items() if holds_objects(each)}
    plainly = [(plain(each, known, digits), name) for name, each in value.items() if name not in inner]
    own = [f"{', '.join(n for _, n in same)}: {text}" for text, same in groupby(plainly, key=lambda pair: pair[0])]
    lines = [f"{indent}- {'; '.join(own)}\n"]
    for name, each in inner.items():
        below = outline(each, known, f"{indent}  ", digits)
        lines.append(f"{indent}  {name} {below.lstrip()}" if below.count("\n") == 1 else f"{indent}  {name}\n{below}")
    return "".join(lines)


def holds_objects(value: Any) -> bool:
    """Whether a value of a document is an object, or a list of objects."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict) for each in value))


def plain(value: Any, known: str = "", digits: int = 4) -> str:
    """A value on one line: numbers with so many digits, a list of many by some of them."""
    if isinstance(value, list) and value and all(each is None or isinstance(each, (int, float)) for each in value):
        return short(value)
    if isinstance(value, list):
        return "[" + ", ".join(plain(each, known, digits) for each in value) + "]"
    if isinstance(value, str):
        return f"{value.split()[0]} (as above)" if len(value) > 30 and value in known else value
    return figures(value, digits)
