"""The cells of one table as arrays: which encodings have what, their losses, what there is to win, and regret.

The *regret* at the longest windows, 16 L, is the sort key of the board. On each text it is

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
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from poscli.board.cells import (
    ELSEWHERE,
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
    refuse_without_documents,
)
from poscli.board.ranking import SPENT, Array, NumbersOfEncodings
from poscli.board.season import Season, SeasonTable
from poscli.report.ceilings import LEAST_HEADROOM
from poscli.statistics import Triple
from poscli.statistics.comparison import LN2
from poscli.statistics.intervals import around
from poscli.system.errors import DataError

LOOKS = tuple(SPENT)  # numbers of seeds at which encodings are compared
Entry = tuple[str, bool]  # an encoding, and whether its learning rates are tuned


def label_of(entry: Entry) -> str:
    """The name of an entry in tables."""
    return entry[0] + (" (tuned)" if entry[1] else "")


@dataclass(frozen=True)
class Ceilings:
    """What there is to win on a text, in bits per byte: the best cut to L, and the best that was trained long."""

    text: str
    cut: float
    cut_of: str
    long: float
    long_of: str


def tables_of_cells(folder: Path, season: Season, *more: Path) -> list[TableOfCells]:
    """The cells of every table of a season that has some; in the order of the season.

    CorruptError names a damaged file. DataError for cells that cannot stand in one table, or if there are none.
    """
    cells = [cell for each in (folder, *more) for cell in read_cells(each, season.name)]
    documents = {key: each for at in (folder, *more) for key, each in read_documents(at, season.name).items()}
    costs, profiles = read_costs(folder, season.name), read_profiles(folder, season.name)
    answers = [cell for each in (folder, *more) for cell in read_answers(each, season.name)]
    if not cells:
        raise DataError(
            f"there are no cells of season {season.name} in {folder}; {ELSEWHERE}, or make some with `poscli board run`"
        )
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
        _refuse_mixtures(cells, self.answers, season)
        self.cells: dict[tuple[Entry, int], dict[tuple[str, int], Cell]] = {}  # entry and training length
        for cell in of_newest_source(cells):
            of_model = self.cells.setdefault(((cell.encoding, bool(cell.recipe)), cell.trained_at), {})
            of_model[cell.text, cell.seed] = cell
        known = [cell for cell in cells if cell.trained_at == length and cell.documents]
        if not known:
            raise DataError(
                f"season {season.name} has no cells of models trained at {length}; `poscli board run` makes them"
            )
        self.lengths = max((cell.lengths for cell in known), key=len)
        refuse_without_documents(known, documents)
        self.scored = {cell.text: documents[cell.documents] for cell in known}

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

    def missing(self, entry: Entry) -> int:
        """How many cells an encoding lacks until it has all that the first look needs."""
        cells = self.cells[entry, self.length]
        wanted = [(text, seed) for text in self.season.scored for seed in self.season.seeds(LOOKS[0])]
        return sum(each not in cells for each in wanted)

    def failure(self, entry: Entry) -> str:
        """Why a length of an encoding has no losses, in words; "" if all have."""
        for (text, seed), cell in self.cells[entry, self.length].items():
            for length, status in zip(cell.lengths, cell.status, strict=True):
                if status != "ok":
                    why = f": {cell.reason}" if cell.reason else ""
                    return f"{status} at {length} tokens of {text}, seed {seed}{why}"
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
        difference, reach = self.mean_over_texts(entries, seeds, {at: 1.0}, self.texts).apart()
        return np.abs(difference) <= reach

    # What there is to win

    @cached_property
    def ceilings(self) -> dict[str, Ceilings]:
        """What there is to win on every text."""
        longest = self.lengths[-1]
        long = [at for at in self.cells if at[1] == longest and not at[0][1] and self.is_sound(*at)]
        short = [(entry, self.length) for entry in self.entries(tuned=False) if self.is_sound(entry, self.length)]
        found = {}
        for text in self.texts:
            trained, cut = self._losses_on(text, long, -1), self._losses_on(text, short, 0)
            if not trained and not self.table.ceilings:
                raise DataError(
                    f"table {self.table.name!r} has no ceilings, so that nobody is ranked; add some to the season, or "
                    "see what its models say of other sizes with `poscli predict`"
                )
            if not trained or not cut:
                raise DataError(
                    f"table {self.table.name!r} has no baseline on {text}: no model that was trained at {longest} "
                    "tokens is complete; make the missing cells with `poscli board run`"
                )
            best_long, best_cut = min(trained, key=lambda each: trained[each]), min(cut, key=lambda each: cut[each])
            low, high = trained[best_long], cut[best_cut]
            if high - low < LEAST_HEADROOM:
                raise DataError(
                    f"table {self.table.name!r} cannot be ranked on {text}: the best trained at {longest} tokens loses "
                    f"{low:.3f} bits per byte, and the best cut to {self.length} {high:.3f}; to rank, a longer context "
                    f"must win {LEAST_HEADROOM:g} or more there: train longer, or take another text into the season"
                )
            found[text] = Ceilings(text, high, label_of(best_cut), low, label_of(best_long))
        return found

    def _losses_on(self, text: str, models: Sequence[tuple[Entry, int]], place: int) -> dict[Entry, float]:
        """The loss on a text at the length in a place, mean over seeds, of those models that have most seeds."""
        seeds = {model: self.seeds_of(*model, self.texts)[: LOOKS[0]] for model in models}
        most = max(map(len, seeds.values()), default=0)
        return {
            model[0]: float(self.bits(*model, text, own)[:, place].sum(axis=-1).mean())
            for model, own in seeds.items()
            if len(own) == most > 0
        }

    def is_sound(self, entry: Entry, at: int) -> bool:
        """Whether the models of an encoding that were trained at a length have losses in all of their readings."""
        return all(status == "ok" for cell in self.cells[entry, at].values() for status in cell.status)

    def regrets(
        self, entries: Sequence[Entry], seeds: Sequence[int], texts: Sequence[str], at: int
    ) -> NumbersOfEncodings:
        """The regrets of encodings with R1 and C taken as exactly known, which only differences of encodings allow.

        `at` is the index of the length whose losses count, -1 for the longest windows. R1 and C are always those of the
        longest windows.
        """
        parts = {}
        for text in texts:
            ceiling = self.ceilings[text]
            worth = (ceiling.cut - ceiling.long) * len(texts)
            bits = np.stack([self.bits(entry, self.length, text, seeds)[:, at] for entry in entries])
            parts[text] = (bits - ceiling.long * self.shares(text)) / worth
        return NumbersOfEncodings(*self.joined(parts))

    def regret_interval(self, entry: Entry, seeds: Sequence[int], texts: Sequence[str], at: int = -1) -> Triple:
        """The regret of an encoding with its interval, in which R1 and C are as uncertain as they are.

        `at` is the index of the length, as in `regrets`. R1 and C have the seeds that all of them have, which may be
        fewer than those of the encoding.

        A ratio (x - r) / (c - r) near its estimate q moves as (x - (q c + (1 - q) r)) / (c - r).
        """
        of_text = {text: self._anchors(self.ceilings[text]) for text in texts}
        anchors = [each for pair in of_text.values() for each in pair]
        shared = seeds[: min(len(self.seeds_of(*each, self.texts)) for each in anchors)]
        own, of_anchors, estimate = {}, {}, 0.0
        for text, (short, longer) in of_text.items():
            ceiling = self.ceilings[text]
            worth = ceiling.cut - ceiling.long
            bits = self.bits(entry, self.length, text, seeds)[:, at]
            regret = (bits.sum(axis=-1).mean() - ceiling.long) / worth
            cut, long = self.bits(*short, text, shared)[:, 0], self.bits(*longer, text, shared)[:, -1]
            own[text] = bits[None] / (worth * len(texts))
            of_anchors[text] = (regret * cut + (1 - regret) * long)[None] / (worth * len(texts))
            estimate += regret / len(texts)
        if len(shared) < 2:
            return float(estimate), math.nan, math.nan
        here, there = (NumbersOfEncodings(*self.joined(parts)) for parts in (own, of_anchors))
        return around(float(estimate), float(here.reach_from(there)[0]))

    def _anchors(self, ceiling: Ceilings) -> list[tuple[Entry, int]]:
        """The models of C and R1: each an entry, with its training length."""
        ends = {(ceiling.cut_of, self.length), (ceiling.long_of, self.lengths[-1])}
        return sorted((each for each in self.cells if (label_of(each[0]), each[1]) in ends), key=lambda each: each[1])

    def estimate(self, entry: Entry, seeds: Sequence[int], weigh: Mapping[int, float], texts: Sequence[str]) -> Triple:
        """`mean_over_texts` of one encoding, with its interval from two seeds on."""
        sample = self.mean_over_texts([entry], seeds, weigh, texts)
        return around(float(sample.estimates[0]), float(sample.reach()[0]))

    def price(self, entry: Entry, seeds: Sequence[int]) -> float:
        """The loss at the longest windows minus that of the same encoding trained there, mean over texts."""
        longest = self.lengths[-1]
        if (entry, longest) not in self.cells or not self.is_sound(entry, longest):
            return math.nan
        trained = self.seeds_of(entry, longest, self.texts)
        if not trained:
            return math.nan
        short, long = (
            np.mean([self.bits(entry, at, text, which)[:, -1].sum(axis=-1).mean() for text in self.texts])
            for at, which in ((self.length, seeds), (longest, trained))
        )
        return float(short - long)


def _refuse_mixtures(cells: Sequence[Cell], answers: Sequence[TaskCell], season: Season) -> None:
    """DataError if cells of one table, or of one task, are of several configurations, or score different documents."""
    of_one: dict[tuple[str, int], list[Cell | TaskCell]] = {}  # by the name of a table or a task, and training length
    texts: dict[str, Counter[str]] = {}
    for cell in cells:
        of_one.setdefault((cell.table, cell.trained_at), []).append(cell)
        if cell.documents:
            texts.setdefault(cell.text, Counter())[cell.documents] += 1
    for answer in answers:  # of a task at any length: its configuration says which
        of_one.setdefault((answer.task, 0), []).append(answer)
    for (name, _), together in of_one.items():
        usual = Counter(each.configuration for each in together).most_common(1)[0][0]
        for each in together:
            if each.configuration != usual:
                raise DataError(
                    f"{each.file} has configuration {each.configuration}, and the others of {name!r} have {usual}: it "
                    f"is of another season than {season.name}; remove it"
                )
    for cell in cells:
        if cell.documents and cell.documents != (scored := texts[cell.text].most_common(1)[0][0]):
            raise DataError(
                f"{cell.file} scored other documents of {cell.text} ({cell.documents}) than the others ({scored}): its "
                "corpus is another one; remove it, and make it again with the season's corpora"
            )


def of_newest_source(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of the newest source of every encoding in a table, the older ones left out.

    Tunings on two machines may find different learning rates for an encoding. Then the cells with the rates that most
    of its cells have stay.
    """
    newest: dict[tuple[str, str, bool, int], tuple[str, str]] = {}
    rates: dict[tuple[str, str, bool, int], Counter[str]] = {}
    for cell in cells:
        newest[_model(cell)] = max(newest.get(_model(cell), ("", "")), (cell.origin.date, cell.source))
    own = [cell for cell in cells if newest[_model(cell)][1] == cell.source]
    for cell in own:
        rates.setdefault(_model(cell), Counter())[_rates(cell)] += 1
    usual = {model: max(known, key=lambda each: (known[each], each)) for model, known in rates.items()}
    return [cell for cell in own if usual[_model(cell)] == _rates(cell)]


def _model(cell: Cell) -> tuple[str, str, bool, int]:
    """What the cells of one row share: table, encoding, whether the learning rates are tuned, and training length."""
    return cell.table, cell.encoding, bool(cell.recipe), cell.trained_at


def _rates(cell: Cell) -> str:
    return str(sorted(cell.recipe.items()))
