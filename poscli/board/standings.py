"""From cells to the standings of a table: regret, ranks, what is used of a longer context, and why some have no rank.

The sort key is the *regret* at the longest windows, 16 L. On each text it is

    (loss - R1) / (C - R1)

where R1 is the loss of the best model that was trained on windows of 16 L, and C that of the best encoding with its
context cut to L, both with the learning rates of all; the regret of an encoding is the mean over the season's texts.
0 is as good as having been trained at 16 L, 1 as good as the best without a longer context, and above 1 reading far
hurts. Losses are bits per byte, on the same tokens at every length.

Shapes: E encodings, S seeds, L lengths, D documents.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy  # whose parts are loaded when they are used
from numpy.typing import NDArray

from poscli.board.cells import (
    PER_NAT,
    Cell,
    CostCell,
    Scored,
    TaskCell,
    TextProfile,
    read_answers,
    read_cells,
    read_costs,
    read_documents,
    read_profiles,
)
from poscli.board.ranking import SPENT, Array, NumbersOfEncodings, rank
from poscli.board.season import Season, SeasonTable
from poscli.drawing.text import listed, named
from poscli.report.reach import last_shown
from poscli.report.verdicts import HARM_BPB, SOLVED_SHARE, UNDERTRAINED_RATIO
from poscli.specs import with_layouts
from poscli.statistics.comparison import LN2, SIGNIFICANT
from poscli.system.errors import DataError

RANKED, UNDERTRAINED, INCOMPLETE, FAILED = "ranked", "undertrained", "incomplete", "failed"
LOOKS = tuple(SPENT)  # numbers of seeds at which encodings are compared
Triple = tuple[float, float, float]  # an estimate and the ends of its 95 % interval
UNKNOWN: Triple = (math.nan, math.nan, math.nan)
Entry = tuple[str, bool]  # an encoding, and whether its learning rates are tuned


def label_of(entry: Entry) -> str:
    """The name of an entry in tables."""
    return entry[0] + (" (tuned)" if entry[1] else "")


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
    why: str  # it is not ranked
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
    def label(self) -> str:
        """Its name in tables."""
        return label_of((self.encoding, self.tuned))

    @property
    def ranks(self) -> str:
        """The ranks that it may have, such as `3 to 9`; empty without a rank."""
        if not self.first:
            return ""
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"


@dataclass(frozen=True)
class Ceilings:
    """What there is to win on a text, in bits per byte: the best cut to L, and the best that was trained long."""

    text: str
    cut: float
    cut_of: str
    long: float
    long_of: str


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
    better: Mapping[tuple[str, str], bool]  # (a, b) by labels: a is shown to be better than b
    pairs: Mapping[tuple[str, str], Triple]  # (a, b): the regret of a less that of b, interval of this pair alone
    ceilings: tuple[Ceilings, ...]
    without: Mapping[str, tuple[str, ...]]  # by text, the labels of the top group if that text is left out
    missing: Mapping[str, int]  # by label, cells that are missing to three seeds
    profiles: Mapping[str, TextProfile]  # by text: how far back it repeats itself, where that is measured

    @property
    def ranked(self) -> list[Row]:
        """The rows that have a rank, best first."""
        return [row for row in self.rows if row.status == RANKED]

    @property
    def top(self) -> list[Row]:
        """The rows than which none is shown to be better."""
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
    return [table.standings(tuned) for table in tables for tuned in (False, True) if table.entries(tuned)]


def tables_of_cells(folder: Path, season: Season, *more: Path) -> list[TableOfCells]:
    """The cells of every table of a season that has some; the errors are those of `standings_of`."""
    cells = [cell for each in (folder, *more) for cell in read_cells(each, season.name)]
    documents = {key: each for at in (folder, *more) for key, each in read_documents(at, season.name).items()}
    costs, profiles = read_costs(folder, season.name), read_profiles(folder, season.name)
    answers = [cell for each in (folder, *more) for cell in read_answers(each, season.name)]
    if not cells:
        raise DataError(f"there are no cells of season {season.name} in {folder}; make some with `poscli board run`")
    by_table = [(table, [cell for cell in cells if cell.table == table.name]) for table in season.table]
    return [TableOfCells(season, table, own, documents, costs, profiles, answers) for table, own in by_table if own]


class TableOfCells:
    """The cells of one table as arrays."""

    def __init__(
        self,
        season: Season,
        table: SeasonTable,
        cells: Sequence[Cell],
        documents: Mapping[str, Scored],
        costs: Iterable[CostCell],
        profiles: Mapping[str, TextProfile],
        answers: Iterable[TaskCell],
    ) -> None:
        self.season, self.table, self.profiles = season, table, profiles
        length = table.train.length or season.train.length
        assert length is not None
        self.length, self.texts = length, tuple(season.texts)
        self.costs = {cost.encoding: cost for cost in costs if cost.table == table.name}
        tasks = {task.name for task in season.task if task.table == table.name}
        self.answers = [cell for cell in answers if cell.task in tasks]
        _refuse_mixtures(cells, season)
        self.cells: dict[tuple[Entry, int], dict[tuple[str, int], Cell]] = {}  # entry and training length
        for cell in _newest(cells):
            of_model = self.cells.setdefault(((cell.encoding, bool(cell.recipe)), cell.trained_at), {})
            of_model[cell.text, cell.seed] = cell
        self.documents = documents
        known = [cell for cell in cells if cell.trained_at == length and cell.documents]
        if not known:
            raise DataError(
                f"season {season.name} has no cells of models trained at {length}; `poscli board run` makes them"
            )
        self.lengths = max((cell.lengths for cell in known), key=len)
        self.scored = {cell.text: documents[cell.documents] for cell in known if cell.documents in documents}
        if absent := sorted({cell.text for cell in known} - set(self.scored)):
            raise DataError(f"the sizes of the documents of {listed(absent)} are missing among the cells; restore them")

    # Which encodings have what

    def entries(self, tuned: bool) -> list[Entry]:
        """The encodings that were trained at L, with learning rates that are tuned or as published."""
        return [entry for entry, at in self.cells if at == self.length and entry[1] == tuned]

    def seeds_of(self, entry: Entry, at: int, texts: Sequence[str]) -> list[int]:
        """The first seeds of the season of which all of these texts are there, without a gap."""
        cells = self.cells.get((entry, at), {})
        seeds = []
        for seed in self.season.seeds(LOOKS[-1]):
            if any((text, seed) not in cells for text in texts):
                break
            seeds.append(seed)
        return seeds

    def failure(self, entry: Entry) -> str:
        """Why a length of an encoding has no losses, in words; "" if all have."""
        for (text, seed), cell in self.cells[entry, self.length].items():
            for length, status in zip(cell.lengths, cell.status, strict=True):
                if status != "ok":
                    return f"{status} at {length} tokens of {text}, seed {seed}" + (
                        f": {cell.reason}" if cell.reason else ""
                    )
        return ""

    # Losses

    def bits(self, entry: Entry, at: int, text: str, seeds: Sequence[int]) -> Array:
        """The losses of documents of a text, `[S, L, D]`, in bits per byte of the text: they add up to its loss."""
        size = sum(self.scored[text].bytes)
        chosen = [self.cells[entry, at][text, seed].hundredths for seed in seeds]
        return np.array(chosen, float) / (PER_NAT * LN2 * size)

    def shares(self, text: str) -> Array:
        """The documents of a text as parts of its bytes, `[D]`."""
        sizes = np.array(self.scored[text].bytes, float)
        return sizes / sizes.sum()

    def joined(self, parts: Mapping[str, Array]) -> tuple[Array, Array, NDArray[np.int64]]:
        """Values `[E, S, D]` by text as those of all texts, with the shares and the texts of the documents."""
        texts = np.concatenate([np.full(part.shape[-1], n) for n, part in enumerate(parts.values())])
        return np.concatenate(list(parts.values()), axis=-1), np.concatenate([self.shares(t) for t in parts]), texts

    def mean_over_texts(
        self, entries: Sequence[Entry], seeds: Sequence[int], weigh: Mapping[int, float], texts: Sequence[str]
    ) -> NumbersOfEncodings:
        """The mean over texts of a weighted sum of losses: `weigh` has the weight of each length, by its index."""
        parts = {}
        for text in texts:
            bits = np.stack([self.bits(entry, self.length, text, seeds) for entry in entries])
            weights = np.zeros(bits.shape[2])
            weights[list(weigh)] = list(weigh.values())
            parts[text] = np.einsum("esld,l->esd", bits, weights) / len(texts)
        return NumbersOfEncodings(*self.joined(parts))

    def unsure(self, entries: Sequence[Entry], at: int, seeds: Sequence[int]) -> NDArray[np.bool_]:
        """Whether the 95 % interval of the difference of two encodings at a length includes 0, `[E, E]`."""
        difference, error, degrees = self.mean_over_texts(entries, seeds, {at: 1.0}, self.texts).differences()
        return np.abs(difference) <= scipy.special.stdtrit(degrees, 1 - SIGNIFICANT / 2) * error

    # What there is to win

    @cached_property
    def ceilings(self) -> dict[str, Ceilings]:
        """What there is to win on every text."""
        longest = self.lengths[-1]
        long = [entry for entry, at in self.cells if at == longest and not entry[1]]
        found = {}
        for text in self.texts:
            trained = {
                entry: self.bits(entry, longest, text, seeds)[:, -1].sum(axis=-1).mean()
                for entry in long
                if (seeds := self.seeds_of(entry, longest, self.texts)[: LOOKS[0]]) and self._is_sound(entry, longest)
            }
            cut = {
                entry: self.bits(entry, self.length, text, seeds)[:, 0].sum(axis=-1).mean()
                for entry in self.complete
                if (seeds := self.seeds_of(entry, self.length, self.texts)[: LOOKS[0]])
            }
            if not trained or not cut:
                raise DataError(
                    f"table {self.table.name!r} has no baseline on {text}: no model that was trained at {longest} "
                    "tokens is complete; make the missing cells with `poscli board run`"
                )
            best, short = min(trained, key=lambda each: trained[each]), min(cut, key=lambda each: cut[each])
            found[text] = Ceilings(text, float(cut[short]), label_of(short), float(trained[best]), label_of(best))
        return found

    def _is_sound(self, entry: Entry, at: int) -> bool:
        return all(status == "ok" for cell in self.cells[entry, at].values() for status in cell.status)

    @cached_property
    def complete(self) -> list[Entry]:
        """The encodings with learning rates as published that have a loss at every length for at least one seed."""
        return [
            entry
            for entry in self.entries(tuned=False)
            if not self.failure(entry) and self.seeds_of(entry, self.length, self.texts)
        ]

    def regrets(self, entries: Sequence[Entry], seeds: Sequence[int], texts: Sequence[str]) -> NumbersOfEncodings:
        """The regret at the longest windows, with R1 and C as they are: for differences of encodings."""
        parts = {}
        for text in texts:
            ceiling = self.ceilings[text]
            worth = (ceiling.cut - ceiling.long) * len(texts)
            bits = np.stack([self.bits(entry, self.length, text, seeds)[:, -1] for entry in entries])
            parts[text] = (bits - ceiling.long * self.shares(text)) / worth
        return NumbersOfEncodings(*self.joined(parts))

    def regret_interval(self, entry: Entry, seeds: Sequence[int], texts: Sequence[str]) -> Triple:
        """The regret of an encoding with its interval, in which R1 and C are as uncertain as they are.

        A ratio (x - r) / (c - r) near its estimate q moves as (x - q c - (1 - q) r) / (c - r).
        """
        parts, estimate = {}, 0.0
        for text in texts:
            ceiling = self.ceilings[text]
            worth = ceiling.cut - ceiling.long
            own = self.bits(entry, self.length, text, seeds)[:, -1]
            regret = (own.sum(axis=-1).mean() - ceiling.long) / worth
            cut = self._anchor(ceiling.cut_of, self.length, text, len(seeds))[:, 0]
            long = self._anchor(ceiling.long_of, self.lengths[-1], text, len(seeds))[:, -1]
            parts[text] = ((own - regret * cut - (1 - regret) * long) / (worth * len(texts)))[None]
            estimate += regret / len(texts)
        if len(seeds) < 2:
            return float(estimate), math.nan, math.nan
        low, high = NumbersOfEncodings(*self.joined(parts)).interval()
        off = float(high[0] - low[0]) / 2
        return float(estimate), float(estimate) - off, float(estimate) + off

    def _anchor(self, label: str, at: int, text: str, count: int) -> Array:
        """The losses of a ceiling for as many seeds; its mean over seeds where it has fewer."""
        entry = next(each for each, trained_at in self.cells if trained_at == at and label_of(each) == label)
        bits = self.bits(entry, at, text, self.seeds_of(entry, at, self.texts)[:count])
        return bits if len(bits) == count else np.broadcast_to(bits.mean(axis=0), (count, *bits.shape[1:]))

    # The standings

    def standings(self, tuned: bool) -> Standings:
        """The rows in their order, and who is shown to be better than whom."""
        rows = {entry: self._row(entry) for entry in self.entries(tuned)}
        undertrained = self._undertrained([entry for entry, row in rows.items() if row.status == RANKED])
        for entry, why in undertrained.items():
            rows[entry] = replace(rows[entry], status=UNDERTRAINED, why=why)
        ranked = [entry for entry, row in rows.items() if row.status == RANKED]
        better = self._better(ranked, self.texts)
        count = len(ranked)
        for n, entry in enumerate(ranked):
            first, last = 1 + int(better[:, n].sum()), count - int(better[n].sum())
            rows[entry] = replace(rows[entry], first=first, last=last)
        labels = [label_of(entry) for entry in ranked]
        without = {}
        for text in self.texts if len(self.texts) > 1 else ():
            others = self._better(ranked, [other for other in self.texts if other != text])
            without[text] = tuple(labels[n] for n in np.flatnonzero(~others.any(axis=0)))
        order = sorted(rows.values(), key=lambda row: (row.status != RANKED, _or_infinite(row.regret[0]), row.label))
        return Standings(
            season=self.season.name,
            table=self.table.name,
            tuned=tuned,
            title=self.table.title + (", with tuned learning rates" if tuned else ""),
            length=self.length,
            lengths=self.lengths,
            texts=self.texts,
            control=self.season.control,
            rows=tuple(order),
            better={(labels[a], labels[b]): True for a, b in np.argwhere(better).tolist()},
            pairs=self._pairs(ranked),
            ceilings=tuple(self.ceilings.values()),
            without=without,
            missing={label_of(entry): missing for entry in rows if (missing := self._missing(entry))},
            profiles=self.profiles,
        )

    def _better(self, entries: Sequence[Entry], texts: Sequence[str]) -> NDArray[np.bool_]:
        """Who is shown to be better than whom, `[E, E]`, at any look; a later look outweighs an earlier one."""
        shown = np.zeros((len(entries), len(entries)), bool)
        for look in LOOKS:
            there = [n for n, entry in enumerate(entries) if self._seeds(entry) >= look]
            if len(there) < 2:
                continue
            seeds = self.season.seeds(look)
            found = rank(self.regrets([entries[n] for n in there], seeds, texts)).better
            at = np.ix_(there, there)
            shown[at] = (shown[at] & ~found.T) | found
        return shown

    def _pairs(self, entries: Sequence[Entry]) -> dict[tuple[str, str], Triple]:
        """The difference in regret of every pair, on the seeds of the last look at both, by their labels."""
        found: dict[tuple[str, str], Triple] = {}
        for look in LOOKS:
            there = [entry for entry in entries if self._seeds(entry) >= look]
            if len(there) < 2:
                continue
            difference, error, degrees = self.regrets(there, self.season.seeds(look), self.texts).differences()
            reach = scipy.special.stdtrit(degrees, 1 - SIGNIFICANT / 2) * error
            for a, b in zip(*np.triu_indices(len(there), 1), strict=True):
                value, off = float(difference[a, b]), float(reach[a, b])
                found[label_of(there[a]), label_of(there[b])] = (value, value - off, value + off)
        return found

    def _seeds(self, entry: Entry) -> int:
        return len(self.seeds_of(entry, self.length, self.texts))

    def _missing(self, entry: Entry) -> int:
        """The cells that are missing to the first look."""
        cells = self.cells[entry, self.length]
        wanted = [(text, seed) for text in (*self.texts, self.season.control) for seed in self.season.seeds(LOOKS[0])]
        return sum(each not in cells for each in wanted)

    def _undertrained(self, entries: Sequence[Entry]) -> dict[Entry, str]:
        """The encodings whose perplexity at L is, with its whole interval, beyond the limit above that of the best."""
        if len(entries) < 2:
            return {}
        sample = self.mean_over_texts(entries, self.season.seeds(LOOKS[0]), {0: 1.0}, self.texts)
        best = int(np.argmin(sample.estimates))
        difference, error, degrees = (each[:, best] for each in sample.differences())
        low = difference - scipy.special.stdtrit(degrees, 0.975) * error
        bytes_per_token = np.mean([sum(self.scored[t].bytes) / sum(self.scored[t].tokens) for t in self.texts])
        return {
            entry: f"perplexity at {self.length} tokens is {2 ** (bits * bytes_per_token):.2f} times that of "
            f"{named(with_layouts(label_of(entries[best])))}; the limit is {UNDERTRAINED_RATIO}"
            for entry, bits, least in zip(entries, difference, low, strict=True)
            if 2 ** (least * bytes_per_token) > UNDERTRAINED_RATIO
        }

    def _row(self, entry: Entry) -> Row:
        """A row without its rank."""
        cells = list(self.cells[entry, self.length].values())
        seeds = self.seeds_of(entry, self.length, self.texts)
        failed, cost = self.failure(entry), self.costs.get(entry[0])
        row = Row(
            encoding=entry[0],
            tuned=entry[1],
            status=FAILED if failed else INCOMPLETE,
            why=failed or "no seed has all texts",
            seeds=len(seeds),
            tasks={} if entry[1] else self._tasks(entry[0]),
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
        enough, longest = len(seeds) >= LOOKS[0], len(self.lengths) - 1
        gains = tuple(self._triple(entry, seeds, {0: 1.0, at: -1.0}, self.texts) for at in range(1, longest + 1))
        worth = float(np.mean([each.cut - each.long for each in self.ceilings.values()]))
        ratios = [(length / self.length, gain) for length, gain in zip(self.lengths[1:], gains, strict=True)]
        harms = [(ratio, high <= -HARM_BPB) for ratio, (_, _, high) in ratios]
        last = gains[-1]
        control = [self.season.control]
        return replace(
            row,
            status=RANKED if enough else INCOMPLETE,
            why="" if enough else f"{len(seeds)} of {LOOKS[0]} seeds",
            seeds=len(seeds),
            regret=self.regret_interval(entry, seeds, self.texts),
            loss=self._triple(entry, seeds, {0: 1.0}, self.texts),
            gains=gains,
            used=(last[0] / worth, last[1] / worth, last[2] / worth),
            safe=last_shown(1.0, ((ratio, low > -HARM_BPB) for ratio, (_, low, _) in ratios)) if enough else math.nan,
            harmful=last_shown(math.nan, reversed(harms)) if enough else math.nan,
            texts={text: self._on(entry, seeds, text) for text in self.texts},
            control=self._triple(entry, seeds, {0: 1.0, longest: -1.0}, control)
            if self.seeds_of(entry, self.length, control)[: len(seeds)] == seeds
            else UNKNOWN,
            price=self._price(entry, seeds),
        )

    def _triple(self, entry: Entry, seeds: Sequence[int], weigh: Mapping[int, float], texts: Sequence[str]) -> Triple:
        """`mean_over_texts` of one encoding, with its interval from two seeds on."""
        sample = self.mean_over_texts([entry], seeds, weigh, texts)
        low, high = sample.interval() if len(seeds) > 1 else (np.array([math.nan]), np.array([math.nan]))
        return float(sample.estimates[0]), float(low[0]), float(high[0])

    def _tasks(self, encoding: str) -> dict[str, TaskResult]:
        """What an encoding answers to each task, from the newest source of it."""
        own = [cell for cell in self.answers if cell.encoding == encoding]
        results = {}
        for task in dict.fromkeys(cell.task for cell in own):
            newest = max((cell.origin.date, cell.source) for cell in own if cell.task == task)[1]
            cells = [cell for cell in own if (cell.task, cell.source) == (task, newest)]
            lengths = cells[0].lengths
            shares = np.array([[math.nan if each is None else each for each in cell.accuracy] for cell in cells])
            means = shares.mean(axis=0).tolist()
            steps = [cell.learned_at for cell in cells if cell.learned_at is not None]
            solved = [
                (length / lengths[0], share >= SOLVED_SHARE) for length, share in zip(lengths, means, strict=True)
            ]
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

    def _on(self, entry: Entry, seeds: Sequence[int], text: str) -> TextResult:
        losses = tuple(self._triple(entry, seeds, {at: 1.0}, [text]) for at in range(len(self.lengths)))
        return TextResult(losses, self.regret_interval(entry, seeds, [text]))

    def _price(self, entry: Entry, seeds: Sequence[int]) -> float:
        """The loss at the longest windows minus that of the same encoding trained there, mean over texts."""
        longest = self.lengths[-1]
        if (entry, longest) not in self.cells or not self._is_sound(entry, longest):
            return math.nan
        trained = self.seeds_of(entry, longest, self.texts)
        if not trained:
            return math.nan
        short, long = (
            np.mean([self.bits(entry, at, text, which)[:, -1].sum(axis=-1).mean() for text in self.texts])
            for at, which in ((self.length, seeds), (longest, trained))
        )
        return float(short - long)


def _or_infinite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _refuse_mixtures(cells: Sequence[Cell], season: Season) -> None:
    """DataError if cells of one table are of several configurations, or score different documents."""
    kinds: dict[tuple[str, int], Counter[str]] = {}
    texts: dict[str, Counter[str]] = {}
    for cell in cells:
        kinds.setdefault((cell.table, cell.trained_at), Counter())[cell.configuration] += 1
        if cell.documents:
            texts.setdefault(cell.text, Counter())[cell.documents] += 1
    for cell in cells:
        usual = kinds[cell.table, cell.trained_at].most_common(1)[0][0]
        if cell.configuration != usual:
            raise DataError(
                f"{cell.file} has configuration {cell.configuration}, and the others of its table have {usual}: it is "
                f"of another season than {season.name}; remove it"
            )
        if cell.documents and cell.documents != (scored := texts[cell.text].most_common(1)[0][0]):
            raise DataError(
                f"{cell.file} scored other documents of {cell.text} ({cell.documents}) than the others ({scored}): its "
                "corpus is another one; remove it, and make it again with the season's corpora"
            )


def _newest(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of the newest source of every encoding, the older ones left out."""
    newest: dict[tuple[str, bool, int], tuple[str, str]] = {}
    for cell in cells:
        key = (cell.encoding, bool(cell.recipe), cell.trained_at)
        newest[key] = max(newest.get(key, ("", "")), (cell.origin.date, cell.source))
    return [c for c in cells if newest[c.encoding, bool(c.recipe), c.trained_at][1] == c.source]
