"""The standings of a table: regret, ranks, what is used of a longer context, and why some have no rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from poscli.board.arrays import LOOKS, Ceilings, Entry, TableOfCells, label_of, tables_of_cells
from poscli.board.cells import TextProfile
from poscli.board.ranking import RankIntervals, rank
from poscli.board.season import Season
from poscli.drawing.text import named
from poscli.report.pooling import ratio_name
from poscli.report.reach import last_shown
from poscli.report.verdicts import HARM_BPB, SOLVED_SHARE, UNDERTRAINED_RATIO
from poscli.runs.run import AS
from poscli.specs import with_layouts
from poscli.statistics import UNKNOWN, Triple
from poscli.statistics.intervals import around
from poscli.system.text import counted

NOBODY = "none"  # the encoding whose parameters are those of the model alone
RANKED, UNDERTRAINED, INCOMPLETE, FAILED = "ranked", "undertrained", "incomplete", "failed"


def rank_range(first: int, last: int) -> str:
    """Ranks from a first to a last one, such as `3 to 9`."""
    return str(first) if first == last else f"{first} to {last}"


@dataclass(frozen=True)
class TextResult:
    """An encoding on one text, mean over seeds: its loss at every length, in bits per byte, and its regret."""

    losses: tuple[Triple, ...]
    regret: Triple


@dataclass(frozen=True)
class TaskResult:
    """An encoding on a task with right answers: shares by length, mean over seeds, and when it is learned."""

    lengths: tuple[int, ...]
    accuracy: tuple[float, ...]
    chance: float
    seeds: int
    learned: int  # seeds that have 90 % right to the end of training
    steps: float  # after which these have, the median; NaN without any
    effective: float  # largest multiple of L up to which 90 % are right at every length; 0 if not at L


@dataclass(frozen=True, kw_only=True)
class Row:
    """An encoding of a table. Numbers are NaN, and ranks 0, where they are not known."""

    encoding: str
    tuned: bool
    status: str
    why: str  # the reason if it is not ranked
    seeds: int
    first: int = 0  # the best rank that it may have
    last: int = 0
    regret: Triple = UNKNOWN
    loss: Triple = UNKNOWN  # at L, bits per byte, mean over texts
    gains: tuple[Triple, ...] = ()  # for every longer length, the loss at L minus the loss there
    used: Triple = UNKNOWN  # the gain at the longest as a share of what training there would win
    safe: float = math.nan  # largest multiple of L up to which every length is shown not to harm
    harmful: float = math.nan  # smallest multiple from which on every length is shown to harm
    texts: Mapping[str, TextResult] = field(default_factory=dict)
    tasks: Mapping[str, TaskResult] = field(default_factory=dict)
    control: Triple = UNKNOWN  # gain at the longest on the text where nothing is to be won
    price: float = math.nan  # loss at the longest minus that of the same encoding trained there
    training: Triple = UNKNOWN  # cost of a training step over none, with its quartiles
    reading: Triple = UNKNOWN  # cost of reading the longest windows over none
    parameters: int
    rates: Mapping[str, float]  # that tuning chose
    source: str
    commits: tuple[str, ...]
    date: str

    @property
    def entry(self) -> Entry:
        """What the cells of the row are found by."""
        return self.encoding, self.tuned

    @property
    def label(self) -> str:
        """Its name in tables."""
        return label_of(self.entry)

    @property
    def trained_as(self) -> str:
        """The encoding that its models were trained with."""
        return self.encoding.partition(AS)[0]

    @property
    def is_reading(self) -> bool:
        """Whether its models are read under another encoding than the one that they were trained with."""
        return AS in self.encoding

    @property
    def ranks(self) -> str:
        """The ranks that it may have, such as `3 to 9`; empty without a rank."""
        return rank_range(self.first, self.last) if self.first else ""


@dataclass(frozen=True, eq=False)
class Standings:
    """Everything that the board says of one table."""

    season: str
    table: str
    tuned: bool  # whether the learning rates are those of nine trials of equal budget, and not the same for all
    title: str
    length: int
    lengths: tuple[int, ...]
    texts: tuple[str, ...]
    control: str
    rows: tuple[Row, ...]  # ranked ones first, by regret; then the others
    better: tuple[tuple[str, str], ...]  # (a, b) by labels: a is shown to be better than b
    pairs: Mapping[tuple[str, str], Triple]  # (a, b): the regret of a less that of b, interval of this pair alone
    ceilings: tuple[Ceilings, ...]
    without: Mapping[str, tuple[str, ...]]  # by text, the labels of the top group if that text is left out
    profiles: Mapping[str, TextProfile]  # by text: how far back it repeats itself, where that is measured
    bare: int | None  # parameters of a model whose encoding has none of its own; None if the table has no such model

    @property
    def ratios(self) -> list[str]:
        """The lengths as multiples of L, such as `4x`."""
        return [ratio_name(length / self.length) for length in self.lengths]

    @property
    def ranked(self) -> list[Row]:
        """The rows that have a rank, best first."""
        return [row for row in self.rows if row.status == RANKED]

    @property
    def top(self) -> list[Row]:
        """The rows in the top group: no other one is shown to be better."""
        return [row for row in self.ranked if row.first == 1]


def standings_of(folder: Path, season: Season, *more: Path) -> list[Standings]:
    """The standings of every table of a season, from the cells in a folder and in `more`.

    Encodings with the learning rates of all, as published, are ranked among each other, and those with the best of nine
    trials of equal budget among each other.

    CorruptError names a damaged file. DataError for cells that cannot stand in one table, or if there are none.
    """
    return standings_in(tables_of_cells(folder, season, *more))


def standings_in(tables: Sequence[TableOfCells]) -> list[Standings]:
    """The standings of tables, those with learning rates as published before tuned ones of the same table."""
    return [standings_among(table, tuned) for table in tables for tuned in (False, True) if table.entries(tuned)]


def standings_among(table: TableOfCells, tuned: bool) -> Standings:
    """The rows in their order, and who is shown to be better than whom."""
    rows = {entry: _row(table, entry) for entry in table.entries(tuned)}
    undertrained = _undertrained(table, [entry for entry, row in rows.items() if row.status == RANKED])
    for entry, why in undertrained.items():
        rows[entry] = replace(rows[entry], status=UNDERTRAINED, why=why)
    ranked = [entry for entry, row in rows.items() if row.status == RANKED]
    ranks = ranks_among(table, ranked, table.texts, -1)
    for entry, first, last in zip(ranked, ranks.first.tolist(), ranks.last.tolist(), strict=True):
        rows[entry] = replace(rows[entry], first=first, last=last)
    labels = [label_of(entry) for entry in ranked]
    without = {}
    for text in table.texts if len(table.texts) > 1 else ():
        others = ranks_among(table, ranked, [other for other in table.texts if other != text], -1)
        without[text] = tuple(labels[n] for n in np.flatnonzero(others.top))
    order = sorted(
        rows.values(),
        key=lambda row: (row.status != RANKED, math.inf if math.isnan(row.regret[0]) else row.regret[0], row.label),
    )
    return Standings(
        season=table.season.name,
        table=table.table.name,
        tuned=tuned,
        title=table.table.title + (", with tuned learning rates" if tuned else ""),
        length=table.length,
        lengths=table.lengths,
        texts=table.texts,
        control=table.season.control,
        rows=tuple(order),
        better=tuple((labels[a], labels[b]) for a, b in np.argwhere(ranks.better).tolist()),
        pairs=pairs_among(table, ranked),
        ceilings=tuple(table.ceilings.values()),
        without=without,
        profiles=table.profiles,
        bare=next((cell.parameters for cell in table.cells.get(((NOBODY, False), table.length), {}).values()), None),
    )


def ranks_among(
    table: TableOfCells, entries: Sequence[Entry], texts: Sequence[str], at: int, whole: Sequence[Entry] = ()
) -> RankIntervals:
    """Who is shown to be better than whom at any look; a later look outweighs an earlier one.

    `at` is the index of the length at which regrets are compared, -1 for the longest. If `entries` are only some of the
    ranked ones, `whole` has all of them: they say how far seeds spread.
    """
    shown = np.zeros((len(entries), len(entries)), bool)
    for look in LOOKS:
        every = dict.fromkeys([*entries, *whole])
        enough = [each for each in every if len(table.seeds_of(each, table.length, table.texts)) >= look]
        there = [n for n, entry in enumerate(entries) if entry in enough]
        if len(there) < 2:
            continue
        sample = table.regrets(enough, table.season.seeds(look), texts, at)
        found = rank(sample.first(len(there))).better
        pairs = np.ix_(there, there)
        shown[pairs] = (shown[pairs] & ~found.T) | found
    return RankIntervals(shown)


def pairs_among(table: TableOfCells, entries: Sequence[Entry], at: int = -1) -> dict[tuple[str, str], Triple]:
    """The difference in regret of every pair of encodings, by their labels, with the 95 % interval of that pair alone.

    It is taken on the seeds of the last look at which both have all seeds. `at` is the index of the length at which
    regrets are compared, by default the longest.
    """
    found: dict[tuple[str, str], Triple] = {}
    for look in LOOKS:
        there = [entry for entry in entries if len(table.seeds_of(entry, table.length, table.texts)) >= look]
        if len(there) < 2:
            continue
        difference, reach = table.regrets(there, table.season.seeds(look), table.texts, at).apart()
        for a, b in zip(*np.triu_indices(len(there), 1), strict=True):
            found[label_of(there[a]), label_of(there[b])] = around(float(difference[a, b]), float(reach[a, b]))
    return found


def _undertrained(table: TableOfCells, entries: Sequence[Entry]) -> dict[Entry, str]:
    """The encodings whose perplexity at L is, with its whole interval, beyond the limit above that of the best."""
    if len(entries) < 2:
        return {}
    sample = table.mean_over_texts(entries, table.season.seeds(LOOKS[0]), {0: 1.0}, table.texts)
    best = int(np.argmin(sample.estimates))
    difference, reach = (each[:, best] for each in sample.apart())
    bytes_per_token = np.mean([sum(table.scored[t].bytes) / sum(table.scored[t].tokens) for t in table.texts])
    return {
        entry: f"perplexity at {table.length} tokens is {2 ** (bits * bytes_per_token):.2f} times that of "
        f"{named(with_layouts(label_of(entries[best])))}; the limit is {UNDERTRAINED_RATIO}"
        for entry, bits, least in zip(entries, difference, difference - reach, strict=True)
        if 2 ** (least * bytes_per_token) > UNDERTRAINED_RATIO
    }


def _row(table: TableOfCells, entry: Entry) -> Row:
    """A row without its rank."""
    cells = list(table.cells[entry, table.length].values())
    seeds = table.seeds_of(entry, table.length, table.texts)
    failed, cost = table.failure(entry), table.costs.get(entry[0])
    absent = f"{counted(table.missing(entry), 'cell')} missing to {LOOKS[0]}"
    row = Row(
        encoding=entry[0],
        tuned=entry[1],
        status=FAILED if failed else INCOMPLETE,
        why=failed or f"no seed has all texts; {absent}",
        seeds=len(seeds),
        tasks={} if entry[1] else _tasks(table, entry[0]),
        training=cost.training if cost else UNKNOWN,
        reading=cost.reading if cost else UNKNOWN,
        parameters=max(cell.parameters for cell in cells),
        rates=dict(cells[0].recipe),
        source=cells[0].source,
        commits=tuple(sorted({cell.origin.commit for cell in cells})),
        date=max(cell.origin.date for cell in cells)[:10],
    )
    if failed or not seeds:
        return row
    seeds = seeds[: max((look for look in LOOKS if look <= len(seeds)), default=len(seeds))]
    enough, longest = len(seeds) >= LOOKS[0], len(table.lengths) - 1
    gains = tuple(table.estimate(entry, seeds, {0: 1.0, at: -1.0}, table.texts) for at in range(1, longest + 1))
    worth = float(np.mean([each.cut - each.long for each in table.ceilings.values()]))
    ratios = [(length / table.length, gain) for length, gain in zip(table.lengths[1:], gains, strict=True)]
    harms = [(ratio, high <= -HARM_BPB) for ratio, (_, _, high) in ratios]
    last = gains[-1]
    control = [table.season.control]
    return replace(
        row,
        status=RANKED if enough else INCOMPLETE,
        why="" if enough else f"{len(seeds)} of {LOOKS[0]} seeds; {absent}",
        seeds=len(seeds),
        regret=table.regret_interval(entry, seeds, table.texts),
        loss=table.estimate(entry, seeds, {0: 1.0}, table.texts),
        gains=gains,
        used=(last[0] / worth, last[1] / worth, last[2] / worth),
        safe=last_shown(1.0, ((ratio, low > -HARM_BPB) for ratio, (_, low, _) in ratios)) if enough else math.nan,
        harmful=last_shown(math.nan, reversed(harms)) if enough else math.nan,
        texts={text: _on(table, entry, seeds, text) for text in table.texts},
        control=table.estimate(entry, seeds, {0: 1.0, longest: -1.0}, control)
        if table.seeds_of(entry, table.length, control)[: len(seeds)] == seeds
        else UNKNOWN,
        price=table.price(entry, seeds),
    )


def _tasks(table: TableOfCells, encoding: str) -> dict[str, TaskResult]:
    """What an encoding answers to each task, from the newest source of it."""
    own = [cell for cell in table.answers if cell.encoding == encoding]
    results = {}
    for task in dict.fromkeys(cell.task for cell in own):
        newest = max((cell.origin.date, cell.source) for cell in own if cell.task == task)[1]
        cells = [cell for cell in own if (cell.task, cell.source) == (task, newest)]
        lengths = cells[0].lengths
        shares = np.array([[math.nan if each is None else each for each in cell.accuracy] for cell in cells])
        means = shares.mean(axis=0).tolist()
        steps = [cell.learned_at for cell in cells if cell.learned_at is not None]
        solved = [(length / lengths[0], share >= SOLVED_SHARE) for length, share in zip(lengths, means, strict=True)]
        results[task] = TaskResult(
            lengths=lengths,
            accuracy=tuple(means),
            chance=cells[0].chance,
            seeds=len(cells),
            learned=len(steps),
            steps=float(np.median(steps)) if steps else math.nan,
            effective=last_shown(0.0, solved),
        )
    return results


def _on(table: TableOfCells, entry: Entry, seeds: Sequence[int], text: str) -> TextResult:
    losses = tuple(table.estimate(entry, seeds, {at: 1.0}, [text]) for at in range(len(table.lengths)))
    return TextResult(losses, table.regret_interval(entry, seeds, [text]))
