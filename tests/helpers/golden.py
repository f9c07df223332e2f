"""Golden losses: 20 training steps and one evaluation of a nano model, for an encoding of every tier.

`make golden` writes golden_losses/SPEC.txt: a line per loss, in nats per token, with the limit within which another CPU
must find it. test_golden.py compares. A change that moves a loss beyond its limit changes what poscli computes.

How the limits were found: rounding differs between CPUs, and training makes it grow. Training is repeated five times
with every drawn weight moved by one unit of rounding of float32, up or down at random. The limit of a loss is 16
times the largest change of this or an earlier loss, and at least eight units of rounding of the loss itself.
Measured on an Intel Xeon under ATEN_CPU_CAPABILITY=avx2 and =default, ONEDNN_MAX_CPU_ISA=AVX2, MKL_CBWR=COMPATIBLE
and two threads, no loss moved by more than a fifth of its limit.

Two choices keep the limits small enough to notice a slope that is 1 % off. Muon multiplies in float32 instead of
bfloat16: roundings to bfloat16 would move losses by 1e-4. And the encodings are smooth in what they learn: of two
CPUs on either side of a kink (a ReLU in fire, a whole position in cope) each trains another model.
"""

from __future__ import annotations

import csv
import itertools
import os
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from cli_runner import cli
from torch import Tensor

from poscli.training.optimizer import orthogonal

FOLDER = Path(__file__).parent / "golden_losses"
LENGTH, BATCH, STEPS = 64, 8, 20
FLOAT32 = 2**-23  # one unit of rounding
SPECS = {
    "rope": "token",
    "alibi": "distance",
    "fox": "pair",
    "rope+window(48)": "composition",
    "sinusoidal": "absolute",
    "t5": "distance, learned",
    "transformer-xl": "relative",
    "stick-breaking": "row",
}
WORDS = (
    *("the", "a", "cat", "dog", "bird", "old", "red", "small", "sees", "hears", "follows", "finds", "and", "but"),
    *("while", "near", "under", "behind", "house", "tree", "river"),
)


def measure(spec: str) -> dict[str, float]:
    """Nats per token by name: the steps of training, then what was evaluated at 4 times the training length."""
    in_float32 = mock.patch("poscli.training.optimizer.orthogonal", partial(orthogonal, dtype=torch.float32))
    with tempfile.TemporaryDirectory() as name, in_float32:
        folder = Path(name)
        write_corpus(folder / "corpus")
        size = ("--preset", "nano", "--length", LENGTH, "--batch", BATCH, "--tokens", STEPS * BATCH * LENGTH)
        train = ("train", "--enc", spec, "--corpus", f"text:{folder / 'corpus'}", *size)
        evaluate = ("extrapolate", "--max-len", 4 * LENGTH, "--tokens", 8 * LENGTH, "--stride", LENGTH // 2)
        with mock.patch.dict(os.environ, POSCLI_CACHE=str(folder / "cache")):
            for command in (train, evaluate):
                result = cli(*command, "--device", "cpu", "--out", folder / "results")
                assert result.code == 0, result.err
        (run,) = (folder / "results" / "runs").iterdir()
        losses = {f"step {row['step']}": float(row["nll"]) for row in _rows(run / "train.csv")}
        longest = [row for row in _rows(run / "eval.csv") if int(row["length"]) == 4 * LENGTH]
        return losses | {f"{row['protocol']} {row['variant']}": float(row["nll"]) for row in longest}


def write_corpus(folder: Path) -> None:
    """40 documents of about 700 bytes: words by a linear congruential generator, which no Python version changes."""
    folder.mkdir()
    state = 1
    for n in range(40):
        words = []
        for _ in range(150):
            state = (1103515245 * state + 12345) % 2**31
            words.append(WORDS[(state >> 16) % len(WORDS)])
        (folder / f"{n:02}.txt").write_text(" ".join(words) + "\n")


def read(spec: str) -> dict[str, tuple[float, float]]:
    """(loss, limit) by name, as the file of an encoding holds them."""
    lines = [line.split(maxsplit=2) for line in (FOLDER / f"{spec}.txt").read_text().splitlines() if line[0] != "#"]
    return {name: (float(loss), float(limit)) for loss, limit, name in lines}


def write(spec: str) -> None:
    losses = measure(spec)
    moved = [_perturbed(spec, seed) for seed in range(5)]
    changes = (max(abs(other[name] - loss) for other in moved) for name, loss in losses.items())
    grown = itertools.accumulate(changes, max)
    limits = [max(16 * most, 8 * FLOAT32 * loss) for most, loss in zip(grown, losses.values(), strict=True)]
    lines = [
        f"# {spec} ({SPECS[spec]}): preset nano, L = {LENGTH}, batch {BATCH}, seed 0, evaluated at {4 * LENGTH} tokens",
        "# nats per token   limit   what; written by `make golden`, see tests/helpers/golden.py",
        *(f"{loss:.7f} {limit:.1e} {name}" for (name, loss), limit in zip(losses.items(), limits, strict=True)),
    ]
    (FOLDER / f"{spec}.txt").write_text("\n".join(lines) + "\n")


def _perturbed(spec: str, seed: int) -> dict[str, float]:
    """The losses from weights of which each is one unit of rounding larger or smaller."""
    original, signs = torch.randn, torch.Generator().manual_seed(seed)

    def randn(*size: object, **options: object) -> Tensor:
        x = original(*size, **options)
        return x * (1 + FLOAT32 * original(x.shape, generator=signs).sign())

    with mock.patch("torch.randn", randn):
        return measure(spec)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    for name in SPECS:
        write(name)
