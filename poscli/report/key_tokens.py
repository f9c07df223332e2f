"""Key tokens: does an encoding predict the tokens for which another model, the judge, needs long context?"""

from __future__ import annotations

import pandas as pd

from poscli.drawing.text import listed, signed
from poscli.report.analysis import Analysis
from poscli.report.pooling import LN2
from poscli.report.table import Column, gain_text
from poscli.why.context_use import FALL, GROWTH, KEY, OTHER


def on_key_tokens(table: pd.DataFrame, summary: pd.DataFrame) -> Analysis | None:
    """What the longest window wins on key tokens and on all others; None if no run was judged."""
    if table.empty:
        return None
    means = table.groupby(["encoding", "kind"])[["tokens", "nll", "nll_crop", "gain", "gain_low", "gain_high"]].mean()
    names = [name for name in summary["encoding"] if (name, KEY) in means.index]
    key, other = (means.reindex([(name, kind) for name in names]).droplevel("kind") for kind in (KEY, OTHER))
    columns = (
        Column("encoding", tuple(names), right=False),
        Column("key tokens", tuple(f"{count:.0f}" for count in key["tokens"])),
        Column("bits, cut to L", tuple(_bits(value) for value in key["nll_crop"])),
        Column("bits, longest window", tuple(_bits(value) for value in key["nll"])),
        Column("gain [95 %]", tuple(_gain(key.loc[name]) for name in names)),
        Column("gain on others", tuple(signed(value / LN2) for value in other["gain"])),
    )
    return Analysis(
        "Does it predict the tokens that need long context?",
        _answer(key),
        columns,
        (
            f"key tokens: those on which the judge, trained on windows of at least {GROWTH} L, wins more than {FALL:g} "
            f"nats by reading {GROWTH} L instead of L; mean over seeds",
            "bits: loss per key token, mean over seeds",
            "gain: bits per token won by the longest window; the interval is over documents, mean over seeds",
        ),
    )


def _answer(key: pd.DataFrame) -> str:
    measured = key.dropna(subset=["gain"])
    if measured.empty:
        return "The judge found too few key tokens to say."
    sure = measured[measured["gain_low"] > 0].sort_values("gain", ascending=False)
    left = [str(name) for name in measured.index if name not in sure.index]
    told = [f"Longer context helps on them with {listed(list(sure.index), 8)}"] * bool(len(sure))
    told += [f"nothing is shown to be won by {listed(left, 8)}"] * bool(left)
    text = "; ".join(told)
    return f"{text[0].upper()}{text[1:]}."


def _gain(row: pd.Series) -> str:
    return gain_text(*(float(row[name]) / LN2 for name in ("gain", "gain_low", "gain_high")))


def _bits(nats: float) -> str:
    return f"{nats / LN2:.2f}" if nats == nats else "-"
