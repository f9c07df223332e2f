"""Windows that two ranks read together, each a part of the tokens: the losses must be those of one process."""

from __future__ import annotations

import random
from pathlib import Path

import pandas as pd
import torch
from several_ranks import on_ranks

from poscli.runs.load import load_trained
from poscli.runs.run import list_runs
from poscli.verify.noise import draw_tokens, rounding

from .pipeline import SHAPE
from .processes import Started, command

LENGTH, RATIO = 16384, 1024  # of the windows, and how many times the training length of SHAPE that is
LONG_SECONDS = 600.0  # within which four windows are read: the slowest encoding takes half a minute on a quiet core


def read_by_two(folder: Path, encoding: str) -> list[str]:
    """Train a model, and evaluate it at LENGTH by one process and by two ranks; returns how their losses differ."""
    books = _write_books(folder / "books")
    found, tables = [], []
    for name in ("alone", "together"):
        out = folder / name
        found += command("train", "--enc", encoding, *SHAPE, "--corpus", f"text:{books}", "--out", out).faults(0)
        asked = ("extrapolate", "--lengths", f"1,{RATIO}", "--tokens", 8, "--stride", 8, "--out", out)
        if name == "alone":
            ended = [Started(asked).wait(LONG_SECONDS)]
        else:
            ended = on_ranks(*asked, "--context-parallel", seconds=LONG_SECONDS)
        found += [fault for each in ended for fault in each.faults(0)]
        tables.append({path.name: pd.read_parquet(path) for path in out.rglob(f"nll/{LENGTH}*.parquet")})
    if found:
        return found
    one, two = tables
    limit = _limit(folder / "alone")
    if not one or one.keys() != two.keys():
        return [f"measured {sorted(two)}, not {sorted(one)}"]
    for name, table in one.items():
        apart = float((table["nll"] - two[name]["nll"]).abs().max())
        found += [] if apart <= limit else [f"{name}: losses differ by {apart:.2g}, {limit:.2g} would be rounding"]
    return found


def _limit(out: Path) -> float:
    """The largest difference to allow between two correct computations of a loss.

    One unit of rounding in every weight changes the logits as much as arithmetic in another order does, and the log of
    a softmax changes by at most twice the change of a logit.
    """
    (run,) = list_runs(out / "runs")
    model = load_trained(run, torch.device("cpu"))
    return 2 * rounding(model, draw_tokens(256, 1, LENGTH))


def _write_books(folder: Path) -> Path:
    """Documents that are longer than a window."""
    folder.mkdir(parents=True)
    for n in range(12):
        draw = random.Random(n)
        words = " ".join(draw.choice(("one", "three", "nine", "seventeen")) for _ in range(LENGTH // 4))
        (folder / f"{n}.txt").write_text(words)
    return folder
