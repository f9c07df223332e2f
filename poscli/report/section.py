"""Everything that a report says about one section, computed in one place from the rows of its runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from poscli.drawing.style import Styles, styles_for
from poscli.evaluation.protocol import PROTOCOLS
from poscli.report.accuracy import answered, is_depth, learned_after, placed
from poscli.report.analyses import audit, by_period, compared, known_limit, order_under_other_seeds, seed_spread
from poscli.report.answer import Answers
from poscli.report.catalogue import describe_spec, looks, spec_in_label
from poscli.report.caveats import age_note, budget_note, caveats
from poscli.report.ceilings import ceilings_of, use_of_ceilings
from poscli.report.charts import Charts, positions_in_bits
from poscli.report.collect import Trained, configurations, reproduce, timing_note
from poscli.report.comparison import AllPairs, gains_of, losses_of, wrong_answers
from poscli.report.data import (
    Accuracies,
    Analysis,
    BinData,
    Cost,
    EncodingData,
    Fact,
    Harm,
    ProtocolData,
    ProtocolPoints,
    Section,
    Values,
)
from poscli.report.gate import gate_note
from poscli.report.groups import Group
from poscli.report.origin import bits_per, facts, items_of, unit_of
from poscli.report.pooling import (
    ACCURACY,
    Headline,
    Point,
    gain_protocol,
    headline,
    is_answered,
    is_per_byte,
    of_model,
    points_of,
    ratio_name,
    task_measures,
    the_train_length,
)
from poscli.report.reach import EFFECTIVE
from poscli.report.recall import hits, recalled
from poscli.report.summary import standings, summarize
from poscli.report.verdicts import can_win, meanings
from poscli.report.why import broken_by, changes_shown, on_key_tokens, used_window
from poscli.runs.schema import FULL
from poscli.statistics import FEWEST_SEEDS, UNKNOWN
from poscli.statistics.comparison import LN2, EncodingLosses
from poscli.statistics.intervals import many_differences
from poscli.why.attribution import CAUSES
from poscli.why.attribution import FULL as WHOLE

MILLION = 1_000_000


@dataclass(frozen=True)
class Order:
    """The order of lists by encoding, by length and by seed."""

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]

    def per_seed(self, table: pd.DataFrame, column: str) -> tuple[Values, ...]:
        """The values of a column of rows with `encoding` and `seed`, a list for each encoding; NaN where missing."""
        known = table.drop_duplicates(["encoding", "seed"]).set_index(["encoding", "seed"])[column].to_dict()
        return tuple(tuple(float(known.get((name, seed), math.nan)) for seed in self.seeds) for name in self.names)

    def bins(self, table: pd.DataFrame, column: str, points: pd.DataFrame | None = None) -> tuple[BinData, ...]:
        """The values of a column in each bin from `from` to `to`; `points` have the column's means with intervals."""
        known, ends = {}, [column, "low", "high"]
        if points is not None:
            keys = zip(points["encoding"], points["from"], strict=True)
            known = dict(zip(keys, points[ends].itertuples(index=False, name=None), strict=True))
        bins = []
        for (first, last), part in table.groupby(["from", "to"]):
            lines = (known.get((name, first), UNKNOWN) for name in self.names if known)
            intervals = tuple((float(mean), float(low), float(high)) for mean, low, high in lines)
            bins.append(BinData(int(first), int(last), self.per_seed(part, column), intervals))
        return tuple(bins)


