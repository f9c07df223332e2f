"""Explanations of corpora, protocols and baselines, for the end of a report."""

from __future__ import annotations

import pandas as pd

from poscli.data import kind_of
from poscli.evaluation.baseline import baseline
from poscli.evaluation.protocol import PROTOCOLS
from poscli.report.markdown import escape
from poscli.runs.schema import FULL
from poscli.system.errors import UsageError


def explanations(rows: pd.DataFrame) -> list[str]:
    """Lines of Markdown for rows of eval.csv: corpora that need one, then every protocol, then every baseline."""
    kinds = dict.fromkeys(kind_of(corpus) for corpus in rows["corpus"].unique())
    lines = [kind.explained for kind in kinds if kind and kind.explained]
    for name in dict.fromkeys(rows["protocol"]):
        lines.append(PROTOCOLS.get(name).explained if name in PROTOCOLS.names() else _unknown(name, "protocol"))
    for name in dict.fromkeys(rows["variant"]):
        if name == FULL:
            continue
        try:
            lines.append(baseline(name).explain())
        except UsageError:  # the rows come from an installation that has more baselines
            lines.append(_unknown(name, "baseline"))
    return lines


def _unknown(name: str, kind: str) -> str:
    return f"**{escape(name)}** is a {kind} that is not installed here."
