"""Published claims, held against the results: each is replicated, not replicated, or cannot be seen at this size.

A number meets a bound if its 95 % interval over seeds and documents lies on the right side of it, and misses it if the
interval lies on the other side. A claim is replicated if all of its numbers meet their bounds, and not replicated if
one surely misses. It cannot be seen where seeds are too few, where intervals decide neither, or where the results lack
what the claim takes for granted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

from poscli.config.claim import Claim, Condition
from poscli.drawing.text import signed
from poscli.report.comparison import as_written
from poscli.report.data import Analysis, Section
from poscli.report.groups import Group
from poscli.report.pooling import ACCURACY, ratio_name
from poscli.runs.run import AS
from poscli.statistics import FEWEST_SEEDS, UNKNOWN, Triple
from poscli.statistics.comparison import Comparison
from poscli.system.text import counted

REPLICATED, NOT_REPLICATED = "replicated", "not replicated"
NOT_SEEN, NOT_MEASURED = "cannot be seen at this size", "not measured"
HOLDS, FAILS, OPEN = "holds", "does not hold", "is undecided"  # of one number


def meant(label: str, names: Collection[str]) -> str:
    """The one of these names that a label of a claim means, which may spell its options differently."""
    known = {part for name in names for part in name.split(AS)}
    return label if label in names else AS.join(as_written(part, known) for part in label.split(AS))


def claims_of_groups(claims: Sequence[Claim], groups: Sequence[Group]) -> list[list[Claim]]:
    """The claims about each group of rows: those whose encodings it has; the first has those that no group can tell."""
    names = [set(map(str, group.rows["encoding"])) for group in groups]
    able = [[all(meant(label, known) in known for label in claim.labels) for known in names] for claim in claims]
    return [
        [claim for claim, tells in zip(claims, able, strict=True) if tells[n] or (n == 0 and not any(tells))]
        for n in range(len(groups))
    ]


def claims_replicated(claims: Sequence[Claim], section: Section) -> Analysis | None:
    """What the numbers of a section say about claims; None without any."""
    if not claims:
        return None
    judged = [_judge(claim, section) for claim in claims]
    counts = Counter(verdict for verdict, _ in judged)
    found = [f"{counts[word]} {word}" for word in (REPLICATED, NOT_REPLICATED, NOT_SEEN, NOT_MEASURED) if counts[word]]
    return Analysis(
        "Which published claims do these results replicate?",
        f"Of {len(claims)}: {', '.join(found)}.",
        legend=(
            f"{REPLICATED}: every number meets its bound with its whole 95 % interval over seeds and documents; "
            f"{NOT_REPLICATED}: one is surely on the other side; {NOT_SEEN}: neither, or what the claim takes for "
            "granted does not hold here",
            "intervals are those of single numbers, not corrected for the number of claims or of numbers in one",
        ),
        points=tuple(
            f"{verdict}: {claim.says} ({claim.source}). {why}"
            for claim, (verdict, why) in zip(claims, judged, strict=True)
        ),
    )


def _judge(claim: Claim, section: Section) -> tuple[str, str]:
    """The verdict on a claim, and what was measured."""
    found = [(each, *_check(each, section)) for each in claim.when]
    granted = {word for each, word, _, _ in found if each.given}
    asked = {word for each, word, _, _ in found if not each.given}
    seeds = min(count for _, _, _, count in found)
    told = "; ".join(text for _, _, text, _ in found)
    if NOT_MEASURED in granted | asked:
        return NOT_MEASURED, told
    if seeds < FEWEST_SEEDS or granted - {HOLDS}:
        verdict = NOT_SEEN
    elif FAILS in asked:
        verdict = NOT_REPLICATED
    else:
        verdict = NOT_SEEN if OPEN in asked else REPLICATED
    needed = f" (at least {FEWEST_SEEDS} are needed)" if seeds < FEWEST_SEEDS else ""
    return verdict, f"{told}. {counted(seeds, 'seed')}{needed}"


def _check(asked: Condition, section: Section) -> tuple[str, str, int]:
    """What holds of a condition, the sentence that says it with its numbers, and how many seeds are behind them."""
    (value, low, high), seeds = _number(asked, section)
    answered = section.accuracies is not None
    what = "accuracy" if answered else "loss" if asked.over else "context gain"
    of = f"{what} of {asked.of}{f' minus that of {asked.over}' if asked.over else ''} at {ratio_name(asked.at)}"
    if math.isnan(value):
        return NOT_MEASURED, f"{of}: {NOT_MEASURED}", seeds
    above = -math.inf if asked.more is None else asked.more
    below = math.inf if asked.less is None else asked.less
    sign = "" if answered and not asked.over else "+"  # differences have one
    bounds = [f"{word} {end:{sign}g}" for word, end in (("above", above), ("below", below)) if math.isfinite(end)]
    if low > above and high < below:
        word = HOLDS
    else:
        word = FAILS if high <= above or low >= below else OPEN
    why = "taken for granted" if asked.given else "claimed"
    middle, *ends = (signed(each) if sign else f"{each:.3f}" for each in (value, low, high))
    found = f"{middle} [{', '.join(ends)}]{'' if answered else f' {section.bits}'}"
    return word, f"{of}: {found}; {why} is {' and '.join(bounds)}, which {word}", seeds


def _number(asked: Condition, section: Section) -> tuple[Triple, int]:
    """The number that a condition asks for, with its 95 % interval, and its seeds; NaN where it was not measured.

    Seeds that failed at the length are not behind the number, nor, of a difference, those that only one encoding has.
    """
    names, length = [each.name for each in section.encodings], round(asked.at * section.train_length)
    name, other = meant(asked.of, names), meant(asked.over, names)
    answers, quoted = section.accuracies, section.headline
    if asked.over:
        losses = next(each.losses for each in section.protocols if each.name == quoted.perplexity)
        pairs = losses if answers is None else answers.pairs
        found = {} if pairs is None or other not in names else pairs.against(other)
        pair = found.get((name, length), Comparison())
        return pair.numbers, pair.seeds
    if answers is not None:
        if name not in names or length not in section.lengths:
            return UNKNOWN, 0
        row, column = names.index(name), section.lengths.index(length)
        of_seeds = section.measures[ACCURACY][quoted.perplexity][column][row]
        return answers.points[row][column], sum(map(math.isfinite, of_seeds))
    points = section.points(quoted.gain)
    ends = (each for each in points if (each.encoding, each.length) == (name, length))
    return next(((each.gain, each.seeds - each.failed) for each in ends), (UNKNOWN, 0))
