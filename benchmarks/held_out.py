"""What larger models lose beside what the board's models predict of them, for maintainers.

    python benchmarks/held_out.py results/published/scale

reads season.toml, cells and predicted.csv of the folder, writes found.csv and prints how many predictions hold. With
--predict it writes predicted.csv from the cells in results/board instead, and refuses where it is already.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from poscli.board.cells import Cell, read_cells, read_documents
from poscli.board.season import current_season, season_of
from poscli.report.groups import AS
from poscli.specs import parse

BOARD = Path(__file__).parents[1] / "results" / "board" / "cells"
SEEDS = 2  # of the board, for a prediction
SEPARABLE = 0.02  # bits per token
RATIOS = (2, 4, 8, 16)


def canonical(label: str) -> str:
    """The name of an encoding in cells."""
    return AS.join(str(parse(part)) for part in label.split(AS))


def losses(cells: Sequence[Cell], folder: Path, labels: Sequence[str]) -> pd.DataFrame:
    """Bits per token at L and 16 L, and what 2 to 16 L change, a row for each encoding and text, mean over seeds."""
    documents, rows = read_documents(folder, cells[0].season), []
    for label in labels:
        own = [cell for cell in cells if cell.encoding == canonical(label)]
        for text in dict.fromkeys(cell.text for cell in own):
            of_text = [cell for cell in own if cell.text == text]
            tokens = sum(documents[of_text[0].documents].tokens)
            nats = np.mean([np.sum(cell.hundredths, axis=1) for cell in of_text], axis=0) / 100
            bits = nats / tokens / math.log(2)
            row = {"encoding": label, "text": text, "bits_L": bits[0], "bits_16x": bits[-1]}
            rows.append(row | {f"change_{n}x": more - bits[0] for n, more in zip(RATIOS, bits[1:], strict=True)})
    return pd.DataFrame(rows).round(4)


def print_score(predicted: pd.DataFrame, found: pd.DataFrame) -> None:
    """Print how many orders and changes are as predicted, among those that are found to be separable."""
    both = predicted.merge(found, on=["encoding", "text"], suffixes=("_predicted", ""))
    right, count = 0, 0
    for text, rows in both.groupby("text"):
        held = []
        for (_, one), (_, other) in combinations(rows.iterrows(), 2):
            difference = one["bits_16x"] - other["bits_16x"]
            if abs(difference) > SEPARABLE:
                held.append(difference * (one["bits_16x_predicted"] - other["bits_16x_predicted"]) > 0)
        print(f"order on {text}: {sum(held)} of {len(held)} pairs, {len(rows)} encodings")
        right, count = right + sum(held), count + len(held)
    print(f"order: {right} of {count} ({right / count:.0%})")
    for ratio in RATIOS:
        named = both[both[f"change_{ratio}x_predicted"].abs() > SEPARABLE]
        held = named[f"change_{ratio}x"] * named[f"change_{ratio}x_predicted"] > 0
        print(f"harm or gain at {ratio} L: {held.sum()} of {len(held)}")


def main(folder: Path, *options: str) -> None:
    """Predict, or count what held."""
    season = season_of(folder / "season.toml")
    (table,) = season.table
    labels = [*table.encodings, *(f"{name}{AS}{other}" for name, all_ in table.readings.items() for other in all_)]
    predicted = folder / "predicted.csv"
    if "--predict" in options:
        if predicted.exists():
            sys.exit(f"{predicted} is a prediction already; it must not change")
        board = current_season()
        texts = (*season.texts, season.control)
        cells = [
            cell
            for cell in read_cells(BOARD, board.name)
            if cell.table == board.table[0].name
            and cell.trained_at == board.train.length
            and not cell.recipe
            and cell.text in texts
            and cell.seed in board.seeds(SEEDS)
        ]
        losses(cells, BOARD, labels).to_csv(predicted, index=False)
        return
    found = losses(read_cells(folder / "cells", season.name), folder / "cells", labels)
    found.to_csv(folder / "found.csv", index=False)
    print_score(pd.read_csv(predicted), found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
