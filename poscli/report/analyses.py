"""What a section can say beside its summary: questions about its results, each with an answer and a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
import scipy  # whose parts are loaded when they are used

from poscli.data.corpora import periods_of
from poscli.drawing.text import listed, low_to_high, named, number, signed
from poscli.evaluation.plan import PAIRED
from poscli.evaluation.protocol import PROTOCOLS
from poscli.report.answer import paired
from poscli.report.ceilings import LEAST_HEADROOM
from poscli.report.comparison import AllPairs, losses_of
from poscli.report.data import Analysis
from poscli.report.origin import bits_per
from poscli.report.pooling import Headline, Point, headline, of_model, ratio_name, sound, the_train_length
from poscli.report.table import Column, gain_text, words
from poscli.report.verdicts import HARM_BPB, can_win
from poscli.runs.schema import FULL
from poscli.statistics import FEWEST_SEEDS
from poscli.statistics.comparison import (
    BETTER,
    LN2,
    SIGNIFICANT,
    TOO_FEW,
    WITHIN_NOISE,
    WORSE,
    Comparison,
    LossTable,
    judged,
)  # fmt: skip
from poscli.statistics.intervals import Interval, two_level_interval

SHOWN = 4  # pairs of encodings that are named
MOST_SEEDS = 8  # which have 35 divisions into halves; more would cost time and say no more


def compared(
    pairs: AllPairs, points: Sequence[Point], baseline: str, bits: str, *, of_answers: bool
) -> Analysis | None:
    """Differences to the baseline at every length of `points`; None where the section does not have the baseline.

    `of_answers` says that accuracies are compared, and not losses, which are in `bits`.
    """
    if baseline not in pairs.names or len(pairs.names) < 2:
        return None
    ratios = {point.length: ratio_name(point.ratio) for point in sorted(points, key=lambda point: point.length)}
    against = {key: each for key, each in pairs.against(baseline).items() if key[1] in ratios}
    score, unit, better, items = f"loss in {bits}", bits, "below", "documents"
    if of_answers:
        score, unit, better, items = "accuracy", "of the answers", "above", "episodes"
    last = {name: against[name, max(ratios)] for name in sorted(pairs.names) if name != baseline}
    names = sorted(last, key=lambda name: (math.isnan(d := last[name].difference), -d if of_answers else d))

    def cell(each: Comparison) -> str:
        return (
            f"{gain_text(*each.numbers)} {each.word.replace('documents', items)}"
            if each.difference == each.difference
            else "-"
        )

    columns = [words("encoding", names)]
    columns += [Column(each, tuple(cell(against[name, at]) for name in names)) for at, each in ratios.items()]
    tests = sum(each.p == each.p for each in against.values())
    legend = [
        f"{score}, minus that of {baseline}, with its 95 % interval; {better} zero is better",
        f"better, worse: the difference is significant (p < {SIGNIFICANT} in a paired permutation test, after "
        f"Holm's correction for {tests} comparisons); within noise: it is not",
        paired(items),
    ]
    if any(each.word == TOO_FEW for each in against.values()):
        legend.append(
            f"too few {items}: so few were scored that no difference could be significant among so many comparisons"
        )
    if max(each.seeds for each in against.values()) < FEWEST_SEEDS:
        legend.append(f"fewer than {FEWEST_SEEDS} seeds: intervals and tests are over {items} only")
    answer = _compared_at_end({name: last[name] for name in names}, baseline, unit, items)
    if answer:
        answer = f"At {ratios[max(ratios)]}, {answer}."
    return Analysis(
        f"Compared with {baseline}", answer or "Nothing here can be compared.", tuple(columns), tuple(legend)
    )


def _compared_at_end(last: Mapping[str, Comparison], baseline: str, unit: str, items: str) -> str:
    """Which encodings are better and worse than the baseline at the longest length, the best first, and by how much."""
    base, parts = named(baseline), []
    phrases = {
        BETTER: f"better than {base}",
        WITHIN_NOISE: f"within noise of {base}",
        TOO_FEW: f"with too few {items} to tell from {base}",
        WORSE: f"worse than {base}",
    }
    for word, phrase in phrases.items():
        if names := [name for name, each in last.items() if each.word == word]:
            by = ""
            if word in (BETTER, WORSE):  # the best of those that are better, the worst of those that are worse
                farthest = names[0 if word == BETTER else -1]
                distance = f"{signed(abs(last[farthest].difference)).lstrip('+')} {unit}"
                by = f" by {distance}" if len(names) == 1 else f" ({named(farthest)} by {distance})"
            parts.append(f"{listed(names, 8)} {'is' if len(names) == 1 else 'are'} {phrase}{by}")
    return "; ".join(parts)


def seed_spread(rows: pd.DataFrame, units: LossTable) -> Analysis | None:
    """The spread over seeds apart from that over documents, of the loss at 1x and at the longest length.

    None if no encoding has enough seeds.
    """
    protocol, bits = headline(rows).perplexity, bits_per(rows)
    scored = of_model(rows, protocol)
    intervals: dict[tuple[str, float], Interval] = {}
    for ratio in sorted({1.0, float(scored["ratio"].max())}) if len(scored) else []:
        for name, part in scored[scored["ratio"] == ratio].groupby("encoding"):
            runs = list(part["run_id"].unique())
            losses = units.losses(runs, protocol, int(part["length"].iloc[0]), FULL)
            if len(runs) >= FEWEST_SEEDS and losses is not None:
                intervals[str(name), ratio] = two_level_interval(losses.nats / LN2, losses.bytes)
    if not intervals:
        return None
    names, ratios = list(dict.fromkeys(name for name, _ in intervals)), sorted({ratio for _, ratio in intervals})
    columns = [words("encoding", names)]
    for ratio in ratios:
        at = [intervals.get((name, ratio)) for name in names]
        loss = tuple("-" if c is None else f"{c.estimate:.3f} [{c.low:.3f}, {c.high:.3f}]" for c in at)
        over_seeds = tuple("-" if c is None else f"{c.seed_sd:.3f}" for c in at)
        over_documents = tuple("-" if c is None else f"{c.document_sd:.3f}" for c in at)
        heads = (f"{bits} {ratio_name(ratio)} [95 %]", "over seeds " + ratio_name(ratio))
        columns += [Column(heads[0], loss), Column(heads[1], over_seeds)]
        columns.append(Column(f"over documents {ratio_name(ratio)}", over_documents))
    last = {name: interval for (name, ratio), interval in intervals.items() if ratio == ratios[-1]}
    widest = max(last, key=lambda name: last[name].seed_sd)
    least = min(last, key=lambda name: last[name].seed_sd)
    seeds = low_to_high({interval.seeds for interval in last.values()})
    every = "per encoding" if set(scored["encoding"]) == set(names) else f"of {listed(names)}"
    answer = f"{seeds} seeds {every}. At {ratio_name(ratios[-1])}, seeds of {named(widest)} differ most"
    answer += f" (standard deviation {last[widest].seed_sd:.3f} {bits})"
    answer += f", those of {named(least)} least ({last[least].seed_sd:.3f})" if widest != least else ""
    legend = (
        f"{bits}: the loss with its 95 % interval over seeds and documents",
        "over seeds: standard deviation of the losses of single seeds on the same documents",
        "over documents: standard deviation of the losses of single documents, averaged over seeds",
    )
    return Analysis("How sure are these numbers?", f"{answer}.", tuple(columns), legend)


def order_under_other_seeds(rows: pd.DataFrame, units: LossTable, summary: pd.DataFrame) -> Analysis | None:
    """Would other seeds give the same order of encodings, at L and at the longest length?

    The seeds of a section are divided into two halves in every way. Each half says which pairs of encodings it tells
    apart (p < 0.05 after Holm's correction for all pairs), and the other half, which had no part in that, orders these
    pairs anew.

    `rows` are those of eval.csv. Encodings that failed or learned too little, by their verdict in the `summary`, are
    left out. None if a half would have fewer than three seeds, or if there are no two encodings.
    """
    protocol = headline(rows).gain
    scored = rows[(rows["protocol"] == protocol) & (rows["variant"] == FULL)]
    names = [str(row["encoding"]) for row in summary.to_dict("records") if can_win(row["verdict"])]
    of_each = [set(scored.loc[scored["encoding"] == name, "seed"]) for name in names]
    seeds = sorted(set.intersection(*of_each))[:MOST_SEEDS] if of_each else []
    if len(names) < 2 or len(seeds) < 2 * FEWEST_SEEDS:
        return None
    size = len(seeds) // 2
    halved = frozenset(seeds[: 2 * size])  # of an odd number, the last seed is in no half
    halves = [frozenset(half) for half in combinations(seeds[: 2 * size], size)]
    losses = {half: losses_of(rows[rows["seed"].isin(half)], units, protocol) for half in halves}
    pairs = list(combinations([(name, FULL) for name in names], 2))
    lines = []
    for length in sorted({int(scored["length"].min()), int(scored["length"].max())}):
        found = {half: judged(each.compare((*pair, length) for pair in pairs)) for half, each in losses.items()}
        told, taus = [], []
        for half in halves:  # it tells pairs apart, and the other half orders them; of each division, both do either
            apart = [
                a.difference * b.difference > 0
                for a, b in zip(found[half], found[halved - half], strict=True)
                if a.p_holm <= SIGNIFICANT
            ]
            told.append(len(apart))
            taus.append(2 * sum(apart) / len(apart) - 1 if apart else math.nan)
        lines.append((length, told, taus))
    return _order_of_halves(lines, len(pairs), size, int(rows["train_length"].iloc[0]))


def _order_of_halves(
    lines: list[tuple[int, list[int], list[float]]], pairs: int, size: int, train_length: int
) -> Analysis:
    """The analysis of (length, pairs told apart, Kendall's tau on these) for every division."""
    ratios = [ratio_name(length / train_length) for length, _, _ in lines]
    known = [[tau for tau in taus if tau == tau] for _, _, taus in lines]
    cells = [
        f"{sum(each) / len(each):.2f} ({number(min(each))} to {number(max(each))})" if each else "-" for each in known
    ]
    _, told, _ = lines[-1]
    answer = f"At {ratios[-1]}, {size} seeds tell {low_to_high(set(told))} of {pairs} pairs apart"
    if known[-1]:
        answer += (
            f", and {size} other seeds order these with a Kendall's tau of {sum(known[-1]) / len(known[-1]):.2f} "
            f"(at least {min(known[-1]):.2f}, in {len(told) // 2} divisions of the seeds)"
        )
    return Analysis(
        "Would other seeds give the same order?",
        f"{answer}.",
        (
            words("length", ratios),
            words("pairs told apart", [low_to_high(set(told)) for _, told, _ in lines]),
            Column("tau of other seeds", tuple(cells)),
        ),
        (
            f"pairs told apart: of {pairs}, by {size} seeds (p < {SIGNIFICANT} in a paired permutation test, after "
            "Holm's correction), the fewest and the most over all divisions of the seeds into halves",
            "tau of other seeds: Kendall's tau on these pairs, mean and range; 1 if the other half orders all of them "
            "alike, 0 if half of them",
        ),
    )


def known_limit(rows: pd.DataFrame, summary: pd.DataFrame) -> Analysis | None:
    """For every encoding and length: bits above the optimum, and the share of the information beyond L that is used.

    Where the limit of a position-blind reader is known and above the optimum, also the bits above that limit. None if
    the source has no known optimum.
    """
    protocol = headline(rows).gain
    known = rows[(rows["protocol"] == protocol) & sound(rows) & rows["optimum"].notna() & (rows["bytes"] > 0)]
    if known.empty:
        return None
    bits, key = known["tokens"] / known["bytes"] / LN2, ["encoding", "ratio"]
    known = known.assign(
        excess=(known["nll"] - known["optimum"]) * bits,
        best=known["optimum"] * bits,
        won=known["gain"] * bits,
        above_blind=(known["nll"] - known["blind"]) * bits,
        blind=known["blind"] * bits,
    )
    table = known[known["variant"] == FULL].groupby(key)[["excess", "best", "won", "above_blind", "blind"]].mean()
    if table.empty:
        return None
    available = known[known["variant"] == PAIRED].groupby(key)["best"].mean() - table["best"]
    available = available.reindex(table.index)
    used = (table["won"] / available).where(available > LEAST_HEADROOM)
    measured = table.index.get_level_values("encoding")
    names = [name for name in summary["encoding"] if name in measured]
    ratios = sorted(set(table.index.get_level_values("ratio")))

    def column(head: str, values: pd.Series, ratio: float, write: Callable[[float], str]) -> Column:
        cells = (values.get((name, ratio), math.nan) for name in names)
        return Column(f"{head} {ratio_name(ratio)}", tuple("-" if v != v else write(v) for v in cells))

    columns = [words("encoding", names)]
    columns += [column("above the optimum", table["excess"], ratio, number) for ratio in ratios]
    needs_position = bool((table["blind"] - table["best"] > LEAST_HEADROOM).any())
    if needs_position:
        columns += [column("above blind", table["above_blind"], ratio, signed) for ratio in ratios]
    columns += [column("used", used, ratio, lambda share: f"{100 * share:z.0f} %") for ratio in ratios if ratio > 1]
    beyond = available.groupby("ratio").mean()
    won = ", ".join(f"{signed(each)} at {ratio_name(ratio)}" for ratio, each in beyond.items() if ratio > 1)
    answer = f"In bits per byte, a perfect model would win {won} by reading beyond L."
    if not won:
        answer = "Only the training length was evaluated."
    at_end = used.xs(ratios[-1], level="ratio").dropna()
    if len(at_end):
        most = f"{named(str(at_end.idxmax()))} wins the largest share of that, {100 * at_end.max():.0f} %"
        answer += f" At {ratio_name(ratios[-1])}, {most if at_end.max() > 0 else 'no encoding wins any of that'}."
    legend = [
        "above the optimum: bits per byte above the smallest loss that any model can reach on these windows "
        f"({protocol})",
        "used: context gain as a share of what the optimum gains from the same longer windows; below 0 %, longer "
        f"windows harm; - where that is less than {LEAST_HEADROOM} bits per byte",
    ]
    if needs_position:
        best, blind = (number(table[name].xs(ratios[-1], level="ratio").mean()) for name in ("best", "blind"))
        answer += f" At {ratio_name(ratios[-1])}, no model can be better than {best} bits per byte, and no reader that "
        answer += f"ignores positions better than {blind}."
        legend.insert(
            1,
            "above blind: bits per byte above what a reader that ignores positions could reach at best: it knows the "
            "token before, and how often others occurred, in any order; below 0, the order is used",
        )
    return Analysis("How far from the best possible loss?", answer, tuple(columns), tuple(legend))


def by_period(rows: pd.DataFrame, units: LossTable, summary: pd.DataFrame) -> Analysis | None:
    """The losses at L and at the longest length on documents of each octave of the period; None without periods."""
    corpora = sorted(set(rows["corpus"]))
    periods = periods_of(corpora[0]) if len(corpora) == 1 else None
    if periods is None:
        return None
    protocol, bits = headline(rows).gain or headline(rows).perplexity, bits_per(rows)
    scored = of_model(rows, protocol)
    scored = scored[scored["ratio"].isin((1, scored["ratio"].max()))]
    means: dict[tuple[float, str], pd.Series] = {}
    for (ratio, name), part in scored.groupby(["ratio", "encoding"]):
        losses = units.losses(list(part["run_id"].unique()), protocol, int(part["length"].iloc[0]), FULL)
        if losses is not None:
            octaves = np.log2([periods[int(unit.partition(":")[0])] for unit in losses.units]).astype(int)
            table = pd.DataFrame({"nats": losses.nats.mean(axis=0), "bytes": losses.bytes}).groupby(octaves).sum()
            means[ratio, name] = table["nats"] / table["bytes"] / LN2
    if not means:
        return None
    by_octave = pd.DataFrame(means).sort_index()
    names = [name for name in summary["encoding"] if name in by_octave.columns.unique(1)]
    columns, lowest = [words("encoding", names)], list[str]()
    for ratio in by_octave.columns.unique(0):
        at_length = by_octave[ratio].reindex(columns=names)
        for octave, row in at_length.iterrows():
            low, high = max(2 ** int(octave), min(periods)), min(2 ** int(octave) * 2 - 1, max(periods))
            cells = tuple("-" if v != v else f"{v:.3f}" for v in row)
            columns.append(Column(f"{low} to {high} {ratio_name(ratio)}", cells))
        shortest, longest = (named(str(at_length.iloc[end].idxmin())) for end in (0, -1))
        there = " and" if shortest == longest else f", and {longest}"
        lowest.append(
            f"At {ratio_name(ratio)}, {shortest} has the lowest loss where periods are shortest{there} where they are "
            "longest."
        )
    legend = (
        f"{bits} ({protocol}) on documents that repeat themselves after so many tokens; L = {the_train_length(rows)}"
    )
    return Analysis("From how far back is text repeated?", " ".join(lowest), tuple(columns), (legend,))


def audit(
    measured: Mapping[str, Sequence[Point]], quoted: Headline, summary: pd.DataFrame, bits: str
) -> Analysis | None:
    """The rankings under all protocols at the longest length; None if there is nothing to compare.

    The early-token effect of an encoding (the early token curse of Press et al., 2021) is how much its loss falls from
    the shortest to the longest length under a protocol, minus its context gain, which is what the longer context is
    worth on the same tokens. What is left is due to the tokens at the start of each window: with longer windows, fewer
    tokens have little context.

    `measured` are the points of each protocol.
    """
    fair, main = set(summary.loc[summary["verdict"].map(can_win), "encoding"]), quoted.perplexity
    losses = {name: ends for name, points in measured.items() if len(ends := _ends(points, fair))}
    if len(losses) < 2 or main not in losses or len(losses[main]) < 2:
        return None
    of_gain = measured.get(quoted.gain, ())
    longest = max((point.length for point in of_gain), default=0)
    gains = pd.Series({point.encoding: point.gain[0] for point in of_gain if point.length == longest}, dtype=float)
    effects, agreements, swaps = [], [], []
    for name, ends in losses.items():
        both = losses[main].index.intersection(ends.index)
        ours, theirs = losses[main].loc[both, "last"], ends.loc[both, "last"]
        tau = scipy.stats.kendalltau(ours, theirs).statistic if len(both) > 1 else math.nan
        agreements.append("-" if math.isnan(tau) else f"{tau:.2f}")
        effect = (ends["first"] - ends["last"] - gains.reindex(ends.index)).dropna()
        mean = signed(float(effect.mean()))
        spans = f" ({signed(float(effect.min()))} to {signed(float(effect.max()))})" if len(effect) > 1 else ""
        effects.append(f"{mean}{spans}")
        swapped = [
            f"{named(a)} with {named(b)}"
            for a, b in combinations(both, 2)
            # Both differences are of consequence, and of opposite sign.
            if (ours[a] - ours[b]) * (theirs[a] - theirs[b]) < 0
            and min(abs(ours[a] - ours[b]), abs(theirs[a] - theirs[b])) >= HARM_BPB
        ]
        if name != main and swapped:
            swaps.append(f"under {name}, other than under {main}, these change places: {listed(swapped, SHOWN)}")
    unchanged = f"no two encodings that differ by {HARM_BPB} bits or more change places"
    ratio = ratio_name(max(point.ratio for points in measured.values() for point in points))
    known = [PROTOCOLS.get(name).convention if name in PROTOCOLS.names() else "" for name in losses]
    return Analysis(
        f"Does the ranking at {ratio} depend on the protocol?",
        f"Yes: {'; '.join(swaps)}." if swaps else f"No: under {listed(list(losses))}, {unchanged}.",
        (
            words("protocol", losses),
            words("best to worst", [listed([str(each) for each in ends.index], 12) for ends in losses.values()]),
            Column(f"agrees with {main}", tuple(agreements)),
            Column("early-token effect", tuple(effects)),
            words("published as", [each or "-" for each in known]),
        ),
        (
            "best to worst: encodings by their loss, without those that failed or were trained too little",
            f"agrees with {main}: Kendall's tau of the two rankings; 1 is the same order, -1 the reverse",
            f"early-token effect: {bits} by which the loss falls from 1x to {ratio} beyond the context gain, "
            "mean and range over encodings: by so much this protocol flatters long windows",
        ),
    )


def _ends(points: Sequence[Point], fair: set[str]) -> pd.DataFrame:
    """Bits per byte at the shortest and the longest length of the encodings that have both, best first."""
    known = [point for point in points if point.encoding in fair and point.status == "ok" and point.is_known]
    losses: dict[str, dict[int, float]] = {}
    for point in known:
        losses.setdefault(point.encoding, {})[point.length] = point.loss[0]
    shortest, longest = (choose((p.length for p in known), default=0) for choose in (min, max))
    ends = {
        name: (at[shortest], at[longest])
        for name, at in losses.items()
        if shortest < longest and {shortest, longest} <= set(at)
    }
    return pd.DataFrame(ends.values(), index=list(ends), columns=["first", "last"], dtype=float).sort_values("last")
