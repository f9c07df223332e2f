"""Our own losses as published ones come: a table for each text, at multiples of the training length."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from poscli.board.cells import PER_NAT
from poscli.board.ranking import SPENT
from poscli.runs.schema import Columns, parse_table
from poscli.system.console import note
from poscli.system.errors import CorruptError, UsageError, near
from poscli.system.files import read_bytes

if TYPE_CHECKING:
    import pandas as pd

    from poscli.board.arrays import TableOfCells
    from poscli.board.standings import Standings

MULTIPLES = (1.0, 2.0, 4.0, 8.0, 16.0)  # of the training length
QUOTED = "sliding"  # the protocol whose perplexities a summary has, if it was measured
WANTED: Columns = {
    "corpus": ("str", ""),
    "fingerprint": ("str", ""),
    "train_length": ("int64", ""),
    "encoding": ("str", ""),
    "ppl_1x": ("float64", ""),
    "verdict": ("str", ""),
}
LATER: Columns = {f"ppl_{multiple:g}x": ("float64", "") for multiple in MULTIPLES[1:]}
OPTIONAL: Columns = {**LATER, "effective": ("float64", ""), "tokenizer": ("str", "")}
CURE = "give the summary.csv of a report"


@dataclass(frozen=True)
class OurLosses:
    """Losses in nats per token by (text, protocol, multiple of the training length, encoding).

    `unsure` has the pairs that cannot be told apart beyond noise, as (protocol, multiple, both encodings); they count
    as ties. `undertrained` are encodings that are too far behind at the training length for a ranking; they count, and
    are marked.
    """

    losses: Mapping[tuple[str, str, float, str], float]
    unsure: Collection[tuple[str, float, frozenset[str]]] = ()
    undertrained: Collection[str] = ()

    @cached_property
    def encodings(self) -> list[str]:
        """Every encoding that was measured."""
        return sorted({encoding for *_, encoding in self.losses})

    @cached_property
    def texts(self) -> list[str]:
        """Every text."""
        return sorted({text for text, *_ in self.losses})

    @cached_property
    def protocols(self) -> list[str]:
        """Every protocol, the quoted one first."""
        return sorted({protocol for _, protocol, *_ in self.losses}, key=lambda name: (name != QUOTED, name))

    @cached_property
    def _tables(self) -> dict[tuple[str, float], list[dict[str, float]]]:
        tables: dict[tuple[str, float], dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        for (text, protocol, multiple, encoding), loss in self.losses.items():
            if not math.isnan(loss):
                tables[protocol, multiple][text][encoding] = loss
        return {key: list(by_text.values()) for key, by_text in tables.items()}

    def tables(self, protocol: str, multiple: float) -> list[dict[str, float]]:
        """The losses by encoding, a dictionary for each text."""
        return self._tables.get((protocol, multiple), [])

    def growth(self, encoding: str, protocol: str, multiple: float) -> float:
        """The perplexity at a multiple over that at 1x, a geometric mean over the texts that have both; else NaN."""
        keys = [[(text, protocol, at, encoding) for at in (multiple, 1.0)] for text in self.texts]
        known = [self.losses[long] - self.losses[short] for long, short in keys if {long, short} <= {*self.losses}]
        known = [each for each in known if not math.isnan(each)]
        return math.exp(sum(known) / len(known)) if known else math.nan


def losses_of_summary(path: Path, train_length: int | None = None) -> OurLosses:
    """The losses of a summary.csv, whose perplexities are of the protocol that reports quote.

    Of several training lengths the given one counts, by default the one with most encodings, and of equals the
    shortest. CorruptError for a file that is no summary; UsageError for rows of tasks only, and for an unknown length.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder; {CURE}, such as {path / 'summary.csv'}")
    if not path.exists():
        raise UsageError(f"there is no file {path}; {CURE}")
    table = parse_table(read_bytes(path, CURE), path, WANTED, OPTIONAL, CURE)
    if "effective" in table:
        table = table[table["effective"].isna()]  # tasks with right answers
    if table.empty:
        raise UsageError(f"{path} has no losses of a text, only tasks with right answers; {CURE} on a text")
    table = _of_one_length(table, train_length, str(path))
    losses = {
        (f"{row['corpus']} {row['fingerprint']}", QUOTED, multiple, row["encoding"]): math.log(row[column])
        for row in table.to_dict("records")
        for multiple in MULTIPLES
        if row.get(column := f"ppl_{multiple:g}x", math.nan) >= 1
    }
    if not losses:
        raise CorruptError(f"{path} has no perplexity of 1 or more; {CURE}")
    counts = Counter(table["encoding"])
    weak = Counter(table.loc[table["verdict"] == "undertrained", "encoding"])
    return OurLosses(losses, undertrained={name for name in weak if 2 * weak[name] > counts[name]})


