"""What published tables say beside ours: sentences, tables and lists, for a terminal and for a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poscli.board.agree import Agreement, PairFinding, Tally, ThreeNumbers, beside_source, three_numbers
from poscli.board.literature import Literature
from poscli.board.ours import MULTIPLES
from poscli.drawing.text import listed, named, number
from poscli.report.pooling import ratio_name
from poscli.report.table import Column, words

BEYOND = MULTIPLES[1:]  # the training length
TOGETHER = f"{ratio_name(BEYOND[0])} to {ratio_name(BEYOND[-1])}"
NO_SKILL, SKILL = "no skill shown", "skill shown"
LEGEND = (
    "papers: each source against what the others say where they do not dispute it; naive: distance biases, then "
    "rotary, then absolute positions",
    "14/16 +2, 0.71: of 16 pairs that both rankings decide they agree on 14, and of 2 more the first has a tie; then "
    "Kendall's tau-b over all of these pairs",
    "hard: both of {hard}",
    f"{NO_SKILL}: neither better than the naive order where both decide (exact McNemar test), nor than chance where "
    "the naive order is silent (exact sign test); one-sided, at 5 % with Bonferroni's correction. Pairs are not "
    "independent of each other, and the same ones count at several multiples, so that the tests see skill too easily",
)
READINGS = {
    "in_proportion": "lengths in the papers' proportion to L",
    "as_published": "encodings at their default options",
}


@dataclass(frozen=True)
class Said:
    """All that is said of published tables beside ours: the answer first, then titled tables and lists."""

    sentences: tuple[str, ...]
    tables: tuple[tuple[str, tuple[Column, ...]], ...]
    lists: tuple[tuple[str, tuple[str, ...]], ...]


def said_of(found: Mapping[str, Agreement], literature: Literature) -> Said:
    """What `agreements_of` found, in words: the first reading whole, and of another one its share of agreement."""
    (_, main), *others = found.items()
    sentences = _sentences(main, literature)
    sentences += [f"With {READINGS[reading]}, instead: {_share(_beyond(each).ours)}." for reading, each in others]
    if renamed := [f"{ours} for {published}" for published, ours in main.names.items() if published != ours]:
        sentences.append(f"Here {listed(renamed, 9)}.")
    tables = [("All tables", _numbers_columns(main, ""))]
    tables += [
        (f"Tables of {like} windows beside the same here", _numbers_columns(main, like))
        for like in ("sliding", "nonoverlapping")
        if like not in main.unmeasured
    ]
    growth = "Perplexity over that at 1x, here (published: lowest to highest; number of sources)"
    tables += [
        (f"Each source at {TOGETHER}", _source_columns(main, literature)),
        ("Which one papers find better, and whether these results agree", _pairs_columns(main)),
        (growth, _growth_columns(main)),
    ]
    lists = (
        ("What these numbers mean", [line.format(hard=listed(literature.scope.hard, 9)) for line in LEGEND]),
        ("Opposite to papers that do not dispute it", _opposite_lines(main, literature)),
        ("Disputed by papers", _disputed_lines(main, literature)),
        ("What this size cannot test", [f"{each.what}: {each.why} ({each.source})" for each in main.limits]),
        ("Sources", _source_lines(literature)),
    )
    return Said(
        sentences=tuple(sentences),
        tables=tuple((title, tuple(columns)) for title, columns in tables),
        lists=tuple((title, tuple(lines)) for title, lines in lists if lines),
    )


def _sentences(found: Agreement, literature: Literature) -> list[str]:
    """The answer: how far ours agree with papers, beside what papers and the naive order do on the same pairs."""
    every, hard = _beyond(found), three_numbers(found.chosen(BEYOND, hard=True))
    at_length = three_numbers(found.chosen(MULTIPLES[:1]))
    sentences = [
        f"Of {every.pairs} pairs that papers decide and do not dispute, counted at each of {TOGETHER} the training "
        f"length, these results have a tie in {every.ours.ties}, and of the others agree on {_share(every.ours)}. "
        f"Papers dispute {every.disputed} more.{_most_opposite(found, literature)}",
        f"Beside that: papers agree with each other on {_share(every.papers)}, and the naive order with papers on "
        f"{_share(every.naive)}.",
        f"Hard pairs, both of {listed(literature.scope.hard, 9)}: ours with papers {_share(hard.ours)}, papers with "
        f"each other {_share(hard.papers)}, the naive order {_share(hard.naive)}.",
        f"At the training length, in the same order: {_share(at_length.ours)}, {_share(at_length.papers)} and "
        f"{_share(at_length.naive)}.",
    ]
    sentences.append(f"Skill at {TOGETHER}: {_skill(every)}; on the hard pairs: {_skill(hard)}.")
    if found.unmeasured:
        sentences.append(
            f"Not like with like: {listed(found.unmeasured)} windows are not among these results, so that such tables "
            "are only compared with windows of another kind."
        )
    return sentences


def _beyond(found: Agreement) -> ThreeNumbers:
    """The three numbers on all pairs beyond the training length."""
    return three_numbers(found.chosen(BEYOND))


def _most_opposite(found: Agreement, literature: Literature) -> str:
    """The source of most opposite pairs: what rests on one paper is less of a contradiction. Empty without any."""
    opposite = _opposite(found, BEYOND)
    if not opposite:
        return ""
    counts = Counter(key for each, sign in opposite for key in each.saying(sign))
    key, most = counts.most_common(1)[0]
    alone = sum(each.saying(sign) == [key] for each, sign in opposite)
    return (
        f" Of the {len(opposite)} opposite ones, {most} are what {literature.cite(key)} finds, of which {alone} are "
        "found in no other paper."
    )


def _opposite(found: Agreement, multiples: Sequence[float]) -> list[tuple[PairFinding, int]]:
    """The undisputed pairs that these results order in the opposite way, with the sign that papers state."""
    return [(each, sign) for each in found.chosen(multiples) if (sign := each.consensus) and each.ours == -sign]


def _numbers_columns(found: Agreement, like: str) -> list[Column]:
    """The three numbers at each multiple, and together, for all pairs and for the hard ones."""
    rows = [(ratio_name(multiple), (multiple,)) for multiple in MULTIPLES] + [(TOGETHER, BEYOND)]
    every, hard = ([three_numbers(found.chosen(at, like, hard=each)) for _, at in rows] for each in (False, True))
    columns = [words("at", (name for name, _ in rows))]
    columns += [Column(name, tuple(str(getattr(each, name)) for each in every)) for name in ("pairs", "disputed")]
    for title, numbers in (("", every), ("hard: ", hard)):
        for who in ("ours", "papers", "naive"):
            columns.append(Column(f"{title}{who}", tuple(_cell(getattr(each, who)) for each in numbers)))
    return [*columns, words("", map(_skill, every))]


def _source_columns(found: Agreement, literature: Literature) -> list[Column]:
    """A row for each source: how often these results agree with it, and how often the other sources do."""
    tallies = {key: beside_source(found.chosen(BEYOND), key) for key in literature.first_hand}
    rows = {key: each for key, each in tallies.items() if each[0].decided + each[0].ties}
    return [
        words("source", map(literature.cite, rows)),
        Column("ours", tuple(_cell(ours) for ours, _ in rows.values())),
        Column("other papers", tuple(_cell(others) for _, others in rows.values())),
    ]


def _pairs_columns(found: Agreement) -> list[Column]:
    """A row for each pair, and at each multiple which one papers find better and whether these results agree."""
    cells: dict[tuple[str, str], dict[float, str]] = {}
    for each in found.chosen(MULTIPLES):
        cells.setdefault((each.first, each.second), {})[each.multiple] = _verdict(each)
    columns = [words("pair", (f"{first}, {second}" for first, second in cells))]
    return columns + [words(ratio_name(at), (row.get(at, "-") for row in cells.values())) for at in MULTIPLES]


def _growth_columns(found: Agreement) -> list[Column]:
    """Perplexity over that at 1x, of ours and in brackets from the lowest to the highest published one."""
    rows = {(each.name, each.multiple): each for each in found.growths if not each.like}
    names = list(dict.fromkeys(name for name, _ in rows))

    def cell(name: str, multiple: float) -> str:
        if (each := rows.get((name, multiple))) is None:
            return "-"
        ends = " to ".join(dict.fromkeys(map(number, (each.low, each.high))))
        return f"{number(each.ours)} ({ends}; {each.sources})"

    columns = [words("encoding", names)]
    return columns + [Column(ratio_name(at), tuple(cell(name, at) for name in names)) for at in BEYOND]


def _opposite_lines(found: Agreement, literature: Literature) -> list[str]:
    """The undisputed pairs that these results order in the opposite way, with who says so."""
    return [
        f"{ratio_name(each.multiple)}: {named(_better(each, sign))} is better in "
        f"{_cited(each.saying(sign), literature)}; here {named(_ours(each))} is{_weak(each)}"
        for each, sign in _opposite(found, MULTIPLES)
    ]


def _disputed_lines(found: Agreement, literature: Literature) -> list[str]:
    """The pairs that papers dispute, with both sides and our sign."""
    return [
        f"{ratio_name(each.multiple)}: {named(each.first)} is better in {_cited(each.saying(1), literature)}, "
        f"{named(each.second)} in {_cited(each.saying(-1), literature)}; here "
        + (f"{named(_ours(each))} is{_weak(each)}" if each.ours else f"neither is{_weak(each)}")
        for each in found.chosen(MULTIPLES)
        if each.consensus is None
    ]


def _source_lines(literature: Literature) -> list[str]:
    """Every source with its citation and how certain the reading is."""
    return [
        f"{key}: {each.source.title}, {each.source.cite}; {each.source.certainty}"
        + (", enters no number" if each.source.second_hand else "")
        for key, each in literature.sources.items()
    ]


def _share(each: Tally) -> str:
    """`14 of 16 (88 %)`."""
    return f"{each.agree} of {each.decided}" + (f" ({100 * each.share:.0f} %)" if each.decided else "")


def _cell(each: Tally) -> str:
    """`14/16 +2, 0.71`."""
    ties = f" +{each.ties}" if each.ties else ""
    return f"{each.agree}/{each.decided}{ties}, " + ("-" if each.tau != each.tau else f"{each.tau:.2f}")


def _skill(each: ThreeNumbers) -> str:
    return SKILL if each.skill else NO_SKILL


def _verdict(each: PairFinding) -> str:
    """What papers say of a pair, and whether ours agree."""
    if not (sign := each.consensus):
        return "disputed" if sign is None else "tied"
    return f"{_better(each, sign)}: " + ("tie here" if not each.ours else "agrees" if each.ours == sign else "OPPOSITE")


def _better(each: PairFinding, sign: int) -> str:
    return each.first if sign > 0 else each.second


def _ours(each: PairFinding) -> str:
    """Our name of the encoding that is better here."""
    return each.names[0 if each.ours > 0 else 1]


def _weak(each: PairFinding) -> str:
    return f" ({listed(each.undertrained)} undertrained)" if each.undertrained else ""


def _cited(keys: Sequence[str], literature: Literature) -> str:
    return ", ".join(map(literature.cite, keys))