def section_of(
    group: Group,
    runs: Mapping[str, Trained],
    baseline: str,
    longer: Sequence[Group],
    ngram: str,
) -> Section:
    """The section of a group of rows.

    `runs` is what is known of the trainings, by run id. All other encodings are compared with `baseline`. `longer` are
    groups of the same text whose models were trained at longer lengths. `ngram` is a sentence about what an n-gram with
    a cache wins on the text.
    """
    rows, quoted, train_length = group.rows, headline(group.rows), the_train_length(group.rows)
    summary = summarize(group)
    order = Order(
        tuple(map(str, summary["encoding"])),
        tuple(int(length) for length in sorted(set(rows["length"]))),
        tuple(sorted(int(seed) for seed in set(rows["seed"]))),
    )
    names = list(dict.fromkeys(map(str, rows["protocol"])))
    losses = {} if group.units is None else {name: losses_of(rows, group.units, name) for name in names}
    measured = _measured(group, losses, order)
    main = measured[quoted.perplexity, FULL]
    accuracies = _accuracies(group, main, order, quoted)
    protocols = _protocols(group, summary, measured, losses, accuracies, order, runs)
    ceilings = ceilings_of(group, longer, summary)
    use = use_of_ceilings(ceilings, summary, bits_per(rows), ngram)
    charts = Charts(group, summary, measured, runs)
    drawn, missing = charts.all()
    ranked, failed = (list(map(charts.short, names)) for names in standings(summary))
    styles = styles_for(ranked, failed, always=charts.model)
    return Section(
        title=group.title,
        slug=group.slug,
        train_length=train_length,
        lengths=order.lengths,
        seeds=order.seeds,
        few_seeds=bool(rows.groupby("encoding")["seed"].nunique().max() < FEWEST_SEEDS),
        unit=unit_of(rows),
        bits=bits_per(rows),
        items=items_of(rows),
        per_byte=is_per_byte(rows),
        headline=quoted,
        summary=summary,
        answered=is_answered(rows),
        encodings=_encodings(summary, rows, runs, {name: styles[charts.short(name)] for name in order.names}),
        styles=styles,
        protocols=protocols,
        measured=tuple(ProtocolPoints(*key, points) for key, points in measured.items()),
        accuracies=accuracies,
        measures=_measures(rows, order),
        costs=_costs(rows, order, runs),
        timing=timing_note(rows["run_id"].unique(), runs),
        positions=() if group.positions.empty else order.bins(positions_in_bits(group), "bits"),
        recall=_recall(group, order),
        ceilings=ceilings,
        use=use,
        harms=_harms(group.details.get("why/attribution", pd.DataFrame()), order),
        facts=tuple(facts(rows, runs)),
        made=_made(rows, runs),
        made_of={str(name): _made(part, runs) for name, part in rows.groupby("encoding")},
        analyses=(
            *([use] if use else []),
            *_analyses(group, summary, measured, protocols, accuracies, baseline, runs),
        ),
        notes=(
            *group.notes,
            *age_note(rows),
            *caveats(rows, summary, main),
            *gate_note(group.behind, summary),
            *budget_note(rows, summary, runs),
            *missing,
        ),
        figures=tuple(drawn),
    )


def _measured(
    group: Group, losses: Mapping[str, EncodingLosses], order: Order
) -> dict[tuple[str, str], tuple[Point, ...]]:
    """The points of every protocol and variant.

    `losses` are those of single documents, by protocol. From these, the points of models, but not of baselines, have
    intervals over seeds and documents; all other intervals are over documents.
    """
    keys = [(name, length) for name in order.names for length in order.lengths]
    rows, exact = group.rows, {}
    for protocol, each in losses.items():
        numbers = many_differences([each.of((name, FULL), length) for name, length in keys], test=False)
        exact[protocol] = dict(zip(keys, numbers[:, :3], strict=True))
    return {
        (protocol, variant): points_of(
            rows, protocol, variant, exact.get(protocol) if variant == FULL else None, group.ends
        )
        for protocol, variant in dict.fromkeys(zip(rows["protocol"], rows["variant"], strict=True))
    }


def _protocols(
    group: Group,
    summary: pd.DataFrame,
    measured: Mapping[tuple[str, str], Sequence[Point]],
    losses: Mapping[str, EncodingLosses],
    accuracies: Accuracies | None,
    order: Order,
    runs: Mapping[str, Trained],
) -> tuple[ProtocolData, ...]:
    """Each protocol with its comparisons and its answer; a task with right answers has one answer."""
    rows, answers = group.rows, Answers(group.rows, summary, runs)
    names = list(dict.fromkeys(map(str, rows["protocol"])))
    gain_from = {name: gain_protocol(rows, name) for name in names}
    by_accuracy = None if accuracies is None else answers.by_accuracy(accuracies)
    protocols = []
    for name in names:
        explained = PROTOCOLS.get(name).explained if name in PROTOCOLS.names() else ""
        pairs = AllPairs.of(losses[name], order.names, order.lengths) if losses else None
        gains = None
        if group.units is not None and name in gain_from.values():
            gains = AllPairs.of(gains_of(rows, group.units, name), order.names, order.lengths)
        answer = by_accuracy or answers.by_loss(measured[name, FULL], measured.get((gain_from[name], FULL), ()), pairs)
        plain = explained.replace("**", "").replace("`", "")
        protocols.append(ProtocolData(name, plain, answer, pairs, gains, gain_from[name]))
    return tuple(protocols)