def losses_of_runs(rows: pd.DataFrame, train_length: int | None = None) -> OurLosses:
    """The losses of rows of eval.csv under every protocol, means over seeds; one training length counts.

    UsageError for rows of tasks with right answers only, which stand beside no paper's perplexity.
    """
    from poscli.report.gate import behind, undertrained
    from poscli.report.pooling import ACCURACY, of_model

    if ACCURACY in rows:
        rows = rows[rows.groupby(["corpus", "fingerprint"])[ACCURACY].transform("count") == 0]
    if rows.empty:
        raise UsageError(
            "the results have no losses of a text, only answers to tasks; train on a text, or give --cells"
        )
    rows = _of_one_length(rows, train_length, "the results")
    losses: dict[tuple[str, str, float, str], float] = {}
    weak: Counter[str] = Counter()
    for (corpus, fingerprint), part in rows.groupby(["corpus", "fingerprint"]):
        if part["tokenizer"].nunique() > 1:
            raise UsageError(
                f"{corpus} was read by several tokenizers, whose losses per token do not compare; split it"
            )
        weak.update(set(undertrained(behind(part))))
        for protocol in part["protocol"].unique():
            sound = of_model(part, protocol)
            for (encoding, ratio), nll in sound.groupby(["encoding", "ratio"])["nll"].mean().items():
                if ratio in MULTIPLES:
                    losses[f"{corpus} {fingerprint}", str(protocol), float(ratio), str(encoding)] = float(nll)
    texts = rows.groupby("encoding")["fingerprint"].nunique()
    return OurLosses(losses, undertrained={name for name in weak if 2 * weak[name] > texts[name]})


def losses_of_board(table: TableOfCells, standings: Standings) -> OurLosses:
    """The losses of a table of the board and its standings, means over seeds.

    Windows that slide end at the same tokens as those that are scored at every length, whose losses stand for them.
    """
    from poscli.board.standings import INCOMPLETE, UNDERTRAINED

    losses: dict[tuple[str, str, float, str], float] = {}
    unsure: list[tuple[str, float, frozenset[str]]] = []
    shown = [row for row in standings.rows if row.texts]
    for row in shown:
        for text in table.texts:
            cells = [cell for (on, _), cell in table.cells[row.entry, table.length].items() if on == text]
            tokens = sum(table.scored[text].tokens)
            for at, length in enumerate(table.lengths):
                nats = [sum(cell.hundredths[at]) / PER_NAT / tokens for cell in cells]
                losses[text, QUOTED, length / table.length, row.encoding] = sum(nats) / len(nats)
                apart = [each for cell in cells for each in cell.nonoverlapping[at : at + 1] if each is not None]
                if apart:
                    losses[text, "nonoverlapping", length / table.length, row.encoding] = sum(apart) / len(apart)
    seeded = [row.entry for row in shown if row.status != INCOMPLETE]
    for at, length in enumerate(table.lengths) if len(seeded) > 1 else ():
        for a, b in np.argwhere(np.triu(table.unsure(seeded, at, table.season.seeds(min(SPENT))), 1)).tolist():
            pair = frozenset({seeded[a][0], seeded[b][0]})
            unsure += [(protocol, length / table.length, pair) for protocol in (QUOTED, "nonoverlapping")]
    return OurLosses(losses, unsure, {row.encoding for row in shown if row.status == UNDERTRAINED})


def _of_one_length(table: pd.DataFrame, wanted: int | None, what: str) -> pd.DataFrame:
    """The rows of one training length: the wanted one, or the one with most encodings, the shortest of several."""
    counts = {int(length): part["encoding"].nunique() for length, part in table.groupby("train_length")}
    if wanted is not None and wanted not in counts:
        raise UsageError(f"{what}: no training length {wanted}: {near(str(wanted), map(str, counts))}")
    chosen = max(counts, key=lambda length: (counts[length], -length)) if wanted is None else wanted
    if others := sorted(set(counts) - {chosen}):
        note(f"L = {chosen}; rows of L = {', '.join(map(str, others))} are left out (--train-length)")
    return table[table["train_length"] == chosen]
