"""What others measured, beside ours: pair by pair, at multiples of the training length.

Two encodings have a sign in a table: which one has the lower loss, or neither, if the losses differ by less than
CLOSE. The sign of a source is the one that more than half of its tables have; without such a majority it is a tie. The
same rule gives our sign, where each text is a table: so we are one more source, read in the same way. Papers dispute a
pair if two sources state opposite signs; otherwise the sign that any of them states counts, and the pair is tied if all
state a tie.

Three numbers stand side by side, as none means anything alone: ours against papers; papers against papers, each source
against what the others say where they do not dispute it; and a naive order that knows nothing but families.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations

from poscli import specs
from poscli.board.literature import Limit, Literature, tables_like
from poscli.board.ours import MULTIPLES, QUOTED, OurLosses
from poscli.encodings import get
from poscli.report.claims import meant
from poscli.runs.run import AS
from poscli.system.errors import UsageError, near

# Nats per token; 2 % of a perplexity. Most papers print one seed. The source that prints the spread of three has a
# standard deviation of 1 to 2 % at 2x for encodings that hold, and of half a percent at 1x.
CLOSE = 0.02
SIGNIFICANT_SKILL = 0.05
# The naive order: distance biases and relative vectors first, then rotary, then absolute positions. Other families have
# no place in it, nor have specs of several encodings.
NAIVE = {"bias": 0, "relative": 0, "rotary": 1, "absolute": 2}
PROTOCOLS = {"": QUOTED, "sliding": "sliding", "nonoverlapping": "nonoverlapping"}  # tables read like -> ours


@dataclass(frozen=True)
class PairFinding:
    """One pair at one multiple: the sources by what they say of the first encoding, and our sign and the naive one.

    Signs are 1 where the first is better, -1 where the second is, 0 where neither is. `like` is the protocol of the
    tables, empty for all tables. `first` and `second` are published names, `ours` those of our results.
    """

    multiple: float
    like: str
    first: str
    second: str
    names: tuple[str, str]
    sources: Mapping[str, int]
    ours: int
    naive: int
    hard: bool
    undertrained: tuple[str, ...]

    @property
    def consensus(self) -> int | None:
        """The sign that sources state; None if they dispute it."""
        return consensus(self.sources.values())

    def saying(self, sign: int) -> list[str]:
        """The sources that state a sign."""
        return [key for key, each in self.sources.items() if each == sign]


@dataclass(frozen=True)
class Tally:
    """How often two rankings agree: in `agree` of the `decided` pairs, in which both say which encoding is better.

    `ties` counts the pairs that only the second ranking decides.

    `tau` is Kendall's tau-b over all of the pairs; NaN where either ranking decides none.
    """

    agree: int
    decided: int
    ties: int
    tau: float

    @property
    def share(self) -> float:
        """The share of the decided pairs on which they agree; NaN without any."""
        return self.agree / self.decided if self.decided else math.nan


@dataclass(frozen=True)
class ThreeNumbers:
    """The three numbers on some pairs, and how many pairs papers decide, tie and dispute.

    `p_naive` is that of an exact one-sided McNemar test against the naive order, on the pairs that both decide;
    `p_chance` that of an exact one-sided sign test, on the pairs that the naive order leaves open. NaN without such
    pairs.
    """

    pairs: int
    tied: int
    disputed: int
    ours: Tally
    papers: Tally
    naive: Tally
    p_naive: float
    p_chance: float

    @property
    def skill(self) -> bool:
        """Whether ours is shown to beat the naive order or chance, at 5 % with Bonferroni's correction."""
        tests = [p for p in (self.p_naive, self.p_chance) if not math.isnan(p)]
        return bool(tests) and min(tests) * len(tests) < SIGNIFICANT_SKILL


@dataclass(frozen=True)
class GrowthBeside:
    """Perplexity at a multiple over that at 1x: ours, and the published range with its count of tables and sources."""

    encoding: str
    name: str
    multiple: float
    like: str
    ours: float
    low: float
    high: float
    tables: int
    sources: int


@dataclass(frozen=True)
class Agreement:
    """Everything that is said of published tables beside ours; `names` has our name of each published one."""

    names: Mapping[str, str]
    findings: tuple[PairFinding, ...]
    growths: tuple[GrowthBeside, ...]
    unmeasured: tuple[str, ...]  # protocols of published tables that ours lack
    limits: tuple[Limit, ...] = field(repr=False)

    def chosen(self, multiples: Iterable[float], like: str = "", *, hard: bool = False) -> list[PairFinding]:
        """The findings at some multiples, from tables read like a protocol ("": from all), or only of hard pairs."""
        wanted = {*multiples}
        return [each for each in self.findings if each.multiple in wanted and each.like == like and each.hard >= hard]


