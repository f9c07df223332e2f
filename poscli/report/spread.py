"""How sure are the numbers: the spread over seeds apart from that over documents."""

from __future__ import annotations

import pandas as pd

from poscli.drawing.text import low_to_high, named
from poscli.report.analysis import Analysis
from poscli.report.origin import bits_per
from poscli.report.pooling import LN2, headline, sound
from poscli.report.summary import ratio_name
from poscli.report.table import Column
from poscli.runs.schema import FULL
from poscli.statistics import FEWEST_SEEDS
from poscli.statistics.comparison import LossTable
from poscli.statistics.intervals import Interval, two_level_interval

Found = dict[tuple[str, float], Interval]  # by encoding and ratio


def spread(rows: pd.DataFrame, units: LossTable) -> Analysis | None:
    """The loss of every encoding at 1x and at the longest length with its interval and both spreads.

    None if no encoding has enough seeds.
    """
    protocol = headline(rows).perplexity
    own = rows[(rows["protocol"] == protocol) & (rows["variant"] == FULL) & sound(rows)]
    found: Found = {}
    for ratio in sorted({1.0, float(own["ratio"].max())}) if len(own) else []:
        for name, part in own[own["ratio"] == ratio].groupby("encoding"):
            runs = list(part["run_id"].unique())
            if len(runs) < FEWEST_SEEDS:
                continue
            losses = units.losses(runs, protocol, int(part["length"].iloc[0]), FULL)
            if losses is not None:
                found[str(name), ratio] = two_level_interval(losses.nats / LN2, losses.bytes)
    return _analysis(found, bits_per(rows)) if found else None


LEGEND = (
    "over seeds: standard deviation of the losses of single seeds on the same documents",
    "over documents: standard deviation of the losses of single documents, averaged over seeds",
)


def _analysis(found: Found, bits: str) -> Analysis:
    names, ratios = list(dict.fromkeys(name for name, _ in found)), sorted({ratio for _, ratio in found})
    columns = [Column("encoding", tuple(names), right=False)]
    for ratio in ratios:
        cells, head = [found.get((name, ratio)) for name in names], ratio_name(ratio)
        columns += [
            Column(
                f"{bits} {head} [95 %]",
                tuple("-" if c is None else f"{c.estimate:.3f} [{c.low:.3f}, {c.high:.3f}]" for c in cells),
            ),
            Column(f"over seeds {head}", tuple("-" if c is None else f"{c.seed_sd:.3f}" for c in cells)),
            Column(f"over documents {head}", tuple("-" if c is None else f"{c.document_sd:.3f}" for c in cells)),
        ]
    legend = (f"{bits}: the loss with its 95 % interval over seeds and documents", *LEGEND)
    return Analysis("How sure are these numbers?", _answer(found, ratios[-1], bits), tuple(columns), legend)


def _answer(found: Found, ratio: float, bits: str) -> str:
    """Which encodings depend most on the seed at the longest length."""
    last = {name: interval for (name, at), interval in found.items() if at == ratio}
    widest = max(last, key=lambda name: last[name].seed_sd)
    least = min(last, key=lambda name: last[name].seed_sd)
    seeds = low_to_high({interval.seeds for interval in last.values()})
    text = f"{seeds} seeds per encoding. At {ratio_name(ratio)}, seeds of {named(widest)} differ most"
    text += f" (by {last[widest].seed_sd:.3f} {bits})"
    return f"{text}, those of {named(least)} least (by {last[least].seed_sd:.3f})." if widest != least else f"{text}."