def _encodings(
    summary: pd.DataFrame, rows: pd.DataFrame, runs: Mapping[str, Trained], styles: Styles
) -> tuple[EncodingData, ...]:
    """The encodings in the order of the summary: the best at the longest length first; `styles` are those of lines."""
    meaning = meanings(bits_per(summary))
    described = {str(name): describe_spec(spec_in_label(str(name))) for name in summary["encoding"]}
    look = looks({name: each.family for name, each in described.items()}, styles)
    ids = rows.groupby("encoding")["run_id"].unique()
    encodings = []
    for row in summary.to_dict("records"):
        name = str(row["encoding"])
        encodings.append(
            EncodingData(
                name=name,
                family=described[name].family,
                acts=described[name].acts,
                parts=described[name].parts,
                parameters=int(row["parameters"]),
                extra=int(row["parameters"] - summary["parameters"].min()),
                seeds=int(row["seeds"]),
                safe=float(row["safe"]),
                harmful=float(row["harmful"]),
                safety=row["safety"],
                **{name: float(row[name]) for name in EFFECTIVE},
                verdict=row["verdict"],
                meaning=meaning.get(row["verdict"], "no number at the longest length"),
                reason=row["reason"],
                can_win=can_win(row["verdict"]),
                color=look[name].color,
                dash=look[name].dash,
                strong=look[name].strong,
                command=reproduce([runs[run] for run in ids[name] if run in runs]),
            )
        )
    return tuple(encodings)


def _made(rows: pd.DataFrame, runs: Mapping[str, Trained]) -> tuple[Fact, ...]:
    """How these rows were made: first the results, then the models."""
    models = [runs[run] for run in dict.fromkeys(rows["run_id"]) if run in runs]
    return (*facts(rows, runs), *configurations(models))


def _accuracies(group: Group, points: Sequence[Point], order: Order, quoted: Headline) -> Accuracies | None:
    """The right answers; None for tasks without them. `points` are those of the protocol that reports quote."""
    rows, answers = group.rows, group.details.get("answers", pd.DataFrame())
    if not is_answered(rows):
        return None
    known = {(point.encoding, point.length): (point.measures[ACCURACY], math.nan, math.nan) for point in points}
    chance, pairs, by_depth, longest, places = math.nan, None, False, 0, tuple[BinData, ...]()
    if not answers.empty:
        known = {key: numbers for key, numbers in known.items() if key[0] not in set(answers["encoding"])}
        columns = ["encoding", "length", "accuracy", "low", "high"]
        for name, length, *numbers in group.by_length[columns].itertuples(index=False):
            known[str(name), int(length)] = (float(numbers[0]), float(numbers[1]), float(numbers[2]))
        losses = losses_of(rows, wrong_answers(answers, quoted.perplexity), quoted.perplexity)
        pairs = AllPairs.of(losses, order.names, order.lengths)
        chance, by_depth, longest = float(answers["chance"].iloc[0]), is_depth(answers), int(answers["length"].max())
        bins = group.by_place[["from", "to"]].drop_duplicates()
        if len(bins) > 1:
            last = answers[answers["length"] == longest].merge(bins, on=["from", "to"])
            totals = last.groupby(["encoding", "seed", "from", "to"], as_index=False)[["right", "tokens"]].sum()
            share = totals["right"] / np.maximum(totals["tokens"], 1)
            places = order.bins(totals.assign(accuracy=share), "accuracy", group.by_place)
    lines = tuple(tuple(known.get((name, length), UNKNOWN) for length in order.lengths) for name in order.names)
    return Accuracies(lines, chance, pairs, by_depth, places, longest)


def _measures(rows: pd.DataFrame, order: Order) -> dict[str, dict[str, tuple[tuple[Values, ...], ...]]]:
    """The columns that a task added, such as accuracy: by name, protocol, length, encoding and seed."""
    scored = rows[(rows["variant"] == FULL) & (rows["status"] == "ok")]
    return {
        name: {
            str(protocol): tuple(order.per_seed(part[part["length"] == length], name) for length in order.lengths)
            for protocol, part in scored.groupby("protocol")
            if part[name].notna().any()
        }
        for name in task_measures(scored)
    }