def sign_in(tables: Iterable[Mapping[str, float]], first: str, second: str) -> int | None:
    """The sign that more than half of the tables with both encodings have, or 0; None if no table has both.

    Two infinite losses are two bounds, which say nothing.

    >>> sign_in([{"a": 1.0, "b": 1.1}, {"a": 1.0, "b": 1.1}, {"a": 1.0, "b": 1.01}], "a", "b")
    1
    >>> sign_in([{"a": 1.0, "b": 1.1}, {"a": 1.1, "b": 1.0}], "a", "b"), sign_in([{"a": 1.0}], "a", "b")
    (0, None)
    """
    gaps = [table[second] - table[first] for table in tables if first in table and second in table]
    votes = [0 if abs(gap) < CLOSE else int(math.copysign(1, gap)) for gap in gaps if not math.isnan(gap)]
    if not votes:
        return None
    return next((sign for sign in (1, -1) if 2 * votes.count(sign) > len(votes)), 0)


def consensus(signs: Iterable[int]) -> int | None:
    """The sign that sources state and none contradicts, 0 if all state a tie; None if they dispute it, or say nothing.

    >>> consensus([1, 0, 1]), consensus([0, 0]), consensus([1, -1, 1])
    (1, 0, None)
    """
    stated = {*signs}
    return None if not stated or {1, -1} <= stated else sum(stated)


def tally(pairs: Iterable[tuple[int, int]]) -> Tally:
    """How often two rankings agree, from their signs of each pair.

    >>> tally([(1, 1), (1, -1), (0, 1), (1, 1), (0, 0)])
    Tally(agree=2, decided=3, ties=1, tau=0.2886751345948129)
    """
    signs = list(pairs)
    both = [one * other for one, other in signs if one and other]
    first, second = (sum(bool(pair[side]) for pair in signs) for side in (0, 1))
    tau = sum(both) / math.sqrt(first * second) if first and second else math.nan
    return Tally(both.count(1), len(both), second - len(both), tau)


def three_numbers(findings: Sequence[PairFinding]) -> ThreeNumbers:
    """Ours and the naive order against papers, on the pairs that these do not dispute; and papers against papers.

    A source counts in the latter wherever the other sources do not dispute the pair, also where it contradicts them.
    """
    stated = [(each, each.consensus) for each in findings]
    known = [(each, sign) for each, sign in stated if sign is not None]
    told = [(each, sign) for each, sign in known if sign and each.ours]  # by papers and by ours
    right = [(each.ours == sign, each.naive == sign) for each, sign in told if each.naive]
    alone = [each.ours == sign for each, sign in told if not each.naive]
    return ThreeNumbers(
        pairs=sum(sign != 0 for _, sign in known),
        tied=sum(sign == 0 for _, sign in known),
        disputed=len(stated) - len(known),
        ours=tally((each.ours, sign) for each, sign in known),
        papers=tally((sign, others) for each in findings for _, sign, others in left_out(each.sources)),
        naive=tally((each.naive, sign) for each, sign in known),
        p_naive=_p_more([ours for ours, naive in right if ours != naive]) if right else math.nan,
        p_chance=_p_more(alone) if alone else math.nan,
    )


def left_out(sources: Mapping[str, int]) -> Iterable[tuple[str, int, int]]:
    """Each source of a pair with its sign and that of all others, where they do not dispute it.

    >>> list(left_out({"a": 1, "b": -1, "c": 1}))
    [('b', -1, 1)]
    """
    for key, sign in sources.items():
        others = consensus(other for name, other in sources.items() if name != key)
        if others is not None:
            yield key, sign, others


def beside_source(findings: Sequence[PairFinding], key: str) -> tuple[Tally, Tally]:
    """How often ours agree with a source, and how often the others do where they do not dispute a pair."""
    ours = tally((each.ours, each.sources[key]) for each in findings if key in each.sources)
    beside = (left for each in findings for left in left_out(each.sources))
    return ours, tally((others, own) for name, own, others in beside if name == key)


def _p_more(successes: Sequence[bool]) -> float:
    """The chance of at least this number of successes if each trial succeeds with even odds; 1 without any trial."""
    count, least = len(successes), sum(successes)
    return sum(math.comb(count, k) for k in range(least, count + 1)) / 2**count


def counterparts(published: Iterable[str], ours: Sequence[str], *, in_proportion: bool = True) -> dict[str, str]:
    """Our encoding for each published name that we have.

    A length that an encoding takes in tokens, such as the distance from which t5 stops to tell distances apart, is a
    share of the training length in the paper. With `in_proportion` the encoding with that share comes first, as only
    it treats windows of 1, 2, ... L as the paper's model does; otherwise the one with default options does.
    """
    found = {}
    for name in published:
        spellings = [scaled(name), name] if in_proportion else [name, scaled(name)]
        labels = [label for label in (meant(each, ours) for each in spellings) if label in ours]
        if labels:
            found[name] = labels[0]
    return found


