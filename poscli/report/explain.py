"""Explanations of protocols and baselines, for the end of a report."""

from __future__ import annotations

import pandas as pd

from poscli.evaluation.baseline import baseline
from poscli.evaluation.protocol import PROTOCOLS
from poscli.report.markdown import escape
from poscli.runs.schema import FULL
from poscli.system.errors import UsageError


def explanations(rows: pd.DataFrame) -> list[str]:
    """One line of Markdown for every protocol and then every baseline in rows of eval.csv, in the order of the rows."""
    lines = []
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