def _costs(rows: pd.DataFrame, order: Order, runs: Mapping[str, Trained]) -> tuple[Cost, ...]:
    """Seconds of training, and of reading a million tokens in the longest window, where they are known."""
    scored = of_model(rows, headline(rows).perplexity)
    last = scored[scored["length"] == rows["length"].max()]
    last = last.assign(reading=MILLION / last["tokens_per_s"].where(last["tokens_per_s"] > 0))
    every = rows.drop_duplicates("run_id")
    every = every.assign(seconds=[runs[run].seconds if run in runs else math.nan for run in every["run_id"]])
    ratio = ratio_name(rows["length"].max() / the_train_length(rows))
    costs = (
        Cost("seconds", "training time", order.per_seed(every, "seconds")),
        Cost("reading", f"reading 1M tokens at {ratio}", order.per_seed(last, "reading")),
    )
    return tuple(cost for cost in costs if any(map(math.isfinite, (v for line in cost.values for v in line))))


def _recall(group: Group, order: Order) -> tuple[BinData, ...]:
    """The gain on tokens that could be copied, by distance, in bits per token."""
    recall = group.details.get("recall", pd.DataFrame())
    if recall.empty:
        return ()
    return order.bins(hits(recall), "bits", group.recall_points.rename(columns={"gain": "bits"}))


def _harms(table: pd.DataFrame, order: Order) -> tuple[Harm, ...]:
    """Harm of the long window, and of one change at a time, in bits per token by seed; or why there is none."""
    if table.empty:
        return ()
    titles = {WHOLE: "the whole window"} | {change: f"{CAUSES[change]} ({change})" for change in changes_shown(table)}
    harms = []
    for change, title in titles.items():
        part = table[table["change"] == change]
        known = part[part["status"] == "ok"]
        failed = part[(part["status"] != "ok") & ~part["encoding"].isin(known["encoding"])].drop_duplicates("encoding")
        reasons = {row["encoding"]: f"{row['status']}: {row['reason']}" for row in failed.to_dict("records")}
        values = order.per_seed(known.assign(bits=known["harm"] / LN2), "bits")
        harms.append(Harm(title, values, tuple(reasons.get(name, "") for name in order.names)))
    return tuple(harms)


def _analyses(
    group: Group,
    summary: pd.DataFrame,
    measured: Mapping[tuple[str, str], Sequence[Point]],
    protocols: Sequence[ProtocolData],
    accuracies: Accuracies | None,
    baseline: str,
    runs: Mapping[str, Trained],
) -> list[Analysis]:
    """The analyses, in the order in which a report shows them."""
    rows, quoted, bits = group.rows, headline(group.rows), bits_per(group.rows)
    details = {name: table for name, table in group.details.items() if len(table)}
    main = measured[quoted.perplexity, FULL]
    analyses = list[Analysis | None]()
    if "answers" in details:
        answers = details["answers"]
        analyses += [
            answered(answers, group.by_length, summary),
            learned_after(rows, runs, summary),
            placed(answers, group.by_place, summary),
        ]
        if baseline and accuracies is not None and accuracies.pairs is not None:
            analyses.append(compared(accuracies.pairs, main, baseline, bits, of_answers=True))
    elif group.units is not None:
        pairs = next(each.losses for each in protocols if each.name == quoted.perplexity)
        if baseline and pairs is not None:
            analyses.append(compared(pairs, main, baseline, bits, of_answers=False))
        analyses.append(seed_spread(rows, group.units))
        analyses.append(order_under_other_seeds(rows, group.units, summary))
    analyses.append(known_limit(rows, summary))
    if group.units is not None:
        analyses.append(by_period(rows, group.units, summary))
    if "recall" in details:
        analyses.append(recalled(details["recall"], group.recall_points, summary))
    if "why/attribution" in details:
        gains = {variant: points for (protocol, variant), points in measured.items() if protocol == quoted.gain}
        variants = dict.fromkeys(rows["variant"])
        gains = {variant: gains.get(variant, ()) for variant in variants}
        analyses.append(broken_by(details["why/attribution"], gains, summary))
    if "why/saturation" in details:
        analyses.append(used_window(group.details, summary))
    if "why/key_tokens" in details:
        analyses.append(on_key_tokens(details["why/key_tokens"], summary))
    if accuracies is None:
        of_model_only = {protocol: points for (protocol, variant), points in measured.items() if variant == FULL}
        analyses.append(audit(of_model_only, quoted, summary, bits))
    return [analysis for analysis in analyses if analysis is not None]
