"""A bench of a nano model with small amounts of work: the tests do not ask how fast a machine is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch

from poscli.bench.settings import BenchSettings
from poscli.bench.tables import COLUMNS
from poscli.bench.timing import Sizes
from poscli.runs.schema import read_table

CPU = torch.device("cpu")
SMALL = Sizes(products=(64, 128), copied_bytes=2**20, pass_tokens=512, sample_seconds=0.002)


def settings(**given: Any) -> BenchSettings:
    values = {"preset": "nano", "train_length": 32, "batch": 2, "lengths": (32, 64), "past": (32,)}
    return BenchSettings(**(values | {"repeats": 2, "seconds": 1.0} | given))


def read(folder: Path, name: str = "bench.csv") -> pd.DataFrame:
    return read_table(folder / name, COLUMNS[name])
