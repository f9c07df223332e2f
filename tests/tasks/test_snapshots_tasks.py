"""Every task: what it says of itself, its episodes and windows token by token, its answers and its scores."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from grid_images import Numbered, write
from lines import outcome, sections, table, told
from numpy.typing import NDArray
from pieces_task import Pieces
from tokenizer_files import TEMPLATE, byte_level, written

from poscli.grids.tasks import Grid, GridText
from poscli.tasks import TASKS, Batch, EpisodeTask, HeldOut, Spans, Text, open_task, task_columns
from poscli.tasks.copy import Copy
from poscli.tasks.episodes import drawn_places
from poscli.tasks.language import Language

Snapshot = Callable[..., None]
SYNTHETIC = ("copy", "induction", "passkey", "recall", "recency")
OF_CLASSES = ("summary", "protocols", "columns", "measured", "chance", "length", "axes", "reads_text", "same_text")
OF_EPISODES = ("version", "symbols", "others", "smallest", "shortest", "by", "vocab", "pad", "corpus", "fingerprint")


class Backwards(Copy):
    """Copying with the answer backwards."""

    name = "backwards"

    def answer(self, string: NDArray[np.int64]) -> NDArray[np.int64]:
        return string[::-1]


class Small(Pieces):
    """A task without a text whose vocabulary and other defaults are those of the base class."""

    reads_text = False


def task_of(name: str) -> Any:
    """The class of a registered task."""
    return TASKS.get(name)


def marked(tokens: NDArray[Any], marks: NDArray[Any]) -> str:
    """Tokens in a line per row, each with its mark behind it unless that is 0."""
    rows = zip(tokens.tolist(), marks.astype(int).tolist(), strict=True)
    return "\n".join(" ".join(f"{t}<{m}" if m else str(t) for t, m in zip(*row, strict=True)) for row in rows)


def drawn(batch: Batch) -> str:
    """The tokens of a batch, those that count marked by 1; a batch in which all count has no marks."""
    marks = np.zeros_like(batch.tokens)
    if batch.counted is not None:
        marks[:, 1:] = batch.counted
    told_first = f"{batch.tokens.dtype}, {'all' if batch.counted is None else 'those marked'} count"
    return f"{told_first}\n{marked(batch.tokens, marks)}"


def test_what_tasks_say_of_themselves(snapshot: Snapshot, here: Path) -> None:
    said = [{"task": name} | {each: getattr(task_of(name), each) for each in OF_CLASSES} for name in TASKS.names()]
    made = [{"task": name} | {each: getattr(task_of(name)(), each) for each in OF_EPISODES} for name in SYNTHETIC]
    checked = [(name, task_of(name).shortest - refused) for name in SYNTHETIC for refused in (1, 0)]
    lengths = (1, 7, 8, 15, 16, 64, 100, 256, 300, 512)
    strides = [{"length": n} | {name: task_of(name).strides(n) for name in ("copy", "grid")} for n in lengths]
    parts = {
        "classes": table(said),
        "episodes": table(made),
        "strides": table(strides),
        "columns": told(task_columns()),
        "segments": told([task_of("copy")().segments(64), task_of("recency")().describe()]),
        "checked": "\n".join(f"{name} {n}: {outcome(task_of(name)().check, n)}" for name, n in checked),
        "opened": "\n".join(f"{' '.join(case)}: {outcome(opened, *case)}" for case in OPENED),
    }
    snapshot(sections(parts).replace(str(here), "HERE"), rounded=True)


OPENED = [
    *((name, "stdlib", "bytes") for name in SYNTHETIC),
    ("copy", "copy", "bytes"),
    ("copy", "recall", "bytes"),
    ("recall", "text:absent", "bytes"),
    ("passkey", "stdlib", "bpe:300"),
    ("grid", "stdlib", "bpe:300"),
    ("grid", "text:absent", "bytes"),
    ("grid", "jsonl", "bytes"),
    ("grid", "images:absent-folder?levels=4", "bytes"),
    ("grid", "images?level=4", "bytes"),
    ("language", "images", "bytes"),
    ("languages", "stdlib", "bytes"),
]


def opened(name: str, corpus: str, tokenizer: str) -> dict[str, Any]:
    """What a task says of its text."""
    return open_task(name, corpus, tokenizer).describe()


@pytest.mark.parametrize("name", [*SYNTHETIC, "backwards"])
def test_episodes(name: str, snapshot: Snapshot) -> None:
    """Marks of the evaluation are `back`; those of a batch say which targets count."""
    task: EpisodeTask = Backwards() if name == "backwards" else task_of(name)()
    length = max(12, task.shortest)
    text, other = task.text(length), task.text(2 * length)
    split = text.split
    spans = np.array([[0, length], [3, length], [255, length]])
    first, back = (each[: 4 * (length + 1)].reshape(4, length + 1) for each in (split.tokens, text.back))
    parts = {
        "training, seed 3": drawn(task.batch(size=6, length=length, seed=3, step=5)),
        "the next step": drawn(task.batch(size=1, length=length, seed=3, step=6)),
        "longer windows": drawn(task.batch(size=2, length=2 * length, seed=4, step=0)),
        "evaluation": marked(first, back),
        "of another length": marked(other.split.tokens[None, : 2 * length + 1], other.back[None, : 2 * length + 1]),
        "arrays": told(
            [split.tokens.dtype, text.back.dtype, split.documents, text.sizes[-1], split.starts[-2:], split.bytes]
        ),
        "windows": told(text.windows(spans, length)[:, -6:]),
        "targets": told(text.targets(spans, 5)),
        "counts": told(text.counts(spans, 5).astype(int)),
        "distances": told(text.distances(spans, 5)),
        "counted in all": told([int((text.back > 0).sum()), int(text.back.sum()), task.text(length) is text]),
        "tokens in all": told(np.bincount(split.tokens)),
        "a guess": told(
            [task.unigram(np.arange(4).reshape(2, 2)), task.token_bytes(spans[:1]), task.optimum(spans, 2)]
        ),
    }
    snapshot(sections(parts), rounded=True)


def test_places(snapshot: Snapshot) -> None:
    rows = []
    for count, width, free in itertools.product((1, 2, 4), (1, 2, 3), (0, 5)):
        room = count * width + free
        places = [drawn_places(count, room, width, np.random.default_rng(n)) for n in range(4)]
        rows.append({"count": count, "room": room, "width": width, "places": places})
    snapshot(table(rows))


def test_scores_and_tensors(snapshot: Snapshot) -> None:
    """Scores of logits that are written down; targets that do not count are -100."""
    logits = torch.tensor(
        [[[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 1.5, 1.0]], [[0.0, 0.0, 4.0], [1.0, 0.0, 0.5], [0.0, 1.0, 2.0]]]
    )
    targets = torch.tensor([[0, 2, 1], [2, 1, -100]])
    counted = np.array([[True, False, True], [False, False, True]])
    tokens = np.arange(8).reshape(2, 4)
    cpu = torch.device("cpu")
    base, none = Small(), np.zeros((1, 2), np.int64)
    parts = {
        "copy": told(Copy().score(logits, targets)),
        "pieces": told(base.score(logits, targets)),
        "tensors": told([*Batch(tokens).tensors(cpu), *Batch(tokens, counted).tensors(cpu)]),
        "defaults": told([base.unigram(none), base.optimum(none, 1), base.segments(9), base.strides(300)]),
    }
    snapshot(sections(parts), rounded=True)


def read(text: HeldOut, spans: Spans, length: int, scored: int) -> str:
    """All that a text says of windows."""
    parts = {
        "windows": text.windows(spans, length),
        "targets": text.targets(spans, scored),
        "counts": text.counts(spans, scored).astype(int),
        "inside": [text.inside(spans, length, margin).astype(int) for margin in (0, 1, 2)],
    }
    return "\n".join(f"{name}: {told(each)}" for name, each in parts.items())


DOCUMENTS = [[1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4], [7, 6, 5], [3, 1, 4, 1, 5, 2, 6], []]


@pytest.mark.parametrize("kind", ["text", "opened"])
def test_windows_of_text(kind: str, snapshot: Snapshot) -> None:
    own = Pieces(DOCUMENTS, uncounted=[(0, 11), (2, 5), (2, 6)]).text(0)
    text = own if kind == "text" else Text(own.split, own.counted, opening=9)
    spans = np.array([[0, 11], [0, 4], [2, 7], [2, 5], [1, 3]])
    parts = {
        "spans": told(spans),
        "length 3, 2 scored": read(text, spans, 3, 2),
        "length 2, 1 scored": read(text, spans, 2, 1),
        "sizes": told(text.sizes),
    }
    for length in (1, 2, 3, 5, 12):
        parts[f"tiles of {length}"] = told(text.tiles(length))
    parts |= {f"ends, step {s}, length {n}": told(text.ends(s, n)) for s, n in ((1, 7), (2, 4), (3, 5), (4, 11))}
    whole = np.array([[0, 8], [2, 7]])
    parts |= {f"parts of {a}, length {b}": told(text.parts(whole, a, b)) for a, b in ((6, 2), (6, 3), (5, 2), (6, 6))}
    parts["shortage"] = text.shortage(10, 2)
    snapshot(sections(parts))


def test_windows_of_images(snapshot: Snapshot) -> None:
    """Cells are numbered from 1 in every image, and 0 opens every window."""
    task = Numbered((4, 6), (3, 9), (5, 4))
    text = task.text(6)
    spans = np.array([[0, 24], [0, 15], [1, 27], [1, 13], [2, 20], [2, 11]])
    parts = {
        "spans": told(spans),
        "length 6, 4 scored": read(text, spans, 6, 4),
        "length 4, 1 scored": read(GridText(text.split, 0, 4), spans, 4, 1),
        "length 2, 2 scored": read(GridText(text.split, 7, 2), spans, 2, 2),
        "sizes": told([text.split.cells, text.split.largest, text.split.shapes, text.split.fits(4, 5)]),
    }
    for length in (2, 4, 6, 12, 20):
        parts[f"tiles of {length}"] = told(text.tiles(length))
    parts |= {
        f"ends, step {s}, length {n}": told(text.ends(s, n)) for s, n in ((1, 12), (2, 6), (3, 4), (4, 8), (5, 20))
    }
    whole = np.array([[0, 24], [1, 26]])
    parts |= {
        f"parts of {a}, length {b}": told(text.parts(whole, a, b)) for a, b in ((12, 4), (12, 6), (6, 2), (12, 12))
    }
    parts["shortage"] = "\n".join(text.shortage(n, stride) for n, stride in ((36, 2), (100, 3), (42, 1)))
    parts["outside"] = "\n".join(f"{end}: {within(text, end)}" for end in (8, 9, 14, 15, 16, 24))
    snapshot(sections(parts))


def within(text: GridText, end: int) -> str:
    """A window of 6 cells of the first image, or that it lies outside."""
    try:
        return told(text.windows(np.array([[0, end]]), 6))
    except AssertionError as error:
        return str(error)


def test_grid(tmp_path: Path, snapshot: Snapshot) -> None:
    """Images of noise of 9 x 14 cells."""
    write(tmp_path / "images", 6, rows=9, columns=14)
    task = open_task("grid", f"images:{tmp_path}/images?levels=5", "bytes")
    assert isinstance(task, Grid)
    text, data = task.text(12), task.data
    spans = text.ends(4, 12)[:3]
    lengths = (1, 2, 3, 7, 8, 20, 64, 98, 126, 162, 200, 258)
    evaluations: list[Sequence[int]] = [(4, 8, 16), (4, 6), (8, 16, 18), (16, 18, 36), (4, 7), (12, 16), (9, 12)]
    parts = {
        "says": told([task.describe(), task.vocab, task.corpus, data.start, data.greys, text.start, text.length]),
        "square": drawn(task.batch(size=5, length=9, seed=2, step=1)),
        "oblong": drawn(task.batch(size=5, length=8, seed=2, step=1)),
        "the next step": drawn(task.batch(size=2, length=8, seed=2, step=2)),
        "held out": told([text.split.shapes, spans, text.windows(spans, 12)]),
        "guesses": told([task.unigram(np.arange(6)), task.token_bytes(np.arange(3)), task.optimum(spans, 2)]),
        "checked": "\n".join(f"{n}: {outcome(task.check, n)}" for n in lengths),
        "evaluated": "\n".join(f"{n}: {outcome(task.check_evaluation, n)}" for n in evaluations),
    }
    snapshot(sections(parts).replace(str(tmp_path), "HERE"), rounded=True)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:262", "hf:opens"])
def test_language(tokenizer: str, here: Path, snapshot: Snapshot) -> None:
    """Twelve documents, the tokens of which are few enough to count."""
    written(here / "opens", byte_level(post_processor=TEMPLATE))
    (here / "in.jsonl").write_text("".join(f'{{"text": "{line}"}}\n' for line in LINES))
    task = open_task("language", f"jsonl:{here}/in.jsonl", tokenizer)
    assert isinstance(task, Language)
    text, same = task.text(5), task.text(9) is task.text(5)
    seen = np.unique(task.data.valid.tokens).astype(np.int64)
    spans = text.ends(2, 6)[:4]
    parts = {
        "says": told([task.describe(), task.vocab, task.bytes_per_token, sorted(task.files), task.segments(16), same]),
        "training": drawn(task.batch(size=4, length=6, seed=1, step=3)),
        "segments": "\n".join(
            drawn(task.batch(size=2, length=6, seed=1, step=step, segments=3)) for step in (3, 4, 5, 6)
        ),
        "held out": told([type(text).__name__, text.sizes, spans, text.windows(spans, 6)]),
        "guesses": told(dict(zip(seen.tolist(), task.unigram(seen).tolist(), strict=True))),
        "bytes": told(dict(zip(seen.tolist(), task.token_bytes(seen).tolist(), strict=True))),
        "optimum": told(task.optimum(text.windows(spans, 6), 6)),
        "checked": "\n".join(f"{n}: {outcome(task.check, n)}" for n in (20, len(task.data.valid.tokens) - 1, 64, 1000)),
    }
    snapshot(sections(parts).replace(str(here), "HERE"), rounded=True)


LINES = [f"{'ab' * n}c{'ab' * (n % 3)} {'dd' * (12 - n)}" for n in range(12)]
