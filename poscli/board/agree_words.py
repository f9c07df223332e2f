"""What published tables say beside ours, as sentences, and as columns of text for any page."""

from __future__ import annotations

from collections.abc import Sequence

from poscli.board.agree import Agreement, PairFinding, Tally, ThreeNumbers, three_numbers
from poscli.board.literature import Literature
from poscli.board.ours import MULTIPLES, QUOTED
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


def agreement_sentences(found: Agreement, literature: Literature) -> list[str]:
    """The answer: how far ours agree with papers, beside what papers and the naive order do on the same pairs."""
    every, hard = (three_numbers(found.chosen(BEYOND, hard=each)) for each in (False, True))
    at_length = three_numbers(found.chosen(MULTIPLES[:1]))
    sentences = [
        f"Of {every.pairs} pairs that papers decide and do not dispute, counted at each of {TOGETHER} the training "
        f"length, these results have a tie in {every.ours.ties}, and of the others agree on {_share(every.ours)}. "
        f"Papers dispute {every.disputed} more.",
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
            f"are only compared with {QUOTED} ones."
        )
    return sentences


def beyond_share(found: Agreement) -> str:
    """On how many of the decided and undisputed pairs beyond the training length ours agree: `14 of 16 (88 %)`."""
    return _share(three_numbers(found.chosen(BEYOND)).ours)


def numbers_columns(found: Agreement, like: str = "") -> list[Column]:
    """The three numbers at each multiple, and together, for all pairs and for the hard ones."""
    rows = [(ratio_name(multiple), (multiple,)) for multiple in MULTIPLES] + [(TOGETHER, BEYOND)]
    every, hard = ([three_numbers(found.chosen(at, like, hard=each)) for _, at in rows] for each in (False, True))
    columns = [words("at", (name for name, _ in rows))]
    columns += [Column(name, tuple(str(getattr(each, name)) for each in every)) for name in ("pairs", "disputed")]
    for title, numbers in (("", every), ("hard: ", hard)):
        for who in ("ours", "papers", "naive"):
            columns.append(Column(f"{title}{who}", tuple(_cell(getattr(each, who)) for each in numbers)))
    return [*columns, words("", map(_skill, every))]


def pairs_columns(found: Agreement) -> list[Column]:
    """A row for each pair, and at each multiple which one papers find better and whether these results agree."""
    cells: dict[tuple[str, str], dict[float, str]] = {}
    for each in found.chosen(MULTIPLES):
        cells.setdefault((each.first, each.second), {})[each.multiple] = _verdict(each)
    columns = [words("pair", (f"{first}, {second}" for first, second in cells))]
    return columns + [words(ratio_name(at), (row.get(at, "-") for row in cells.values())) for at in MULTIPLES]


def growth_columns(found: Agreement) -> list[Column]:
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


def opposite_lines(found: Agreement, literature: Literature) -> list[str]:
    """The undisputed pairs that these results order in the opposite way, with who says so."""
    return [
        f"{ratio_name(each.multiple)}: {named(_better(each, sign))} is better in "
        f"{_cited(each.saying(sign), literature)}; here {named(_ours(each))} is{_weak(each)}"
        for each in found.chosen(MULTIPLES)
        if (sign := each.consensus) and each.ours == -sign
    ]


def disputed_lines(found: Agreement, literature: Literature) -> list[str]:
    """The pairs that papers dispute, with both sides and our sign."""
    return [
        f"{ratio_name(each.multiple)}: {named(each.first)} is better in {_cited(each.saying(1), literature)}, "
        f"{named(each.second)} in {_cited(each.saying(-1), literature)}; here "
        + (f"{named(_ours(each))} is{_weak(each)}" if each.ours else f"neither is{_weak(each)}")
        for each in found.chosen(MULTIPLES)
        if each.consensus is None
    ]


def source_lines(literature: Literature) -> list[str]:
    """Every source with its citation and how certain the reading is."""
    return [
        f"{key}: {each.source.title}, {each.source.cite}; {each.source.certainty}"
        + (", enters no number" if each.source.second_hand else "")
        for key, each in literature.sources.items()
    ]


def limit_lines(found: Agreement) -> list[str]:
    """What models of this size cannot test."""
    return [f"{each.what}: {each.why} ({each.source})" for each in found.limits]


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