def scaled(name: str) -> str:
    """An encoding with its lengths in its paper's proportion to L; other names, and `X as Y`, as they are."""
    if AS in name:
        return name
    try:
        return str(specs.parse(name).in_proportion())
    except UsageError:
        return name


def naive_sign(first: str, second: str) -> int:
    """What the naive order says: 1 if the first encoding is better, -1 if the second is, 0 if it cannot tell."""
    one, other = _rank(first), _rank(second)
    return 0 if one is None or other is None else (other > one) - (other < one)


@cache
def _rank(label: str) -> int | None:
    """The place of an encoding in the naive order, by its family; None for specs of several and for other families."""
    try:
        layers = specs.parse(label).layers
    except UsageError:
        return None
    return NAIVE.get(get(layers[0][0].name).family) if len(layers) == len(layers[0]) == 1 else None


def agreements_of(ours: OurLosses, literature: Literature, own: Mapping[str, str]) -> dict[str, Agreement]:
    """Published tables beside our results in two readings, "in_proportion" and "as_published" (see `counterparts`).

    The second one is left out where it gives no other encodings than the first. `own` has our name of some published
    encodings, whatever the reading. UsageError if fewer than two published encodings were measured.
    """
    found: dict[str, Agreement] = {}
    for reading, in_proportion in (("in_proportion", True), ("as_published", False)):
        names = counterparts(literature.names, ours.encodings, in_proportion=in_proportion) | {**own}
        if all(names != other.names for other in found.values()):
            found[reading] = agreement_of(ours, literature, names)
    return found


def agreement_of(ours: OurLosses, literature: Literature, names: Mapping[str, str]) -> Agreement:
    """Published tables beside ours; `names` has our name of each published one (`counterparts`).

    UsageError if fewer than two published encodings were measured.
    """
    if len({*names.values()}) < 2:
        known = near(ours.encodings[0] if ours.encodings else "", literature.names)
        raise UsageError(
            f"no two encodings of these results are in published tables, or --name PUBLISHED=OURS says which: {known}"
        )
    findings, growths = list[PairFinding](), list[GrowthBeside]()
    hard, ranks = {*literature.scope.hard}, [*combinations(sorted(names), 2)]
    likes = {like: _protocol(ours, like) for like in PROTOCOLS}
    for like, protocol in likes.items():
        if protocol is None:
            continue
        for multiple in MULTIPLES:
            tables = {
                key: [losses for table in tables_like(each, like or None) for losses in table.losses(multiple)]
                for key, each in literature.first_hand.items()
            }
            for first, second in ranks:
                stated = {key: sign_in(each, first, second) for key, each in tables.items()}
                sources = {key: sign for key, sign in stated.items() if sign is not None}
                one, other = names[first], names[second]
                sign = sign_in(ours.tables(protocol, multiple), one, other)
                if not sources or sign is None or one == other:
                    continue
                findings.append(
                    PairFinding(
                        *(multiple, like, first, second, (one, other), sources),
                        ours=0 if (protocol, multiple, frozenset({one, other})) in ours.unsure else sign,
                        naive=naive_sign(first, second),
                        hard={first, second} <= hard,
                        undertrained=tuple(name for name in (one, other) if name in ours.undertrained),
                    )
                )
            growths += _growths(ours, literature, names, multiple, like, protocol)
    missing = tuple(like for like, protocol in likes.items() if protocol is None)
    return Agreement(names, tuple(findings), tuple(growths), missing, tuple(literature.scope.limit))


def _protocol(ours: OurLosses, like: str) -> str | None:
    """The protocol of ours that tables are compared with; None if it was not measured.

    All tables together are compared with the quoted protocol, or the first of others.
    """
    if PROTOCOLS[like] in ours.protocols:
        return PROTOCOLS[like]
    if like == "sliding" and "fixed" in ours.protocols:  # whole windows as well, on the same tokens
        return "fixed"
    return None if like else next(iter(ours.protocols), None)


def _growths(
    ours: OurLosses, literature: Literature, names: Mapping[str, str], multiple: float, like: str, protocol: str
) -> Iterable[GrowthBeside]:
    """The growth of every encoding at a multiple, where ours and a published one are known."""
    for name, label in names.items():
        own = ours.growth(label, protocol, multiple)
        by_source: dict[str, list[float]] = {}
        for key, tables in literature.first_hand.items():
            for table in tables_like(tables, like or None):
                for long, short in zip(table.losses(multiple), table.losses(1), strict=False):
                    if name in long and name in short and table.lengths:
                        by_source.setdefault(key, []).append(_exp(long[name] - short[name]))
        found = [growth for each in by_source.values() for growth in each]
        if multiple > 1 and found and not math.isnan(own):
            low, high = min(found), max(found)
            yield GrowthBeside(name, label, multiple, like, own, low, high, len(found), len(by_source))


def _exp(loss: float) -> float:
    """A ratio of perplexities from a difference of losses, also of one that has only a bound."""
    return math.inf if loss > 700 else math.exp(loss)
